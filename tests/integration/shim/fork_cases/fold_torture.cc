// SPDX-License-Identifier: Apache-2.0
// Stores of threads while what a fork made private is shared again.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/integration/shim/fork_cases/cases.h"

namespace {

// Counters of one thread, one in every page of its blocks; each is what the thread last stored, always.
struct Counters {
  Blocks blocks;
  std::vector<uint64_t> expected;
  static constexpr size_t step = 4096;
  static constexpr size_t per_block = block_bytes / step;
  volatile uint64_t* at(size_t i) const {
    return reinterpret_cast<volatile uint64_t*>(blocks[i / per_block] + i % per_block * step + 64 * (i % 32));
  }
};

void count_until_stopped(Counters* mine, unsigned seed, std::atomic<uint64_t>* lost) {
  while (!stop) {
    const size_t i = static_cast<size_t>(rand_r(&seed)) % mine->expected.size();
    if (*mine->at(i) != mine->expected[i]) {
      ++*lost;
      mine->expected[i] = *mine->at(i);
    }
    *mine->at(i) = ++mine->expected[i];
    // Blocks that come and go: detached runs are given back while they are folded.
    if (seed % 4096 == 0) {
      auto* large = static_cast<unsigned char*>(malloc(3u << 20));
      if (large == nullptr) wrong("no memory");
      memset(large, static_cast<int>(seed), 3u << 20);
      for (size_t at = 0; at < 3u << 20; at += 997)
        if (large[at] != static_cast<unsigned char>(seed)) ++*lost;
      free(large);
    }
  }
}

// The child takes down every counter, and they must stay what they are, whatever the parent does; and every
// byte beside them must be what it was.
void watch_snapshot(const std::vector<Counters>& all, unsigned rest_us) {
  std::vector<uint64_t> first;
  for (const Counters& one : all)
    for (size_t i = 0; i < one.expected.size(); ++i) {
      const uint64_t value = *one.at(i);
      // The thread was between two of its steps, or in the middle of one.
      if (value + 1 - one.expected[i] > 2) wrong("the child's memory is not of one moment");
      first.push_back(value);
    }
  usleep(rest_us);
  size_t next = 0;
  for (const Counters& one : all)
    for (size_t i = 0; i < one.expected.size(); ++i)
      if (*one.at(i) != first[next++]) wrong("a child's memory changed under it");
}

void fold_torture() {
  constexpr int threads_count = 3;
  std::vector<Counters> all(threads_count);
  for (Counters& one : all) {
    for (int i = 0; i < 60; ++i) {
      one.blocks.push_back(static_cast<unsigned char*>(calloc(1, block_bytes)));
      if (one.blocks.back() == nullptr) wrong("no memory");
    }
    one.expected.resize(one.blocks.size() * Counters::per_block);
  }
  std::atomic<uint64_t> lost{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < threads_count; ++i) threads.emplace_back(count_until_stopped, &all[i], i + 1, &lost);
  const char* text = getenv("TERRACE_TEST_SECONDS");
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const long end = now.tv_sec + (text != nullptr ? atol(text) : 8);
  unsigned seed = 99;
  int forks = 0;
  std::vector<pid_t> children;
  for (; clock_gettime(CLOCK_MONOTONIC, &now) == 0 && now.tv_sec < end; ++forks) {
    pid_t pid = fork();
    if (pid < 0) wrong("fork failed");
    if (pid == 0) {
      if (rand_r(&seed) % 4 == 0 && fork() != 0) _exit(0);
      watch_snapshot(all, static_cast<unsigned>(rand_r(&seed)) % 60'000);
      _exit(0);
    }
    children.push_back(pid);
    // Now one child at a time, now some; and now and then time enough for a fold, or for a half of one.
    if (rand_r(&seed) % 3 != 0) {
      for (pid_t child : children) reap(child);
      children.clear();
    }
    usleep(static_cast<unsigned>(rand_r(&seed)) % 80'000);
  }
  for (pid_t child : children) reap(child);
  stop = true;
  for (std::thread& thread : threads) thread.join();
  if (lost != 0) wrong("a store was lost");
  for (const Counters& one : all)
    for (size_t b = 0; b < one.blocks.size(); ++b)
      for (size_t at = 0; at < block_bytes; ++at) {
        const size_t i = b * Counters::per_block + at / Counters::step;
        const auto* word = reinterpret_cast<const unsigned char*>(&one.expected[i]);
        const size_t within = at % Counters::step - 64 * (i % 32);
        if (one.blocks[b][at] != (within < 8 ? word[within] : 0)) wrong("a byte changed");
      }
  Blocks blocks;
  for (const Counters& one : all) blocks.insert(blocks.end(), one.blocks.begin(), one.blocks.end());
  if (!wait_until_shared(blocks, static_cast<int>(blocks.size()))) wrong("never folded");
  usleep(500'000);  // the engine goes on, and counts
  printf("%d forks\n", forks);
}

// Run with a window that is full: what a thread frees of the detached memory is what it gets again, and its
// pages were given back in between, perhaps in the middle of a fold.
void freed_while_folding() {
  constexpr size_t bytes = 1u << 20, step = 16 * 4096;
  constexpr int threads_count = 2;
  std::vector<Blocks> all(threads_count);
  int count = 0;
  for (void* block; (block = malloc(bytes)) != nullptr; ++count) {
    if (count == 1000) wrong("the window has no end");
    all[static_cast<size_t>(count % threads_count)].push_back(static_cast<unsigned char*>(block));
  }
  if (count < 20) wrong("no memory");
  // Under the whole heap what is served while the window is full may break up two free places.
  for (int i = 0; i < 8; ++i) {
    free(all[static_cast<size_t>(i % threads_count)].back());
    all[static_cast<size_t>(i % threads_count)].pop_back();
  }
  std::atomic<uint64_t> lost{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < threads_count; ++t)
    threads.emplace_back([&, t] {
      Blocks& mine = all[static_cast<size_t>(t)];
      std::vector<unsigned char> values(mine.size());
      unsigned seed = static_cast<unsigned>(t) + 7;
      while (!stop) {
        const auto i = static_cast<size_t>(rand_r(&seed)) % mine.size();
        free(mine[i]);
        void* again = nullptr;
        // The other thread may have this one's place, but not both.
        while ((again = malloc(bytes)) == nullptr) sched_yield();
        mine[i] = static_cast<unsigned char*>(again);
        const auto value = static_cast<unsigned char>(rand_r(&seed) | 1);
        // What was stored last time must have stayed until now, however long that is.
        values[i] = value;
        for (size_t at = 0; at < bytes; at += step) mine[i][at] = value;
        const size_t other = static_cast<size_t>(rand_r(&seed)) % mine.size();
        for (size_t at = 0; values[other] != 0 && at < bytes; at += step)
          if (mine[other][at] != values[other]) {
            ++lost;
            break;
          }
      }
    });
  for (int round = 0; round < 24; ++round) {
    pid_t pid = fork();
    if (pid < 0) wrong("fork failed");
    if (pid == 0) _exit(0);
    reap(pid);
    usleep(150'000);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  if (lost != 0) wrong("stores in reused memory were lost");
  sleep(2);  // for a fold on a slow machine: blocks of a moment when a fork was under way are not the window's
}

}  // namespace

std::span<const Case> fold_torture_cases() {
  static constexpr Case cases[] = {{"fold_torture", fold_torture},
                                   {"freed_while_folding", freed_while_folding}};
  return cases;
}
