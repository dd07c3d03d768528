// SPDX-License-Identifier: Apache-2.0
// Moves are proved: what anybody has pinned stays where it is, with nothing lost, and moves once it is let go.
#include "tiering/migration/pins.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/support/skip.h"
#include "tests/unit/tiering/two_files.h"

using namespace terrace;
using namespace terrace::tiering;
using namespace terrace::test;

namespace {

constexpr uint64_t page = 4096;

// A page of memory in a pipe: pinned until it is read.
class PinnedPage {
 public:
  explicit PinnedPage(char* at) {
    REQUIRE(::pipe(ends_) == 0);
    iovec part{at, page};
    REQUIRE(::vmsplice(ends_[1], &part, 1, 0) == static_cast<ssize_t>(page));
  }
  ~PinnedPage() {
    for (int end : ends_) ::close(end);
  }

 private:
  int ends_[2];
};

// The kernel takes references of its own for moments: what is not pinned moves within some tries.
MoveReport move_soon(TieredMemory& memory, Mover& mover, uint32_t granule, Residency to) {
  MoveReport report;
  for (int i = 0; i < 200; ++i) {
    if (to == Residency::ddr) REQUIRE(memory.prepare_ddr(granule, 1) == 1);
    report = memory.move(mover, granule, 1, to);
    if (report.result != MoveResult::pinned) break;
    ::usleep(5000);
  }
  return report;
}

#define TERRACE_REQUIRE_PROOF(mover)                                                 \
  if (const int failed = (mover).prove_moves(); failed != 0) {                       \
    TERRACE_SKIP(pins, "this kernel does not say what is pinned, errno " << failed); \
    return;                                                                          \
  }

void pinned_stays(bool huge) {
  TERRACE_REQUIRE_MOVER(mover);
  TERRACE_REQUIRE_PROOF(mover);
  TwoFiles files(4, 2 * mib, 0, 0, huge);
  TieredMemory& memory = files.memory;
  REQUIRE(memory.map(0, 4, Residency::ddr) == 0);
  for (uint32_t i = 0; i < 4; ++i) files.fill(i, 100 + i);
  for (const Residency from : {Residency::ddr, Residency::cxl}) {
    const Residency to = from == Residency::ddr ? Residency::cxl : Residency::ddr;
    for (uint32_t granule = 0; granule < 4; ++granule) {
      REQUIRE(memory.residency(granule) == from);
      {
        const PinnedPage pinned(files.at(granule) + granule * 100 * page);
        for (int i = 0; i < 25; ++i) {
          if (to == Residency::ddr) REQUIRE(memory.prepare_ddr(granule, 1) == 1);
          const MoveReport report = memory.move(mover, granule, 1, to);
          if (to == Residency::ddr) memory.give_prepared_back(granule, 1);
          REQUIRE(report.result == MoveResult::pinned);
          CHECK(report.granules == 0);
          CHECK(memory.is_put_off(granule, monotonic_ns()));
          REQUIRE(memory.residency(granule) == from);
        }
        CHECK(files.holds(granule, 100 + granule));
      }
      CHECK(move_soon(memory, mover, granule, to).result == MoveResult::done);
      CHECK(memory.residency(granule) == to);
      CHECK(!memory.is_put_off(granule, monotonic_ns()));
      CHECK(files.holds(granule, 100 + granule));
    }
  }
  CHECK(memory.check_all() == nullptr);
}

}  // namespace

TEST_CASE("pins: a granule of small pages of which one is pinned does not move") {
  pinned_stays(false);
}

TEST_CASE("pins: a granule in a huge page of which a part is pinned does not move") {
  pinned_stays(true);
}

TEST_CASE("pins: stores that wait while a move is undone are not lost") {
  TERRACE_REQUIRE_MOVER(mover);
  TERRACE_REQUIRE_PROOF(mover);
  TwoFiles files(1, 2 * mib, 0, 0, true);
  REQUIRE(files.memory.map(0, 1, Residency::ddr) == 0);
  files.fill(0, 1);
  const PinnedPage pinned(files.at(0) + 300 * page);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> lost{0}, stored{0};
  std::thread writer([&] {
    auto* word = reinterpret_cast<volatile uint64_t*>(files.at(0) + 17 * page);
    auto* other = reinterpret_cast<volatile uint64_t*>(files.at(0) + 300 * page);
    for (uint64_t value = 1; !stop; ++value) {
      *word = value;
      *other = value;
      if (*word != value || *other != value) ++lost;
      stored.store(value);
    }
  });
  for (int i = 0; i < 2000; ++i)
    REQUIRE(files.memory.move(mover, 0, 1, Residency::cxl).result == MoveResult::pinned);
  stop = true;
  writer.join();
  CHECK(stored > 0);
  CHECK(lost == 0);
}

TEST_CASE("pins: the pinned page itself is the program's again after a move was undone") {
  TERRACE_REQUIRE_MOVER(mover);
  TERRACE_REQUIRE_PROOF(mover);
  TwoFiles files(1);
  REQUIRE(files.memory.map(0, 1, Residency::ddr) == 0);
  files.fill(0, 1);
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  char* at = files.at(0) + 5 * page;
  iovec part{at, page};
  REQUIRE(::vmsplice(ends[1], &part, 1, 0) == static_cast<ssize_t>(page));
  REQUIRE(files.memory.move(mover, 0, 1, Residency::cxl).result == MoveResult::pinned);
  memset(at, 77, page);  // a pipe shows the page itself
  char got[page] = {};
  REQUIRE(::read(ends[0], got, page) == static_cast<ssize_t>(page));
  CHECK(memcmp(got, at, page) == 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("pins: memory that cannot be asked does not move") {
  TERRACE_REQUIRE_MOVER(mover);
  TERRACE_REQUIRE_PROOF(mover);
  TwoFiles small(32, 64 * kib);
  REQUIRE(small.memory.map(0, 32, Residency::ddr) == 0);
  CHECK(small.memory.move(mover, 0, 1, Residency::cxl).result == MoveResult::unproven);
  CHECK(small.memory.residency(0) == Residency::ddr);
  const UniqueFd device(::open("/dev/zero", O_RDWR | O_CLOEXEC));
  REQUIRE(device.valid());
  auto map = take(os::MemoryMap::reserve(2 * mib, 2 * mib));
  const UniqueFd ddr = take(os::make_memory_file("ddr", 2 * mib));
  TieredMemory memory;
  REQUIRE(memory.open({.base = reinterpret_cast<char*>(map.data()), .bytes = 2 * mib, .ddr_fd = ddr.get()}) ==
          0);
  REQUIRE(memory.add_segment(device.get(), 2 * mib) == 0);
  REQUIRE(memory.map(0, 1, Residency::ddr) == 0);
  CHECK(memory.move(mover, 0, 1, Residency::cxl).result == MoveResult::unproven);
  CHECK(memory.residency(0) == Residency::ddr);
  memory.close();
}
