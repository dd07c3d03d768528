// SPDX-License-Identifier: Apache-2.0
// Compaction: which movable leases must leave which window so that a long free run comes about, and what else
// should leave its place.
//
// The plan is memory only. It ends by itself once its window is free, its time is over or its device takes no
// leases any more; a restart forgets it, and what was moved by then stays moved.
#include <algorithm>
#include <unordered_map>

#include "core/base/limits.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {
namespace {

Step refuse(ErrorCode code, std::string detail) {
  Step step;
  step.reply = Error{.code = code, .where = "CompactPool", .detail = std::move(detail)};
  return step;
}

bool overlaps(const Extent& extent, const StateMachine::CompactionPlan& plan) {
  return extent.device == plan.device && extent.first_granule < plan.window.first + plan.window.count &&
         plan.window.first < extent.end();
}

bool becomes_free_by_itself(const LeaseRow& lease) {
  return lease.phase == LeasePhase::fencing || lease.phase == LeasePhase::scrubbing;
}

}  // namespace

// One sweep over the pieces of each device. What must move out of a window and how much of it is free change
// their course only where one of its edges meets one of a piece's, so only such windows are looked at.
struct StateMachine::CompactionSearch {
  struct Occupied {
    uint64_t first, end;
    LeaseId lease;
  };
  enum class Kind { moves, goes, stays };  // asked to leave; freed by itself; cannot leave
  struct Candidate {
    CompactionPlan plan;
    uint64_t cost = UINT64_MAX;  // granules to move, or granules that cannot
  };

  uint64_t length = 0;
  uint64_t free_total = 0;  // granules on the pool's placeable devices
  std::map<DeviceId, std::vector<Occupied>> occupied;
  std::unordered_map<LeaseId, std::pair<Kind, uint64_t>> leases;  // granules of each
  Candidate best;
  Candidate least_blocked;     // of the windows that something cannot leave
  Candidate least_cramped;     // of those whose leases would find no room elsewhere
  uint64_t cramped_short = 0;  // granules that are missing for it

  void add(LeaseId id, Kind kind, const std::vector<Extent>& extents) {
    uint64_t& granules = leases.emplace(id, std::pair{kind, uint64_t{0}}).first->second.second;
    for (const Extent& extent : extents) {
      granules += extent.granules;
      const auto on = occupied.find(extent.device);
      if (on != occupied.end()) on->second.push_back({extent.first_granule, extent.end(), id});
    }
  }

  // Where windows begin, ascending.
  std::vector<uint64_t> edges(const std::vector<Occupied>& pieces, uint64_t total) const {
    std::vector<uint64_t> starts{0, total - length};
    for (const Occupied& piece : pieces) {
      for (const uint64_t edge : {piece.first, piece.end}) {
        if (edge <= total - length) starts.push_back(edge);
        if (edge >= length) starts.push_back(edge - length);
      }
    }
    std::sort(starts.begin(), starts.end());
    starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
    return starts;
  }

  void sweep(DeviceId device, uint64_t total) {
    if (length > total) return;
    std::vector<Occupied>& pieces = occupied.at(device);
    std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::unordered_map<LeaseId, size_t> inside;  // pieces of each lease in the window
    uint64_t to_move = 0, staying = 0, taken = 0;
    size_t low = 0, high = 0;  // pieces [low, high) are in the window
    for (const uint64_t start : edges(pieces, total)) {
      const uint64_t end = start + length;
      for (; high < pieces.size() && pieces[high].first < end; ++high) {
        const auto& [kind, granules] = leases.at(pieces[high].lease);
        const bool entered = inside[pieces[high].lease]++ == 0;
        if (kind == Kind::moves && entered) to_move += granules;
        if (kind == Kind::stays) staying += pieces[high].end - pieces[high].first;
        taken += pieces[high].end - pieces[high].first;
      }
      for (; low < high && pieces[low].end <= start; ++low) {
        const auto& [kind, granules] = leases.at(pieces[low].lease);
        const bool left = --inside[pieces[low].lease] == 0;
        if (kind == Kind::moves && left) to_move -= granules;
        if (kind == Kind::stays) staying -= pieces[low].end - pieces[low].first;
        taken -= pieces[low].end - pieces[low].first;
      }
      uint64_t sticks_out = 0;  // of the first and the last piece
      if (high > low && pieces[low].first < start) sticks_out += start - pieces[low].first;
      if (high > low && pieces[high - 1].end > end) sticks_out += pieces[high - 1].end - end;
      consider({device, {start, length}, 0}, to_move, staying, length - (taken - sticks_out));
    }
  }

