// SPDX-License-Identifier: Apache-2.0
// Forks of programs with threads, and of libraries with fork handlers.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/integration/shim/fork_cases/cases.h"

namespace {

// Threads that are at work before, in and after each fork, and rest while its child takes its time: who goes on all
// the while takes the processor from the child, for nothing.
class Workers {
 public:
  // `once` is given a seed of the thread's own; false where it found something wrong.
  Workers(unsigned count, bool (*once)(unsigned& seed)) : done_(count) {
    for (unsigned i = 0; i < count; ++i)
      threads_.emplace_back([this, i, once] {
        for (unsigned seed = i + 1; !stop; ++done_[i]) {
          while (rest_ && !stop) usleep(500);
          if (!once(seed)) failed_ = true;
        }
      });
  }
  // Until each of them has gone through its work `times` more.
  void work(unsigned times) {
    std::vector<unsigned> before(done_.begin(), done_.end());
    rest_ = false;
    for (size_t i = 0; i < done_.size(); ++i)
      while (done_[i] - before[i] < times) usleep(200);
  }
  void rest() { rest_ = true; }
  bool end() {
    stop = true;
    for (std::thread& thread : threads_) thread.join();
    return !failed_;
  }

 private:
  std::vector<std::atomic<unsigned>> done_;
  std::vector<std::thread> threads_;
  std::atomic<bool> rest_{false}, failed_{false};
};

bool allocate_and_check(unsigned& seed) {
  size_t bytes = 4096 + rand_r(&seed) % 300'000;
  auto* block = static_cast<unsigned char*>(malloc(bytes));
  if (block == nullptr) return false;
  bool well = true;
  memset(block, static_cast<int>(seed), bytes);
  for (size_t at = 0; at < bytes; at += 997)
    if (block[at] != static_cast<unsigned char>(seed)) well = false;
  free(block);
  return well;
}

void with_threads() {
  Blocks blocks = make_blocks(4);
  Workers workers(3, allocate_and_check);
  for (int round = 0; round < 40; ++round) {
    workers.work(20);
    pid_t pid = fork();
    if (pid < 0) wrong("fork failed");
    if (pid == 0) {
      check_blocks(blocks, 4, "child among threads");
      churn(30, round % 10 == 0 ? 3 : 1);
      store_all(blocks, 99);
      _exit(0);
    }
    workers.work(100);
    workers.rest();
    reap(pid);
    check_blocks(blocks, 4, "parent among threads");
  }
  if (!workers.end()) wrong("a thread lost memory or contents while others forked");
}

// A library whose fork handlers lock a mutex under which other threads allocate: must not deadlock.
pthread_mutex_t library_mutex = PTHREAD_MUTEX_INITIALIZER;
void lock_library() {
  pthread_mutex_lock(&library_mutex);
  free(malloc(100'000));
}
void unlock_library() {
  free(malloc(200'000));
  pthread_mutex_unlock(&library_mutex);
}

bool use_library(unsigned&) {
  pthread_mutex_lock(&library_mutex);
  auto* block = static_cast<unsigned char*>(malloc(150'000));
  if (block != nullptr) memset(block, 1, 150'000);
  free(block);
  pthread_mutex_unlock(&library_mutex);
  return block != nullptr;
}

void handlers() {
  pthread_atfork(lock_library, unlock_library, unlock_library);
  Blocks blocks = make_blocks(4);
  Workers workers(2, use_library);
  for (int round = 0; round < 25; ++round) {
    workers.work(20);
    pid_t pid = fork();
    if (pid < 0) wrong("fork failed");
    if (pid == 0) {
      check_blocks(blocks, 4, "child after handlers");
      churn(20, round % 5 == 0 ? 3 : 1);
      _exit(0);
    }
    workers.work(50);
    workers.rest();
    reap(pid);
  }
  if (!workers.end()) wrong("no memory in a thread");
  check_blocks(blocks, 4, "parent after handlers");
}

void storing_while_forking() {
  // A thread counts up in leased memory while others fork: no count may be lost by the switch. New blocks for
  // each round, since a range is switched once only.
  for (int round = 0; round < 12; ++round) {
    Blocks blocks = make_blocks(0);
    std::vector<uint64_t> start;
    for (unsigned char* block : blocks) start.push_back(*reinterpret_cast<uint64_t*>(block + 8192));
    std::atomic<uint64_t> done{0};
    stop = false;
    std::thread counter([&] {
      while (!stop) {
        for (unsigned char* block : blocks) ++*reinterpret_cast<uint64_t*>(block + 8192);
        ++done;
      }
    });
    while (done < 100) usleep(100);
    pid_t pid = fork();
    if (pid < 0) wrong("fork failed");
    if (pid == 0) {
      usleep(20'000);
      _exit(0);
    }
    reap(pid);
    stop = true;
    counter.join();
    for (size_t i = 0; i < blocks.size(); ++i)
      if (*reinterpret_cast<uint64_t*>(blocks[i] + 8192) - start[i] != done) wrong("a store was lost");
    for (unsigned char* block : blocks) free(block);
  }
}

}  // namespace

std::span<const Case> thread_cases() {
  static constexpr Case cases[] = {
      {"with_threads", with_threads}, {"handlers", handlers}, {"storing_while_forking", storing_while_forking}};
  return cases;
}
