// SPDX-License-Identifier: Apache-2.0
// Whatever makes the kernel know pages of malloc's memory by more than page tables, while granules go to and
// fro all the time: pin_stress SECONDS [WAY...]. A line of JSON for each way, its operations and what they
// lost; exit code 1 where a byte was lost. To be run with the policy `churn` (pin_test.py).
//
// System calls are made by the instruction, past every function of the preload library; io_uring by liburing,
// which is linked to one of the two programs that are made of this file statically.
#include <aio.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/aio_abi.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

extern char** environ;

namespace {

constexpr size_t granule = 2u << 20, page = 4096;
constexpr size_t granules_each = 3;  // of a way

long raw(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
  long result = number;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile("syscall"
               : "+a"(result)
               : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
}

template <typename T>
long word(T* pointer) {
  return reinterpret_cast<long>(pointer);
}

[[noreturn]] void fail(const char* what) {
  perror(what);
  _exit(2);
}

unsigned char pattern(uint64_t seed, size_t at) {
  return static_cast<unsigned char>(seed * 131 + at / 512 * 7 + at % 509);
}

void fill(unsigned char* to, size_t bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes; ++i) to[i] = pattern(seed, i);
}

bool is(const unsigned char* at, size_t bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes; ++i)
    if (at[i] != pattern(seed, i)) return false;
  return true;
}

std::atomic<bool> stopping{false};

struct Way {
  const char* name;
  void (*run)(Way&);
  unsigned char* memory = nullptr;  // granules_each of them
  uint64_t operations = 0, lost = 0;
  bool skipped = false;

  unsigned char* at(uint64_t round, size_t bytes) const {
    const size_t places = granule * granules_each / bytes;
    return memory + round * 7 % places * bytes;
  }
  void count(bool right) {
    ++operations;
    if (!right) ++lost;
  }
};

constexpr size_t file_seeds = 8;

