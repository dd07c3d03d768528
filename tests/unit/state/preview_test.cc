// SPDX-License-Identifier: Apache-2.0
// What a preview says against what then happens.
#include "daemon/state/preview/preview.h"

#include <algorithm>
#include <random>

#include "tests/unit/state/manager_fixture.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

size_t nobody(LeaseId) {
  return 0;
}

bool says(const std::vector<std::string>& notes, const std::string& part) {
  return std::any_of(notes.begin(), notes.end(),
                     [&](const std::string& note) { return note.find(part) != std::string::npos; });
}

std::map<std::string, uint64_t> places(const StateMachine& state, LeaseId id) {
  std::map<std::string, uint64_t> found;
  for (const Extent& extent : state.find_lease(id)->extents)
    found[state.find_device(extent.device)->serial] += extent.granules * granule;
  return found;
}

std::vector<PlacedExtent> extents(const StateMachine& state, LeaseId id) {
  std::vector<PlacedExtent> found;
  for (const Extent& extent : state.find_lease(id)->extents)
    found.push_back(
        {state.find_device(extent.device)->serial, extent.first_granule * granule, extent.granules * granule});
  return found;
}

bool overlaps(const std::vector<PlacedExtent>& extents, const PlacedExtent& run) {
  return std::any_of(extents.begin(), extents.end(), [&run](const PlacedExtent& extent) {
    return extent.device == run.device && extent.offset < run.offset + run.length &&
           run.offset < extent.offset + extent.length;
  });
}

bool lies_on(const StateMachine& state, const LeaseRow& lease, const std::string& serial) {
  return std::any_of(lease.extents.begin(), lease.extents.end(),
                     [&](const Extent& extent) { return state.find_device(extent.device)->serial == serial; });
}

// Leases of any size and kind, some of them given back: a pool that is full of holes.
void litter(Manager& m, std::mt19937& random, int steps) {
  const std::vector<std::string> tenants{"alice", "bob", "carol"};
  std::vector<LeaseId> granted;
  for (int i = 0; i < steps; ++i) {
    if (random() % 3 == 0 && !granted.empty()) {
      const size_t at = random() % granted.size();
      REQUIRE(m.apply(Release{granted[at], "", m.now_ns}).reply.ok());
      m.finish(granted[at]);
      granted.erase(granted.begin() + static_cast<ptrdiff_t>(at));
      continue;
    }
    Grant wanted = m.request((1 + random() % 6) * granule);
    wanted.tenant = tenants[random() % tenants.size()];
    wanted.movable = random() % 4 != 0;
    const Step step = m.apply(wanted);
    if (!step.reply.ok()) continue;
    const LeaseId id = std::get<GrantPending>(*step.reply).lease;
    REQUIRE(m.apply(CarveFinished{id, {}, m.now_ns}).reply.ok());
    granted.push_back(id);
  }
}

// As the engine does, one after the other, until nothing moves any more.
void move_all(Manager& m, const std::set<LeaseId>& held_by_two) {
  for (bool some = true; some;) {
    some = false;
    for (const WantedMove& move : m.machine.moves_wanted()) {
      if (!move.movable || held_by_two.contains(move.lease)) continue;
      const Step begun = m.apply(BeginMove{move.lease, "", m.now_ns});
      if (!begun.reply.ok()) continue;
      const LeaseId target = std::get<GrantPending>(*begun.reply).lease;
      REQUIRE(m.apply(CarveFinished{target, {}, m.now_ns}).reply.ok());
      REQUIRE(m.apply(FinishMove{move.lease, target, "", true, m.now_ns}).reply.ok());
      m.finish(target);
      some = true;
    }
  }
}

}  // namespace

