// SPDX-License-Identifier: Apache-2.0
// Snapshots of a tiered range under running writers.
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "terrace/tiering.h"
#include "tests/support/skip.h"
#include "tests/unit/placement/pools.h"

using namespace terrace;
using namespace terrace::test;

namespace {

constexpr uint64_t granule = 2 * mib;

// A range of `granules`, half of them in DDR, and room beside it.
struct Ranges {
  explicit Ranges(uint32_t granules, uint32_t room_granules) : session(1 * gib) {
    tiering = take(Tiering::start({.session = &session}));
    LeaseRequest request;
    request.bytes = (granules + room_granules) * granule;
    range = take(tiering->make_range({.bytes = (granules + room_granules) * granule,
                                      .ddr_bytes_max = granules / 2 * granule,
                                      .name = "snapshot"},
                                     {*session.grant(request)}));
    bytes = range->bytes().first(granules * granule);
    room = range->bytes().subspan(granules * granule);
  }
  bool protects() const {
    if (!tiering->can_migrate()) TERRACE_SKIP(migration, tiering->why_not());
    return tiering->can_migrate();
  }
  Result<std::unique_ptr<Snapshot>> freeze(std::span<const std::byte> part) {
    const std::span<const std::byte> parts[1] = {part};
    const std::span<std::byte> rooms[1] = {room};
    return range->freeze(parts, std::span(rooms).first(room.empty() ? 0 : 1));
  }

  FakeSession session;
  std::unique_ptr<Tiering> tiering;
  std::unique_ptr<TieredRange> range;
  std::span<std::byte> bytes, room;
};

std::vector<std::byte> joined(const std::vector<std::span<const std::byte>>& places) {
  std::vector<std::byte> all;
  size_t bytes = 0;
  for (const auto place : places) bytes += place.size();
  all.reserve(bytes);  // what a vector grows through is new pages each time, and ASan's marks for them
  for (const auto place : places) all.insert(all.end(), place.begin(), place.end());
  return all;
}

// As a drain does: again until the places stay.
std::vector<std::byte> read_of(const Snapshot& snapshot, std::span<const std::byte> part) {
  for (;;) {
    const auto places = snapshot.view(part);
    std::vector<std::byte> all = joined(places);
    const auto after = snapshot.view(part);
    const bool same = std::equal(places.begin(), places.end(), after.begin(), after.end(),
                                 [](const auto& a, const auto& b) { return a.data() == b.data(); });
    if (same) return all;
  }
}

}  // namespace

TEST_CASE("Snapshot: holds what was there, while the program goes on storing") {
  Ranges ranges(8, 8);
  if (!ranges.protects()) return;
  fill(ranges.bytes, 1);
  const std::vector<std::byte> before(ranges.bytes.begin(), ranges.bytes.end());
  auto snapshot = take(ranges.freeze(ranges.bytes));
  CHECK(snapshot->status().copied_at_once_bytes == 0);
  CHECK(snapshot->status().reason == "");
  fill(ranges.bytes.subspan(granule, granule), 2);  // one granule
  CHECK(snapshot->status().copied_bytes == granule);
  CHECK(read_of(*snapshot, ranges.bytes) == before);
  CHECK(whole(ranges.bytes.subspan(granule, granule), 2));
  fill(ranges.bytes, 3);  // all of them
  CHECK(snapshot->status().copied_bytes == 8 * granule);
  CHECK(read_of(*snapshot, ranges.bytes) == before);
  snapshot->release(ranges.bytes);
  CHECK(snapshot->status().released_bytes == 8 * granule);
  CHECK(whole(ranges.bytes, 3));
  fill(ranges.bytes, 4);
  CHECK(whole(ranges.bytes, 4));
}

TEST_CASE("Snapshot: no store comes through, from many threads, with moves on either side") {
  constexpr uint32_t granules = 12;
  Ranges ranges(granules, granules);
  if (!ranges.protects()) return;
  std::atomic<bool> stop{false}, quiet{false};
  std::atomic<int> resting{0};
  std::vector<std::jthread> writers;
  constexpr int writer_count = 3;
  for (int index = 0; index < writer_count; ++index)
    writers.emplace_back([&, index ]() __attribute__((no_sanitize("thread"))) {
      std::minstd_rand random(static_cast<unsigned>(index) + 1);
      while (!stop) {
        if (quiet) {
          ++resting;
          quiet.wait(true);
          --resting;
        }
        auto* words = reinterpret_cast<uint64_t*>(ranges.bytes.data());
        const uint64_t at = random() % (granules * granule / 8);
        for (uint64_t i = at; i < std::min<uint64_t>(at + 64, granules * granule / 8); ++i) words[i] = random();
      }
    });
  std::vector<std::byte> before(ranges.bytes.size());
  for (int round = 0; round < 30; ++round) {
    quiet = true;
    while (resting < writer_count) std::this_thread::yield();
    std::memcpy(before.data(), ranges.bytes.data(), before.size());
    auto snapshot = take(ranges.freeze(ranges.bytes));
    quiet = false;
    quiet.notify_all();
    while (resting > 0) std::this_thread::yield();
    // In pieces, each released at once, as a drain does.
    for (uint64_t at = 0; at < ranges.bytes.size(); at += 3 * mib) {
      const auto part = ranges.bytes.subspan(at, std::min<uint64_t>(3 * mib, ranges.bytes.size() - at));
      const std::vector<std::byte> now = read_of(*snapshot, part);
      CHECK(std::memcmp(now.data(), before.data() + at, part.size()) == 0);
      snapshot->release(part);
    }
    CHECK(snapshot->status().released_bytes == granules * granule);
    snapshot.reset();
    // Translations of all kinds, as moves leave them.
    (void)ranges.range->move_to(ranges.bytes.subspan((round % 3) * 2 * granule, 2 * granule), Tier::cxl);
    (void)ranges.range->move_to(ranges.bytes.subspan((round % 4) * 2 * granule, 2 * granule), Tier::ddr);
  }
  stop = true;
}

