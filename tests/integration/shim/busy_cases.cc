// SPDX-License-Identifier: Apache-2.0
// Memory that the kernel or a device knows by its pages, while granules go to and fro: busy_cases NAME. Exit 0:
// no byte was lost, no protection forgotten. To be run with a policy that moves all the time
// (TERRACE_TEST_POLICY=churn); with TERRACE_TEST_HOLD_NOTHING in the environment each case must fail.
#include <aio.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "terrace/hold.h"

namespace {

constexpr size_t granule = 2u << 20;
constexpr int granules = 24;

[[noreturn]] void wrong(const char* what) {
  fprintf(stderr, "busy_cases: %s\n", what);
  _exit(1);
}

// The window's memory, whole granules, each with its own byte.
std::vector<unsigned char*> make_granules() {
  auto* all = static_cast<unsigned char*>(aligned_alloc(granule, granule * granules));
  if (all == nullptr) wrong("no memory");
  std::vector<unsigned char*> list;
  for (int i = 0; i < granules; ++i) {
    list.push_back(all + i * granule);
    memset(list.back(), i + 1, granule);
  }
  return list;
}

// What lies behind an address: the file and the place in it.
std::string backing_of(const void* address) {
  FILE* file = fopen("/proc/self/maps", "r");
  char line[512];
  std::string found = "?";
  while (file != nullptr && fgets(line, sizeof(line), file) != nullptr) {
    unsigned long from = 0, to = 0, offset = 0, inode = 0;
    char device[32] = {};
    if (sscanf(line, "%lx-%lx %*s %lx %31s %lu", &from, &to, &offset, device, &inode) != 5) continue;
    const auto at = reinterpret_cast<unsigned long>(address);
    if (at < from || at >= to) continue;
    found = std::string(device) + " " + std::to_string(inode) + " " + std::to_string(offset + at - from);
  }
  if (file != nullptr) fclose(file);
  return found;
}

// True when one of them moved within the time.
bool any_moves(const std::vector<unsigned char*>& list, int milliseconds) {
  std::vector<std::string> before;
  for (auto* one : list) before.push_back(backing_of(one));
  for (int i = 0; i < milliseconds / 10; ++i) {
    usleep(10'000);
    for (size_t at = 0; at < list.size(); ++at)
      if (backing_of(list[at]) != before[at]) return true;
  }
  return false;
}

void wait_for_moves(const std::vector<unsigned char*>& list) {
  if (!any_moves(list, 20'000)) wrong("nothing moves: this run shows nothing");
}

void direct_reads() {
  auto list = make_granules();
  wait_for_moves(list);
  char name[] = "direct-XXXXXX";
  int made = mkstemp(name);
  int fd = open(name, O_RDWR | O_DIRECT);
  unlink(name);
  if (made < 0 || fd < 0) {
    puts("no direct I/O here");
    return;
  }
  auto* source = static_cast<unsigned char*>(
      mmap(nullptr, granule, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  for (size_t at = 0; at < granule; ++at) source[at] = static_cast<unsigned char>(at * 31 + at / 4096);
  if (pwrite(fd, source, granule, 0) != static_cast<ssize_t>(granule)) wrong("cannot write the file");
  int lost = 0;
  for (int round = 0; round < 400; ++round) {
    unsigned char* into = list[static_cast<size_t>(round * 7 % granules)];
    memset(into, 0, granule);
    if (pread(fd, into, granule, 0) != static_cast<ssize_t>(granule)) wrong("pread");
    if (memcmp(into, source, granule) != 0) ++lost;
  }
  close(fd);
  close(made);
  if (lost > 0) {
    fprintf(stderr, "%d of 400 direct reads lost data\n", lost);
    wrong("direct reads lost data");
  }
}

void pages_in_a_pipe() {
  auto list = make_granules();
  wait_for_moves(list);
  constexpr size_t part = 64 * 1024;
  int ends[2];
  if (pipe(ends) != 0 || fcntl(ends[1], F_SETPIPE_SZ, 1 << 20) < 0) wrong("pipe");
  std::vector<unsigned char*> sent;
  for (size_t i = 0; i < 8; ++i) {
    iovec one{list[i * 3] + part * i, part};
    if (vmsplice(ends[1], &one, 1, 0) != static_cast<ssize_t>(part)) wrong("vmsplice");
    sent.push_back(list[i * 3]);
  }
  // A page that was left is given to others: what the pipe still holds would change.
  if (any_moves(sent, 1000)) wrong("memory moved from under a pipe");
  std::vector<unsigned char> got(part);
  for (size_t i = 0; i < 8; ++i) {
    for (size_t have = 0; have < part;) {
      ssize_t more = read(ends[0], got.data() + have, part - have);
      if (more <= 0) wrong("read");
      have += static_cast<size_t>(more);
    }
    for (unsigned char byte : got)
      if (byte != i * 3 + 1) wrong("the pages in a pipe changed");
  }
}

sigjmp_buf jump;
void on_fault(int) {
  siglongjmp(jump, 1);
}

bool can_store(unsigned char* at) {
  if (sigsetjmp(jump, 1) != 0) return false;
  *static_cast<volatile unsigned char*>(at) = 200;
  return true;
}

void protections() {
  auto list = make_granules();
  wait_for_moves(list);
  struct sigaction action {};
  action.sa_handler = on_fault;
  sigaction(SIGSEGV, &action, nullptr);
  for (auto* one : list)
    if (mprotect(one + 8192, 4096, PROT_READ) != 0) wrong("mprotect");
  usleep(700'000);
  for (auto* one : list) {
    if (can_store(one + 8192)) wrong("a protection was forgotten");
    if (!can_store(one + 4096)) wrong("too much is protected");
    if (mprotect(one + 8192, 4096, PROT_READ | PROT_WRITE) != 0 || !can_store(one + 8192)) wrong("unprotect");
  }
}

unsigned long locked_kib() {
  FILE* file = fopen("/proc/self/status", "r");
  char line[256];
  unsigned long kib = 0;
  while (file != nullptr && fgets(line, sizeof(line), file) != nullptr)
    if (sscanf(line, "VmLck: %lu kB", &kib) == 1) break;
  if (file != nullptr) fclose(file);
  return kib;
}

void locks() {
  auto list = make_granules();
  wait_for_moves(list);
  for (auto* one : list)
    if (mlock(one, 8192) != 0) wrong("mlock");
  usleep(700'000);
  if (locked_kib() != granules * 8) wrong("a lock was forgotten");
}

void held_by_the_program() {
  auto list = make_granules();
  wait_for_moves(list);
  if (terrace_hold == nullptr) wrong("no terrace_hold");
  std::vector<unsigned char*> some(list.begin(), list.begin() + granules / 2);
  for (auto* one : some) {
    terrace_hold(one + 5, 10);
    terrace_hold(one, granule);
    terrace_unhold(one, granule);
  }
  if (any_moves(some, 1000)) wrong("a held granule moved");
  for (auto* one : some) terrace_unhold(one + 5, 10);
  if (!any_moves(some, 20'000)) wrong("what was let go does not move again");
}

// True when one of them moved within the time and stayed away for a while: a move that meets a pin is undone,
// and its target is seen in between.
bool any_stays_away(const std::vector<unsigned char*>& list, int milliseconds) {
  constexpr int looks = 5;
  // Where it is in most of some looks.
  std::vector<std::string> before;
  for (auto* one : list) {
    std::vector<std::string> seen;
    for (int i = 0; i < looks; ++i) {
      seen.push_back(backing_of(one));
      usleep(2000);
    }
    std::string best = seen[0];
    for (const std::string& place : seen)
      if (std::count(seen.begin(), seen.end(), place) > std::count(seen.begin(), seen.end(), best))
        best = place;
    before.push_back(best);
  }
  std::vector<int> away(list.size());
  for (int i = 0; i < milliseconds / 10; ++i) {
    usleep(10'000);
    for (size_t at = 0; at < list.size(); ++at) {
      away[at] = backing_of(list[at]) != before[at] ? away[at] + 1 : 0;
      if (away[at] == looks) return true;
    }
  }
  return false;
}

// Registered buffers stay, other memory goes on moving, and what was registered moves again afterwards.
void check_registered(int ring_fd, const std::vector<unsigned char*>& list) {
  // Mixed: the first ones are in DDR at first, and while all that is there is pinned nothing else can rise.
  std::vector<unsigned char*> some, others;
  for (size_t i = 0; i < list.size(); ++i) (i % 2 == 0 ? some : others).push_back(list[i]);
  std::vector<iovec> buffers;
  for (auto* one : some) buffers.push_back({one + 65536, 8192});
  if (syscall(SYS_io_uring_register, ring_fd, IORING_REGISTER_BUFFERS, buffers.data(), buffers.size()) != 0)
    wrong("register");
  if (any_stays_away(some, 2000)) wrong("registered memory moved");
  if (!any_moves(others, 20'000)) wrong("an io_uring keeps other memory where it is");
  if (syscall(SYS_io_uring_register, ring_fd, IORING_UNREGISTER_BUFFERS, nullptr, 0) != 0) wrong("unregister");
  if (!any_moves(some, 40'000)) wrong("what is not registered any more does not move again");
}

void a_ring() {
  auto list = make_granules();
  wait_for_moves(list);
  io_uring ring;
  if (io_uring_queue_init(8, &ring, 0) != 0) {
    puts("no io_uring here");
    return;
  }
  check_registered(ring.ring_fd, list);
  for (int i = 0; i < granules; ++i)
    for (size_t at = 0; at < granule; at += 512)
      if (list[static_cast<size_t>(i)][at] != i + 1) wrong("a byte changed");
  // And the heap lives on.
  for (int i = 0; i < 200; ++i) {
    void* more = calloc(1, 300'000);
    if (more == nullptr) wrong("no memory after the ring");
    free(more);
  }
  io_uring_queue_exit(&ring);
}

void a_raw_ring() {
  auto list = make_granules();
  wait_for_moves(list);
  io_uring_params parameters{};
  const long fd = syscall(SYS_io_uring_setup, 8, &parameters);
  if (fd < 0) {
    puts("no io_uring here");
    return;
  }
  check_registered(static_cast<int>(fd), list);
}

long threads_now() {
  FILE* file = fopen("/proc/self/status", "r");
  char line[256];
  long count = 0;
  while (file != nullptr && fgets(line, sizeof(line), file) != nullptr)
    if (sscanf(line, "Threads: %ld", &count) == 1) break;
  if (file != nullptr) fclose(file);
  return count;
}

// A filter that lets all threads of the process do next to nothing beside reading and writing.
void a_filter() {
  auto list = make_granules();
  wait_for_moves(list);
  auto allow = [](unsigned number, unsigned char skip) {
    return sock_filter{BPF_JMP | BPF_JEQ | BPF_K, skip, 0, number};
  };
  sock_filter lines[] = {{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
                         allow(SYS_read, 8),
                         allow(SYS_write, 7),
                         allow(SYS_openat, 6),
                         allow(SYS_close, 5),
                         allow(SYS_newfstatat, 4),
                         allow(SYS_exit_group, 3),
                         allow(SYS_clock_nanosleep, 2),
                         {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS},
                         {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS},
                         {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
  sock_fprog program{sizeof(lines) / sizeof(lines[0]), lines};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) wrong("prctl");
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0) wrong("seccomp");
  usleep(500'000);
  if (threads_now() != 1) wrong("threads of others are left");
  for (size_t i = 0; i < granules; ++i)
    for (size_t at = 0; at < granule; at += 512)
      if (list[i][at] != i + 1) wrong("a byte changed");
}

// What libseccomp asks at its start, and other calls that the kernel refuses: each leaves things as they were.
void fail_to_filter() {
  auto refused = [](const char* what, long result, int why) {
    if (result != -1 || errno != why) wrong(what);
  };
  auto line = [](unsigned code, unsigned k, unsigned char skip = 0) {
    return sock_filter{static_cast<unsigned short>(code), skip, skip, k};
  };
  const auto at = [](unsigned long address) { return reinterpret_cast<void*>(address); };
  refused("strict, with flags", syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, nullptr), EINVAL);
  refused("no such operation", syscall(SYS_seccomp, 77, 0, nullptr), EINVAL);
  for (unsigned flag = 0; flag < 6; ++flag) {
    const unsigned flags = 1u << flag | (flag == 5 ? 1u << 3 : 0u);  // the last one wants a listener
    refused("probe", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, nullptr), EFAULT);
  }
  refused("no such flag", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 1u << 20, nullptr), EINVAL);
  refused("a wild pointer", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, at(0x7fff'ffff'0000)), EFAULT);
  unsigned action = SECCOMP_RET_ALLOW;
  if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) != 0) wrong("a question");
  refused("prctl, no such mode", prctl(PR_SET_SECCOMP, 9, nullptr), EINVAL);
  refused("prctl, no filter", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, nullptr), EFAULT);
  sock_filter lines[2] = {line(BPF_LD | BPF_W | BPF_ABS, 0), line(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  auto try_it = [&](const char* what, unsigned short count, sock_filter* from) {
    sock_fprog program{count, from};
    refused(what, syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program), from == lines ? EINVAL : EFAULT);
    refused(what, prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), from == lines ? EINVAL : EFAULT);
  };
  try_it("no line", 0, lines);
  try_it("no end", 1, lines);
  try_it("lines that are not there", 2, static_cast<sock_filter*>(at(0x7fff'ffff'0000)));
  const sock_filter bad[] = {line(BPF_LD | BPF_W | BPF_ABS, 2),   line(BPF_LD | BPF_W | BPF_ABS, 64),
                             line(BPF_LD | BPF_B | BPF_ABS, 0),   line(BPF_ALU | BPF_DIV | BPF_K, 0),
                             line(BPF_ALU | BPF_LSH | BPF_K, 32), line(BPF_ST, 16),
                             line(BPF_JMP | BPF_JA, 1),           line(BPF_JMP | BPF_JEQ | BPF_K, 0, 1),
                             line(BPF_ALU | BPF_MOD | BPF_K, 1),  line(0xffff, 0)};
  for (const sock_filter& one : bad) {
    lines[0] = one;
    try_it("a bad line", 2, lines);
  }
  // Without the right to it.
  lines[0] = line(BPF_LD | BPF_W | BPF_ABS, 0);
  sock_fprog program{2, lines};
  if (geteuid() == 0 && seteuid(61'237) == 0) {
    refused("no right", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program), EACCES);
    if (seteuid(0) != 0) wrong("seteuid");
  }
}

void filters_that_fail() {
  fail_to_filter();  // before the first request for memory of the window
  auto list = make_granules();
  wait_for_moves(list);
  fail_to_filter();
  for (int round = 0; round < 16; ++round) wait_for_moves(list);  // in both directions
}

void written_by_itself() {
  auto list = make_granules();
  wait_for_moves(list);
  std::vector<unsigned char> source(granule);
  for (int round = 0; round < 200; ++round) {
    unsigned char* into = list[static_cast<size_t>(round * 7 % granules)];
    memset(source.data(), 100 + round % 100, granule);
    iovec from{source.data(), granule}, to{into, granule};
    if (process_vm_writev(getpid(), &from, 1, &to, 1, 0) != static_cast<ssize_t>(granule))
      wrong("process_vm_writev");
    if (memcmp(into, source.data(), granule) != 0) wrong("a write into itself was lost");
  }
}

// Threads store all the time, granules move all the time, and the process forks: parent and child each go on
// with what was there at the fork, and with their own stores.
void fork_while_moving() {
  auto list = make_granules();
  wait_for_moves(list);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> rounds[2] = {};
  auto cell = [&](size_t which, int thread) {
    return reinterpret_cast<volatile uint64_t*>(list[which] + 4096 * (1 + thread) + which * 8);
  };
  auto count = [&](int thread) {
    while (!stop) {
      for (size_t i = 0; i < granules; ++i) *cell(i, thread) = *cell(i, thread) + 1;
      rounds[thread].fetch_add(1);
    }
  };
  for (int thread = 0; thread < 2; ++thread)
    for (size_t i = 0; i < granules; ++i) *cell(i, thread) = 0;
  std::thread first(count, 0), second(count, 1);
  usleep(static_cast<useconds_t>(20'000 + getpid() % 97 * 1'000));
  pid_t pid = fork();
  if (pid < 0) wrong("fork failed");
  if (pid == 0) {
    std::vector<uint64_t> seen;
    for (int thread = 0; thread < 2; ++thread)
      for (size_t i = 0; i < granules; ++i) seen.push_back(uint64_t{*cell(i, thread)});
    usleep(100'000);
    for (int thread = 0; thread < 2; ++thread)
      for (size_t i = 0; i < granules; ++i)
        if (*cell(i, thread) != seen[static_cast<size_t>(thread) * granules + i])
          wrong("the child sees the parent's stores");
    for (size_t i = 0; i < granules; ++i) {
      for (size_t at = 16384; at < granule; at += 512)
        if (list[i][at] != i + 1) wrong("a byte changed in the child");
      memset(list[i], 255, granule);
    }
    _exit(0);
  }
  int status = 0;
  if (waitpid(pid, &status, 0) != pid || status != 0) wrong("the child failed");
  stop = true;
  first.join();
  second.join();
  for (int thread = 0; thread < 2; ++thread)
    for (size_t i = 0; i < granules; ++i)
      if (*cell(i, thread) != rounds[thread]) wrong("the parent lost a store");
  for (size_t i = 0; i < granules; ++i)
    for (size_t at = 16384; at < granule; at += 512)
      if (list[i][at] != i + 1) wrong("the parent sees the child's stores");
}

// Reads are under way all the time, by calls that no function of the library sees, while children come and go
// and what is private since then goes back into its files.
void aio_while_folding() {
  auto list = make_granules();
  wait_for_moves(list);
  char name[] = "direct-XXXXXX";
  const int made = mkstemp(name), fd = open(name, O_RDWR | O_DIRECT);
  unlink(name);
  auto* source = static_cast<unsigned char*>(
      mmap(nullptr, granule, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  for (size_t at = 0; at < granule; ++at) source[at] = static_cast<unsigned char>(at * 31 + at / 4096 + 1);
  if (made < 0 || fd < 0) {
    puts("no direct I/O here");
    return;
  }
  if (pwrite(fd, source, granule, 0) != static_cast<ssize_t>(granule)) wrong("cannot write the file");
  std::atomic<bool> stop{false};
  std::atomic<int> lost{0}, reads{0};
  std::thread reader([&] {
    constexpr size_t lanes = 3;
    for (size_t round = 0; !stop; ++round) {
      aiocb requests[lanes] = {};
      for (size_t lane = 0; lane < lanes; ++lane) {
        unsigned char* into = list[(round * 5 + lane * 8) % granules];
        memset(into, 0, granule);
        requests[lane].aio_fildes = fd;
        requests[lane].aio_buf = into;
        requests[lane].aio_nbytes = granule;
        if (aio_read(&requests[lane]) != 0) wrong("a read cannot begin");
      }
      for (size_t lane = 0; lane < lanes; ++lane) {
        const aiocb* one = &requests[lane];
        while (aio_error(one) == EINPROGRESS) aio_suspend(&one, 1, nullptr);
        if (aio_return(&requests[lane]) != static_cast<ssize_t>(granule)) wrong("aio_return");
      }
      for (const aiocb& one : requests)
        if (memcmp(const_cast<void*>(one.aio_buf), source, granule) != 0) ++lost;
      reads += static_cast<int>(lanes);
    }
  });
  for (int i = 0; i < 60; ++i) {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    if (child < 0 || waitpid(child, nullptr, 0) != child) wrong("fork");
    usleep(100'000);
  }
  stop = true;
  reader.join();
  printf("%d reads, %d lost\n", reads.load(), lost.load());
  if (lost > 0) wrong("reads lost data");
}

std::set<std::string> leases_mapped() {
  std::set<std::string> found;
  FILE* file = fopen("/proc/self/maps", "r");
  char line[512], device[32];
  unsigned long inode;
  while (file != nullptr && fgets(line, sizeof(line), file) != nullptr)
    if (strstr(line, "fake-lease") != nullptr && sscanf(line, "%*s %*s %*s %31s %lu", device, &inode) == 2)
      found.insert(std::string(device) + " " + std::to_string(inode));
  if (file != nullptr) fclose(file);
  return found;
}

// All leases are taken back, again and again, where DDR has no room: what is in use goes to other leases, what is
// free goes nowhere, and the program does not notice. There are several leases, side by side.
void taken_back() {
  constexpr size_t block = 1u << 20, count = 90;
  std::vector<unsigned char*> blocks(count);
  const auto fill = [&] {
    for (size_t i = 0; i < count; ++i) {
      if (blocks[i] != nullptr) continue;
      blocks[i] = static_cast<unsigned char*>(malloc(block));
      if (blocks[i] == nullptr) wrong("no memory");
      memset(blocks[i], static_cast<int>(i + 1), block);
    }
  };
  const auto check = [&] {
    for (size_t i = 0; i < count; ++i)
      for (size_t at = 0; blocks[i] != nullptr && at < block; at += 512)
        if (blocks[i][at] != i + 1) wrong("a byte changed");
  };
  for (size_t round = 0; round < 4; ++round) {
    fill();
    for (size_t i = 4; i < count; ++i)
      if ((i + round * 4) % 12 < 7) free(std::exchange(blocks[i], nullptr));
    const std::set<std::string> before = leases_mapped();
    if (before.size() < (round == 0 ? 2 : 1)) wrong("there are no leases side by side: this run shows nothing");
    if (kill(getppid(), SIGUSR1) != 0) wrong("kill");
    for (int tries = 0;; ++tries) {
      const std::set<std::string> now = leases_mapped();
      if (std::none_of(before.begin(), before.end(), [&](const auto& one) { return now.count(one) != 0; }))
        break;
      if (tries == 600) wrong("a lease that is taken back is mapped still");
      usleep(100'000);
      check();
    }
    check();
    // And what was free there can be had again.
    fill();
    check();
    if (round % 2 == 0) std::reverse(blocks.begin(), blocks.end());
    for (unsigned char*& one : blocks) free(std::exchange(one, nullptr));
    usleep(200'000);  // rounds of the engine
  }
}

}  // namespace

int main(int argc, char** argv) {
  struct Case {
    const char* name;
    void (*run)();
  };
  constexpr Case cases[] = {{"direct_reads", direct_reads},
                            {"pages_in_a_pipe", pages_in_a_pipe},
                            {"protections", protections},
                            {"locks", locks},
                            {"held_by_the_program", held_by_the_program},
                            {"a_ring", a_ring},
                            {"a_raw_ring", a_raw_ring},
                            {"a_filter", a_filter},
                            {"filters_that_fail", filters_that_fail},
                            {"written_by_itself", written_by_itself},
                            {"aio_while_folding", aio_while_folding},
                            {"fork_while_moving", fork_while_moving},
                            {"taken_back", taken_back}};
  for (const Case& one : cases)
    if (argc == 2 && strcmp(argv[1], one.name) == 0) {
      one.run();
      return 0;
    }
  for (const Case& one : cases) puts(one.name);
  return argc == 1 ? 0 : 2;
}