TEST_CASE("preview: a grant lies where its preview says, or is refused with the words of its preview") {
  size_t granted = 0, refused = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    Manager m({24, 16, 8});
    m.apply(SetQuota{{"bob", 30 * granule, 5}, m.now_ns});
    litter(m, random, 40);
    for (int i = 0; i < 20; ++i) {
      Grant wanted = m.request((1 + random() % 12) * granule);
      wanted.tenant = random() % 2 == 0 ? "alice" : "bob";
      const Image before = m.machine.image();
      const Preview preview = preview_grant(m.machine.copy(), wanted);
      CHECK(same_rows(before, m.machine.image()));
      const Step step = m.apply(wanted);
      REQUIRE(step.reply.ok() == preview.outcome.ok());
      if (!step.reply.ok()) {
        ++refused;
        CHECK(preview.outcome.error().detail == step.reply.error().detail);
        CHECK(preview.leases == 0);
        continue;
      }
      ++granted;
      const LeaseId id = std::get<GrantPending>(*step.reply).lease;
      CHECK(preview.to == places(m.machine, id));
      CHECK(preview.bytes == m.machine.find_lease(id)->bytes);
      REQUIRE(m.apply(CarveFinished{id, {}, m.now_ns}).reply.ok());
    }
  }
  CHECK(granted > 50);
  CHECK(refused > 50);
}

TEST_CASE("preview: a grant without room says behind whom it would wait") {
  Manager m({8});
  m.grant(8);
  Grant first = m.request(4 * granule);
  first.tenant = "bob";
  Preview preview = preview_grant(m.machine.copy(), first);
  CHECK(preview.outcome.error().code == ErrorCode::capacity_exhausted);
  CHECK(preview.would_wait);
  CHECK(preview.waiting_before == 0);
  first.wait_ns = 60 * second;
  REQUIRE(m.apply(first).reply.ok());
  Grant second_one = m.request(2 * granule);
  second_one.tenant = "carol";
  preview = preview_grant(m.machine.copy(), second_one);
  CHECK(preview.waiting_before == 1);
  CHECK(says(preview.notes, "behind 1 request, 8 MiB, of bob"));
  second_one.wait_ns = 60 * second;
  const Step queued = m.apply(second_one);
  const LeaseId id = std::get<GrantPending>(*queued.reply).lease;
  CHECK(m.machine.queue_of(m.machine.find_pool("p")->id)->in_order()[preview.waiting_before] == id);
  // Never: it is larger than the pool.
  preview = preview_grant(m.machine.copy(), m.request(9 * granule));
  CHECK_FALSE(preview.would_wait);
}

TEST_CASE("preview: a request that is repeated under its key grants nothing more, and its preview says so") {
  Manager m({8});
  Grant wanted = m.request(2 * granule);
  wanted.request_low = 7;
  const LeaseRow lease = m.grant(wanted);
  const Preview preview = preview_grant(m.machine.copy(), wanted);
  CHECK(preview.outcome.ok());
  CHECK(preview.leases == 0);
  CHECK(preview.summary.find("lease " + std::to_string(lease.id.value) + " already") != std::string::npos);
}

TEST_CASE(
    "preview: a drain leaves where its preview says that leases stay, and moves the others to where it says") {
  size_t moved = 0, stuck = 0, without_room = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    Manager m({20, 16, 12});
    litter(m, random, static_cast<int>(10 + seed % 50));
    std::set<LeaseId> held_by_two;
    for (const auto& [id, lease] : m.machine.leases())
      if (random() % 8 == 0) held_by_two.insert(id);
    const auto holders = [&](LeaseId id) { return held_by_two.contains(id) ? size_t{2} : size_t{0}; };
    const Image before = m.machine.image();
    const Preview preview = preview_drain(m.machine.copy(), "emu:1", m.now_ns, holders);
    CHECK(same_rows(before, m.machine.image()));
    REQUIRE(preview.outcome.ok());
    std::set<LeaseId> there;
    for (const auto& [id, lease] : m.machine.leases())
      if (lies_on(m.machine, lease, "emu:1")) there.insert(id);
    CHECK(preview.all.size() == there.size());
    REQUIRE(m.apply(DrainDevice{"emu:1"}).reply.ok());
    move_all(m, held_by_two);
    uint64_t bytes = 0, blocked_bytes = 0;
    for (const PreviewedLease& one : preview.all) {
      CAPTURE(one.lease.value);
      CAPTURE(one.state);
      CHECK(there.contains(one.lease));
      const LeaseRow& row = *m.machine.find_lease(one.lease);
      CHECK(one.blocked == lies_on(m.machine, row, "emu:1"));
      if (one.blocked) {
        blocked_bytes += row.bytes;
        ++(one.state.starts_with("finds no room") ? without_room : stuck);
      } else {
        CHECK(one.to == places(m.machine, one.lease));
        bytes += row.bytes;
        ++moved;
      }
    }
    CHECK(preview.bytes == bytes);
    CHECK(preview.blocked_bytes == blocked_bytes);
    CHECK(preview.leases + preview.blocked_leases == preview.all.size());
  }
  CHECK(moved > 100);
  CHECK(stuck > 30);
  CHECK(without_room > 10);
}

