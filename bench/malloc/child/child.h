// SPDX-License-Identifier: Apache-2.0
// The programs that bench_malloc measures: one executable, one question a file. It runs under every heap there
// is, so it is built without sanitizers and linked to libc only (a C++ runtime allocates before main), and what
// it keeps for itself is static or mapped: its heap holds what is measured and nothing else.
//
// Each part takes its arguments as numbers, puts its figure on stdout and returns 0; 1: an allocation failed.
// Threads are the parts' own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace terrace::bench::child {

// xorshift64*: cheap beside an allocation.
struct Random {
  uint64_t state;
  uint64_t next() {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545f4914f6cdd1du;
  }
  uint64_t below(uint64_t bound) { return (next() >> 16) % bound; }
  // As many sizes in each power of two from 2^first to 2^last, even within it.
  uint64_t log_uniform(unsigned first, unsigned last) {
    const uint64_t low = uint64_t{1} << (first + below(last - first));
    return low + below(low + 1);
  }
};

double wall_ns();
double thread_cpu_ns();
double process_cpu_ns();
void put(double figure);  // on stdout, without the heap

// Zeroed memory that is not malloc's. Ends the process where there is none.
void* mapped(size_t bytes);

// Runs `body(argument, i)` on `threads` threads and waits for them. One: on the caller's own.
void on_threads(unsigned threads, void (*body)(void* argument, unsigned index), void* argument);

int pairs(const uint64_t* arguments);         // SIZE THREADS MS: ns a malloc/free pair
int large_blocks(const uint64_t* arguments);  // OPERATIONS: CPU seconds
int larson(const uint64_t* arguments);        // THREADS MS: replacements a second
int xmalloc(const uint64_t* arguments);       // PAIRS MS: objects a second
int random_sizes(const uint64_t* arguments);  // THREADS MS: replacements a second
int one_size(const uint64_t* arguments);      // SIZE THREADS MS: replacements a second
int resident(const uint64_t* arguments);      // LIVE_MIB: resident bytes over live ones
int fill_window(const uint64_t* arguments);   // SIZE: bytes handed out until the first refusal
int churn_window(const uint64_t* arguments);  // WINDOW_BYTES ATTEMPTS SEED: failed ones of 100

}  // namespace terrace::bench::child
