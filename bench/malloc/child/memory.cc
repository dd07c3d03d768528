// SPDX-License-Identifier: Apache-2.0
// What a heap does with memory: large blocks that come and go, what stays resident after a long trace, how much
// of a bounded window can be handed out.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/malloc/child/child.h"

namespace terrace::bench::child {
namespace {

constexpr size_t page = 4096;

struct Object {
  char* at;
  uint64_t bytes;
};

uint64_t resident_bytes() {
  FILE* file = fopen("/proc/self/statm", "r");
  unsigned long total = 0, pages = 0;
  if (file == nullptr || fscanf(file, "%lu %lu", &total, &pages) != 2) _exit(3);
  fclose(file);
  return uint64_t{pages} * page;
}

}  // namespace

int large_blocks(const uint64_t* arguments) {
  constexpr unsigned slots = 24;
  static Object objects[slots];
  Random random{42};
  double begin = process_cpu_ns();
  for (uint64_t i = 0; i < arguments[0]; ++i) {
    Object& one = objects[random.below(slots)];
    free(one.at);
    one.bytes = random.log_uniform(20, 26);
    one.at = static_cast<char*>(malloc(one.bytes));
    if (one.at == nullptr) return 1;
    for (uint64_t at = 0; at < one.bytes; at += page) one.at[at] = 1;
  }
  for (Object& one : objects) free(one.at);
  put((process_cpu_ns() - begin) / 1e9);
  return 0;
}

// Objects of 16 B to 64 KiB, whose sizes wander: each phase prefers other ones, so that holes of old sizes have
// to serve new ones. All bytes are stored to.
int resident(const uint64_t* arguments) {
  constexpr unsigned slots = 1 << 22;
  constexpr unsigned phases = 6;
  const uint64_t live_max = arguments[0] << 20;
  auto* objects = static_cast<Object*>(mapped(slots * sizeof(Object)));
  Random random{7};
  uint64_t live = 0;
  unsigned used = 0, most_used = 0;
  for (unsigned phase = 0; phase < phases; ++phase) {
    for (uint64_t stored = 0; stored < live_max;) {
      const uint64_t bytes =
          random.below(4) == 0 ? random.log_uniform(4, 16) : random.log_uniform(6 + phase, 10 + phase);
      while (used > 0 && (live + bytes > live_max || used == slots)) {
        const auto victim = static_cast<unsigned>(random.below(used));
        free(objects[victim].at);
        live -= objects[victim].bytes;
        objects[victim] = objects[--used];
      }
      auto* at = static_cast<char*>(malloc(bytes));
      if (at == nullptr) return 1;
      memset(at, 1, bytes);
      objects[used++] = {at, bytes};
      most_used = used > most_used ? used : most_used;
      live += bytes;
      stored += bytes;
    }
  }
  // The table of objects is this program's, not the heap's.
  const uint64_t table = (uint64_t{most_used} * sizeof(Object) + page - 1) / page * page;
  put(static_cast<double>(resident_bytes() - table) / static_cast<double>(live));
  return 0;
}

int fill_window(const uint64_t* arguments) {
  uint64_t handed_out = 0;
  for (;; handed_out += arguments[0]) {
    auto* at = static_cast<volatile char*>(malloc(arguments[0]));
    if (at == nullptr) break;
    at[0] = 1;
  }
  put(static_cast<double>(handed_out));
  return 0;
}

// Objects of 64 KiB to 64 MiB at 85 % of the window: what is asked for always fits the free bytes in total.
int churn_window(const uint64_t* arguments) {
  constexpr unsigned slots = 1 << 16;
  static Object objects[slots];
  const uint64_t live_max = arguments[0] / 100 * 85;
  Random random{arguments[2] * 2 + 1};
  uint64_t live = 0, failed = 0;
  unsigned used = 0;
  for (uint64_t attempt = 0; attempt < arguments[1]; ++attempt) {
    const uint64_t bytes = random.log_uniform(16, 26);
    while (used > 0 && (live + bytes > live_max || used == slots)) {
      const auto victim = static_cast<unsigned>(random.below(used));
      free(objects[victim].at);
      live -= objects[victim].bytes;
      objects[victim] = objects[--used];
    }
    auto* at = static_cast<char*>(malloc(bytes));
    if (at == nullptr) {
      ++failed;
      continue;
    }
    *at = 1;
    objects[used++] = {at, bytes};
    live += bytes;
  }
  put(100.0 * static_cast<double>(failed) / static_cast<double>(arguments[1]));
  return 0;
}

}  // namespace terrace::bench::child
