// SPDX-License-Identifier: Apache-2.0
#include "tiering/hotness/sampler.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "tests/support/eventually.h"
#include "tests/support/skip.h"
#include "tests/unit/tiering/two_files.h"

using namespace terrace;
using namespace terrace::test;
using tiering::Residency;

namespace {

struct Sampled {
  explicit Sampled(uint32_t granules, uint64_t granule_bytes) : files(granules, granule_bytes) {
    REQUIRE(files.memory.map(0, granules, Residency::ddr) == 0);
    std::memset(files.base(), 1, files.memory.bytes());
  }
  bool open() {
    const int failed = sampler.open(&files.memory);
    if (failed != 0) TERRACE_SKIP(pagemap_scan, "no PAGEMAP_SCAN, errno " << failed);
    sampler.set_wait_ns(long_wait_ns);
    return failed == 0;
  }
  // Longer than any that is swept in groups, inside begin().
  static constexpr uint64_t long_wait_ns = 100'000'000;
  TwoFiles files;
  tiering::Sampler sampler;
  tiering::PolicyMemory policy{};
};

}  // namespace

TEST_CASE("Sampler: sees reads and stores, and nothing that was not touched; every byte stays") {
  for (const uint64_t granule_bytes : {2 * mib, 64 * kib}) {
    Sampled sampled(16, granule_bytes);
    if (!sampled.open()) return;
    for (int sweep = 0; sweep < 3; ++sweep) {
      sampled.sampler.begin(tiering::monotonic_ns());
      // Whole granules, since small pages are sampled by a window somewhere in the granule.
      uint64_t sum = 0;
      for (uint64_t i = 0; i < granule_bytes; i += 64)
        sum += static_cast<uint64_t>(*reinterpret_cast<volatile char*>(sampled.files.at(3) + i));
      std::memset(sampled.files.at(7), 1, granule_bytes);
      CHECK(sum == granule_bytes / 64);
      const tiering::SweepResult result =
          sampled.sampler.finish(sampled.policy, tiering::monotonic_ns(), 0.15f);
      CHECK(result.seen == 16);
      CHECK(result.touched == 2);
    }
    for (uint32_t granule = 0; granule < 16; ++granule) {
      const bool touched = granule == 3 || granule == 7,
                 noted = sampled.files.memory.granules()[granule].accesses > 0;
      CHECK(noted == touched);
      for (uint64_t i = 0; i < granule_bytes; i += 512) REQUIRE(sampled.files.at(granule)[i] == 1);
    }
  }
}

TEST_CASE("Sampler: private memory among the granules is never zapped") {
  Sampled sampled(4, 64 * kib);
  if (!sampled.open()) return;
  sampled.files.memory.forget(1, 1, false);
  REQUIRE(::mmap(sampled.files.at(1), 64 * kib, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                 -1, 0) == sampled.files.at(1));
  std::memset(sampled.files.at(1), 9, 64 * kib);
  for (int sweep = 0; sweep < 3; ++sweep) {
    sampled.sampler.begin(tiering::monotonic_ns());
    const tiering::SweepResult result = sampled.sampler.finish(sampled.policy, tiering::monotonic_ns(), 0.15f);
    CHECK(result.seen == 3);
  }
  for (uint64_t i = 0; i < 64 * kib; ++i) REQUIRE(sampled.files.at(1)[i] == 9);
}

TEST_CASE("Sampler: a held granule is not looked at, and private pages in it keep their bytes") {
  Sampled sampled(4, 64 * kib);
  if (!sampled.open()) return;
  sampled.files.memory.hold(2, 1);
  REQUIRE(::mmap(sampled.files.at(2), 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                 0) == sampled.files.at(2));
  std::memset(sampled.files.at(2), 9, 4096);
  for (int sweep = 0; sweep < 20; ++sweep) {
    sampled.sampler.begin(tiering::monotonic_ns());
    CHECK(sampled.sampler.finish(sampled.policy, tiering::monotonic_ns(), 0.15f).seen == 3);
  }
  for (uint64_t i = 0; i < 4096; ++i) REQUIRE(sampled.files.at(2)[i] == 9);
  sampled.files.memory.unhold(2, 1);
}

