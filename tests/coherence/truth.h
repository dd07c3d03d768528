// SPDX-License-Identifier: Apache-2.0
// What the tensors of an emulated world really are, kept beside the shared memory: what was published, and what
// a reader may therefore get. Every answer of the protocol is held against it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "libclient/coherence/space_core.h"

namespace terrace::coherence {

struct Truth {
  std::string name;
  uint32_t slots = 1;
  uint64_t words = 0;
  uint64_t confirmed = 0;    // when create() returned
  uint64_t removing = 0;     // when remove() began, while it goes on or after it succeeded
  uint64_t removed = 0;      // when it was known to be gone
  uint64_t floor = 0;        // the version that publish() returned last; 0: there may be none
  uint64_t activity = 0;     // grows whenever a reader may be disturbed
  bool unsettled = false;    // remove() or abort() is under way: may not be pinned, may get another number
  uint64_t owner_began = 0;  // when its owner's last begin_write() or remove() began
  bool waiting = false;      // that one goes on, and a reader in place is in its way
  struct Pin {
    uint64_t since = 0;  // when pin() returned
    uint32_t slot = 0;
  };
  std::vector<Pin> pins;                  // of holders that live
  std::map<uint64_t, uint64_t> contents;  // version: what its bytes are made of

  // 0: no such version was ever written. A take-over gives the last published content a number 4 higher.
  uint64_t content(uint64_t version) const {
    auto found = contents.find(version);
    if (found == contents.end() && version >= 4) found = contents.find(version - 4);
    return found == contents.end() ? 0 : found->second;
  }
  void remember(uint64_t version, uint64_t content) {
    contents[version] = content;
    while (contents.size() > 64) contents.erase(contents.begin());
  }
  // Whether somebody who lives has read a slot in place since before `time`; any slot when `slot` is nothing.
  bool pinned_since_before(uint64_t time, std::optional<uint32_t> slot) const {
    return std::any_of(pins.begin(), pins.end(),
                       [&](const Pin& pin) { return pin.since < time && (!slot || pin.slot == *slot); });
  }
  void unpin(uint64_t since) {
    std::erase_if(pins, [&](const Pin& pin) { return pin.since == since; });
    if (!waiting || pinned_since_before(owner_began, std::nullopt)) return;
    waiting = false;
    if (slots == 1) floor = 0;  // whoever waited may go on, and die over it
  }
  static uint64_t word(uint64_t content, uint64_t index) { return content ^ (index * 0x9e3779b97f4a7c15ull); }
};

// part, record, incarnation
using Identity = std::tuple<uint32_t, uint32_t, uint64_t>;
inline Identity identity_of(const Located& tensor) {
  return {tensor.part, tensor.record, tensor.incarnation};
}

// What an operation on a known tensor may assume: taken before it begins.
struct Expected {
  uint64_t begin = 0;
  uint64_t floor = 0;
  uint64_t activity = 0;
};

}  // namespace terrace::coherence
