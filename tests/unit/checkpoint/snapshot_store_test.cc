// SPDX-License-Identifier: Apache-2.0
// Stores that come while a snapshot is made, and while it is let go.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include "terrace/tiering.h"
#include "tests/support/skip.h"
#include "tests/unit/placement/pools.h"

using namespace terrace;
using namespace terrace::test;

namespace {

constexpr uint64_t granule = 2 * mib;
constexpr uint32_t granules = 8;

struct Ranges {
  Ranges() : session(1 * gib) {
    tiering = take(Tiering::start({.session = &session}));
    LeaseRequest request;
    request.bytes = 2 * granules * granule;
    range = take(tiering->make_range({.bytes = 2 * granules * granule,
                                      .ddr_bytes_max = granules / 2 * granule,
                                      .name = "stores",
                                      .policy = "static"},
                                     {*session.grant(request)}));
    bytes = range->bytes().first(granules * granule);
    room = range->bytes().subspan(granules * granule);
  }
  bool protects() const {
    if (!tiering->can_migrate()) TERRACE_SKIP(migration, tiering->why_not());
    return tiering->can_migrate();
  }
  std::span<std::byte> of(uint32_t number) const { return bytes.subspan(number * granule, granule); }

  FakeSession session;
  std::unique_ptr<Tiering> tiering;
  std::unique_ptr<TieredRange> range;
  std::span<std::byte> bytes, room;
};

// Stores counters to one word of each granule in turn, and remembers them.
class Writer {
 public:
  Writer(const Ranges& ranges, uint64_t offset) : ranges_(ranges), offset_(offset) {
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }
  uint64_t rounds() const { return rounds_; }
  // Once it has come by all granules after this call.
  bool goes_on() const {
    const uint64_t before = rounds();
    return eventually([&] { return rounds() >= before + 2; }, std::chrono::seconds(60));
  }
  void stop() {
    thread_.request_stop();
    thread_.join();
  }
  bool nothing_lost() const {
    for (uint32_t number = 0; number < granules; ++number)
      if (*word(number) != last_[number]) return false;
    return true;
  }

 private:
  volatile uint64_t* word(uint32_t number) const {
    return reinterpret_cast<volatile uint64_t*>(ranges_.of(number).data() + offset_);
  }
  __attribute__((no_sanitize("thread"))) void run(const std::stop_token& stop) {
    for (uint64_t value = 1; !stop.stop_requested(); ++value) {
      for (uint32_t number = 0; number < granules; ++number) {
        *word(number) = value;
        last_[number] = value;
      }
      ++rounds_;
    }
  }

  const Ranges& ranges_;
  const uint64_t offset_;
  std::array<uint64_t, granules> last_{};
  std::atomic<uint64_t> rounds_{0};
  std::jthread thread_;
};

bool is(const Snapshot& snapshot, std::span<const std::byte> part, std::span<const std::byte> expected) {
  size_t at = 0;
  for (const auto place : snapshot.view(part)) {
    if (std::memcmp(place.data(), expected.data() + at, place.size()) != 0) return false;
    at += place.size();
  }
  return at == expected.size();
}

}  // namespace

TEST_CASE("Snapshot: stores to what shares its granules go on while it is made, and until it is released") {
  const Ranges ranges;
  if (!ranges.protects()) return;
  fill(ranges.bytes, 1);
  std::vector<std::span<const std::byte>> parts;
  std::vector<std::byte> before;
  for (uint32_t number = 0; number < granules; ++number) {
    parts.push_back(ranges.of(number).first(granule / 2));
    before.insert(before.end(), parts.back().begin(), parts.back().end());
  }
  const std::span<std::byte> rooms[1] = {ranges.room};
  Writer one(ranges, granule / 2), other(ranges, granule - 8);
  uint64_t copied_at_once = 0;
  for (int round = 0; round < 200; ++round) {
    const auto snapshot = take(ranges.range->freeze(parts, rooms));
    REQUIRE(one.goes_on());
    REQUIRE(other.goes_on());
    for (uint32_t number = 0; number < granules; ++number)
      REQUIRE(is(*snapshot, parts[number], std::span(before).subspan(number * granule / 2, granule / 2)));
    const SnapshotStatus status = snapshot->status();
    CHECK(status.copied_at_once_bytes + status.copied_bytes == granules * granule);
    copied_at_once += status.copied_at_once_bytes;
  }
  MESSAGE("copied at once: " << copied_at_once / granule << " granules");
  one.stop();
  other.stop();
  CHECK(one.nothing_lost());
  CHECK(other.nothing_lost());
}

TEST_CASE("Snapshot: moves right behind a release lose no store") {
  const Ranges ranges;
  if (!ranges.protects()) return;
  fill(ranges.bytes, 1);
  const std::span<const std::byte> all[1] = {ranges.bytes};
  const std::span<std::byte> rooms[1] = {ranges.room};
  Writer one(ranges, 0), other(ranges, granule - 8);
  for (int round = 0; round < 60; ++round) {
    auto snapshot = take(ranges.range->freeze(all, rooms));
    for (uint32_t number = 0; number < granules; ++number) {
      snapshot->release(ranges.of(number));
      (void)ranges.range->move_to(ranges.of(number), (round + number) % 2 == 0 ? Tier::cxl : Tier::ddr);
    }
    CHECK(snapshot->status().released_bytes == granules * granule);
  }
  REQUIRE(one.goes_on());
  one.stop();
  other.stop();
  CHECK(one.nothing_lost());
  CHECK(other.nothing_lost());
}
