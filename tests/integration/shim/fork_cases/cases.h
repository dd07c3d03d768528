// SPDX-License-Identifier: Apache-2.0
// What the cases of fork over leased memory share. Every block is large enough to live in the window (min-size 4096) and
// the DDR budget is tiny, so that most of them are leased memory.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <span>
#include <vector>

struct Case {
  const char* name;
  void (*run)();
};
std::span<const Case> sharing_cases();
std::span<const Case> folding_cases();
std::span<const Case> fold_torture_cases();
std::span<const Case> thread_cases();
std::span<const Case> other_ways_cases();
std::span<const Case> shut_in_cases();

constexpr size_t block_bytes = 256u << 10;
constexpr int block_count = 100;  // 25 MiB

using Blocks = std::vector<unsigned char*>;

// Says what is wrong, and ends the process with 1.
[[noreturn]] void wrong(const char* what);
Blocks make_blocks(unsigned char value);
void check_blocks(const Blocks& blocks, unsigned char value, const char* what);
void store_all(const Blocks& blocks, unsigned char value);
// Allocates, checks that calloc is zero, frees; what a round has freed serves the next one.
void churn(unsigned char value, int rounds = 3);
// How many of the blocks begin in a mapping that is shared: in a lease or the front's file.
int count_shared(const Blocks& blocks);
bool wait_until_shared(const Blocks& blocks, int least);
// Waits for a child, which must end well.
void reap(pid_t pid);

// Tells one process what another one has done.
struct Pipe {
  int ends[2];
  Pipe();
  void tell();
  void hear();
};

// Ends the threads of a case.
inline std::atomic<bool> stop{false};
