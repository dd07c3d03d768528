// SPDX-License-Identifier: Apache-2.0
// A lease that is fenced in the middle of a copy: the mover's memory goes away at the moment at which a test
// wants it to. Found by an audit: a program that only told its pool to move died of the pool's own copy.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "core/os/fault_guard.h"
#include "tests/support/eventually.h"
#include "tests/support/skip.h"
#include "tests/unit/tiering/two_files.h"
#include "tiering/engine/engine.h"

using namespace terrace;
using namespace terrace::test;
using tiering::MoveReport;
using tiering::MoveResult;
using tiering::Residency;

namespace {

bool copy_guarded(char* to, const char* from, size_t bytes) {
  return os::guarded([&] { tiering::copy_streamed(to, from, bytes); });
}

// Files of the process's own are sealed; a lease is not its own.
UniqueFd cuttable(uint64_t bytes) {
  UniqueFd file(::memfd_create("lease", MFD_CLOEXEC));
  REQUIRE(::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0);
  return file;
}

struct Leased : TwoFiles {
  explicit Leased(uint32_t granules, uint64_t granule_bytes = 2 * mib)
      : TwoFiles(granules, granule_bytes), bytes(granules * granule_bytes), lease(cuttable(bytes)) {
    memory.close_segment(0);
    memory.drop_segment(0);
    REQUIRE(memory.add_segment(lease.get(), bytes) == 0);
  }
  ~Leased() { memory.close(); }
  void grow_back() const { REQUIRE(::ftruncate(lease.get(), static_cast<off_t>(bytes)) == 0); }

  const uint64_t bytes;
  const UniqueFd lease;
};

// Cuts this file when the next copy begins; -1: none.
std::atomic<int> fenced_next{-1};

bool fence_and_copy(char* to, const char* from, size_t bytes) {
  if (const int fd = fenced_next.exchange(-1); fd >= 0 && ::ftruncate(fd, 0) != 0) std::abort();
  return copy_guarded(to, from, bytes);
}

bool readable(const char* at) {
  volatile char seen = 0;
  return os::guarded([&] { seen = *static_cast<const volatile char*>(at); });
}

}  // namespace

TEST_CASE("CopyTeam: memory that is gone in any thread's part is an answer, with every signal blocked") {
  constexpr size_t bytes = 8 * mib;
  const UniqueFd file = cuttable(bytes);
  void* const at = ::mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(at != MAP_FAILED);
  auto* const from = static_cast<char*>(at);
  auto* const to = from + bytes;
  REQUIRE(::mmap(from, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(), 0) == at);
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  tiering::CopyTeam team;
  team.set_copy(copy_guarded);
  REQUIRE(team.start(4) == 0);
  for (const size_t left : {size_t{0}, bytes / 4, bytes / 2, bytes - 4096}) {
    REQUIRE(::ftruncate(file.get(), static_cast<off_t>(left)) == 0);
    CHECK_FALSE(team.copy(to, from, bytes));
    CHECK_FALSE(team.copy(from, to, bytes));
    REQUIRE(::ftruncate(file.get(), bytes) == 0);
    std::memset(from, static_cast<int>(left / 4096 + 1), bytes);
    CHECK(team.copy(to, from, bytes));
    CHECK(std::memcmp(to, from, bytes) == 0);
  }
  team.stop();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::munmap(at, 2 * bytes);
}

TEST_CASE("TieredMemory: a target that is fenced during the copy loses nothing of what was to sink there") {
  for (const uint64_t granule_bytes : {2 * mib, 64 * kib}) {
    Leased files(4, granule_bytes);
    TERRACE_REQUIRE_MOVER(mover);
    mover.set_copy(fence_and_copy);
    REQUIRE(files.memory.map(0, 4, Residency::ddr) == 0);
    for (uint32_t granule = 0; granule < 4; ++granule) files.fill(granule, granule + 1);
    fenced_next = files.lease.get();
    const MoveReport report = files.memory.move(mover, 1, 2, Residency::cxl);
    CHECK(report.result == MoveResult::lost);
    CHECK(report.granules == 0);
    CHECK(files.memory.residency(1) == Residency::ddr);
    for (uint32_t granule = 0; granule < 4; ++granule) CHECK(files.holds(granule, granule + 1));
    files.fill(1, 9);  // no store waits for ever
    CHECK(files.holds(1, 9));
    CHECK(files.memory.check_all() == nullptr);
    files.grow_back();
    CHECK(files.memory.move(mover, 1, 2, Residency::cxl).result == MoveResult::done);
    CHECK(files.holds(1, 9));
  }
}

