// SPDX-License-Identifier: Apache-2.0
// bench_malloc_child PART NUMBER...
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "bench/malloc/child/child.h"

namespace terrace::bench::child {
namespace {

constexpr unsigned threads_max = 64;

double read_clock(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

struct Start {
  void (*body)(void*, unsigned);
  void* argument;
  unsigned index;
};

void* run_body(void* start) {
  auto* one = static_cast<Start*>(start);
  one->body(one->argument, one->index);
  return nullptr;
}

struct Part {
  const char* name;
  int arguments;
  int (*run)(const uint64_t*);
};

constexpr Part parts[] = {{"pairs", 3, pairs},       {"large", 1, large_blocks},  {"larson", 2, larson},
                          {"xmalloc", 2, xmalloc},   {"random", 2, random_sizes}, {"sets", 3, one_size},
                          {"resident", 1, resident}, {"fill", 1, fill_window},    {"churn", 3, churn_window}};

}  // namespace

double wall_ns() {
  return read_clock(CLOCK_MONOTONIC);
}

double thread_cpu_ns() {
  return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

double process_cpu_ns() {
  return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}

void put(double figure) {
  char text[64];
  int length = snprintf(text, sizeof(text), "%.6f\n", figure);
  if (write(STDOUT_FILENO, text, static_cast<size_t>(length)) != length) _exit(3);
}

void* mapped(size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) _exit(3);
  return at;
}

void on_threads(unsigned threads, void (*body)(void* argument, unsigned index), void* argument) {
  if (threads <= 1) return body(argument, 0);
  pthread_t handles[threads_max];
  Start starts[threads_max];
  if (threads > threads_max) _exit(2);
  for (unsigned i = 0; i < threads; ++i) {
    starts[i] = {body, argument, i};
    if (pthread_create(&handles[i], nullptr, run_body, &starts[i]) != 0) _exit(3);
  }
  for (unsigned i = 0; i < threads; ++i) pthread_join(handles[i], nullptr);
}

}  // namespace terrace::bench::child

int main(int argc, char** argv) {
  using namespace terrace::bench::child;
  uint64_t numbers[4] = {};
  for (int i = 2; i < argc && i < 6; ++i) numbers[i - 2] = strtoull(argv[i], nullptr, 10);
  for (const Part& part : parts)
    if (argc == part.arguments + 2 && strcmp(argv[1], part.name) == 0) return part.run(numbers);
  return 2;
}
