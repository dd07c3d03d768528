// SPDX-License-Identifier: Apache-2.0
// Compaction: which window is planned, what is kept clear, when it ends; and that a plan that is carried out
// yields the run it promised.
#include <algorithm>
#include <set>

#include "core/base/prng.h"
#include "tests/unit/state/manager_fixture.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

LeaseRow grant_movable(Manager& m, uint64_t granules, bool movable = true) {
  Grant asked = m.request(granules * granule);
  asked.movable = movable;
  asked.persistent = true;
  asked.ttl_ns = 0;
  return m.grant(asked);
}

void free_lease(Manager& m, LeaseId id) {
  REQUIRE(m.apply(Release{id, "", m.now_ns}).reply.ok());
  m.finish(id);
}

CompactPool compact(const Manager& m, uint64_t granules) {
  return {"p", granules * granule, m.now_ns + 60 * second, m.now_ns};
}

const StateMachine::CompactionPlan* plan_of(const Manager& m) {
  return m.machine.compaction_of(m.machine.find_pool("p")->id);
}

// Ten leases of one granule, then those at `freed` released; `fixed` ones are not movable.
struct Row {
  Manager m{std::vector<uint64_t>{10}};
  std::vector<LeaseRow> leases;
  Row(const std::set<size_t>& freed, const std::set<size_t>& fixed) {
    for (size_t i = 0; i < 10; ++i) leases.push_back(grant_movable(m, 1, !fixed.contains(i)));
    for (size_t i = 0; i < 10; ++i) REQUIRE(leases[i].extents.front().first_granule == i);
    for (const size_t i : freed) free_lease(m, leases[i].id);
  }
};

}  // namespace

TEST_CASE(
    "compaction: the window with the least to move is planned, its leases are named and wanted elsewhere") {
  Row r({0, 2, 5, 7, 8}, {});  // taken: 1 3 4 6 9
  const Step step = r.m.apply(compact(r.m, 4));
  REQUIRE(step.reply.ok());
  const auto reply = std::get<CompactionReply>(*step.reply);
  CHECK(reply.first_granule == 5);
  CHECK(reply.granules == 4);
  CHECK(reply.leases == std::vector<LeaseId>{r.leases[6].id});
  CHECK(reply.bytes_to_move == granule);
  REQUIRE(plan_of(r.m) != nullptr);
  CHECK(plan_of(r.m)->window == GranuleRun{5, 4});
  const auto wanted = r.m.machine.moves_wanted();
  REQUIRE(wanted.size() == 1);
  CHECK(wanted[0].lease == r.leases[6].id);
  CHECK(wanted[0].movable);
  CHECK_FALSE(wanted[0].for_drain);
}

TEST_CASE("compaction: windows that something fixed cuts are passed over, and named when no other is left") {
  Row r({0, 2, 5, 7, 8}, {6});
  const auto reply = std::get<CompactionReply>(*r.m.apply(compact(r.m, 3)).reply);
  CHECK(reply.first_granule == 0);
  CHECK(reply.leases == std::vector<LeaseId>{r.leases[1].id});
  Row blocked({0, 2, 5, 7, 8}, {1, 4, 6});
  const Step refused = blocked.m.apply(compact(blocked.m, 4));
  CHECK(code_of(refused) == ErrorCode::capacity_exhausted);
  CHECK(refused.reply.error().detail.find("1 in the way cannot be moved (lease ") != std::string::npos);
  CHECK(plan_of(blocked.m) == nullptr);
}

TEST_CASE("compaction: what is being erased leaves by itself; what would find no room is refused") {
  Row r({0, 2, 5, 7, 8}, {1, 3, 4, 9});
  REQUIRE(r.m.apply(Release{r.leases[6].id, "", r.m.now_ns}).reply.ok());
  const auto reply = std::get<CompactionReply>(*r.m.apply(compact(r.m, 4)).reply);
  CHECK(reply.leases.empty());
  CHECK(reply.bytes_to_move == 0);
  CHECK(r.m.machine.moves_wanted().empty());
  r.m.finish(r.leases[6].id);
  CHECK(plan_of(r.m) == nullptr);  // the run is there

  Row full({3}, {});
  const Step refused = full.m.apply(compact(full.m, 2));
  CHECK(code_of(refused) == ErrorCode::capacity_exhausted);
  CHECK(refused.reply.error().detail.find("too little room elsewhere") != std::string::npos);
}

