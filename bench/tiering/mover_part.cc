// SPDX-License-Identifier: Apache-2.0
// How fast granules move when nobody else runs, against the bare non-temporal copy of the same bytes; and how
// long a writer waits that hits a granule on its way.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <thread>

#include "bench/tiering/support.h"
#include "tiering/migration/copy.h"

namespace terrace::bench {
namespace {

using tiering::MoveReport;
using tiering::MoveResult;
using tiering::Residency;

struct Times {
  std::vector<double> stall_us, copy_us, whole_us;
};

double us(uint64_t ns) {
  return static_cast<double>(ns) / 1e3;
}

void move_one(TwoFiles& files, tiering::Mover& mover, uint32_t granule, Residency to, Times& times,
              bool prepare = true) {
  if (to == Residency::ddr && prepare) files.memory.prepare_ddr(granule, 1);
  const uint64_t begin_ns = tiering::monotonic_ns();
  const MoveReport report = files.memory.move(mover, granule, 1, to);
  if (report.result != MoveResult::done) die("a move failed, errno " + std::to_string(report.os_errno));
  times.whole_us.push_back(us(tiering::monotonic_ns() - begin_ns));
  times.stall_us.push_back(us(report.times.stall_ns));
  times.copy_us.push_back(us(report.times.copy_ns));
}

// The two files mapped once more, for copies beside the moves.
struct Raw {
  explicit Raw(TwoFiles& files)
      : bytes(files.memory.bytes()), ddr(map(files.ddr.get())), cxl(map(files.cxl.get())) {}
  char* map(int fd) {
    maps.push_back(must(os::MemoryMap::reserve(bytes, 2 * mib), "reserve"));
    void* at = ::mmap(maps.back().data(), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    if (at == MAP_FAILED) die("cannot map a memory file");
    ::madvise(at, bytes, MADV_HUGEPAGE);
    return static_cast<char*>(at);
  }
  uint64_t bytes;
  std::vector<os::MemoryMap> maps;
  char *ddr, *cxl;
};

double timed_copy(char* to, const char* from, uint64_t bytes, tiering::CopyKind kind) {
  *static_cast<volatile char*>(to) = 0;  // its translation is there
  const uint64_t begin_ns = tiering::monotonic_ns();
  tiering::copy_streamed(to, from, bytes, kind);
  return us(tiering::monotonic_ns() - begin_ns);
}

struct Bare {
  std::vector<double> down_us, up_us, plain_us;  // the same bytes between the same files, nothing else
};

// Bare copies and moves in turn, granule by granule, in both directions; every granule is down after the first
// pass and up after the second. Pages of DDR are made 16 granules ahead, for copies as for moves.
void move_and_copy(TwoFiles& files, tiering::Mover& mover, Times& down, Times& up, Bare& bare) {
  Raw raw(files);
  const uint32_t count = files.memory.granule_count();
  const uint64_t granule_bytes = files.memory.granule_bytes();
  ::madvise(raw.cxl, raw.bytes, MADV_POPULATE_READ);
  Times unmeasured;
  for (uint32_t granule = 0; granule < count; ++granule) {
    const uint64_t at = granule * granule_bytes;
    const bool copied = granule % 2 == 1;
    if (copied)
      bare.down_us.push_back(timed_copy(raw.cxl + at, raw.ddr + at, granule_bytes, tiering::best_copy_kind()));
    if (granule % 8 == 1)
      bare.plain_us.push_back(timed_copy(raw.cxl + at, raw.ddr + at, granule_bytes, tiering::CopyKind::plain));
    move_one(files, mover, granule, Residency::cxl, copied ? unmeasured : down);
  }
  for (uint32_t granule = 0; granule < count; ++granule) {
    const uint64_t at = granule * granule_bytes;
    if (granule % 16 == 0) files.memory.prepare_ddr(granule, std::min(16u, count - granule));
    const bool copied = granule % 2 == 1;
    if (copied) {
      // Slots need not be the granule's own place: the bytes come from wherever it lies.
      const char* from = raw.cxl + files.memory.slot(granule) * granule_bytes;
      bare.up_us.push_back(timed_copy(raw.ddr + at, from, granule_bytes, tiering::best_copy_kind()));
    }
    move_one(files, mover, granule, Residency::ddr, copied ? unmeasured : up, false);
  }
}

// A writer that stores into the granule that moves: its longest gap is how long it waited.
double measure_stalls(TwoFiles& files, tiering::Mover& mover, int moves, std::vector<double>& stalls_us,
                      Times& down, Times& up) {
  std::atomic<uint32_t> target{0};
  std::atomic<uint64_t> longest_ns{0};
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      auto* place = reinterpret_cast<std::atomic<uint64_t>*>(
          files.memory.base() + target.load(std::memory_order_relaxed) * files.memory.granule_bytes());
      const uint64_t begin_ns = tiering::monotonic_ns();
      place->fetch_add(1, std::memory_order_relaxed);
      const uint64_t gap_ns = tiering::monotonic_ns() - begin_ns;
      if (gap_ns > longest_ns.load(std::memory_order_relaxed))
        longest_ns.store(gap_ns, std::memory_order_relaxed);
    }
  });
  for (int i = 0; i < moves; ++i) {
    const auto granule = static_cast<uint32_t>(i) % files.memory.granule_count();
    const Residency to = files.memory.residency(granule) == Residency::ddr ? Residency::cxl : Residency::ddr;
    if (to == Residency::ddr) files.memory.prepare_ddr(granule, 1);
    target.store(granule);
    std::this_thread::sleep_for(std::chrono::microseconds(300));
    longest_ns.store(0);
    move_one(files, mover, granule, to, to == Residency::cxl ? down : up);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    stalls_us.push_back(us(longest_ns.load()));
  }
  stop = true;
  writer.join();
  return median(stalls_us);
}

}  // namespace