  void consider(const CompactionPlan& plan, uint64_t to_move, uint64_t staying, uint64_t free_inside) {
    if (staying > 0) {
      if (staying < least_blocked.cost) least_blocked = {plan, staying};
      return;
    }
    const uint64_t room = free_total - free_inside;
    if (to_move <= room) {
      if (to_move < best.cost) best = {plan, to_move};
    } else if (to_move < least_cramped.cost) {
      least_cramped = {plan, to_move};
      cramped_short = to_move - room;
    }
  }

  // The leases of `kind` in a window, by id.
  std::vector<LeaseId> within(const CompactionPlan& plan, Kind kind) const {
    std::set<LeaseId> found;
    for (const Occupied& piece : occupied.at(plan.device)) {
      if (piece.first >= plan.window.first + plan.window.count || piece.end <= plan.window.first) continue;
      if (leases.at(piece.lease).first == kind) found.insert(piece.lease);
    }
    return {found.begin(), found.end()};
  }
};

bool StateMachine::can_move(const LeaseRow& lease) const {
  return lease.movable && lease.phase == LeasePhase::active && lease.target_bytes == 0 &&
         !growths_.contains(lease.id);
}

Step StateMachine::on(const CompactPool& command) {
  const PoolRow* pool = find_pool(command.pool);
  if (pool == nullptr) return refuse(ErrorCode::not_found, "there is no pool '" + command.pool + "'");
  Step step;
  step.reply = Reply{CompactionReply{}};
  if (command.run_bytes == 0) {
    compactions_.erase(pool->id);
    return step;
  }
  if (command.deadline_ns <= command.now_ns ||
      command.deadline_ns - command.now_ns > limits::compaction_ns_max) {
    return refuse(ErrorCode::invalid_argument,
                  "a compaction needs a time to end within " + format_duration(limits::compaction_ns_max));
  }
  const uint64_t granule_bytes = pool_granule_bytes(pool->id);
  CompactionSearch search;
  search.length = (command.run_bytes - 1) / granule_bytes + 1;
  uint64_t longest_device = 0;
  for (const auto& [id, device] : devices_) {
    if (device.pool != pool->id || !placeable(device)) continue;
    const ExtentMap& free = free_.at(id);
    if (free.largest_run() >= search.length) {
      compactions_.erase(pool->id);
      return step;
    }
    longest_device = std::max(longest_device, free.total_granules());
    search.free_total += free.free_granules();
    search.occupied[id];
  }
  if (search.length > longest_device) {
    return refuse(ErrorCode::invalid_argument, "no device of pool " + pool->name + " that takes leases has " +
                                                   format_size(command.run_bytes) + "; the largest has " +
                                                   format_size(longest_device * granule_bytes));
  }
  using Kind = CompactionSearch::Kind;
  for (const auto& [id, lease] : leases_) {
    if (lease.pool != pool->id) continue;
    search.add(id,
               becomes_free_by_itself(lease) ? Kind::goes
               : can_move(lease)             ? Kind::moves
                                             : Kind::stays,
               lease.extents);
  }
  for (const auto& [id, growth] : growths_)  // such a lease stays as it is
    if (leases_.at(id).pool == pool->id) search.add(id, Kind::stays, growth.extents);
  for (const auto& [id, pieces] : search.occupied) search.sweep(id, free_.at(id).total_granules());

  if (search.best.cost == UINT64_MAX) return refuse_compaction(search, *pool, granule_bytes);
  CompactionPlan plan = search.best.plan;
  plan.deadline_ns = command.deadline_ns;
  step.reply = Reply{CompactionReply{plan.device, plan.window.first, plan.window.count,
                                     search.within(plan, Kind::moves), search.best.cost * granule_bytes}};
  compactions_[pool->id] = plan;
  return step;
}

