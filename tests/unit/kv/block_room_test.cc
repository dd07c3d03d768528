// SPDX-License-Identifier: Apache-2.0
#include "libclient/kv/block_room.h"

#include <doctest/doctest.h>

#include <map>

#include "core/base/prng.h"

namespace terrace::kv {
namespace {

constexpr uint64_t chunk = 4096;

TEST_CASE("room is taken and given, in chunks that are owned") {
  BlockRoom room(chunk, 4);
  std::vector<uint32_t> bad;
  CHECK(!room.take(64, &bad));
  room.own(2);
  CHECK(room.take(4096, &bad) == 2 * chunk);
  CHECK(!room.take(64, &bad));
  CHECK(!room.is_empty(2));
  room.give(2 * chunk, 4096, 0, &bad);
  CHECK(room.is_empty(2));
  room.disown(2);
  CHECK(room.owned() == 0);
  CHECK(bad.empty());
}

TEST_CASE("what was noted is not given to others, and what overlaps has no room") {
  BlockRoom room(chunk, 2);
  std::vector<uint32_t> bad;
  room.own(1);
  CHECK(room.note(chunk + 1024, 1024, 7));
  CHECK(room.note(chunk, 512, 8));
  CHECK(!room.note(0, 512, 10));            // in a chunk that it does not have
  CHECK(room.note(chunk + 1536, 1024, 9));  // overlaps 7
  CHECK(room.take(1024, &bad).has_value());
  CHECK(bad == std::vector<uint32_t>{9});
  bad.clear();
  room.give(chunk + 1024, 1024, 7, &bad);
  CHECK(room.free_bytes() == chunk - 512 - 1024);
  BlockRoom other(chunk, 1);
  other.own(0);
  CHECK(other.note(0, 1024, 1));
  CHECK(other.note(512, 1024, 2));
  other.give(512, 1024, 2, &bad);  // which never had it
  CHECK(bad == std::vector<uint32_t>{2});
  CHECK(other.free_bytes() == chunk - 1024);
}

TEST_CASE("random takes and gives never overlap") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Prng prng(seed);
    BlockRoom room(chunk, 8);
    std::map<uint64_t, uint64_t> held;
    std::vector<uint32_t> bad;
    for (uint32_t index = 0; index < 8; index += 2) room.own(index);
    for (int times = 0; times < 2000; ++times) {
      if (prng.below(2) == 0) {
        const uint64_t bytes = 64 * (1 + prng.below(30));
        const auto offset = room.take(bytes, &bad);
        if (!offset) continue;
        REQUIRE(room.owns(room.chunk_of(*offset)));
        REQUIRE(room.chunk_of(*offset) == room.chunk_of(*offset + bytes - 1));
        const auto after = held.lower_bound(*offset);
        REQUIRE((after == held.end() || after->first >= *offset + bytes));
        REQUIRE((after == held.begin() || std::prev(after)->first + std::prev(after)->second <= *offset));
        held[*offset] = bytes;
      } else if (!held.empty()) {
        auto one = held.lower_bound(prng.below(8 * chunk));
        if (one == held.end()) one = held.begin();
        room.give(one->first, one->second, 0, &bad);
        held.erase(one);
      }
    }
    CHECK(bad.empty());
  }
}

}  // namespace
}  // namespace terrace::kv
