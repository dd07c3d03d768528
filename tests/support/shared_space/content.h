// SPDX-License-Identifier: Apache-2.0
// What a tensor holds: words that say whose and which number they are, in every place another value, and a
// checksum over all of them. Content whose parts are of two numbers, or at wrong places, does not hold
// together.
//
//   word 0              number << 16 | host << 8 | tensor
//   words 1 to 8        for each tensor of each host, the newest number that the writer's host had seen before
//   then                a mixture of word 0 and the place
//   last word           crc32c of all before
//
// Words 1 to 8 carry order between hosts: who has read this must not read anything older of those tensors
// afterwards, though nobody of its own host has seen it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/support/shared_space/ledger.h"

namespace terrace::shared_space {

inline constexpr uint32_t known_words = hosts * tensors;

struct Content {
  uint64_t number = 0;
  uint64_t known[hosts][tensors] = {};
};

std::vector<uint64_t> compose(uint32_t host, uint32_t index, const Content& content);

// Nothing, with what is wrong in `why`, unless all of it is one content of that tensor.
std::optional<Content> examine(std::span<const std::byte> bytes, uint32_t host, uint32_t index,
                               std::string* why);

}  // namespace terrace::shared_space