TEST_CASE("Snapshot: where the room is used up a store waits for a release") {
  Ranges ranges(4, 1);
  if (!ranges.protects()) return;
  fill(ranges.bytes, 1);
  auto snapshot = take(ranges.freeze(ranges.bytes));
  std::atomic<int> stored{0};
  std::vector<std::jthread> writers;
  for (uint64_t number = 0; number < 3; ++number)
    writers.emplace_back([&, number] {
      ranges.bytes[number * granule] = std::byte{7};
      ++stored;
    });
  REQUIRE(eventually([&] { return stored == 1 && snapshot->status().waits_for_room >= 2; }));
  std::vector<std::byte> before(ranges.bytes.size());
  fill(before, 1);
  for (uint64_t number = 0; number < 4; ++number) {
    const auto part = ranges.bytes.subspan(number * granule, granule);
    const std::vector<std::byte> now = read_of(*snapshot, part);
    CHECK(std::memcmp(now.data(), before.data() + number * granule, granule) == 0);
    snapshot->release(part);
  }
  REQUIRE(eventually([&] { return stored == 3; }));
}

TEST_CASE("Snapshot: one that is dropped lets all stores through") {
  Ranges ranges(4, 0);
  if (!ranges.protects()) return;
  auto snapshot = take(ranges.freeze(ranges.bytes));
  std::atomic<bool> stored{false};
  std::jthread writer([&] {
    ranges.bytes[granule] = std::byte{7};
    stored = true;
  });
  REQUIRE(eventually([&] { return snapshot->status().waits_for_room == 1; }));
  CHECK(!stored);
  snapshot.reset();
  REQUIRE(eventually([&] { return stored.load(); }));
  CHECK(ranges.freeze(ranges.bytes).ok());
}

TEST_CASE("Snapshot: what is frozen does not move, what was released does") {
  Ranges ranges(8, 8);
  if (!ranges.protects()) return;
  fill(ranges.bytes, 1);
  auto snapshot = take(ranges.freeze(ranges.bytes.first(2 * granule)));
  CHECK(take(ranges.range->move_to(ranges.bytes.first(granule), Tier::cxl)) == 0);
  snapshot->release(ranges.bytes.first(granule));
  CHECK(take(ranges.range->move_to(ranges.bytes.first(granule), Tier::cxl)) == granule);
  CHECK(take(ranges.range->move_to(ranges.bytes.subspan(granule, granule), Tier::cxl)) == 0);
  CHECK(whole(ranges.bytes, 1));
}

TEST_CASE("Snapshot: system calls that store wait as stores do") {
  Ranges ranges(2, 2);
  if (!ranges.protects()) return;
  fill(ranges.bytes, 1);
  const std::vector<std::byte> before(ranges.bytes.begin(), ranges.bytes.end());
  auto snapshot = take(ranges.freeze(ranges.bytes));
  UniqueFd zero(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  CHECK(::read(zero.get(), ranges.bytes.data() + 100, granule) == static_cast<ssize_t>(granule));
  CHECK(read_of(*snapshot, ranges.bytes) == before);
}

TEST_CASE("Snapshot: what makes no sense, or does not fit, is refused") {
  Ranges ranges(4, 2);
  std::vector<std::byte> elsewhere(granule);
  CHECK(ranges.freeze(elsewhere).error().code == ErrorCode::invalid_argument);
  CHECK(ranges.freeze(ranges.range->bytes()).error().code == ErrorCode::invalid_argument);  // the room in it
  if (!ranges.protects()) return;
  auto snapshot = take(ranges.freeze(ranges.bytes));
  CHECK(ranges.freeze(ranges.bytes).error().code == ErrorCode::busy);
  snapshot.reset();
  CHECK(ranges.freeze(ranges.bytes).ok());
}
