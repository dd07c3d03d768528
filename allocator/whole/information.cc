// SPDX-License-Identifier: Apache-2.0
// What a program can ask of its heap, and what it can wish: mallinfo, malloc_info, malloc_stats, mallopt, in
// the C library's words. Arena 0 is the small blocks, and what that library would map one by one is the large
// ones.
//
// The peaks are those of the moments that one of these was called at: nobody counts in between.
//
// Threads   Any.
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>

#include <atomic>

#include "allocator/preload/libc/export.h"
#include "allocator/whole/small.h"

namespace terrace::preload {
namespace {

std::atomic<size_t> peak_small_bytes{0}, peak_large_blocks{0}, peak_large_bytes{0};

size_t raise(std::atomic<size_t>& peak, size_t now) {
  size_t before = peak.load(std::memory_order_relaxed);
  while (before < now && !peak.compare_exchange_weak(before, now, std::memory_order_relaxed)) {
  }
  return before < now ? now : before;
}

struct Numbers {
  SmallNumbers small;
  LargeNumbers large;
  size_t small_peak, blocks_peak, bytes_peak;

  size_t free_bytes() const { return small.mapped_bytes - small.live_bytes; }
};

Numbers numbers() {
  Numbers now{
      .small = small_numbers(), .large = large_numbers(), .small_peak = 0, .blocks_peak = 0, .bytes_peak = 0};
  // The two were read one after the other.
  if (now.small.mapped_bytes < now.small.live_bytes) now.small.mapped_bytes = now.small.live_bytes;
  now.small_peak = raise(peak_small_bytes, now.small.mapped_bytes);
  now.blocks_peak = raise(peak_large_blocks, now.large.blocks);
  now.bytes_peak = raise(peak_large_bytes, now.large.bytes);
  return now;
}

struct mallinfo2 information() {
  const Numbers now = numbers();
  struct mallinfo2 info {};
  info.arena = now.small.mapped_bytes;
  info.ordblks = now.free_bytes() > 0 ? 1 : 0;
  info.hblks = now.large.blocks;
  info.hblkhd = now.large.bytes;
  info.uordblks = now.small.live_bytes;
  info.fordblks = now.free_bytes();
  info.keepcost = now.small.retained_bytes < now.free_bytes() ? now.small.retained_bytes : now.free_bytes();
  return info;
}

}  // namespace
}  // namespace terrace::preload

using namespace terrace::preload;

TERRACE_EXPORT int mallopt(int parameter, int value) {
  // As glibc: what is no use here is no error, but for the one value that it looks at.
  constexpr int fast_bytes_max = 80 * sizeof(size_t) / 4;
  return parameter == M_MXFAST && (value < 0 || value > fast_bytes_max) ? 0 : 1;
}

TERRACE_EXPORT struct mallinfo2 mallinfo2() {
  return information();
}

TERRACE_EXPORT struct mallinfo mallinfo() {
  const struct mallinfo2 wide = information();
  struct mallinfo info {};
  info.arena = static_cast<int>(wide.arena);
  info.ordblks = static_cast<int>(wide.ordblks);
  info.hblks = static_cast<int>(wide.hblks);
  info.hblkhd = static_cast<int>(wide.hblkhd);
  info.uordblks = static_cast<int>(wide.uordblks);
  info.fordblks = static_cast<int>(wide.fordblks);
  info.keepcost = static_cast<int>(wide.keepcost);
  return info;
}

TERRACE_EXPORT int malloc_info(int options, FILE* stream) {
  if (options != 0) return EINVAL;
  const Numbers now = numbers();
  const auto totals = [&] {
    fprintf(stream,
            "<system type=\"current\" size=\"%zu\"/>\n<system type=\"max\" size=\"%zu\"/>\n"
            "<aspace type=\"total\" size=\"%zu\"/>\n<aspace type=\"mprotect\" size=\"%zu\"/>\n",
            now.small.mapped_bytes, now.small_peak, now.small.mapped_bytes, now.small.mapped_bytes);
  };
  const auto free_blocks = [&] {
    fprintf(stream,
            "<total type=\"fast\" count=\"0\" size=\"0\"/>\n"
            "<total type=\"rest\" count=\"%d\" size=\"%zu\"/>\n",
            now.free_bytes() > 0 ? 1 : 0, now.free_bytes());
  };
  fprintf(stream, "<malloc version=\"1\">\n<heap nr=\"0\">\n<sizes>\n</sizes>\n");
  free_blocks();
  totals();
  fprintf(stream, "</heap>\n");
  free_blocks();
  fprintf(stream, "<total type=\"mmap\" count=\"%zu\" size=\"%zu\"/>\n", now.large.blocks, now.large.bytes);
  totals();
  fprintf(stream, "</malloc>\n");
  return 0;
}

TERRACE_EXPORT void malloc_stats() {
  const Numbers now = numbers();
  int cancellation = 0;  // writing is where a thread may be cancelled, this function is not
  ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
  fprintf(stderr,
          "Arena 0:\nsystem bytes     = %10zu\nin use bytes     = %10zu\n"
          "Total (incl. mmap):\nsystem bytes     = %10zu\nin use bytes     = %10zu\n"
          "max mmap regions = %10zu\nmax mmap bytes   = %10zu\n",
          now.small.mapped_bytes, now.small.live_bytes, now.small.mapped_bytes + now.large.bytes,
          now.small.live_bytes + now.large.bytes, now.blocks_peak, now.bytes_peak);
  ::pthread_setcancelstate(cancellation, nullptr);
}
