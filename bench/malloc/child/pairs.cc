// SPDX-License-Identifier: Apache-2.0
// One malloc and one free, the first byte touched: the ns of a pair, over many short stretches. One thread is
// measured by its own CPU time, and the median counts: what else runs on the machine meets few stretches.
// Several are measured by the clock, since they may wait for each other, and the mean of the middle half
// counts: whether they meet at all changes with what else runs, so there are two kinds of stretches, and a
// median would jump between them.
#include <stdlib.h>

#include <algorithm>
#include <atomic>

#include "bench/malloc/child/child.h"

namespace terrace::bench::child {
namespace {

constexpr size_t stretches_max = 1 << 14;
constexpr double stretch_ns = 500'000;

struct Loop {
  uint64_t bytes;
  unsigned threads;
  double until_ns;
  double figures[16];
  std::atomic<unsigned> arrived{0};
  std::atomic<bool> failed{false};
};

bool run_pairs(uint64_t bytes, long pairs) {
  for (long i = 0; i < pairs; ++i) {
    auto* block = static_cast<volatile char*>(malloc(bytes));
    if (block == nullptr) return false;
    *block = 1;
    free(const_cast<char*>(block));
  }
  return true;
}

void body(void* argument, unsigned index) {
  auto& loop = *static_cast<Loop*>(argument);
  double (*now)() = loop.threads > 1 ? wall_ns : thread_cpu_ns;
  long pairs = 16;
  for (double took = 0; took < stretch_ns && pairs < (1L << 24);) {
    double begin = now();
    if (!run_pairs(loop.bytes, pairs)) return loop.failed.store(true);
    took = now() - begin;
    if (took < stretch_ns) pairs *= 2;
  }
  loop.arrived.fetch_add(1);
  while (loop.arrived.load() < loop.threads && !loop.failed.load()) continue;
  auto* ns = static_cast<double*>(mapped(stretches_max * sizeof(double)));
  size_t count = 0;
  do {
    double begin = now();
    if (!run_pairs(loop.bytes, pairs)) return loop.failed.store(true);
    ns[count++] = (now() - begin) / static_cast<double>(pairs);
  } while (wall_ns() < loop.until_ns && count < stretches_max);
  std::sort(ns, ns + count);
  if (loop.threads > 1) {
    const size_t first = count / 4, kept = count - 2 * first;
    for (size_t i = first; i < first + kept; ++i) loop.figures[index] += ns[i] / static_cast<double>(kept);
  } else {
    loop.figures[index] = ns[count / 2];
  }
}

}  // namespace

int pairs(const uint64_t* arguments) {
  static Loop loop;
  loop.bytes = arguments[0];
  loop.threads = static_cast<unsigned>(arguments[1]);
  loop.until_ns = wall_ns() + static_cast<double>(arguments[2]) * 1e6;
  on_threads(loop.threads, body, &loop);
  if (loop.failed.load()) return 1;
  double sum = 0;
  for (unsigned i = 0; i < loop.threads; ++i) sum += loop.figures[i];
  put(sum / loop.threads);
  return 0;
}

}  // namespace terrace::bench::child