TEST_CASE(
    "preview: a drain tells of each tenant on the device, of what is refused, and of what goes by itself") {
  Manager m({8, 8});
  Grant wanted = m.request(4 * granule);
  wanted.movable = true;
  m.grant(wanted);
  wanted.tenant = "bob";
  const LeaseRow ending = m.grant(wanted);
  m.apply(Revoke{ending.id, "", 5 * second, m.now_ns});
  const Preview preview = preview_drain(m.machine.copy(), "emu:0", m.now_ns, nobody);
  REQUIRE(preview.tenants.size() == 2);
  CHECK(preview.tenants[0].tenant == "alice");
  CHECK(preview.tenants[1].bytes == 4 * granule);
  CHECK(preview.leases == 1);
  CHECK(preview.blocked_leases == 0);
  CHECK(says(preview.notes, "1 lease ends or settles by itself"));
  CHECK(preview.summary == "moves 1 lease, 8 MiB");
  CHECK(preview_drain(m.machine.copy(), "emu:7", m.now_ns, nobody).outcome.error().code ==
        ErrorCode::not_found);
  REQUIRE(m.apply(FailDevice{"emu:0", m.now_ns}).reply.ok());
  CHECK(preview_drain(m.machine.copy(), "emu:0", m.now_ns, nobody).outcome.error().code == ErrorCode::busy);
  CHECK(says(preview_drain(m.machine.copy(), "emu:1", m.now_ns, nobody).notes, "the drain is over at once"));
}