void measure_mover(const Sizes& sizes, nlohmann::json& out) {
  const uint64_t bytes = sizes.smoke ? 32 * mib : 512 * mib;
  TwoFiles files(bytes, 2 * mib);
  tiering::Mover mover;
  if (int failed = mover.start(-1, 2 * mib); failed != 0) {
    std::printf("moves: skipped, no userfaultfd here (errno %d)\n", failed);
    out["skipped_moves"] = "no userfaultfd";
    return;
  }
  Times down, up;
  Bare bare;
  for (int round = 0; round < sizes.rounds; ++round) move_and_copy(files, mover, down, up, bare);
  const double gib_per_s = 2.0 * mib / gib * 1e6;
  const double down_ratio = median(bare.down_us) / median(down.stall_us),
               up_ratio = median(bare.up_us) / median(up.stall_us);
  out["nt_copy_2m_gib_per_s"] = gib_per_s / median(bare.down_us);
  out["nt_copy_up_2m_gib_per_s"] = gib_per_s / median(bare.up_us);
  out["memcpy_2m_gib_per_s"] = gib_per_s / median(bare.plain_us);
  out["demote_2m_gib_per_s"] = gib_per_s / median(down.stall_us);
  out["promote_2m_gib_per_s"] = gib_per_s / median(up.stall_us);
  out["demote_2m_gib_per_s_over_nt_copy"] = down_ratio;
  out["promote_2m_gib_per_s_over_nt_copy"] = up_ratio;
  out["demote_2m_whole_over_nt_copy"] = median(bare.down_us) / median(down.whole_us);
  out["promote_2m_whole_over_nt_copy"] = median(bare.up_us) / median(up.whole_us);
  out["copy_kind"] = tiering::copy_kind_name(tiering::best_copy_kind());
  std::printf(
      "moves of 2 MiB, nobody else running (%s): down %.0f us, copy %.0f us: x %.2f of its speed; up %.0f us, "
      "copy %.0f us: x %.2f\n",
      tiering::copy_kind_name(tiering::best_copy_kind()), median(down.stall_us), median(bare.down_us),
      down_ratio, median(up.stall_us), median(bare.up_us), up_ratio);

  std::vector<double> stalls;
  Times with_down, with_up;
  measure_stalls(files, mover, sizes.smoke ? 20 : 1000, stalls, with_down, with_up);
  std::vector<double> copy_times = with_down.copy_us;
  copy_times.insert(copy_times.end(), with_up.copy_us.begin(), with_up.copy_us.end());
  out["stall_us_p50"] = median(stalls);
  out["stall_us_p50_over_copy_us"] = median(stalls) / median(copy_times);
  std::printf("a writer that hits a granule on its way waits %.0f us, x %.2f of the copy (%.0f us)\n",
              median(stalls), median(stalls) / median(copy_times), median(copy_times));
  if (const char* broken = files.memory.check_all(); broken != nullptr) die(broken);
  mover.stop();
}

}  // namespace terrace::bench
