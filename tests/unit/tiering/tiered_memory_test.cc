// SPDX-License-Identifier: Apache-2.0
// Moves as such: bytes, slots, runs, holds, mappings.
#include "tests/unit/tiering/two_files.h"

#include <atomic>
#include <thread>

#include "tests/support/eventually.h"

using namespace terrace;
using namespace terrace::test;
using tiering::MoveReport;
using tiering::MoveResult;
using tiering::Residency;

TEST_CASE("TieredMemory: a granule keeps its bytes and its address, down and up, in both sizes") {
  for (const uint64_t granule_bytes : {2 * mib, 64 * kib}) {
    TwoFiles files(4, granule_bytes);
    TERRACE_REQUIRE_MOVER(mover);
    REQUIRE(files.memory.map(0, 4, Residency::ddr) == 0);
    for (uint32_t granule = 0; granule < 4; ++granule) files.fill(granule, granule + 1);
    for (int turn = 0; turn < 3; ++turn) {
      MoveReport report = files.memory.move(mover, 1, 1, Residency::cxl);
      REQUIRE(report.result == MoveResult::done);
      CHECK(report.times.stall_ns >= report.times.copy_ns);
      CHECK(files.memory.residency(1) == Residency::cxl);
      CHECK(files.holds(1, 2));
      files.fill(1, 50 + static_cast<uint64_t>(turn));  // goes to the CXL file
      files.memory.prepare_ddr(1, 1);
      report = files.memory.move(mover, 1, 1, Residency::ddr);
      REQUIRE(report.result == MoveResult::done);
      CHECK(files.holds(1, 50 + static_cast<uint64_t>(turn)));
      files.fill(1, 2);
    }
    for (uint32_t granule = 0; granule < 4; ++granule) CHECK(files.holds(granule, granule + 1));
    CHECK(files.memory.check_all() == nullptr);
  }
}

TEST_CASE("TieredMemory: neighbours move together, and DDR that sank is given back") {
  TwoFiles files(8, 64 * kib);
  TERRACE_REQUIRE_MOVER(mover);
  REQUIRE(files.memory.map(0, 8, Residency::ddr) == 0);
  for (uint32_t granule = 0; granule < 8; ++granule) files.fill(granule, granule);
  CHECK(files.ddr_file_bytes() == 8 * 64 * kib);
  CHECK(files.memory.move(mover, 2, 5, Residency::cxl).granules == 5);
  CHECK(files.ddr_file_bytes() == 3 * 64 * kib);
  CHECK(files.memory.mappings() == 2);  // borders: before and behind the run
  CHECK(files.memory.move(mover, 2, 5, Residency::ddr).granules == 5);
  CHECK(files.memory.mappings() == 0);
  for (uint32_t granule = 0; granule < 8; ++granule) CHECK(files.holds(granule, granule));
  CHECK(files.memory.check_all() == nullptr);
}

TEST_CASE("TieredMemory: a run ends at a granule that is held, and a held granule alone is left") {
  TwoFiles files(6, 64 * kib);
  TERRACE_REQUIRE_MOVER(mover);
  REQUIRE(files.memory.map(0, 6, Residency::ddr) == 0);
  files.memory.hold(2, 2);
  CHECK(files.memory.is_held(3));
  CHECK(files.memory.move(mover, 0, 6, Residency::cxl).granules == 2);
  const MoveReport report = files.memory.move(mover, 2, 1, Residency::cxl);
  CHECK(report.result == MoveResult::held);
  CHECK(files.memory.residency(2) == Residency::ddr);
  files.memory.hold(2, 1);
  files.memory.unhold(2, 2);
  CHECK(files.memory.is_held(2));  // holds nest
  CHECK_FALSE(files.memory.is_held(3));
  files.memory.unhold(2, 1);
  CHECK(files.memory.move(mover, 2, 4, Residency::cxl).granules == 4);
  CHECK(files.memory.check_all() == nullptr);
}

namespace {

// As a fork leaves it: private, from where it lies.
void make_private(TwoFiles& files, uint32_t granule) {
  const bool in_cxl = files.memory.residency(granule) == Residency::cxl;
  const uint64_t bytes = files.memory.granule_bytes();
  const uint64_t offset = (in_cxl ? files.memory.slot(granule) : granule) * bytes;
  REQUIRE(::mmap(files.at(granule), bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
                 in_cxl ? files.cxl.get() : files.ddr.get(), static_cast<off_t>(offset)) == files.at(granule));
}

}  // namespace

