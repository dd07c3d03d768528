// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

#include "allocator/supply/control.h"
#include "core/base/units.h"

namespace terrace::supply {
namespace {

// What programs see: their own mapping of the page.
struct Fixture {
  Fixture() {
    auto made = ControlPage::create({.ddr_bytes = 64 * mib, .cxl_bytes = gib, .fallback = true});
    REQUIRE(made.ok());
    page = std::move(*made);
    header = static_cast<ControlHeader*>(
        ::mmap(nullptr, control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, page->fd(), 0));
    REQUIRE(header != MAP_FAILED);
  }
  ~Fixture() { ::munmap(header, control_bytes); }
  Slot& slot(uint32_t index) { return slots_of(header)[index]; }

  std::unique_ptr<ControlPage> page;
  ControlHeader* header = nullptr;
};

TEST_CASE("ControlPage: says its budgets to programs") {
  Fixture f;
  CHECK(f.header->magic == magic);
  CHECK(f.header->ddr_budget == 64 * mib);
  CHECK(f.header->cxl_budget == gib);
  CHECK(f.header->fallback == 1);
  CHECK(f.page->totals().processes == 0);
}

TEST_CASE("ControlPage: what a dead process held goes back to the budget, its counters stay in the totals") {
  Fixture f;
  uint32_t slot = f.page->claim(1000);
  REQUIRE(slot != no_slot);
  f.header->ddr_used = 10 * mib;
  f.slot(slot).ddr_charged = 10 * mib;
  f.slot(slot).allocations_ddr = 5;
  f.slot(slot).live_ddr = 10 * mib;
  f.slot(slot).peak_live = 11 * mib;
  CHECK(f.page->totals().live_ddr == 10 * mib);
  f.page->reclaim(slot);
  CHECK(f.page->ddr_used() == 0);
  CHECK(f.page->read(slot).pid == 0);
  Totals totals = f.page->totals();
  CHECK(totals.live_ddr == 0);
  CHECK(totals.allocations_ddr == 5);
  CHECK(totals.peak_live_process == 11 * mib);
  CHECK(totals.processes == 1);
  f.page->reclaim(slot);  // twice is harmless
  CHECK(f.page->totals().processes == 1);
}

TEST_CASE("ControlPage: moves of ended and of running processes add up") {
  Fixture f;
  CHECK(f.header->policy[0] == 0);
  const uint32_t ended = f.page->claim(1000), runs = f.page->claim(1001);
  f.slot(ended).promotions = 3;
  f.slot(ended).stalled_ns = 10;
  f.page->reclaim(ended);
  f.slot(runs).demotions = 4;
  f.slot(runs).migration_state = static_cast<uint64_t>(MigrationState::running);
  f.slot(runs).tier_ddr_bytes = 2 * mib;
  f.slot(runs).tier_cxl_bytes = 6 * mib;
  const Totals totals = f.page->totals();
  CHECK(totals.promotions == 3);
  CHECK(totals.demotions == 4);
  CHECK(totals.stalled_ns == 10);
  CHECK(totals.processes_moved == 2);
  CHECK(totals.processes_moving == 1);
  CHECK(totals.tier_ddr == 2 * mib);
  CHECK(totals.tier_cxl == 6 * mib);
  const Migration long_name{.policy = std::string(policy_name_bytes, 'x')};
  CHECK_FALSE(
      ControlPage::create({.ddr_bytes = mib, .cxl_bytes = mib, .fallback = false, .migration = &long_name})
          .ok());
}

TEST_CASE("ControlPage: the same process as another program starts with an empty slot") {
  Fixture f;
  uint32_t first = f.page->claim(1000);
  f.header->ddr_used = 4 * mib;
  f.slot(first).ddr_charged = 4 * mib;
  uint32_t second = f.page->claim(1000);
  REQUIRE(second != no_slot);
  CHECK(f.page->ddr_used() == 0);
  CHECK(f.page->read(second).ddr_charged == 0);
}

TEST_CASE("ControlPage: a parent's charge moves to the child that still holds the memory") {
  Fixture f;
  uint32_t parent = f.page->claim(1000);
  uint32_t child = f.page->claim(1001);
  f.header->ddr_used = 9 * mib;
  f.slot(parent).ddr_charged = 6 * mib;
  f.slot(child).ddr_charged = 3 * mib;
  f.slot(child).parent_slot = parent;
  f.slot(child).inherited_bytes = 4 * mib;
  f.page->reclaim(parent);
  CHECK(f.page->ddr_used() == 7 * mib);  // 2 MiB were the parent's alone
  CHECK(f.page->read(child).inherited_charge == 4 * mib);
  CHECK(f.page->read(child).parent_slot == no_slot);
  f.page->reclaim(child);
  CHECK(f.page->ddr_used() == 0);
}

TEST_CASE("ControlPage: a charge that nobody accounts for is given back after a while, a passing one is not") {
  Fixture f;
  uint32_t slot = f.page->claim(1000);
  f.header->ddr_used = 8 * mib;
  f.slot(slot).ddr_charged = 5 * mib;
  for (int i = 0; i < 4; ++i) f.page->reconcile();
  CHECK(f.page->ddr_used() == 8 * mib);
  f.page->reconcile();
  CHECK(f.page->ddr_used() == 5 * mib);
  for (int i = 0; i < 5; ++i) {  // in one look a charge is half made, in the others it is whole
    f.slot(slot).ddr_charged = i == 2 ? 4 * mib : 5 * mib;
    f.page->reconcile();
  }
  CHECK(f.page->ddr_used() == 5 * mib);
}

TEST_CASE("ControlPage: wild numbers from a program neither crash nor wrap the budget") {
  Fixture f;
  uint32_t slot = f.page->claim(1000);
  f.header->ddr_used = mib;
  for (uint64_t* cell = &f.slot(slot).window_base; cell != f.slot(slot).segment_live + segments_max; ++cell)
    *cell = UINT64_MAX;
  f.slot(slot).parent_slot = 77777;
  f.page->totals();
  f.page->reconcile();
  f.page->reclaim(slot);
  CHECK(f.page->ddr_used() <= mib);
}

TEST_CASE("ControlPage: refuses when all slots are taken, and works again when one is free") {
  Fixture f;
  for (uint32_t i = 0; i < slots_max; ++i) REQUIRE(f.page->claim(static_cast<pid_t>(10'000 + i)) != no_slot);
  CHECK(f.page->claim(5) == no_slot);
  f.page->reclaim(17);
  CHECK(f.page->claim(5) == 17);
}

}  // namespace
}  // namespace terrace::supply
