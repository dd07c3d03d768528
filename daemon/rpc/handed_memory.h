// SPDX-License-Identifier: Apache-2.0
// Descriptors of memory on their way to a peer. A capability of a lease carries one in the answer that hands it over;
// from when that answer is written the peer has its own, and ours is closed: what a peer keeps costs nothing here.
//
//   hand_over -> HandedMemory, open -> getFd(): an answer carries it -> written to the socket -> closed
//
// Place     Lease and move capabilities own one each; the connection knows which of them its unsent answers carry.
// Threads   The event loop's thread only.
#pragma once

#include <kj/common.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>

#include "core/base/unique_fd.h"

namespace terrace::daemon {

// How many are open now: of one uid, and of all that are no administrator's.
struct OpenCounts {
  std::shared_ptr<uint32_t> of_uid, of_all;
};

class HandedMemory {
 public:
  HandedMemory(std::shared_ptr<const UniqueFd> memory, OpenCounts counts);
  ~HandedMemory() { close(); }
  HandedMemory(const HandedMemory&) = delete;
  HandedMemory& operator=(const HandedMemory&) = delete;

  int fd() const { return memory_ == nullptr ? -1 : memory_->get(); }
  void close();

 private:
  std::shared_ptr<const UniqueFd> memory_;
  OpenCounts counts_;
};

// Of one connection.
class CarriedMemory {
 public:
  // An answer is being made that carries it: null once another one did.
  kj::Maybe<int> carry(const std::shared_ptr<HandedMemory>& memory);
  // An answer with these descriptors is written, or never will be.
  void written(kj::ArrayPtr<const int> fds);

 private:
  std::deque<std::shared_ptr<HandedMemory>> unsent_;  // in the order of their answers
};

}  // namespace terrace::daemon