TEST_CASE("Sampler: waits less while everything is touched and more while nothing is") {
  Sampled sampled(8, 64 * kib);
  if (!sampled.open()) return;
  auto sweep = [&](bool touch) {
    sampled.sampler.begin(tiering::monotonic_ns());
    if (touch) std::memset(sampled.files.base(), 1, sampled.files.memory.bytes());
    sampled.sampler.finish(sampled.policy, tiering::monotonic_ns(), 0.15f);
  };
  const uint64_t start_ns = sampled.sampler.wait_ns();
  for (int i = 0; i < 4; ++i) sweep(true);  // 100 ms down to 20
  const uint64_t busy_ns = sampled.sampler.wait_ns();
  CHECK(busy_ns < start_ns);
  for (int i = 0; i < 8; ++i) sweep(false);
  CHECK(sampled.sampler.wait_ns() > busy_ns);
  CHECK(sampled.sampler.gap_ns() >= sampled.sampler.wait_ns());
}

TEST_CASE(
    "Sampler: with a short wait it goes group by group, and tells the busy granules from those that are used "
    "now and then") {
  Sampled sampled(64, 64 * kib);
  if (!sampled.open()) return;
  sampled.sampler.set_wait_ns(20'000);
  std::atomic<bool> stop{false};
  std::thread user([&] {
    for (uint64_t i = 0; !stop; ++i) {
      for (uint32_t granule = 40; granule < 44; ++granule)
        *reinterpret_cast<volatile char*>(sampled.files.at(granule)) = 1;
      if (i % 4096 == 0)
        *reinterpret_cast<volatile char*>(sampled.files.at(static_cast<uint32_t>(i / 4096 % 40))) = 1;
    }
  });
  // On a loaded machine the user may not run during a sweep: as many sweeps as it takes.
  CHECK(eventually(
      [&] {
        sampled.sampler.begin(tiering::monotonic_ns());
        CHECK(sampled.sampler.due_ns() == 0);
        sampled.sampler.finish(sampled.policy, tiering::monotonic_ns(), 0.1f);
        sampled.sampler.set_wait_ns(20'000);
        const uint64_t now_ns = tiering::monotonic_ns();
        float coldest_busy = 1e30f, hottest_other = 0;
        for (uint32_t granule = 0; granule < 64; ++granule) {
          const float heat = tiering::heat_at(sampled.files.memory.granules()[granule], sampled.policy, now_ns);
          if (granule >= 40 && granule < 44)
            coldest_busy = std::min(coldest_busy, heat);
          else
            hottest_other = std::max(hottest_other, heat);
        }
        return hottest_other > 0 && coldest_busy > 4 * hottest_other;
      },
      std::chrono::seconds(60)));
  stop = true;
  user.join();
}

TEST_CASE("Sampler: first touches tell granules apart that every sweep finds touched, and leave others alone") {
  Sampled sampled(4, 64 * kib);
  if (!sampled.open()) return;
  sampled.sampler.expect_first_touches();
  for (int sweep = 0; sweep < 40; ++sweep) {
    sampled.sampler.set_wait_ns(Sampled::long_wait_ns);
    sampled.sampler.begin(tiering::monotonic_ns());
    const uint64_t begun_ns = tiering::monotonic_ns();
    ::usleep(2000);
    const uint64_t now_ns = tiering::monotonic_ns();
    for (uint32_t granule = 0; granule < 3; ++granule) std::memset(sampled.files.at(granule), 1, 64 * kib);
    // 0 at once, and again, which is not the first; 1 at the end; of 2 nothing is told; 3 is not used.
    sampled.sampler.note_first_touch(0, 0, now_ns);
    sampled.sampler.note_first_touch(0, 0, begun_ns + 20'000);
    sampled.sampler.note_first_touch(1, 0, now_ns);
    sampled.sampler.note_first_touch(0, 0, begun_ns - 1'000'000'000);  // of an earlier sweep
    sampled.sampler.finish(sampled.policy, tiering::monotonic_ns(), 0.15f);
  }
  float heats[4];
  for (uint32_t granule = 0; granule < 4; ++granule)
    heats[granule] =
        tiering::heat_at(sampled.files.memory.granules()[granule], sampled.policy, tiering::monotonic_ns());
  CHECK(heats[0] > 3 * heats[1]);
  CHECK(heats[0] < 30 * heats[1]);
  CHECK(heats[1] < 1.5f * heats[2]);
  CHECK(heats[1] > 0.6f * heats[2]);
  CHECK(heats[3] == 0);
}