TEST_CASE("compaction: a run that is free already needs no plan; a run no device has is refused") {
  Row r({4, 5}, {});
  const Step done = r.m.apply(compact(r.m, 2));
  REQUIRE(done.reply.ok());
  CHECK_FALSE(std::get<CompactionReply>(*done.reply).device.valid());
  CHECK(plan_of(r.m) == nullptr);
  CHECK(code_of(r.m.apply(compact(r.m, 11))) == ErrorCode::invalid_argument);
  CHECK(code_of(r.m.apply(CompactPool{"q", granule, r.m.now_ns + 1, r.m.now_ns})) == ErrorCode::not_found);
  CHECK(code_of(r.m.apply(CompactPool{"p", granule, r.m.now_ns, r.m.now_ns})) == ErrorCode::invalid_argument);
  CHECK(code_of(r.m.apply(CompactPool{"p", granule, UINT64_MAX, r.m.now_ns})) == ErrorCode::invalid_argument);
}

TEST_CASE("compaction: grants keep out of the window unless nothing else is left") {
  Row r({0, 2, 5, 7, 8}, {});
  REQUIRE(r.m.apply(compact(r.m, 4)).reply.ok());  // 5 to 8
  CHECK(r.m.grant(1).extents.front().first_granule == 0);
  CHECK(r.m.grant(1).extents.front().first_granule == 2);
  CHECK(r.m.grant(1).extents.front().first_granule == 5);
  CHECK(plan_of(r.m) != nullptr);
}

TEST_CASE("compaction: nothing moves into the window") {
  Row r({0, 2, 5, 7, 8}, {});
  REQUIRE(r.m.apply(compact(r.m, 4)).reply.ok());  // 5 to 8: the lease at 6 is to leave
  CHECK(r.m.grant(2).extents.size() == 2);         // 0 and 2: no room is left elsewhere
  CHECK(code_of(r.m.apply(BeginMove{r.leases[6].id, "", r.m.now_ns})) == ErrorCode::capacity_exhausted);
  CHECK(plan_of(r.m) != nullptr);
}

TEST_CASE("compaction: a lease that is being cut does not leave a window") {
  Manager m({6});
  const LeaseRow cut = grant_movable(m, 2);
  const LeaseRow gap = grant_movable(m, 1);
  (void)grant_movable(m, 1, false);
  free_lease(m, gap.id);
  const Step planned = m.apply(compact(m, 3));  // 0 to 2: what is there moves to 4 and 5
  REQUIRE(planned.reply.ok());
  CHECK(std::get<CompactionReply>(*planned.reply).leases == std::vector<LeaseId>{cut.id});
  REQUIRE(m.apply(Resize{cut.id, "alice", granule, m.now_ns}).reply.ok());
  CHECK(code_of(m.apply(compact(m, 3))) == ErrorCode::capacity_exhausted);
}

TEST_CASE("compaction: it ends once its window is free, by its time, by word, and with its device") {
  Row r({0, 2, 5, 7, 8}, {});
  const auto begin = [&] { REQUIRE(r.m.apply(compact(r.m, 4)).reply.ok()); };
  begin();
  REQUIRE(r.m.apply(CompactPool{"p", 0, 0, r.m.now_ns}).reply.ok());
  CHECK(plan_of(r.m) == nullptr);
  begin();
  CHECK(*r.m.machine.next_due_ns() == r.m.now_ns + 60 * second);
  r.m.apply(Tick{r.m.now_ns + 60 * second - 1});
  CHECK(plan_of(r.m) != nullptr);
  r.m.apply(Tick{r.m.now_ns + 60 * second});
  CHECK(plan_of(r.m) == nullptr);
  begin();
  REQUIRE(r.m.apply(DrainDevice{"emu:0"}).reply.ok());
  CHECK(plan_of(r.m) == nullptr);
  REQUIRE(r.m.apply(UndrainDevice{"emu:0", r.m.now_ns}).reply.ok());
  begin();
  free_lease(r.m, r.leases[6].id);
  CHECK(plan_of(r.m) == nullptr);
  CHECK(r.m.use().largest_free_bytes == 4 * granule);
}