TEST_CASE("preview: a compaction clears the place that its preview names, by the moves that it names") {
  size_t cleared = 0, moved = 0, stuck = 0, refused = 0, on_the_same = 0;
  for (unsigned seed = 0; seed < 600; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    Manager m({28, 16});
    litter(m, random, static_cast<int>(20 + seed % 30));
    std::set<LeaseId> held_by_two;
    for (const auto& [id, lease] : m.machine.leases())
      if (random() % 8 == 0) held_by_two.insert(id);
    const auto holders = [&](LeaseId id) { return held_by_two.contains(id) ? size_t{2} : size_t{0}; };
    const CompactPool command{"p", (5 + random() % 10) * granule, m.now_ns + 3600 * second, m.now_ns};
    const Image before = m.machine.image();
    const Preview preview = preview_compaction(m.machine.copy(), command, holders);
    CHECK(same_rows(before, m.machine.image()));
    CHECK(m.machine.compaction_of(m.machine.find_pool("p")->id) == nullptr);
    std::map<LeaseId, std::vector<PlacedExtent>> lay;
    for (const auto& [id, lease] : m.machine.leases()) lay[id] = extents(m.machine, id);
    const Step step = m.apply(command);
    REQUIRE(step.reply.ok() == preview.outcome.ok());
    if (!step.reply.ok()) {
      ++refused;
      CHECK(preview.outcome.error().detail == step.reply.error().detail);
      continue;
    }
    const auto reply = std::get<CompactionReply>(*step.reply);
    REQUIRE(reply.device.valid() == preview.run.has_value());
    if (!reply.device.valid()) {
      CHECK(preview.all.empty());
      CHECK(says(preview.notes, "is free already"));
      continue;
    }
    CHECK(*preview.run == PlacedExtent{m.machine.find_device(reply.device)->serial,
                                       reply.first_granule * granule, reply.granules * granule});
    std::set<LeaseId> there;
    for (const auto& [id, places] : lay)
      if (overlaps(places, *preview.run)) there.insert(id);
    CHECK(preview.all.size() == there.size());
    move_all(m, held_by_two);
    uint64_t bytes = 0;
    for (const PreviewedLease& one : preview.all) {
      CAPTURE(one.lease.value);
      CAPTURE(one.state);
      CHECK(there.contains(one.lease));
      CHECK(one.blocked == overlaps(extents(m.machine, one.lease), *preview.run));
      if (one.blocked) {
        ++stuck;
        CHECK(extents(m.machine, one.lease) == lay[one.lease]);
        continue;
      }
      CHECK(one.from_extents == lay[one.lease]);
      CHECK(one.to_extents == extents(m.machine, one.lease));
      CHECK(one.to == places(m.machine, one.lease));
      bytes += one.bytes;
      ++moved;
      on_the_same += one.to_extents.front().device == one.from_extents.front().device ? 1 : 0;
    }
    CHECK(preview.bytes == bytes);
    const bool free_now = m.machine.compaction_of(m.machine.find_pool("p")->id) == nullptr;
    CHECK(free_now == (preview.blocked_leases == 0));
    cleared += free_now ? 1 : 0;
  }
  CHECK(cleared > 40);
  CHECK(moved > 60);
  CHECK(stuck > 5);
  CHECK(refused > 20);
  CHECK(on_the_same > 10);
}

TEST_CASE("preview: a compaction says that it takes another's place, and what it cannot do") {
  Manager m({8, 8});
  const auto preview = [&m](const std::string& pool, uint64_t granules) {
    return preview_compaction(m.machine.copy(), {pool, granules * granule, m.now_ns + 60 * second, m.now_ns},
                              nobody);
  };
  Grant wanted = m.request(2 * granule);
  wanted.movable = true;
  std::vector<LeaseRow> leases;
  for (int i = 0; i < 8; ++i) leases.push_back(m.grant(wanted));
  CHECK(preview("p", 2).outcome.error().code == ErrorCode::capacity_exhausted);
  for (const size_t i : {0, 2, 5}) {
    REQUIRE(m.apply(Release{leases[i].id, "", m.now_ns}).reply.ok());
    m.finish(leases[i].id);
  }
  Preview found = preview("p", 4);
  CHECK(found.summary == "moves 1 lease, 4 MiB");
  CHECK_FALSE(says(found.notes, "takes the place"));
  CHECK(says(found.notes, "clears 8 MiB on emu:"));
  REQUIRE(m.apply(CompactPool{"p", 4 * granule, m.now_ns + 60 * second, m.now_ns}).reply.ok());
  CHECK(says(preview("p", 3).notes, "takes the place of the compaction"));
  CHECK(preview("q", 4).outcome.error().code == ErrorCode::not_found);
  CHECK(preview("p", 0).outcome.error().code == ErrorCode::invalid_argument);
  CHECK(preview("p", 9).outcome.error().code == ErrorCode::invalid_argument);
}

