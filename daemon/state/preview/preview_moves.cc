// SPDX-License-Identifier: Apache-2.0
#include "daemon/state/preview/preview_moves.h"

#include <algorithm>
#include <set>

namespace terrace::daemon {
namespace {

Status outcome_of(const Step& step) {
  return step.reply.ok() ? Status() : Status(step.reply.error());
}

// Of a lease that leaves its place without being moved. Empty: it has to be moved.
std::string leaves_by_itself(const LeaseRow& lease) {
  switch (lease.phase) {
    case LeasePhase::pending: return "being granted: it is looked at once it is";
    case LeasePhase::revoking: return "being revoked: it ends by itself";
    case LeasePhase::fencing:
    case LeasePhase::scrubbing: return "being erased: it ends by itself";
    case LeasePhase::transferring: return "being handed over: it is looked at once it is";
    default: return "";
  }
}

}  // namespace

void PreviewedMoves::run(const std::function<bool(const LeaseRow&)>& concerned, Preview& preview) {
  sort_leases(concerned, preview);
  move_all();
  preview.all.insert(preview.all.begin(), blocked_.begin(), blocked_.end());
  preview.all.insert(preview.all.end(), moved_.begin(), moved_.end());
  sum_up(preview);
  tell(preview);
}

void PreviewedMoves::sort_leases(const std::function<bool(const LeaseRow&)>& concerned, Preview& preview) {
  std::map<LeaseId, WantedMove> wanted;
  for (const WantedMove& move : state_.moves_wanted()) wanted.emplace(move.lease, move);
  std::set<LeaseId> targets;
  for (const auto& [id, move] : wanted)
    if (move.target.valid()) targets.insert(move.target);
  for (const auto& [id, lease] : state_.leases()) {
    if (!concerned(lease)) continue;
    PreviewedLease one = lease_of_row(lease);
    const auto at = wanted.find(id);
    one.state = leaves_by_itself(lease);
    if (targets.contains(id)) one.state = "the new place of a lease that is moving here: it will move again";
    if (one.state.empty() && at != wanted.end() && at->second.target.valid()) {
      one.state = "moving already";
      one.from_extents = placed_extents(state_, lease.extents);
      one.to_extents = placed_extents(state_, state_.find_lease(at->second.target)->extents);
      one.to = places_of(one.to_extents);
      moved_.push_back(std::move(one));
    } else if (!one.state.empty()) {
      ++by_themselves_;
      preview.all.push_back(std::move(one));
    } else if (const std::string why = why_stuck(lease, at == wanted.end() ? nullptr : &at->second);
               !why.empty()) {
      block(std::move(one), why);
    } else {
      candidates_.push_back(std::move(one));
    }
  }
}

std::string PreviewedMoves::why_stuck(const LeaseRow& lease, const WantedMove* move) const {
  if (lease.phase == LeasePhase::quarantined)
    return "quarantined: release it to have it erased again, or give it up with the device";
  if (state_.awaited(lease.id)) return "waits for a device that is not there";
  if (!lease.movable || move == nullptr || !move->movable)
    return lease.movable ? "being changed: it is looked at once that has ended"
                         : "not movable: release or revoke it";
  const size_t holders = holders_(lease.id);
  if (holders > 1)
    return "held by " + std::to_string(holders) + " sessions: all but one have to end, or revoke it";
  return "";
}

// What found no room may find some once others have left.
void PreviewedMoves::move_all() {
  for (bool some = true; some && !candidates_.empty();) {
    some = false;
    std::vector<PreviewedLease> left;
    for (PreviewedLease& one : candidates_) {
      const Status moved = move(one);
      some = some || moved.ok();
      if (moved.ok()) {
        moved_.push_back(std::move(one));
      } else {
        one.state = moved.error().detail;
        left.push_back(std::move(one));
      }
    }
    candidates_ = std::move(left);
  }
  for (PreviewedLease& one : candidates_) {
    const std::string why = "finds no room: " + one.state;
    no_room_bytes_ += one.bytes;
    block(std::move(one), why);
  }
  std::sort(moved_.begin(), moved_.end(),
            [](const PreviewedLease& a, const PreviewedLease& b) { return a.lease < b.lease; });
}

Status PreviewedMoves::move(PreviewedLease& one) {
  Step begun = state_.apply(BeginMove{one.lease, "", now_ns_});
  if (!begun.reply.ok()) return std::move(begun.reply).error();
  const LeaseId target = std::get<GrantPending>(*begun.reply).lease;
  one.from_extents = placed_extents(state_, state_.find_lease(one.lease)->extents);
  one.to_extents = placed_extents(state_, state_.find_lease(target)->extents);
  one.to = places_of(one.to_extents);
  const size_t holders = holders_(one.lease);
  one.state = holders == 0 ? "moved by the manager" : "its holder is asked to move it";
  if (holders != 0) ++asked_;
  add_served(state_.apply(CarveFinished{target, {}, now_ns_}), served_);
  if (const Status done = outcome_of(state_.apply(FinishMove{one.lease, target, "", true, now_ns_}));
      !done.ok())
    return done;
  add_served(state_.apply(FenceFinished{target, {}, now_ns_}), served_);
  add_served(state_.apply(ScrubFinished{target, {}, now_ns_}), served_);
  return {};
}

void PreviewedMoves::block(PreviewedLease one, const std::string& why) {
  one.state = why;
  one.blocked = true;
  blocked_.push_back(std::move(one));
}

void PreviewedMoves::sum_up(Preview& preview) const {
  for (const PreviewedLease& one : moved_) {
    ++preview.leases;
    preview.bytes += one.bytes;
    for (const auto& [serial, bytes] : one.to) preview.to[serial] += bytes;
  }
  for (const PreviewedLease& one : blocked_) {
    ++preview.blocked_leases;
    preview.blocked_bytes += one.bytes;
  }
}

void PreviewedMoves::tell(Preview& preview) const {
  preview.summary = preview.leases == 0
                        ? "moves nothing"
                        : "moves " + count_of(preview.leases, "lease") + ", " + format_size(preview.bytes);
  if (preview.blocked_leases != 0)
    preview.summary += "; " + count_of(preview.blocked_leases, "lease") + ", " +
                       format_size(preview.blocked_bytes) +
                       (preview.blocked_leases == 1 ? ", stays" : ", stay");
  if (!preview.to.empty()) preview.notes.push_back("to " + places_text(preview.to));
  if (asked_ != 0)
    preview.notes.push_back(count_of(asked_, "lease") + (asked_ == 1 ? " is" : " are") +
                            " moved by the programs that hold them, when they get to it");
  if (by_themselves_ != 0)
    preview.notes.push_back(count_of(by_themselves_, "lease") +
                            (by_themselves_ == 1 ? " ends or settles" : " end or settle") + " by itself");
  if (served_.granted != 0)
    preview.notes.push_back(count_of(served_.granted, "request") + " that wait find room meanwhile");
}

}  // namespace terrace::daemon