Step StateMachine::refuse_compaction(const CompactionSearch& search, const PoolRow& pool,
                                     uint64_t granule_bytes) {
  const std::string run =
      "a free run of " + format_size(search.length * granule_bytes) + " in pool " + pool.name;
  if (search.least_cramped.cost != UINT64_MAX) {
    return refuse(ErrorCode::capacity_exhausted,
                  run + " cannot be made: what would have to move, " +
                      format_size(search.least_cramped.cost * granule_bytes) + ", finds " +
                      format_size(search.cramped_short * granule_bytes) + " too little room elsewhere");
  }
  const std::vector<LeaseId> blocking = search.within(search.least_blocked.plan, CompactionSearch::Kind::stays);
  std::string names;
  for (size_t i = 0; i < std::min<size_t>(blocking.size(), 5); ++i)
    names += (i == 0 ? "" : ", ") + std::to_string(blocking[i].value);
  return refuse(ErrorCode::capacity_exhausted,
                run + " cannot be made by moving leases that agreed to it; at the best place, on device " +
                    devices_.at(search.least_blocked.plan.device).serial + ", " +
                    std::to_string(blocking.size()) + " in the way cannot be moved (" +
                    (blocking.size() == 1 ? "lease " : "leases ") + names +
                    (blocking.size() > 5 ? ", ...)" : ")"));
}

void StateMachine::end_compactions(uint64_t now_ns) {
  for (auto at = compactions_.begin(); at != compactions_.end();) {
    const CompactionPlan& plan = at->second;
    const DeviceRow* device = find_device(plan.device);
    const bool possible = device != nullptr && device->pool == at->first && placeable(*device);
    const bool over = !possible || plan.deadline_ns <= now_ns || free_.at(plan.device).all_free(plan.window);
    at = over ? compactions_.erase(at) : std::next(at);
  }
}

const StateMachine::CompactionPlan* StateMachine::compaction_of(PoolId pool) const {
  const auto at = compactions_.find(pool);
  return at == compactions_.end() ? nullptr : &at->second;
}

StateMachine::Reasons StateMachine::reasons_to_move(const LeaseRow& lease) const {
  const CompactionPlan* plan = compaction_of(lease.pool);
  Reasons reasons;
  const auto look_at = [&](const std::vector<Extent>& extents) {
    for (const Extent& extent : extents) {
      reasons.drain = reasons.drain || devices_.at(extent.device).state == DeviceState::draining;
      reasons.compaction = reasons.compaction || (plan != nullptr && overlaps(extent, *plan));
    }
  };
  look_at(lease.extents);
  if (const auto growth = growths_.find(lease.id); growth != growths_.end()) look_at(growth->second.extents);
  return reasons;
}

std::vector<WantedMove> StateMachine::moves_wanted() const {
  std::vector<WantedMove> wanted;
  const bool draining = std::any_of(devices_.begin(), devices_.end(), [](const auto& entry) {
    return entry.second.state == DeviceState::draining;
  });
  if (!draining && compactions_.empty()) return wanted;
  for (const auto& [id, lease] : leases_) {
    if (becomes_free_by_itself(lease) || lease.phase == LeasePhase::waiting || is_move_target(id) ||
        awaited_.contains(id))
      continue;
    const Reasons reasons = reasons_to_move(lease);
    if (!reasons.drain && !reasons.compaction) continue;
    const auto move = move_of_.find(id);
    wanted.push_back({id, move == move_of_.end() ? LeaseId{} : move->second, can_move(lease), reasons.drain});
  }
  return wanted;
}

}  // namespace terrace::daemon