// A file of file_seeds granules of pattern, open with O_DIRECT; -1 where that cannot be had.
int direct_file() {
  char name[] = "pins-XXXXXX";
  const int made = mkstemp(name);
  if (made < 0) return -1;
  const int fd = open(name, O_RDWR | O_DIRECT);
  unlink(name);
  auto* text = static_cast<unsigned char*>(
      mmap(nullptr, granule, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  for (size_t seed = 0; fd >= 0 && seed < file_seeds; ++seed) {
    fill(text, granule, seed);
    if (raw(SYS_pwrite64, fd, word(text), granule, static_cast<long>(seed * granule)) != granule)
      fail("pwrite");
  }
  munmap(text, granule);
  close(made);
  return fd;
}

// ---- O_DIRECT by the instruction, both ways

void direct(Way& way) {
  const int fd = direct_file();
  if (fd < 0) {
    way.skipped = true;
    return;
  }
  for (uint64_t round = 0; !stopping; ++round) {
    const uint64_t seed = round % file_seeds;
    const size_t bytes = round % 3 == 0 ? granule : 256 * 1024;
    unsigned char* into = way.at(round, bytes);
    memset(into, 0xee, bytes);
    if (raw(SYS_pread64, fd, word(into), static_cast<long>(bytes), static_cast<long>(seed * granule)) !=
        static_cast<long>(bytes))
      fail("pread");
    way.count(is(into, bytes, seed));
    // And out again.
    const uint64_t other = file_seeds + round;
    fill(into, bytes, other);
    if (raw(SYS_pwrite64, fd, word(into), static_cast<long>(bytes), static_cast<long>(file_seeds * granule)) !=
        static_cast<long>(bytes))
      fail("pwrite");
    memset(into, 0, bytes);
    if (raw(SYS_pread64, fd, word(into), static_cast<long>(bytes), static_cast<long>(file_seeds * granule)) !=
        static_cast<long>(bytes))
      fail("pread back");
    way.count(is(into, bytes, other));
  }
  close(fd);
}

// ---- glibc's AIO: preads of its own threads, inside libc

void posix_aio(Way& way) {
  const int fd = direct_file();
  if (fd < 0) {
    way.skipped = true;
    return;
  }
  constexpr size_t lanes = 3;
  for (uint64_t round = 0; !stopping; ++round) {
    aiocb requests[lanes] = {};
    for (size_t lane = 0; lane < lanes; ++lane) {
      unsigned char* into = way.memory + lane * granule + round % 3 * 512 * 1024;
      memset(into, 0xee, 512 * 1024);
      requests[lane].aio_fildes = fd;
      requests[lane].aio_buf = into;
      requests[lane].aio_nbytes = 512 * 1024;
      requests[lane].aio_offset = static_cast<off_t>((round + lane) % file_seeds * granule);
      if (aio_read(&requests[lane]) != 0) fail("aio_read");
    }
    for (size_t lane = 0; lane < lanes; ++lane) {
      const aiocb* one = &requests[lane];
      while (aio_error(one) == EINPROGRESS) aio_suspend(&one, 1, nullptr);
      if (aio_return(&requests[lane]) != 512 * 1024) fail("aio_return");
      way.count(is(static_cast<const unsigned char*>(const_cast<const void*>(one->aio_buf)), 512 * 1024,
                   (round + lane) % file_seeds));
    }
  }
  close(fd);
}

// ---- kernel AIO

void kernel_aio(Way& way) {
  const int fd = direct_file();
  aio_context_t context = 0;
  if (fd < 0 || raw(SYS_io_setup, 8, word(&context)) != 0) {
    way.skipped = true;
    return;
  }
  for (uint64_t round = 0; !stopping; ++round) {
    iocb requests[granules_each] = {};
    iocb* list[granules_each];
    for (size_t lane = 0; lane < granules_each; ++lane) {
      unsigned char* into = way.memory + lane * granule;
      memset(into, 0xee, granule);
      requests[lane].aio_fildes = static_cast<uint32_t>(fd);
      requests[lane].aio_lio_opcode = IOCB_CMD_PREAD;
      requests[lane].aio_buf = reinterpret_cast<uint64_t>(into);
      requests[lane].aio_nbytes = granule;
      requests[lane].aio_offset = static_cast<int64_t>((round + lane) % file_seeds * granule);
      list[lane] = &requests[lane];
    }
    if (raw(SYS_io_submit, static_cast<long>(context), granules_each, word(list)) != granules_each)
      fail("io_submit");
    for (size_t done = 0; done < granules_each;) {
      io_event events[granules_each];
      const long got = raw(SYS_io_getevents, static_cast<long>(context), 1, granules_each, word(events));
      if (got < 0) fail("io_getevents");
      done += static_cast<size_t>(got);
    }
    for (size_t lane = 0; lane < granules_each; ++lane)
      way.count(is(way.memory + lane * granule, granule, (round + lane) % file_seeds));
  }
  raw(SYS_io_destroy, static_cast<long>(context));
  close(fd);
}

// ---- io_uring: plain reads, and registered buffers that stay registered over many

void uring(Way& way) {
  const int fd = direct_file();
  io_uring ring;
  if (fd < 0 || io_uring_queue_init(8, &ring, 0) != 0) {
    way.skipped = true;
    return;
  }
  const auto read_one = [&](uint64_t round, unsigned char* into, size_t bytes, int fixed) {
    memset(into, 0xee, bytes);
    io_uring_sqe* request = io_uring_get_sqe(&ring);
    const uint64_t seed = round % file_seeds;
    if (fixed >= 0)
      io_uring_prep_read_fixed(request, fd, into, static_cast<unsigned>(bytes), seed * granule, fixed);
    else
      io_uring_prep_read(request, fd, into, static_cast<unsigned>(bytes), seed * granule);
    io_uring_cqe* answer = nullptr;
    if (io_uring_submit(&ring) != 1) fail("io_uring_submit");
    int waited = 0;
    while ((waited = io_uring_wait_cqe(&ring, &answer)) == -EINTR) continue;
    if (waited != 0 || answer->res != static_cast<int>(bytes)) fail("io_uring read");
    io_uring_cqe_seen(&ring, answer);
    way.count(is(into, bytes, seed));
  };
  for (uint64_t round = 0; !stopping; ++round) {
    iovec buffers[granules_each];
    for (size_t i = 0; i < granules_each; ++i)
      buffers[i] = {way.memory + i * granule + (round % 4) * 65536, 65536};
    if (io_uring_register_buffers(&ring, buffers, granules_each) != 0) {
      way.skipped = true;  // RLIMIT_MEMLOCK
      return;
    }
    for (uint64_t i = 0; i < 30 && !stopping; ++i) {
      const auto which = static_cast<int>(i % granules_each);
      read_one(round + i, static_cast<unsigned char*>(buffers[which].iov_base), 65536, which);
      usleep(2000);
    }
    if (io_uring_unregister_buffers(&ring) != 0) fail("unregister");
    for (uint64_t i = 0; i < 30 && !stopping; ++i) read_one(round + i, way.at(round + i, granule), granule, -1);
  }
  io_uring_queue_exit(&ring);
  close(fd);
}

// ---- pages in pipes: vmsplice, splice on, tee

void pipes(Way& way) {
  constexpr size_t bytes = 32 * 1024;
  int first[2], second[2], third[2];
  if (pipe(first) != 0 || pipe(second) != 0 || pipe(third) != 0) fail("pipe");
  unsigned char got[bytes];
  const auto read_all = [&](int fd) {
    for (size_t have = 0; have < bytes;) {
      const long more = raw(SYS_read, fd, word(got + have), static_cast<long>(bytes - have));
      if (more <= 0) fail("read");
      have += static_cast<size_t>(more);
    }
  };
  for (uint64_t round = 0; !stopping; ++round) {
    unsigned char* from = way.at(round, bytes);
    fill(from, bytes, round);
    iovec one{from, bytes};
    if (raw(SYS_vmsplice, first[1], word(&one), 1, 0) != bytes) fail("vmsplice");
    if (raw(SYS_splice, first[0], 0, second[1], 0, bytes, 0) != bytes) fail("splice");
    if (raw(SYS_tee, second[0], third[1], bytes, 0) != bytes) fail("tee");
    usleep(round % 5 == 0 ? 20'000 : 500);
    // A pipe shows the pages themselves: what is stored now, too.
    const bool stores = round % 2 == 0;
    if (stores) fill(from, bytes, round + 1);
    read_all(second[0]);
    way.count(is(got, bytes, stores ? round + 1 : round));
    read_all(third[0]);
    way.count(is(got, bytes, stores ? round + 1 : round));
  }
}

// ---- another process reads and writes: its call is held up by a fault in its own buffer, this one's pages
// pinned

struct Order {
  uint64_t address, seed, write;
};
constexpr size_t foreign_bytes = 12 * page;

// "pin_stress --peer PID": orders on descriptor 0, answers on 1.
int peer(pid_t pid) {
  const auto uffd = static_cast<int>(raw(SYS_userfaultfd, O_CLOEXEC));
  uffdio_api api{};
  api.api = UFFD_API;
  const bool slow = uffd >= 0 && ioctl(uffd, UFFDIO_API, &api) == 0;
  auto* buffer = static_cast<unsigned char*>(
      mmap(nullptr, foreign_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  auto* text = static_cast<unsigned char*>(malloc(foreign_bytes));
  uffdio_register range{};
  range.range = {reinterpret_cast<uint64_t>(buffer), foreign_bytes};
  range.mode = UFFDIO_REGISTER_MODE_MISSING;
  if (slow && ioctl(uffd, UFFDIO_REGISTER, &range) != 0) fail("register");
  std::thread([=] {
    uffd_msg message;
    while (slow && read(uffd, &message, sizeof(message)) == sizeof(message)) {
      usleep(10'000);
      const uint64_t at = message.arg.pagefault.address & ~uint64_t{page - 1};
      uffdio_copy copy{};
      copy.dst = at;
      copy.src = reinterpret_cast<uint64_t>(text) + (at - reinterpret_cast<uint64_t>(buffer));
      copy.len = page;
      ioctl(uffd, UFFDIO_COPY, &copy);
    }
  }).detach();
  Order order;
  while (read(0, &order, sizeof(order)) == sizeof(order)) {
    fill(text, foreign_bytes, order.seed);
    if (slow) madvise(buffer + foreign_bytes / 2, page, MADV_DONTNEED);
    for (size_t at = 0; at < foreign_bytes; at += page)
      if (!slow || at != foreign_bytes / 2) memcpy(buffer + at, text + at, page);
    iovec local{buffer, foreign_bytes}, remote{reinterpret_cast<void*>(order.address), foreign_bytes};
    uint64_t right = 1;
    if (order.write != 0) {
      if (process_vm_writev(pid, &local, 1, &remote, 1, 0) != static_cast<ssize_t>(foreign_bytes))
        fail("peer writes");
    } else {
      if (process_vm_readv(pid, &local, 1, &remote, 1, 0) != static_cast<ssize_t>(foreign_bytes))
        fail("peer reads");
      right = is(buffer, foreign_bytes, order.seed + 1) ? 1 : 0;
    }
    if (write(1, &right, sizeof(right)) != sizeof(right)) break;
  }
  _exit(0);
}

void foreign(Way& way) {
  int orders[2], answers[2];
  if (pipe2(orders, O_CLOEXEC) != 0 || pipe2(answers, O_CLOEXEC) != 0) fail("pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, orders[0], 0);
  posix_spawn_file_actions_adddup2(&actions, answers[1], 1);
  std::vector<char*> environment;
  for (char** at = environ; *at != nullptr; ++at)
    if (strncmp(*at, "LD_PRELOAD=", 11) != 0) environment.push_back(*at);
  environment.push_back(nullptr);
  char program[] = "/proc/self/exe", option[] = "--peer";
  std::string self = std::to_string(getpid());
  char* arguments[] = {program, option, self.data(), nullptr};
  pid_t pid = 0;
  if (posix_spawn(&pid, program, &actions, nullptr, arguments, environment.data()) != 0) fail("posix_spawn");
  close(orders[0]);
  close(answers[1]);
  for (uint64_t round = 0; !stopping; ++round) {
    unsigned char* at = way.at(round, 16 * page);
    const Order order{reinterpret_cast<uint64_t>(at), round, round % 2};
    fill(at, foreign_bytes, round + 1);
    uint64_t right = 0;
    if (write(orders[1], &order, sizeof(order)) != sizeof(order)) fail("order");
    if (read(answers[0], &right, sizeof(right)) != sizeof(right)) {
      way.skipped = true;  // not allowed to
      break;
    }
    way.count(right != 0 && is(at, foreign_bytes, order.write != 0 ? round : round + 1));
  }
  close(orders[1]);
  waitpid(pid, nullptr, 0);
}

// ---- a userfaultfd of the program's own: each protected page that is stored into is told of, once

void own_userfault(Way& way) {
  const auto uffd = static_cast<int>(raw(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = UFFD_FEATURE_WP_HUGETLBFS_SHMEM;
  if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api) != 0) {
    way.skipped = true;
    return;
  }
  std::atomic<uint64_t> told{0};
  std::atomic<bool> over{false};
  const auto set = [](unsigned char* to, int value) {
    *static_cast<volatile unsigned char*>(to) = static_cast<unsigned char>(value);
  };
  std::thread reader([&] {
    pollfd wait{uffd, POLLIN, 0};
    while (!over) {
      uffd_msg message;
      if (poll(&wait, 1, 50) <= 0 || read(uffd, &message, sizeof(message)) != sizeof(message)) continue;
      if (message.event != UFFD_EVENT_PAGEFAULT) continue;
      ++told;
      uffdio_writeprotect range{};
      range.range = {message.arg.pagefault.address & ~uint64_t{page - 1}, page};
      ioctl(uffd, UFFDIO_WRITEPROTECT, &range);
    }
  });
  for (uint64_t round = 0; !stopping; ++round) {
    unsigned char* at = way.memory + round % granules_each * granule;
    fill(at, 16 * page, round);
    uffdio_register range{};
    range.range = {reinterpret_cast<uint64_t>(at), granule};
    range.mode = UFFDIO_REGISTER_MODE_WP;
    // A move of ours may have it for a moment.
    while (ioctl(uffd, UFFDIO_REGISTER, &range) != 0 && errno == EBUSY && !stopping) usleep(100);
    uffdio_writeprotect protect{};
    protect.range = {reinterpret_cast<uint64_t>(at), 16 * page};
    protect.mode = UFFDIO_WRITEPROTECT_MODE_WP;
    if (ioctl(uffd, UFFDIO_WRITEPROTECT, &protect) != 0) continue;
    usleep(5000);
    const uint64_t before = told;
    for (size_t i = 0; i < 16; ++i) set(at + i * page, pattern(round, i * page) + 1);
    for (size_t i = 0; i < 16; ++i) set(at + i * page, pattern(round, i * page));
    way.count(told - before >= 16 && is(at, 16 * page, round));
    uffdio_range all = range.range;
    ioctl(uffd, UFFDIO_UNREGISTER, &all);
  }
  over = true;
  reader.join();
  close(uffd);
}

// ---- nothing special: stores must survive all the others

void stores(Way& way) {
  auto* words = reinterpret_cast<volatile uint64_t*>(way.memory);
  constexpr size_t stride = page / sizeof(uint64_t), count = granule * granules_each / page;
  for (size_t i = 0; i < count; ++i) words[i * stride] = 0;
  for (uint64_t round = 1; !stopping; ++round) {
    bool right = true;
    for (size_t i = 0; i < count; ++i) {
      right = right && words[i * stride] == round - 1;
      words[i * stride] = round;
    }
    way.count(right);
  }
}

Way ways[] = {
    {"direct", direct}, {"posix_aio", posix_aio}, {"kernel_aio", kernel_aio},       {"uring", uring},
    {"pipes", pipes},   {"foreign", foreign},     {"own_userfault", own_userfault}, {"stores", stores}};

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && strcmp(argv[1], "--peer") == 0) return peer(atoi(argv[2]));
  if (argc < 2) return 2;
  std::vector<Way*> chosen;
  for (Way& way : ways) {
    bool wanted = argc == 2;
    for (int i = 2; i < argc; ++i) wanted = wanted || strcmp(argv[i], way.name) == 0;
    if (wanted) chosen.push_back(&way);
  }
  const size_t bytes = chosen.size() * granules_each * granule;
  auto* memory = static_cast<unsigned char*>(aligned_alloc(granule, bytes));
  if (memory == nullptr) fail("aligned_alloc");
  memset(memory, 1, bytes);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < chosen.size(); ++i) {
    chosen[i]->memory = memory + i * granules_each * granule;
    threads.emplace_back(chosen[i]->run, std::ref(*chosen[i]));
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(atoi(argv[1]));
  while (std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  stopping = true;
  for (std::thread& thread : threads) thread.join();
  uint64_t lost = 0;
  for (const Way* way : chosen) {
    printf("{\"way\": \"%s\", \"operations\": %lu, \"lost\": %lu, \"skipped\": %s}\n", way->name,
           way->operations, way->lost, way->skipped ? "true" : "false");
    lost += way->lost;
  }
  return lost > 0 ? 1 : 0;
}
