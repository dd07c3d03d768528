// SPDX-License-Identifier: Apache-2.0
// The live small blocks by size class, for the supervisor: read out of the small allocator where a program's
// thread takes a slow step anyway, at most once a tick of the supervisor's, and for at most a thousandth of the
// time.
//
// Threads   Any, with no lock held; one at a time does the work, the others go on.
#include <errno.h>
#include <stdint.h>
#include <time.h>

#include "allocator/preload/window/statistics.h"
#include "allocator/whole/small.h"

namespace terrace::preload {

constinit std::atomic<uint32_t> small_answered{0};
constinit std::atomic<int64_t> plain_held{0};

namespace {

constexpr size_t all_arenas = 4096;     // MALLCTL_ARENAS_ALL
constexpr uint64_t pause_share = 1000;  // how much longer than a look the pause behind it is
constexpr uint32_t kinds_max = 512;     // of classes; jemalloc has 36 small and 196 large ones

std::atomic<bool> looking{false};
uint64_t next_look_ns = 0;  // of who is looking

uint64_t now_ns() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

void put(uint64_t& cell, uint64_t value) {
  std::atomic_ref<uint64_t>(cell).store(value, std::memory_order_relaxed);
}

// A number of the small allocator's by its place in the tree of numbers, one entry of which is looked up by
// index.
class Numbers {
 public:
  Numbers(const char* name, size_t index_at) : index_at_(index_at) {
    length_ = sizeof(mib_) / sizeof(mib_[0]);
    known_ = small_mallctlnametomib(name, mib_, &length_) == 0;
  }
  void of_all_arenas() { mib_[2] = all_arenas; }
  size_t at(size_t index) {
    size_t value = 0, bytes = sizeof(value);
    mib_[index_at_] = index;
    return known_ && small_mallctlbymib(mib_, length_, &value, &bytes, nullptr, 0) == 0 ? value : 0;
  }

 private:
  size_t mib_[8] = {};
  size_t length_;
  size_t index_at_;
  bool known_;
};

uint32_t count_of(const char* name) {
  unsigned count = 0;
  size_t bytes = sizeof(count);
  return small_mallctl(name, &count, &bytes, nullptr, 0) == 0 && count < kinds_max ? count : 0;
}

struct Sum {
  uint64_t bytes = 0;
  uint32_t classes = 0;

  void add(supply::ProcessStatistics& page, uint64_t block_bytes, uint64_t blocks) {
    if (blocks == 0 || block_bytes == 0) return;
    bytes += block_bytes * blocks;
    // 8-byte blocks get 16 (small.h), so one class may come twice; what does not fit is in the sum only.
    if (classes == supply::small_classes_max) return;
    put(page.small[classes].block_bytes, block_bytes);
    put(page.small[classes].blocks, blocks);
    ++classes;
  }
};

void look(supply::ProcessStatistics& page) {
  uint64_t epoch = 1;
  size_t length = sizeof(epoch);
  if (small_mallctl("epoch", &epoch, &length, &epoch, sizeof(epoch)) != 0) return;
  std::atomic_ref<uint64_t> sequence(page.small_sequence);
  const uint64_t before = sequence.load(std::memory_order_relaxed);
  // The fence keeps the words below behind the odd number; the last store publishes them.
  sequence.store(before | 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);  // release: pairs with the fence of read_statistics()
  Sum sum;
  Numbers small_size("arenas.bin.0.size", 2), small_live("stats.arenas.0.bins.0.curregs", 4);
  small_live.of_all_arenas();
  for (uint32_t i = 0, count = count_of("arenas.nbins"); i < count; ++i)
    sum.add(page, small_size.at(i), small_live.at(i));
  Numbers large_size("arenas.lextent.0.size", 2), large_live("stats.arenas.0.lextents.0.curlextents", 4);
  large_live.of_all_arenas();
  for (uint32_t i = 0, count = count_of("arenas.nlextents"); i < count; ++i)
    if (const uint64_t blocks = large_live.at(i); blocks != 0) sum.add(page, large_size.at(i), blocks);
  put(page.small_bytes, sum.bytes);
  put(page.small_count, sum.classes);
  const int64_t plain = plain_held.load(std::memory_order_relaxed);
  put(page.plain_bytes, plain > 0 ? static_cast<uint64_t>(plain) : 0);
  put(page.small_ns, now_ns());
  // release: pairs with the first load of read_statistics()
  sequence.store((before | 1) + 1, std::memory_order_release);
}

}  // namespace

void answer_small() {
  if (!small_knows_this_thread()) return;
  supply::ProcessStatistics* const page = statistics::page.load(std::memory_order_relaxed);
  // A child of a fork has its parent's page until the fork is done.
  // acquire: pairs with the release below: next_look_ns is the last one's.
  if (page == nullptr || window.heap_lock.forking() || looking.exchange(true, std::memory_order_acquire))
    return;
  // Too soon after the last look, too: the next tick asks again, and no step in between looks at the clock.
  small_answered.store(statistics::times_asked(), std::memory_order_relaxed);
  const uint64_t begin_ns = now_ns();
  if (begin_ns >= next_look_ns) {
    const int saved = errno;
    look(*page);
    errno = saved;
    const uint64_t end_ns = now_ns();
    next_look_ns = end_ns + (end_ns - begin_ns) * pause_share;
  }
  looking.store(false, std::memory_order_release);  // release: pairs with the exchange above
}

void answer_small_in_child() {
  looking.store(false, std::memory_order_relaxed);
}

}  // namespace terrace::preload
