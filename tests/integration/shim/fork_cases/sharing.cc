// SPDX-License-Identifier: Apache-2.0
// Who sees whose stores: parents, children, grandchildren, daemons.
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/integration/shim/fork_cases/cases.h"

namespace {

void both_sides() {
  Blocks blocks = make_blocks(1);
  Pipe to_child, to_parent;
  pid_t pid = fork();
  if (pid < 0) wrong("fork failed");
  if (pid == 0) {
    check_blocks(blocks, 1, "the child does not see what was before the fork");
    to_parent.tell();
    to_child.hear();  // the parent has stored
    check_blocks(blocks, 1, "the child sees the parent's later stores");
    store_all(blocks, 50);
    churn(60);
    check_blocks(blocks, 50, "the child lost its own stores");
    for (unsigned char* block : blocks) free(block);
    churn(70);
    _exit(0);
  }
  to_parent.hear();
  store_all(blocks, 100);
  to_child.tell();
  churn(110);
  reap(pid);
  check_blocks(blocks, 100, "the parent sees the child's stores");
  for (unsigned char* block : blocks) free(block);
  churn(120);
}

void without_leases() {
  // Run with a budget of one lease, which the parent has: the child lives on the window's free ranges, the same
  // addresses that the parent goes on using as leased memory.
  Blocks blocks = make_blocks(1);
  Blocks parents, childs;
  Pipe to_child, to_parent;
  pid_t pid = fork();
  if (pid < 0) wrong("fork failed");
  if (pid == 0) {
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < 30; ++i) {
        childs.push_back(static_cast<unsigned char*>(calloc(1, block_bytes)));
        if (childs.back() == nullptr) wrong("the child has no memory");
        for (size_t at = 0; at < block_bytes; at += 64)
          if (childs.back()[at] != 0) wrong("calloc is not zero");
      }
      store_all(childs, 60);
      to_parent.tell();
      to_child.hear();
      check_blocks(childs, 60, "the child's new blocks hold the parent's stores");
      for (unsigned char* block : childs) free(block);
      childs.clear();
    }
    check_blocks(blocks, 1, "the child lost its inheritance");
    _exit(0);
  }
  for (int round = 0; round < 3; ++round) {
    to_parent.hear();
    for (int i = 0; i < 30; ++i) {
      parents.push_back(static_cast<unsigned char*>(malloc(block_bytes)));
      if (parents.back() == nullptr) wrong("the parent has no memory");
    }
    store_all(parents, 120);
    to_child.tell();
    check_blocks(parents, 120, "the parent's new blocks hold the child's stores");
    for (unsigned char* block : parents) free(block);
    parents.clear();
  }
  reap(pid);
  check_blocks(blocks, 1, "the parent sees the child's stores");
}

void untouched_pages() {
  // Pages that only one side ever writes, in both directions, and blocks freed by the parent meanwhile.
  Blocks blocks = make_blocks(3);
  Pipe to_child;
  pid_t pid = fork();
  if (pid < 0) wrong("fork failed");
  if (pid == 0) {
    to_child.hear();
    check_blocks(blocks, 3, "the child's view changed after the parent freed and reused memory");
    _exit(0);
  }
  for (unsigned char* block : blocks) free(block);
  churn(90);
  churn(91);
  to_child.tell();
  reap(pid);
}

void grandchildren() {
  Blocks blocks = make_blocks(5);
  pid_t pid = fork();
  if (pid == 0) {
    Blocks more = make_blocks(20);  // the child's own leases
    Pipe ready;
    pid_t inner = fork();
    if (inner == 0) {
      check_blocks(blocks, 5, "the grandchild lost the first generation");
      check_blocks(more, 20, "the grandchild lost the second generation");
      store_all(blocks, 30);
      store_all(more, 40);
      churn(50);
      ready.tell();
      check_blocks(blocks, 30, "grandchild, own stores");
      check_blocks(more, 40, "grandchild, own stores");
      _exit(0);
    }
    if (inner < 0) wrong("second fork failed");
    ready.hear();
    check_blocks(blocks, 5, "the child sees the grandchild's stores (first)");
    check_blocks(more, 20, "the child sees the grandchild's stores (second)");
    store_all(more, 60);
    reap(inner);
    check_blocks(more, 60, "child, own stores");
    _exit(0);
  }
  if (pid < 0) wrong("fork failed");
  store_all(blocks, 8);
  reap(pid);
  check_blocks(blocks, 8, "the parent sees stores of its descendants");
}

void parent_first() {
  Blocks blocks = make_blocks(9);
  Pipe done;
  pid_t pid = fork();
  if (pid < 0) wrong("fork failed");
  if (pid != 0) _exit(0);  // whoever supervises waits for the child: its exit status is lost, its output is not
  usleep(700'000);         // long enough that the parent's leases would be released if nobody looked
  check_blocks(blocks, 9, "the orphan lost its memory");
  store_all(blocks, 10);
  churn(30);
  check_blocks(blocks, 10, "the orphan lost its stores");
  printf("orphan is well\n");
  fflush(stdout);
  _exit(0);
}

void daemonised() {
  Blocks blocks = make_blocks(9);
  if (daemon(1, 1) != 0) wrong("daemon failed");
  usleep(300'000);
  check_blocks(blocks, 9, "the daemon lost its memory");
  store_all(blocks, 10);
  churn(30);
  check_blocks(blocks, 10, "the daemon lost its stores");
  printf("daemon is well\n");
  fflush(stdout);
  _exit(0);
}

void on_terminal() {
  Blocks blocks = make_blocks(7);
  int controller = -1;
  pid_t pid = forkpty(&controller, nullptr, nullptr, nullptr);
  if (pid < 0) wrong("forkpty failed");
  if (pid == 0) {
    store_all(blocks, 70);
    check_blocks(blocks, 70, "forkpty child");
    _exit(isatty(0) ? 0 : 1);
  }
  reap(pid);
  check_blocks(blocks, 7, "forkpty: the parent sees the child's stores");
}

void repeatedly() {
  Blocks blocks = make_blocks(1);
  for (int round = 0; round < 20; ++round) {
    auto value = static_cast<unsigned char>(round * 8);
    store_all(blocks, value);
    for (int i = 0; i < 20; ++i) {  // some blocks are new in each generation
      size_t at = static_cast<size_t>(round * 17 + i * 7) % blocks.size();
      free(blocks[at]);
      blocks[at] = static_cast<unsigned char*>(malloc(block_bytes));
      memset(blocks[at], value + static_cast<int>(at % 7), block_bytes);
    }
    pid_t pid = fork();
    if (pid < 0) wrong("fork failed");
    if (pid == 0) {
      check_blocks(blocks, value, "child of a later round");
      store_all(blocks, static_cast<unsigned char>(value + 1));
      _exit(0);
    }
    if (round % 3 != 0) store_all(blocks, static_cast<unsigned char>(value + 2));
    reap(pid);
    check_blocks(blocks, round % 3 != 0 ? static_cast<unsigned char>(value + 2) : value,
                 "parent of a later round");
  }
}

}  // namespace

std::span<const Case> sharing_cases() {
  static constexpr Case cases[] = {{"both_sides", both_sides},           {"without_leases", without_leases},
                                   {"untouched_pages", untouched_pages}, {"grandchildren", grandchildren},
                                   {"parent_first", parent_first},       {"daemonised", daemonised},
                                   {"on_terminal", on_terminal},         {"repeatedly", repeatedly}};
  return cases;
}
