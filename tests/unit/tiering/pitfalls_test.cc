// SPDX-License-Identifier: Apache-2.0
// What is known to go wrong when memory moves under a program (docs/design/0008-migration.md lists it).
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/eventually.h"
#include "tests/support/skip.h"
#include "tests/unit/tiering/two_files.h"

using namespace terrace;
using namespace terrace::test;
using tiering::MoveResult;
using tiering::Residency;

namespace {

// The calling thread runs on the `which`th processor that it may run on, if there is one.
void run_on(int which) {
  cpu_set_t allowed, one;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || which-- > 0) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    ::sched_setaffinity(0, sizeof(one), &one);
    return;
  }
}

Residency other(Residency residency) {
  return residency == Residency::ddr ? Residency::cxl : Residency::ddr;
}

}  // namespace

TEST_CASE("migration: nobody who touches a granule while it is unregistered sleeps for ever") {
  TwoFiles files(2, 64 * kib);
  TERRACE_REQUIRE_MOVER(mover);
  REQUIRE(files.memory.map(0, 2, Residency::ddr) == 0);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> touches[2] = {};
  std::vector<std::thread> threads;
  for (int me = 0; me < 2; ++me)
    threads.emplace_back([&, me] {
      while (!stop) {
        for (uint32_t page = 0; page < 16; ++page)
          reinterpret_cast<std::atomic<uint64_t>*>(files.at(0) + page * 4096)->fetch_add(1);
        ++touches[me];
      }
    });
  for (int i = 0; i < 20'000; ++i)
    REQUIRE(files.memory.move(mover, 0, 1, other(files.memory.residency(0))).granules == 1);
  const uint64_t before[2] = {touches[0], touches[1]};
  CHECK(eventually([&] { return touches[0] > before[0] + 10 && touches[1] > before[1] + 10; }));
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("migration: a system call that writes into a moving granule waits, it does not fail") {
  TwoFiles files(1, 2 * mib);
  TERRACE_REQUIRE_MOVER(mover);
  REQUIRE(files.memory.map(0, 1, Residency::ddr) == 0);
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> calls{0}, failures{0};
  std::thread reader([&] {
    for (uint64_t value = 1; !stop; ++value) {
      auto* place = reinterpret_cast<uint64_t*>(files.at(0) + value * 4096 % (2 * mib));
      if (::write(ends[1], &value, sizeof(value)) != sizeof(value) ||
          ::read(ends[0], place, sizeof(value)) != sizeof(value) || *place != value)
        ++failures;
      ++calls;
    }
  });
  for (int i = 0; i < 400 || calls < 400; ++i) files.memory.move(mover, 0, 1, other(files.memory.residency(0)));
  stop = true;
  reader.join();
  CHECK(failures == 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

// The kernel (seen with 6.18) says that it protected a huge page and did not, where a load maps the page and a
// store splits it in the midst of that. Two rounds in a hundred here, and a copy's time of stores in a soak.
TEST_CASE("migration: no store comes through once a huge page is protected, first touches included") {
  TwoFiles files(1, 2 * mib, 0, 0, true);
  TERRACE_REQUIRE_MOVER(mover);
  tiering::Userfault userfault;
  REQUIRE(userfault.start(-1) == 0);
  REQUIRE(files.memory.map(0, 1, Residency::ddr) == 0);
  std::memset(files.at(0), 0, 2 * mib);
  ::madvise(files.at(0), 2 * mib, 25);  // MADV_COLLAPSE: huge where no tmpfs of huge pages can be had
  constexpr uint64_t offset = 300 * 4096;
  auto in_file = [&] {
    uint32_t value = 0;
    REQUIRE(::pread(files.ddr.get(), &value, sizeof(value), offset) == sizeof(value));
    return value;
  };
  auto* word = reinterpret_cast<std::atomic<uint32_t>*>(files.at(0) + offset);
  std::atomic<int> round{0}, over{0}, ended{0};
  auto spin_until = [](uint64_t time_ns) {
    while (tiering::monotonic_ns() < time_ns) continue;
  };
  constexpr int last = 3000;
  std::thread toucher([&] {
    run_on(1);
    for (int next = 1; next <= last; ++next) {
      while (round < next) continue;
      spin_until(tiering::monotonic_ns() + static_cast<uint64_t>(next) * 7919 % 6000);
      uint32_t value = word->load();
      while (over < next) word->store(++value);
      ended = next;
    }
  });
  cpu_set_t before;
  REQUIRE(::sched_getaffinity(0, sizeof(before), &before) == 0);
  run_on(0);
  int came_through = 0;
  for (int i = 1; i <= last; ++i) {
    REQUIRE(::madvise(files.at(0), 2 * mib, MADV_DONTNEED) == 0);
    REQUIRE(userfault.register_write_protect(files.at(0), 2 * mib) == 0);
    round = i;
    spin_until(tiering::monotonic_ns() + static_cast<uint64_t>(i) * 104'729 % 6000);
    REQUIRE(userfault.write_protect(files.at(0), 2 * mib, true) == 0);
    const uint32_t value = in_file();
    spin_until(tiering::monotonic_ns() + 50'000);
    came_through += in_file() == value ? 0 : 1;
    over = i;
    REQUIRE(userfault.unregister(files.at(0), 2 * mib) == 0);
    while (ended < i) continue;
  }
  toucher.join();
  ::sched_setaffinity(0, sizeof(before), &before);
  CHECK(came_through == 0);
}

TEST_CASE("migration: direct I/O into a held granule arrives whole while everything else moves") {
  char path[] = "/var/tmp/terrace-direct-XXXXXX";
  UniqueFd file(::mkstemp(path));
  REQUIRE(file.valid());
  ::unlink(path);
  constexpr size_t bytes = 2 * mib;
  std::vector<char> block(bytes);
  for (size_t i = 0; i < bytes; ++i) block[i] = static_cast<char>(i * 7 >> 2 | 1);
  REQUIRE(::write(file.get(), block.data(), bytes) == static_cast<ssize_t>(bytes));
  ::fsync(file.get());
  UniqueFd direct(::open(("/proc/self/fd/" + std::to_string(file.get())).c_str(), O_RDONLY | O_DIRECT));
  if (!direct.valid()) {
    TERRACE_SKIP(direct_io, "no direct I/O on this file system");
    return;
  }
  TwoFiles files(2, 2 * mib);
  TERRACE_REQUIRE_MOVER(mover);
  REQUIRE(files.memory.map(0, 2, Residency::ddr) == 0);
  std::atomic<bool> stop{false};
  std::thread engine([&] {
    while (!stop)
      for (uint32_t granule = 0; granule < 2; ++granule)
        files.memory.move(mover, granule, 1, other(files.memory.residency(granule)));
  });
  int damaged = 0;
  for (int i = 0; i < 30; ++i) {
    files.memory.hold(0, 1);
    std::memset(files.at(0), 0, bytes);
    if (::pread(direct.get(), files.at(0), bytes, 0) != static_cast<ssize_t>(bytes) ||
        std::memcmp(files.at(0), block.data(), bytes) != 0)
      ++damaged;
    files.memory.unhold(0, 1);
    if (std::memcmp(files.at(0), block.data(), bytes) != 0) ++damaged;
  }
  stop = true;
  engine.join();
  CHECK(damaged == 0);
}

TEST_CASE(
    "migration: a child of fork gets a signal, never its parent's memory, in either tier and while moving") {
  TwoFiles files(4, 64 * kib);
  TERRACE_REQUIRE_MOVER(mover);
  REQUIRE(files.memory.map(0, 4, Residency::ddr) == 0);
  for (uint32_t granule = 0; granule < 4; ++granule) files.fill(granule, granule);
  REQUIRE(files.memory.move(mover, 0, 1, Residency::cxl).granules == 1);
  REQUIRE(files.memory.move(mover, 1, 1, Residency::cxl).granules == 1);
  REQUIRE(files.memory.move(mover, 1, 1, Residency::ddr).granules == 1);
  for (uint32_t granule = 0; granule < 4; ++granule) {
    const pid_t child = ::fork();
    if (child == 0) {
      struct rlimit none = {0, 0};
      ::setrlimit(RLIMIT_CORE, &none);
      ::signal(SIGSEGV, SIG_DFL);
      *reinterpret_cast<volatile uint64_t*>(files.at(granule)) = 666;
      ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK_MESSAGE(WIFSIGNALED(status), "granule " << granule);
    CHECK(files.holds(granule, granule));
  }
}

TEST_CASE("migration: a granule that cannot be registered stays where it is, and says so") {
  TwoFiles files(2, 64 * kib);
  TERRACE_REQUIRE_MOVER(mover);
  REQUIRE(files.memory.map(0, 2, Residency::ddr) == 0);
  files.fill(0, 3);
  // Another userfaultfd of the program has it.
  UniqueFd mine(static_cast<int>(::syscall(323 /* userfaultfd */, O_CLOEXEC | O_NONBLOCK)));
  REQUIRE(mine.valid());
  uffdio_api api{};
  api.api = UFFD_API;
  REQUIRE(::ioctl(mine.get(), UFFDIO_API, &api) == 0);
  uffdio_register range{};
  range.range = {reinterpret_cast<uintptr_t>(files.at(0)), 64 * kib};
  range.mode = UFFDIO_REGISTER_MODE_MISSING;
  REQUIRE(::ioctl(mine.get(), UFFDIO_REGISTER, &range) == 0);
  const tiering::MoveReport report = files.memory.move(mover, 0, 1, Residency::cxl);
  CHECK(report.result == MoveResult::refused);
  CHECK(report.os_errno == EBUSY);
  CHECK(files.memory.residency(0) == Residency::ddr);
  CHECK(files.holds(0, 3));
  CHECK(files.memory.move(mover, 1, 1, Residency::cxl).result == MoveResult::done);
  CHECK(files.memory.check_all() == nullptr);
}

TEST_CASE("migration: a scratch place of the mover is never given to others") {
  TwoFiles files(2, 2 * mib);
  TERRACE_REQUIRE_MOVER(mover);
  REQUIRE(files.memory.map(0, 2, Residency::cxl) == 0);
  std::atomic<bool> stop{false};
  std::atomic<int> damaged{0};
  // Whoever maps memory all the time would sooner or later get a hole that the next promotion maps over.
  std::thread mapper([&] {
    while (!stop) {
      auto* at = static_cast<uint64_t*>(
          ::mmap(nullptr, 2 * mib, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      for (uint64_t i = 0; i < 2 * mib / 8; i += 512) at[i] = i + 1;
      for (uint64_t i = 0; i < 2 * mib / 8; i += 512) damaged += at[i] == i + 1 ? 0 : 1;
      ::munmap(at, 2 * mib);
    }
  });
  for (int i = 0; i < 600; ++i)
    files.memory.move(mover, static_cast<uint32_t>(i) % 2, 1,
                      other(files.memory.residency(static_cast<uint32_t>(i) % 2)));
  stop = true;
  mapper.join();
  CHECK(damaged == 0);
}

TEST_CASE("migration: no store is lost in a process that locks all its future memory") {
  TwoFiles files(4, 64 * kib);
  TERRACE_REQUIRE_MOVER(mover);
  REQUIRE(files.memory.map(0, 4, Residency::cxl) == 0);
  std::memset(files.base(), 0, files.memory.bytes());
  if (::mlockall(MCL_FUTURE) != 0) {
    TERRACE_SKIP(locked_memory, "this process may not lock memory");
    return;
  }
  std::atomic<bool> stop{false};
  uint64_t added = 0;
  std::thread writer([&] {
    for (; !stop; ++added)
      reinterpret_cast<std::atomic<uint64_t>*>(files.at(0) + added % 16 * 4096)->fetch_add(1);
  });
  for (int i = 0; i < 4000; ++i) files.memory.move(mover, 0, 1, other(files.memory.residency(0)));
  stop = true;
  writer.join();
  ::munlockall();
  uint64_t sum = 0;
  for (uint32_t page = 0; page < 16; ++page) sum += *reinterpret_cast<uint64_t*>(files.at(0) + page * 4096);
  CHECK(sum == added);
}

TEST_CASE("migration: pages made for granules that then cannot rise are given back") {
  TwoFiles files(8, 64 * kib);
  TERRACE_REQUIRE_MOVER(mover);
  REQUIRE(files.memory.map(0, 8, Residency::cxl) == 0);
  CHECK(files.memory.prepare_ddr(0, 8) == 8);
  CHECK(files.ddr_file_bytes() == 8 * 64 * kib);
  files.memory.hold(2, 1);
  CHECK(files.memory.move(mover, 0, 8, Residency::ddr).granules == 2);
  files.memory.give_prepared_back(2, 6);
  CHECK(files.ddr_file_bytes() == 2 * 64 * kib);
  files.memory.unhold(2, 1);
}
