// SPDX-License-Identifier: Apache-2.0
// What was made private by a fork is shared again after the last child, and when it can't be.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/integration/shim/fork_cases/cases.h"

namespace {

// Private since the fork, shared again after the last child.
void folded() {
  Blocks blocks = make_blocks(1);
  const int before = count_shared(blocks);
  for (int round = 0; round < 4; ++round) {
    const auto value = static_cast<unsigned char>(16 * round + 1);
    store_all(blocks, value);
    Pipe to_child;
    pid_t pid = fork();
    if (pid < 0) wrong("fork failed");
    if (pid == 0) {
      pid_t inner = fork();
      if (inner == 0) {
        to_child.hear();
        check_blocks(blocks, value, "the grandchild sees what the parent folded");
        _exit(0);
      }
      if (round % 2 == 0) _exit(0);  // it is an orphan
      reap(inner);
      _exit(0);
    }
    for (size_t i = 0; i < blocks.size(); i += 2)
      memset(blocks[i], value + 100 + static_cast<int>(i % 7), block_bytes);
    if (round % 2 == 0) reap(pid);
    usleep(600'000);
    if (count_shared(blocks) > before / 2) wrong("folded while a child had the files");
    to_child.tell();
    if (round % 2 != 0) reap(pid);
    if (!wait_until_shared(blocks, before)) wrong("never folded");
    for (size_t i = 0; i < blocks.size(); ++i)
      for (size_t at = 0; at < block_bytes; at += 64)
        if (blocks[i][at] != static_cast<unsigned char>(value + (i % 2 == 0 ? 100 : 0) + i % 7))
          wrong("the fold changed bytes");
    churn(200);
  }
  for (unsigned char* block : blocks) free(block);
}

// One granule cannot be folded for long: the program's own userfaultfd has a page of it. Blocks of its
// neighbours are freed, allocated again and forked meanwhile.
void folding_blocked() {
  constexpr size_t bytes = 16u << 20;
  const long fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
  uffdio_api api = {.api = UFFD_API, .features = 0, .ioctls = 0};
  if (fd < 0 || ioctl(static_cast<int>(fd), UFFDIO_API, &api) != 0) wrong("no userfaultfd");
  auto* block = static_cast<unsigned char*>(malloc(bytes));
  if (block == nullptr) wrong("no memory");
  memset(block, 1, bytes);
  Pipe to_child;
  pid_t pid = fork();
  if (pid == 0) {
    to_child.hear();
    _exit(0);
  }
  memset(block, 2, bytes);
  const auto last = (reinterpret_cast<uintptr_t>(block) + bytes - 3 * 4096) & ~uintptr_t{4095};
  uffdio_register page = {.range = {last, 4096}, .mode = UFFDIO_REGISTER_MODE_MISSING, .ioctls = 0};
  if (ioctl(static_cast<int>(fd), UFFDIO_REGISTER, &page) != 0) wrong("UFFDIO_REGISTER failed");
  to_child.tell();
  reap(pid);
  Blocks granules;
  for (size_t at = 0; at < bytes; at += 2u << 20) granules.push_back(block + at);
  if (!wait_until_shared(granules, 6)) wrong("nothing was folded");
  usleep(600'000);  // some hundred passes that fail
  close(static_cast<int>(fd));
  for (int round = 0; round < 4; ++round) {
    free(block);
    Blocks others;
    unsigned char* again = nullptr;
    while ((again = static_cast<unsigned char*>(malloc(bytes))) != nullptr && again != block)
      others.push_back(again);
    for (unsigned char* other : others) free(other);
    if (again == nullptr) wrong("the block does not come again");
    const int value = 7 + round;
    memset(block, value, bytes);
    pid = fork();
    if (pid < 0) wrong("fork failed");
    for (size_t at = 0; at < bytes; at += 512)
      if (block[at] != value) wrong(pid == 0 ? "the child's bytes are lost" : "bytes are lost");
    if (pid == 0) _exit(0);
    reap(pid);
    usleep(20'000);
  }
}

// A fork each 200 ms: folding in between would only cost.
void forks_all_the_time() {
  Blocks blocks = make_blocks(3);
  const int before = count_shared(blocks);
  for (int round = 0; round < 12; ++round) {
    pid_t pid = fork();
    if (pid < 0) wrong("fork failed");
    if (pid == 0) _exit(0);
    reap(pid);
    store_all(blocks, static_cast<unsigned char>(round));
    usleep(200'000);
    if (count_shared(blocks) >= before) wrong("folded between two forks");
  }
  if (!wait_until_shared(blocks, before)) wrong("never folded");
}

// What a child filters, locks or protects ends with it.
void folded_after_careful_children() {
  Blocks blocks = make_blocks(5);
  const int before = count_shared(blocks);
  for (int what = 0; what < 4; ++what) {
    pid_t pid = fork();
    if (pid < 0) wrong("fork failed");
    if (pid == 0) {
      if (what == 0) mprotect(blocks[0], 4096, PROT_READ);
      if (what == 1) mlock(blocks[1], 4096);
      if (what == 2) mlockall(MCL_CURRENT);
      if (what == 3) prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
      if (what == 3) prctl(PR_SET_SECCOMP, 1, 0, 0, 0);
      syscall(SYS_exit, 0);
    }
    reap(pid);
    store_all(blocks, static_cast<unsigned char>(what));
    if (!wait_until_shared(blocks, before)) wrong("never folded");
    check_blocks(blocks, static_cast<unsigned char>(what), "after a careful child");
  }
}

}  // namespace

std::span<const Case> folding_cases() {
  static constexpr Case cases[] = {{"folded", folded},
                                   {"folding_blocked", folding_blocked},
                                   {"forks_all_the_time", forks_all_the_time},
                                   {"folded_after_careful_children", folded_after_careful_children}};
  return cases;
}