TEST_CASE("TieredMemory: what a fork made private is folded into its file, from either tier and both sizes") {
  for (const uint64_t granule_bytes : {2 * mib, 64 * kib}) {
    TwoFiles files(4, granule_bytes);
    TERRACE_REQUIRE_MOVER(mover);
    REQUIRE(files.memory.map(0, 4, Residency::ddr) == 0);
    for (uint32_t granule = 0; granule < 4; ++granule) files.fill(granule, granule + 1);
    REQUIRE(files.memory.move(mover, 2, 1, Residency::cxl).granules == 1);
    for (uint32_t granule : {1u, 2u}) {
      make_private(files, granule);
      files.fill(granule, 70 + granule);
      files.memory.hold(granule, 1);
      CHECK(files.memory.fold(mover, granule).result == MoveResult::held);
      files.memory.unhold(granule, 1);
      const MoveReport report = files.memory.fold(mover, granule);
      REQUIRE(report.result == MoveResult::done);
      CHECK(report.times.stall_ns >= report.times.copy_ns);
      CHECK(files.holds(granule, 70 + granule));
      make_private(files, granule);  // shows the file, without what was private
      CHECK(files.holds(granule, 70 + granule));
      files.at(granule)[granule_bytes - 1] = 'x';
      REQUIRE(files.memory.fold(mover, granule).result == MoveResult::done);
      CHECK(files.at(granule)[granule_bytes - 1] == 'x');
    }
    // It moves again, with what was stored last.
    files.fill(2, 90);
    REQUIRE(files.memory.move(mover, 2, 1, Residency::ddr).granules == 1);
    CHECK(files.holds(2, 90));
    CHECK(files.memory.check_all() == nullptr);
    for (uint32_t granule : {0u, 3u}) CHECK(files.holds(granule, granule + 1));
  }
}

TEST_CASE("TieredMemory: stores come through a fold, each of them") {
  TwoFiles files(1, 2 * mib);
  TERRACE_REQUIRE_MOVER(mover);
  REQUIRE(files.memory.map(0, 1, Residency::ddr) == 0);
  std::atomic<bool> stop{false};
  uint64_t lost = 0;
  std::thread storing([&] {
    uint64_t expected[512] = {};
    for (uint64_t step = 1; !stop; ++step) {
      const uint64_t page = step * 193 % 512;
      auto* word = reinterpret_cast<volatile uint64_t*>(files.at(0) + page * 4096);
      if (*word != expected[page]) ++lost;
      *word = expected[page] = step;
    }
  });
  int folded = 0;
  for (int round = 0; round < 300; ++round) {
    make_private(files, 0);
    std::this_thread::sleep_for(std::chrono::microseconds(round % 7 * 100));
    if (files.memory.fold(mover, 0).result == MoveResult::done)
      ++folded;
    else
      break;
  }
  stop = true;
  storing.join();
  CHECK(folded == 300);
  CHECK(lost == 0);
}

TEST_CASE("TieredMemory: hold() waits for the move that is under way, and no longer") {
  TwoFiles files(4, 2 * mib);
  TERRACE_REQUIRE_MOVER(mover);
  REQUIRE(files.memory.map(0, 4, Residency::ddr) == 0);
  std::atomic<bool> stop{false}, moved_while_held{false};
  std::atomic<uint64_t> holds{0};
  std::thread holder([&] {
    while (!stop) {
      files.memory.hold(1, 2);
      const Residency before[2] = {files.memory.residency(1), files.memory.residency(2)};
      std::this_thread::yield();
      if (files.memory.residency(1) != before[0] || files.memory.residency(2) != before[1])
        moved_while_held = true;
      files.memory.unhold(1, 2);
      ++holds;
      std::this_thread::sleep_for(std::chrono::microseconds(200));  // the mover's turn
    }
  });
  uint64_t moves = 0;
  CHECK(eventually(
      [&] {
        for (int i = 0; i < 20; ++i) {
          const auto granule = 1 + static_cast<uint32_t>(i % 2);
          moves +=
              files.memory
                  .move(mover, granule, 1,
                        files.memory.residency(granule) == Residency::ddr ? Residency::cxl : Residency::ddr)
                  .granules;
        }
        return moves > 50 && holds > 50;
      },
      std::chrono::seconds(60)));
  stop = true;
  holder.join();
  CHECK_FALSE(moved_while_held);
}

TEST_CASE("TieredMemory: without a free slot nothing sinks, and what rises frees its slot") {
  TwoFiles files(4, 64 * kib, 2);
  TERRACE_REQUIRE_MOVER(mover);
  REQUIRE(files.memory.map(0, 2, Residency::ddr) == 0);
  REQUIRE(files.memory.map(2, 2, Residency::cxl) == 0);
  CHECK(files.memory.free_slots() == 0);
  files.fill(0, 10);
  files.fill(2, 12);
  CHECK(files.memory.move(mover, 0, 1, Residency::cxl).result == MoveResult::no_slot);
  CHECK(files.memory.move(mover, 2, 1, Residency::ddr).result == MoveResult::done);
  CHECK(files.memory.free_slots() == 1);
  CHECK(files.memory.move(mover, 0, 2, Residency::cxl).granules == 1);
  CHECK(files.holds(0, 10));
  CHECK(files.holds(2, 12));
  CHECK(files.memory.check_all() == nullptr);
}

