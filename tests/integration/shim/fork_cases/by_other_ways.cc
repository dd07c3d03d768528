// SPDX-License-Identifier: Apache-2.0
// Forks past the library's own, in signal handlers, of memory that is advised, dropped or freed.
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/integration/shim/fork_cases/cases.h"

namespace {

void bare_fork() {
  Blocks blocks = make_blocks(6);
  pid_t pid = _Fork();
  if (pid < 0) wrong("_Fork failed");
  if (pid == 0) {
    store_all(blocks, 90);
    _exit(0);
  }
  reap(pid);
  check_blocks(blocks, 6, "_Fork: the parent sees the child's stores");
}

void advice() {
  Blocks blocks = make_blocks(2);
  for (int pass = 0; pass < 2; ++pass) {
    for (unsigned char* block : blocks)
      if (madvise(block + 4096, 8192, MADV_DONTNEED) != 0) wrong("madvise failed");
    for (size_t i = 0; i < blocks.size(); ++i) {
      for (size_t at = 0; at < 8192; at += 64)
        if (blocks[i][4096 + at] != 0) wrong("MADV_DONTNEED kept bytes");
      if (blocks[i][4095] == 0 || blocks[i][4096 + 8192] == 0) wrong("MADV_DONTNEED took too much");
      if (madvise(blocks[i] + 16384, 4096, MADV_FREE) != 0) wrong("MADV_FREE failed");
    }
    if (pass == 1) break;
    pid_t pid = fork();  // the same once more on detached pages
    if (pid == 0) {
      usleep(100'000);
      for (unsigned char* block : blocks)
        if (block[4095] == 0) wrong("child, madvise of the parent is seen");
      _exit(0);
    }
    store_all(blocks, 2);
    for (unsigned char* block : blocks)
      if (madvise(block + 4096, 8192, MADV_DONTNEED) != 0) wrong("madvise failed");
    reap(pid);
    store_all(blocks, 2);
  }
}

volatile sig_atomic_t handled = 0;

void arm_timer() {
  itimerval once{};
  once.it_value.tv_usec = 500 + handled % 7 * 311;
  setitimer(ITIMER_REAL, &once, nullptr);
}

void signal_handler(int) {
  // Not allowed by POSIX, and yet it must not hang: malloc and fork inside a handler.
  void* block = malloc(100'000);
  free(block);
  pid_t pid = fork();
  if (pid == 0) _exit(0);
  if (pid > 0) waitpid(pid, nullptr, 0);
  handled = handled + 1;
  if (handled < 150) arm_timer();
}

void in_signals() {
  struct sigaction action {};
  action.sa_handler = signal_handler;
  sigaction(SIGALRM, &action, nullptr);
  arm_timer();
  // Only large requests: glibc's own malloc would not survive this.
  for (size_t i = 0; handled < 150; ++i) {
    void* block = malloc(70'000 + i % 50 * 4096);
    if (block == nullptr) wrong("no memory");
    *static_cast<volatile char*>(block) = 1;
    free(block);
  }
}

// What a child drops or frees reads as zeros when it comes again, not as what the parent had there.
void dropped_in_child() {
  constexpr size_t count = 20'000, bytes = 900, large = 3 << 20;
  static char* blocks[count];
  auto* big = static_cast<char*>(aligned_alloc(4096, large));
  for (char*& block : blocks) memset(block = static_cast<char*>(malloc(bytes)), 0xee, bytes);
  memset(big, 0xee, large);
  pid_t pid = fork();
  if (pid == 0) {
    if (madvise(big, large, MADV_DONTNEED) != 0) wrong("madvise");
    for (size_t i = 0; i < large; ++i)
      if (big[i] != 0) wrong("dropped memory holds old bytes");
    for (char* block : blocks) free(block);
    malloc_trim(0);
    for (size_t i = 0; i < count; ++i) {
      auto* block = static_cast<char*>(calloc(1, bytes));
      for (size_t at = 0; at < bytes; ++at)
        if (block[at] != 0) wrong("calloc's memory is not zero");
    }
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  if (status != 0) wrong("the child found old bytes");
  for (size_t i = 0; i < large; ++i)
    if (big[i] != static_cast<char>(0xee)) wrong("the parent's memory changed");
}

void behind_our_back() {
  // A fork by an inline system call gets no leased memory at all: SIGSEGV there instead of shared stores.
  Blocks blocks = make_blocks(6);
  auto* last = blocks.back();  // past the DDR budget
  long pid = SYS_fork;
  __asm__ volatile("syscall" : "+a"(pid) : : "rcx", "r11", "memory");
  if (pid == 0) {
    *last = 99;
    _exit(0);
  }
  int status = 0;
  waitpid(static_cast<pid_t>(pid), &status, 0);
  if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV) wrong("a raw fork reached leased memory");
  check_blocks(blocks, 6, "a raw fork's child changed the parent's memory");
}

}  // namespace

std::span<const Case> other_ways_cases() {
  static constexpr Case cases[] = {{"bare_fork", bare_fork},
                                   {"advice", advice},
                                   {"in_signals", in_signals},
                                   {"dropped_in_child", dropped_in_child},
                                   {"behind_our_back", behind_our_back}};
  return cases;
}