namespace {

// Every window, by its definition: what must move out of it (in granules), or nullopt if it cannot be made.
std::optional<uint64_t> cost_of(const Manager& m, DeviceId device, GranuleRun window) {
  uint64_t cost = 0;
  uint64_t taken_inside = 0;
  for (const auto& [id, lease] : m.machine.leases()) {
    bool inside = false;
    for (const Extent& e : lease.extents) {
      if (e.device != device) continue;
      const uint64_t from = std::max(e.first_granule, window.first);
      const uint64_t to = std::min(e.end(), window.first + window.count);
      if (to <= from) continue;
      inside = true;
      taken_inside += to - from;
    }
    if (!inside || lease.phase == LeasePhase::fencing || lease.phase == LeasePhase::scrubbing) continue;
    if (!lease.movable || lease.phase != LeasePhase::active) return std::nullopt;
    cost += lease.bytes / granule;
  }
  uint64_t free = 0;
  for (const auto& [id, row] : m.machine.devices())
    if (m.machine.placeable(row)) free += m.machine.free_of(id).free_granules();
  if (cost > free - (window.count - taken_inside)) return std::nullopt;
  return cost;
}

std::optional<uint64_t> least_cost(const Manager& m, uint64_t granules) {
  std::optional<uint64_t> least;
  for (const auto& [id, row] : m.machine.devices()) {
    if (!m.machine.placeable(row)) continue;
    const uint64_t total = row.capacity_bytes / granule;
    for (uint64_t first = 0; first + granules <= total; ++first) {
      const auto cost = cost_of(m, id, {first, granules});
      if (cost.has_value() && (!least.has_value() || *cost < *least)) least = cost;
    }
  }
  return least;
}

}  // namespace

TEST_CASE(
    "compaction: random plans are the cheapest there are, and yield their run when they are carried out") {
  uint64_t planned = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    Manager m({prng.between(10, 40), prng.between(10, 40), prng.between(10, 40)});
    std::vector<LeaseId> live;
    for (int round = 0; round < 500; ++round) {
      CAPTURE(round);
      const uint64_t dice = prng.below(20);
      const std::string serial = "emu:" + std::to_string(prng.below(3));
      if (dice < 9) {
        const uint64_t granules = prng.between(1, 6);
        if (m.use().grantable_bytes >= (granules + 6) * granule)
          live.push_back(grant_movable(m, granules, !prng.chance(1, 15)).id);
      } else if (dice < 14 && !live.empty()) {
        std::swap(live[prng.below(live.size())], live.back());
        free_lease(m, live.back());
        live.pop_back();
      } else if (dice == 14) {
        m.apply(prng.chance(1, 4) ? Command{DrainDevice{serial}} : Command{UndrainDevice{serial, m.now_ns}});
      } else if (dice > 15) {
        const uint64_t granules = prng.between(4, 20);
        uint64_t longest = 0;
        for (const auto& [id, row] : m.machine.devices())
          if (m.machine.placeable(row)) longest = std::max(longest, m.machine.free_of(id).largest_run());
        if (longest >= granules) continue;
        const std::optional<uint64_t> expected = least_cost(m, granules);
        const Step step = m.apply(compact(m, granules));
        REQUIRE(step.reply.ok() == expected.has_value());
        if (!expected.has_value()) {
          ++refused;
          continue;
        }
        ++planned;
        const auto reply = std::get<CompactionReply>(*step.reply);
        REQUIRE(reply.bytes_to_move == *expected * granule);
        for (const LeaseId id : reply.leases) {  // each is granted anew elsewhere, then let go
          const uint64_t size = m.machine.find_lease(id)->bytes / granule;
          const LeaseRow moved = grant_movable(m, size);
          for (const Extent& e : moved.extents) {
            REQUIRE((e.device != reply.device || e.end() <= reply.first_granule ||
                     e.first_granule >= reply.first_granule + reply.granules));
          }
          live.push_back(moved.id);
          live.erase(std::find(live.begin(), live.end(), id));
          free_lease(m, id);
        }
        REQUIRE(plan_of(m) == nullptr);
        REQUIRE(m.machine.free_of(reply.device).all_free({reply.first_granule, reply.granules}));
      }
    }
  }
  MESSAGE(planned << " plans carried out, " << refused << " refused");
  CHECK(planned > 50);
  CHECK(refused > 20);
}
