// SPDX-License-Identifier: Apache-2.0
// The planted defects that need a state machine which decides otherwise than it was asked: it is told something
// else, and its answer is made to look as if it had not been.
#include <utility>

#include "core/base/limits.h"
#include "tests/sim/manager/sim_daemon.h"

namespace terrace::sim {
namespace {

using daemon::LeasePhase;

void append(daemon::Step& step, daemon::Step&& more) {
  step.delta.merge(std::move(more.delta));
  step.effects.insert(step.effects.end(), more.effects.begin(), more.effects.end());
}

daemon::Grant asked_again(const daemon::LeaseRow& row, const std::string& pool, uint64_t now_ns) {
  daemon::Grant grant;
  grant.pool = pool;
  grant.tenant = row.tenant;
  grant.host = row.host;
  grant.label = row.label;
  grant.bytes = row.bytes;
  grant.mode = row.mode;
  grant.persistent = row.ttl_ns == 0;
  grant.ttl_ns = row.ttl_ns;
  grant.request_high = row.request_high;
  grant.request_low = row.request_low;
  grant.now_ns = now_ns;
  grant.movable = row.movable;
  grant.wait_ns = row.deadline_ns > now_ns ? row.deadline_ns - now_ns : 1;
  return grant;
}

}  // namespace

daemon::Step SimDaemon::decide(const daemon::Command& command) {
  ledger_.quarantines_may_end(machine_, command);
  if (const auto* quota = std::get_if<daemon::SetQuota>(&command);
      quota != nullptr && environment_.planted(Plant::ignore_quota)) {
    daemon::SetQuota doubled = *quota;
    doubled.quota.bytes_max *= 2;
    doubled.quota.leases_max *= 2;
    return machine_.apply(doubled);
  }
  if (const auto* reserve = std::get_if<daemon::CreateReservation>(&command);
      reserve != nullptr && environment_.planted(Plant::ignore_reservation)) {
    daemon::CreateReservation less = *reserve;
    less.bytes = limits::granule_bytes;
    return machine_.apply(less);
  }
  if (const auto* claim = std::get_if<daemon::ClaimPart>(&command);
      claim != nullptr && environment_.planted(Plant::ignore_death)) {
    daemon::ClaimPart blind = *claim;
    blind.dead_epoch = 0;
    return machine_.apply(blind);
  }
  if (const auto* grant = std::get_if<daemon::Grant>(&command);
      grant != nullptr && environment_.planted(Plant::overtake_queue))
    return decide_overtaking(*grant);
  return machine_.apply(command);
}

// Those that wait are taken out, the newcomer is let in, and they are put back.
daemon::Step SimDaemon::decide_overtaking(const daemon::Grant& grant) {
  const daemon::PoolRow* pool = machine_.find_pool(grant.pool);
  std::vector<daemon::LeaseRow> waiting;
  for (const auto& [id, lease] : machine_.leases()) {
    const bool same = lease.tenant == grant.tenant && lease.request_high == grant.request_high;
    if (same) return machine_.apply(grant);
    if (pool != nullptr && lease.phase == LeasePhase::waiting && lease.pool == pool->id)
      waiting.push_back(lease);
  }
  if (waiting.empty()) return machine_.apply(grant);
  for (const daemon::LeaseRow& row : waiting) (void)machine_.apply(daemon::CancelGrant{row.id});
  daemon::Step step = machine_.apply(grant);
  for (const daemon::LeaseRow& row : waiting) {
    daemon::Step back = machine_.apply(asked_again(row, grant.pool, grant.now_ns));
    const auto* pending = back.reply.ok() ? std::get_if<daemon::GrantPending>(&*back.reply) : nullptr;
    if (auto replies = carving_.extract(row.id); !replies.empty() && pending != nullptr) {
      replies.key() = pending->lease;
      carving_.insert(std::move(replies));
    }
    append(step, std::move(back));
  }
  return step;
}

}  // namespace terrace::sim
