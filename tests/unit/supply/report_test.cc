// SPDX-License-Identifier: Apache-2.0
// What a run's numbers become: sums that hold, whatever a program wrote into its pages.
#include "allocator/supply/report.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "allocator/supply/history.h"
#include "core/base/prng.h"
#include "core/base/units.h"

namespace terrace::supply {
namespace {

constexpr uint64_t now = 100 * ns_per_s;

Slot slot_of(uint32_t pid) {
  Slot slot{};
  slot.pid = pid;
  return slot;
}

// Three blocks of 1 MiB and one of 40 MiB in pages, 1,000 blocks of 112 bytes.
ProcessStatistics some_page() {
  ProcessStatistics page{};
  page.large[8] = {.bytes = 3 * mib, .allocations = 7, .frees = 4};
  page.large[13] = {.bytes = 40 * mib, .allocations = 1, .frees = 0};
  page.extent_bytes = 2 * mib;
  page.mapped_bytes = 5 * mib;
  page.small[0] = {.block_bytes = 112, .blocks = 1000};
  page.small_count = 1;
  page.small_bytes = 112'000;
  page.small_ns = now - 5 * ns_per_ms;
  page.small_sequence = 2;
  return page;
}

TEST_CASE("Report: live bytes are the program's blocks, held bytes what is kept for them") {
  Slot slot = slot_of(7);
  slot.live_ddr = 45 * mib;
  slot.ddr_charged = 46 * mib;
  ProcessStatistics page = some_page();
  page.plain_bytes = 2 * mib;
  const ProcessReport report = describe_process(slot, page, nullptr, 64 * mib, now);
  CHECK(report.pid == 7);
  CHECK(report.memory.large_bytes == 43 * mib);
  CHECK(report.memory.mapped_bytes == 5 * mib);
  CHECK(report.memory.small_bytes == 112'000);
  CHECK(report.memory.live_bytes() == 48 * mib + 112'000);
  CHECK(report.memory.held_bytes() == (46 + 64 + 2) * mib);
  CHECK(report.small_age_ns == 5 * ns_per_ms);
  REQUIRE(report.classes.size() == 3);
  CHECK(report.classes[0].bytes_min == 112);
  CHECK(report.classes[0].blocks == 1000);
  CHECK(report.classes[1].bytes_min == mib);
  CHECK(report.classes[1].bytes_max == 2 * mib - 4096);
  CHECK(report.classes[1].blocks == 3);
  CHECK(report.classes[1].allocations == 7);
  CHECK(report.classes[2].bytes == 40 * mib);
}

TEST_CASE("Report: where granules move, the tiers are the engine's word, else the arenas'") {
  Slot slot = slot_of(7);
  slot.live_ddr = 10;
  slot.live_cxl = 20;
  ProcessStatistics page = some_page();
  page.live_in_ddr = 25;
  page.live_in_cxl = 5;
  page.tiers_ns = now;
  CHECK(describe_process(slot, page, nullptr, 0, now).memory.live_cxl == 20);
  slot.migration_state = static_cast<uint64_t>(MigrationState::running);
  CHECK(describe_process(slot, page, nullptr, 0, now).memory.live_ddr == 25);
  CHECK(describe_process(slot, page, nullptr, 0, now).memory.live_cxl == 5);
  page.tiers_ns = 0;
  CHECK(describe_process(slot, page, nullptr, 0, now).memory.live_cxl == 20);
}

TEST_CASE("Report: half-written small classes are those of before, or the extents") {
  ProcessStatistics before = some_page(), torn = some_page();
  torn.small_sequence = 3;
  torn.small[0].blocks = 5;
  const ProcessReport known = describe_process(slot_of(7), torn, &before, 0, now);
  CHECK(known.small_known);
  CHECK(known.memory.small_bytes == 112'000);
  CHECK(known.classes[0].blocks == 1000);
  const ProcessReport unknown = describe_process(slot_of(7), torn, nullptr, 0, now);
  CHECK(!unknown.small_known);
  CHECK(unknown.memory.small_bytes == 2 * mib);
  CHECK(unknown.classes.size() == 2);
}

TEST_CASE("Report: whatever a program writes, sums saturate and nothing is read outside of the page") {
  Prng random(20);
  for (int round = 0; round < 500; ++round) {
    ProcessStatistics page;
    Slot slot;
    auto fill = [&](void* at, size_t bytes) {
      for (size_t i = 0; i < bytes; i += 8) {
        // Mostly extremes: small numbers, all ones, the sign bit.
        const uint64_t kind = random.below(4);
        const uint64_t word = kind == 0   ? random.below(100)
                              : kind == 1 ? UINT64_MAX
                              : kind == 2 ? uint64_t{1} << 63
                                          : random.next();
        std::memcpy(static_cast<char*>(at) + i, &word, 8);
      }
    };
    fill(&page, sizeof(page));
    fill(&slot, sizeof(slot));
    const ProcessReport report = describe_process(slot, page, &page, UINT64_MAX, now);
    CHECK(report.memory.live_bytes() >= report.memory.large_bytes);
    CHECK(report.memory.held_bytes() >= report.memory.leased_bytes);
    CHECK(report.memory.longest_free_bytes <= report.memory.free_bytes);
    CHECK(report.classes.size() <= large_classes_max + small_classes_max);
    for (size_t i = 1; i < report.classes.size(); ++i)
      CHECK(report.classes[i - 1].bytes_min <= report.classes[i].bytes_min);
    MemoryReport sum = report.memory;
    sum.add(report.memory);
    CHECK(sum.held_bytes() == UINT64_MAX);
    CHECK(sum.free_bytes >= report.memory.free_bytes);
    RunHistory history;
    history.note_running(1, "x", page);
    history.note_ended(slot, page, 0, now);
    REQUIRE(history.ended().size() == 1);
    for (const char byte : history.ended()[0].name)
      CHECK((static_cast<unsigned char>(byte) >= 0x20 && static_cast<unsigned char>(byte) < 0x7f));
  }
}

TEST_CASE("ControlPage: a page that is written while it is copied is seen to be torn, or is whole") {
  auto made = ControlPage::create({.ddr_bytes = mib, .cxl_bytes = 0, .fallback = false});
  REQUIRE(made.ok());
  auto* header = static_cast<ControlHeader*>(
      ::mmap(nullptr, control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, (*made)->fd(), 0));
  REQUIRE(header != MAP_FAILED);
  ProcessStatistics& page = statistics_of(header)[3];
  std::atomic<bool> stop{false};
  // As small_classes.cc writes.
  std::thread writer([&] {
    std::atomic_ref<uint64_t> sequence(page.small_sequence);
    for (uint64_t value = 1; !stop; ++value) {
      const uint64_t before = sequence.load(std::memory_order_relaxed);
      sequence.store(before | 1, std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_release);
      for (SmallClass& one : page.small) std::atomic_ref(one.blocks).store(value, std::memory_order_relaxed);
      std::atomic_ref(page.small_ns).store(value, std::memory_order_relaxed);
      sequence.store((before | 1) + 1, std::memory_order_release);
      if (value % 4 == 0) std::this_thread::yield();  // there are moments at which it is whole
    }
  });
  int whole = 0, torn = 0;
  // A machine with other work may hold the writer in the middle of a page for longer than many looks take.
  const auto given_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while ((whole < 1000 || torn < 10) && std::chrono::steady_clock::now() < given_up) {
    const ProcessStatistics copy = (*made)->read_statistics(3);
    if (!small_classes_are_complete(copy)) {
      ++torn;
      continue;
    }
    ++whole;
    for (const SmallClass& one : copy.small) REQUIRE(one.blocks == copy.small_ns);
  }
  stop = true;
  writer.join();
  CHECK(whole > 0);
  ::munmap(header, control_bytes);
}

TEST_CASE("ControlPage: a process's last numbers are told, then its pages are clean for the next") {
  auto made = ControlPage::create({.ddr_bytes = 64 * mib, .cxl_bytes = 0, .fallback = false});
  REQUIRE(made.ok());
  auto* header = static_cast<ControlHeader*>(
      ::mmap(nullptr, control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, (*made)->fd(), 0));
  REQUIRE(header != MAP_FAILED);
  const uint32_t index = (*made)->claim(4711);
  ProcessStatistics& page = statistics_of(header)[index];
  page = some_page();
  std::strcpy(page.program, "prog");
  slots_of(header)[index].refused = 2;
  RunHistory history;
  (*made)->on_end(
      [&](const Slot& slot, const ProcessStatistics& last) { history.note_ended(slot, last, 0, now); });
  (*made)->reclaim(index);
  REQUIRE(history.ended().size() == 1);
  const ProcessReport& ended = history.ended()[0];
  CHECK(ended.name == "prog");
  CHECK(!ended.running);
  CHECK(ended.memory.live_bytes() == 48 * mib + 112'000);
  CHECK(history.ended_counters().refused == 2);
  CHECK(history.ended_counters().live_bytes() == 0);
  // Of its classes the sums keep what happened, not what was held.
  for (const SizeClassReport& one : history.ended_classes()) {
    CHECK(one.bytes == 0);
    CHECK(one.allocations > 0);
  }
  CHECK(page.large[8].bytes == 0);
  CHECK(page.small_sequence == 0);
  CHECK(page.program[0] == 0);
  ::munmap(header, control_bytes);
}

TEST_CASE("RunHistory: of many ended processes the largest are kept, all of them counted") {
  RunHistory history;
  for (uint32_t i = 0; i < RunHistory::ended_max + 50; ++i) {
    Slot slot = slot_of(i + 1);
    slot.peak_live = (i * 7919) % 1000;
    slot.refused = 1;
    history.note_ended(slot, {}, 0, now);
  }
  CHECK(history.ended().size() == RunHistory::ended_max);
  CHECK(history.left_out() == 50);
  CHECK(history.ended_counters().refused == RunHistory::ended_max + 50);
  for (size_t i = 1; i < history.ended().size(); ++i)
    CHECK(history.ended()[i - 1].memory.peak_live >= history.ended()[i].memory.peak_live);
}

TEST_CASE("RunHistory: the classes at the peak are those of the highest moment") {
  RunHistory history;
  std::vector<SizeClassReport> low(1), high(1);
  low[0].bytes = 10;
  high[0].bytes = 30;
  history.note_live(10, low);
  history.note_live(30, high);
  history.note_live(20, low);
  CHECK(history.peak_bytes() == 30);
  CHECK(history.peak_classes()[0].bytes == 30);
}

}  // namespace
}  // namespace terrace::supply