TEST_CASE("TieredMemory: a segment is emptied and dropped, and another one has its number") {
  TwoFiles range(12, 2 * mib, 4);
  UniqueFd second = range.file("second", 6 * 2 * mib, false), third = range.file("third", 3 * 2 * mib, false);
  TERRACE_REQUIRE_MOVER(mover);
  auto& memory = range.memory;
  REQUIRE(memory.add_segment(second.get(), 6 * 2 * mib) == 0);
  REQUIRE(memory.map(0, 4, Residency::cxl) == 0);
  REQUIRE(memory.map(4, 3, Residency::cxl) == 0);
  REQUIRE(memory.map(7, 2, Residency::ddr) == 0);
  for (uint32_t granule = 0; granule < 9; ++granule) range.fill(granule, granule + 1);
  REQUIRE(memory.segment_granules(0) == 4);
  memory.close_segment(0);
  const char* broken = memory.check_all();
  CHECK_MESSAGE(broken == nullptr, broken);
  // What sinks meanwhile goes elsewhere, as long as there is room, and a granule that rises leaves no room.
  const uint32_t first = memory.segment_granule(0, 0);
  REQUIRE(memory.prepare_ddr(first, 1) == 1);
  REQUIRE(memory.move(mover, first, 1, Residency::ddr).result == MoveResult::done);
  REQUIRE(memory.move(mover, first, 1, Residency::cxl).result == MoveResult::done);
  CHECK(memory.place(first).segment == 1);
  const uint32_t held = memory.segment_granule(0, 0);
  memory.hold(held, 1);
  CHECK(memory.change_slot(mover, held).result == MoveResult::held);
  memory.unhold(held, 1);
  while (memory.segment_granule(0, 0) < memory.granule_count()) {
    const uint32_t granule = memory.segment_granule(0, 0);
    const MoveResult result = memory.change_slot(mover, granule).result;
    if (result == MoveResult::no_slot)
      memory.forget(granule, 1, false);
    else
      REQUIRE(result == MoveResult::done);
  }
  broken = memory.check_all();
  CHECK_MESSAGE(broken == nullptr, broken);
  memory.drop_segment(0);
  range.cxl.reset();
  uint32_t kept = 0;
  for (uint32_t granule = 0; granule < 9; ++granule) {
    if (memory.residency(granule) == Residency::none) continue;
    ++kept;
    CHECK(range.holds(granule, granule + 1));
  }
  CHECK(kept == 8);  // the other segment has six slots, and two are in DDR
  CHECK(memory.move(mover, 7, 1, Residency::cxl).result == MoveResult::no_slot);
  REQUIRE(memory.add_segment(third.get(), 3 * 2 * mib, 0) == 0);
  CHECK(memory.add_segment(third.get(), 3 * 2 * mib, 0) == EINVAL);
  REQUIRE(memory.move(mover, 7, 2, Residency::cxl).result == MoveResult::done);
  CHECK(memory.place(7).segment == 0);
  CHECK(range.holds(7, 8));
  CHECK(memory.free_slots() == 1);
  broken = memory.check_all();
  CHECK_MESSAGE(broken == nullptr, broken);
}

TEST_CASE("TieredMemory: moves stop at the bound of kernel mappings, before the process runs out of them") {
  TwoFiles files(16, 64 * kib, 16, 6);
  TERRACE_REQUIRE_MOVER(mover);
  REQUIRE(files.memory.map(0, 16, Residency::ddr) == 0);
  uint32_t done = 0, refused = 0;
  for (uint32_t granule = 1; granule < 16; granule += 2) {
    const MoveResult result = files.memory.move(mover, granule, 1, Residency::cxl).result;
    done += result == MoveResult::done ? 1 : 0;
    refused += result == MoveResult::no_mappings ? 1 : 0;
  }
  CHECK(done == 3);
  CHECK(refused == 5);
  CHECK(files.memory.mappings() == 6);
  // What makes fewer mappings is done still.
  CHECK(files.memory.move(mover, 2, 1, Residency::cxl).result == MoveResult::done);
  CHECK(files.memory.mappings() <= 6);
  CHECK(files.memory.check_all() == nullptr);
}

TEST_CASE("TieredMemory: granules that sink again go back beside their neighbours, so that mappings join") {
  TwoFiles files(32, 64 * kib);
  TERRACE_REQUIRE_MOVER(mover);
  REQUIRE(files.memory.map(0, 32, Residency::ddr) == 0);
  for (int turn = 0; turn < 3; ++turn) {
    for (uint32_t granule = 0; granule < 32; ++granule)
      REQUIRE(files.memory.move(mover, granule, 1, Residency::cxl).result == MoveResult::done);
    CHECK(files.memory.mappings() == 0);
    for (uint32_t granule = 0; granule < 32; ++granule)
      REQUIRE(files.memory.move(mover, granule, 1, Residency::ddr).result == MoveResult::done);
    CHECK(files.memory.mappings() == 0);
  }
}

TEST_CASE(
    "TieredMemory: what the owner takes away is nobody's, and its slots are free unless they are still read") {
  TwoFiles files(4, 64 * kib);
  REQUIRE(files.memory.map(0, 4, Residency::cxl) == 0);
  files.memory.forget(0, 2, false);
  CHECK(files.memory.free_slots() == 2);
  files.memory.forget(2, 1, true);
  CHECK(files.memory.free_slots() == 2);
  CHECK(files.memory.cxl_granules() == 1);
  CHECK(files.memory.residency(0) == Residency::none);
  CHECK(files.memory.check_all() == nullptr);
}
