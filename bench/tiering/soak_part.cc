// SPDX-License-Identifier: Apache-2.0
// Does migration lose an update? Two writers with shadow copies of every word that they own, shared counters,
// and system calls that read into granules, while all granules move as fast as they can.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>

#include "bench/tiering/support.h"

namespace terrace::bench {
namespace {

using tiering::Residency;

constexpr int writers = 2;
constexpr uint64_t stride = 4096;  // a writer's words: one in each page, so that every part of a granule is hit

struct Tally {
  std::atomic<uint64_t> wrong{0}, stores{0}, calls{0}, added{0};
};

void write_and_check(tiering::TieredMemory& memory, int me, const std::atomic<bool>& stop, Tally& tally) {
  const uint64_t pages = memory.bytes() / stride;
  std::vector<uint64_t> shadow(pages, 0);
  Random random{static_cast<uint64_t>(me) + 11};
  int ends[2];
  if (::pipe(ends) != 0) die("no pipe");
  uint64_t stores = 0, calls = 0, added = 0;
  auto* base = memory.base();
  while (!stop.load(std::memory_order_relaxed)) {
    const uint64_t value = random.next(), page = value % pages;
    auto* mine = reinterpret_cast<uint64_t*>(base + page * stride) + 1 + me;
    if (std::atomic_ref<uint64_t>(*mine).load(std::memory_order_relaxed) != shadow[page])
      tally.wrong.fetch_add(1);
    if (++stores % 64 == 0) {
      // The kernel stores: into the page's word of this writer, through copy_to_user.
      if (::write(ends[1], &value, sizeof(value)) != sizeof(value) ||
          ::read(ends[0], mine, sizeof(value)) != sizeof(value))
        tally.wrong.fetch_add(1);
      ++calls;
    } else {
      std::atomic_ref<uint64_t>(*mine).store(value, std::memory_order_relaxed);
    }
    shadow[page] = value;
    if (stores % 4 == 0) {
      std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(base + page * stride))
          .fetch_add(1, std::memory_order_relaxed);
      ++added;
    }
  }
  for (uint64_t page = 0; page < pages; ++page)
    if (*(reinterpret_cast<uint64_t*>(base + page * stride) + 1 + me) != shadow[page]) tally.wrong.fetch_add(1);
  ::close(ends[0]);
  ::close(ends[1]);
  tally.stores += stores;
  tally.calls += calls;
  tally.added += added;
}

uint64_t soak(uint64_t granule_bytes, double for_s, nlohmann::json& out) {
  TwoFiles files(granule_bytes * (granule_bytes == 2 * mib ? 32 : 256), granule_bytes);
  std::memset(files.memory.base(), 0, files.memory.bytes());
  tiering::Mover mover;
  if (mover.start(-1, 2 * mib) != 0) {
    std::printf("soak: skipped, no userfaultfd here\n");
    out["skipped_soak"] = "no userfaultfd";
    return 0;
  }
  std::atomic<bool> stop{false};
  Tally tally;
  std::vector<std::thread> threads;
  for (int i = 0; i < writers; ++i)
    threads.emplace_back([&, i] { write_and_check(files.memory, i, stop, tally); });
  Random random{3};
  uint64_t moves = 0;
  for (const double end = seconds() + for_s; seconds() < end;) {
    const auto granule = static_cast<uint32_t>(random.next() % files.memory.granule_count());
    const auto run = static_cast<uint32_t>(1 + random.next() % 4);
    const Residency to = files.memory.residency(granule) == Residency::ddr ? Residency::cxl : Residency::ddr;
    if (to == Residency::ddr)
      files.memory.prepare_ddr(granule, std::min(run, files.memory.granule_count() - granule));
    moves +=
        files.memory.move(mover, granule, std::min(run, files.memory.granule_count() - granule), to).granules;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  uint64_t sum = 0;
  for (uint64_t at = 0; at < files.memory.bytes(); at += stride)
    sum += *reinterpret_cast<uint64_t*>(files.memory.base() + at);
  const uint64_t lost = tally.added > sum ? tally.added - sum : sum - tally.added;
  if (const char* broken = files.memory.check_all(); broken != nullptr) die(broken);
  if (moves == 0) die("nothing moved: nothing was tested");
  mover.stop();
  std::printf(
      "soak, %s granules, %.0f s: %llu moves, %llu stores, %llu of them by the kernel: %llu wrong, %llu lost\n",
      format_size(granule_bytes).c_str(), for_s, static_cast<unsigned long long>(moves),
      static_cast<unsigned long long>(tally.stores.load()), static_cast<unsigned long long>(tally.calls.load()),
      static_cast<unsigned long long>(tally.wrong.load()), static_cast<unsigned long long>(lost));
  return tally.wrong + lost;
}

}  // namespace

void measure_soak(const Sizes& sizes, nlohmann::json& out) {
  const uint64_t lost = soak(2 * mib, sizes.soak_s / 2, out) + soak(64 * kib, sizes.soak_s / 2, out);
  out["lost_updates"] = lost;
  if (lost != 0) die("updates were lost");
}

}  // namespace terrace::bench