TEST_CASE(
    "TieredMemory: a source that is fenced during the copy stays where it was, and nobody sleeps for ever") {
  for (const uint64_t granule_bytes : {2 * mib, 64 * kib}) {
    Leased files(4, granule_bytes);
    TERRACE_REQUIRE_MOVER(mover);
    mover.set_copy(fence_and_copy);
    REQUIRE(files.memory.map(0, 2, Residency::ddr) == 0);
    REQUIRE(files.memory.map(2, 2, Residency::cxl) == 0);
    for (uint32_t granule = 0; granule < 4; ++granule) files.fill(granule, granule + 1);
    std::atomic<bool> gone{false};
    std::thread reader([&] {
      while (readable(files.at(2) + 4096)) {
      }
      gone = true;
    });
    REQUIRE(files.memory.prepare_ddr(2, 2) == 2);
    fenced_next = files.lease.get();
    CHECK(files.memory.move(mover, 2, 2, Residency::ddr).result == MoveResult::lost);
    files.memory.give_prepared_back(2, 2);
    CHECK(eventually([&] { return gone.load(); }));
    reader.join();
    CHECK(files.memory.residency(2) == Residency::cxl);
    CHECK_FALSE(readable(files.at(3)));
    for (uint32_t granule = 0; granule < 2; ++granule) CHECK(files.holds(granule, granule + 1));
    CHECK(files.memory.check_all() == nullptr);
    // It is that file which is mapped there still.
    files.grow_back();
    files.fill(2, 7);
    files.memory.prepare_ddr(2, 1);
    CHECK(files.memory.move(mover, 2, 1, Residency::ddr).result == MoveResult::done);
    CHECK(files.holds(2, 7));
  }
}

// A dax device that is disabled refuses every new mapping.
TEST_CASE("Mover: a source that cannot be mapped any more is mapped again from what is mapped of it") {
  constexpr size_t bytes = 2 * mib;
  TERRACE_REQUIRE_MOVER(mover);
  mover.set_copy(fence_and_copy);
  const auto place = take(os::MemoryMap::reserve(3 * bytes, bytes));
  auto* const at = reinterpret_cast<char*>(place.data());
  const UniqueFd ddr = take(os::make_memory_file("ddr", bytes)), cxl = cuttable(bytes);
  const tiering::Backing to{.fd = ddr.get(), .alias = at + bytes};
  const tiering::Backing was{.fd = cxl.get(), .alias = at + 2 * bytes};
  REQUIRE(tiering::map_backing(at, bytes, was));
  REQUIRE(tiering::map_backing(was.alias, bytes, was));
  REQUIRE(tiering::map_backing(to.alias, bytes, to));
  std::memset(was.alias, 1, bytes);
  std::memset(to.alias, 2, bytes);
  const tiering::Backing from{.fd = -1, .alias = was.alias};
  tiering::MoveTimes times;
  fenced_next = cxl.get();
  CHECK(mover.promote(at, bytes, from, to, &times) == EFAULT);
  CHECK(times.lost);
  CHECK_FALSE(readable(at));
  REQUIRE(::ftruncate(cxl.get(), bytes) == 0);
  was.alias[bytes - 1] = 77;
  CHECK(at[bytes - 1] == 77);
  CHECK(at[0] == 0);
}

TEST_CASE("Engine: a range whose memory went away during a copy is given up, before its owner knows") {
  Leased files(4);
  tiering::Engine engine;
  tiering::EngineOptions options;
  options.publish = false;
  options.copy = fence_and_copy;
  if (engine.open(options) != 0) {
    TERRACE_SKIP(userfaultfd, "no userfaultfd for this process");
    return;
  }
  REQUIRE(files.memory.map(0, 2, Residency::ddr) == 0);
  REQUIRE(files.memory.map(2, 2, Residency::cxl) == 0);
  for (uint32_t granule = 0; granule < 2; ++granule) files.fill(granule, granule);
  tiering::RangeOptions range;
  range.name = "lost";
  range.ddr_granules_max = 3;
  uint32_t index = 0;
  REQUIRE(engine.add_range(&files.memory, range, &index) == 0);
  CHECK_FALSE(engine.has_lost_memory(index));
  fenced_next = files.lease.get();
  CHECK(engine.move_now(index, 2, 1, Residency::ddr) == MoveResult::lost);
  CHECK(engine.has_lost_memory(index));
  CHECK(engine.statistics(index).state == static_cast<uint32_t>(layout::TierState::stopped));
  CHECK(files.memory.residency(2) == Residency::cxl);
  CHECK(files.ddr_file_bytes() == 2 * 2 * mib);  // what was made ready for it is given back
  CHECK(engine.move_now(index, 0, 1, Residency::cxl) == MoveResult::refused);
  for (uint32_t granule = 0; granule < 2; ++granule) CHECK(files.holds(granule, granule));
  engine.close();
}