TEST_CASE("preview: a revocation says what is taken from whom, and whom that lets in") {
  Manager m({8});
  Grant wanted = m.request(6 * granule);
  wanted.label = "scratch";
  const LeaseRow lease = m.grant(wanted);
  Grant waits = m.request(4 * granule);
  waits.tenant = "bob";
  waits.wait_ns = 60 * second;
  REQUIRE(m.apply(waits).reply.ok());
  const Revoke revoke{lease.id, "", 5 * second, m.now_ns};
  Preview preview = preview_revoke(m.machine.copy(), revoke, 1);
  CHECK(preview.outcome.ok());
  CHECK(preview.summary ==
        "takes lease " + std::to_string(lease.id.value) + " (scratch) of alice, 12 MiB, from host");
  CHECK(says(preview.notes, "1 session has it"));
  CHECK(says(preview.notes, "has 5 s to let go"));
  CHECK(says(preview.notes, "1 request that waits, 8 MiB, gets room by that"));
  CHECK(preview.all.at(0).state.starts_with("fenced in 5 s"));
  CHECK(m.phase(lease.id) == LeasePhase::active);
  preview = preview_revoke(m.machine.copy(), Revoke{lease.id, "", 0, m.now_ns}, 0);
  CHECK(preview.all.at(0).state == "fenced at once");
  REQUIRE(m.apply(Revoke{lease.id, "", 0, m.now_ns}).reply.ok());
  CHECK(m.phase(lease.id) == LeasePhase::fencing);
  CHECK(preview_revoke(m.machine.copy(), revoke, 0).outcome.error().code == ErrorCode::lease_revoked);
  CHECK(preview_release(m.machine.copy(), {lease.id, "", m.now_ns}, 0).summary.find("does nothing") == 0);
  CHECK(preview_revoke(m.machine.copy(), Revoke{LeaseId{99}, "", 0, m.now_ns}, 0).outcome.error().code ==
        ErrorCode::not_found);
}

TEST_CASE("preview: a quota's says what is granted after it, to the granule, and who gets nothing more") {
  for (unsigned seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    Manager m({64, 64});
    litter(m, random, 30);
    const std::string whose = seed % 3 == 0 ? "*" : "alice";
    const QuotaRow bounds{whose, (1 + random() % 40) * granule, random() % 2 == 0 ? 0 : 1 + random() % 12};
    const SetQuota command{bounds, m.now_ns};
    const Preview preview = preview_quota(m.machine.copy(), command);
    REQUIRE(preview.outcome.ok());
    CHECK(m.machine.quotas().empty());
    REQUIRE(m.apply(command).reply.ok());
    CHECK(preview.tenants.size() == (whose == "*" ? m.machine.tenant_uses().size() : 1));
    for (const PreviewedTenant& tenant : preview.tenants) {
      CAPTURE(tenant.tenant);
      Grant wanted = m.request(granule);
      wanted.tenant = tenant.tenant;
      const bool full =
          tenant.bytes >= tenant.bytes_max || (tenant.leases_max != 0 && tenant.leases >= tenant.leases_max);
      CHECK(m.machine.tenant_use(tenant.tenant).bytes == tenant.bytes);
      if (tenant.over) CHECK(full);
      if (full) {
        CHECK(code_of(m.apply(wanted)) == ErrorCode::limit_exceeded);
        continue;
      }
      wanted.bytes = tenant.bytes_max - tenant.bytes + granule;
      CHECK(code_of(m.apply(wanted)) == ErrorCode::limit_exceeded);
      wanted.bytes -= granule;
      CHECK(code_of(m.apply(wanted)) != ErrorCode::limit_exceeded);
    }
  }
}

TEST_CASE("preview: a quota's counts the requests that wait and would be refused") {
  Manager m({8});
  m.grant(8);
  for (const uint64_t granules : {2, 6}) {
    Grant waits = m.request(granules * granule);
    waits.tenant = "bob";
    waits.wait_ns = 60 * second;
    REQUIRE(m.apply(waits).reply.ok());
  }
  CHECK(says(preview_quota(m.machine.copy(), {{"bob", 4 * granule, 0}, m.now_ns}).notes,
             "1 request that waits is refused"));
  CHECK(says(preview_quota(m.machine.copy(), {{"bob", granule, 0}, m.now_ns}).notes, "2 requests"));
  CHECK_FALSE(
      says(preview_quota(m.machine.copy(), {{"bob", 8 * granule, 0}, m.now_ns}).notes, "refused by that"));
  CHECK(preview_quota(m.machine.copy(), {{"no tenant", 8, 0}, m.now_ns}).outcome.error().code ==
        ErrorCode::invalid_argument);
}
