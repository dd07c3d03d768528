// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/claims.h"

#include <algorithm>

#include "core/base/limits.h"

namespace terrace::sim {
namespace {

using daemon::LeasePhase;
using daemon::LeaseRow;

unsigned long long number(uint64_t value) {
  return value;
}

bool counts(LeasePhase phase) {
  return phase == LeasePhase::pending || phase == LeasePhase::active || phase == LeasePhase::revoking ||
         phase == LeasePhase::transferring;
}

uint64_t whole_granules(uint64_t bytes) {
  return (bytes + limits::granule_bytes - 1) / limits::granule_bytes * limits::granule_bytes;
}

}  // namespace

// --- what is in force, and who has what -------------------------------------------------------------

void Claims::recovered(const daemon::StateMachine& machine) {
  growths_.clear();
  targets_.clear();
  arrivals_.clear();
  turns_.clear();
  quotas_ = machine.quotas();
  reservations_ = machine.reservations();
  last_ = look(machine);
}

void Claims::before(const daemon::StateMachine& machine) {
  last_ = look(machine);
}

Claims::View Claims::look(const daemon::StateMachine& machine) {
  View view;
  for (const auto& [id, lease] : machine.leases()) {
    const Key key{lease.tenant, lease.request_high, lease.request_low};
    if (lease.phase == LeasePhase::waiting) {
      const auto arrival = arrivals_.try_emplace(key, next_arrival_).first;
      if (arrival->second == next_arrival_) ++next_arrival_;
      view.waiting[key] = {lease.pool, lease.bytes, arrival->second};
      continue;
    }
    if (!counts(lease.phase) || targets_.contains(id)) continue;
    const auto growth = growths_.find(id);
    const uint64_t bytes = growth == growths_.end() ? lease.bytes : growth->second;
    Use& use = view.tenants[lease.tenant];
    use.bytes += bytes;
    ++use.leases;
    view.bytes[{lease.pool, lease.tenant}] += bytes;
  }
  for (const auto& [id, pool] : machine.pools()) {
    view.free[id] = machine.pool_use(id).grantable_bytes;
    const daemon::WaitingQueue* queue = machine.queue_of(id);
    if (queue != nullptr && queue->held()) view.kept.insert(id);
  }
  return view;
}

void Claims::take_note(const daemon::Command& command, const daemon::Step& step,
                       const daemon::StateMachine& machine) {
  const bool done = step.reply.ok();
  if (const auto* quota = std::get_if<daemon::SetQuota>(&command); quota != nullptr && done) {
    quotas_.erase(quota->quota.tenant);
    if (quota->quota.bytes_max != 0 || quota->quota.leases_max != 0)
      quotas_[quota->quota.tenant] = quota->quota;
  } else if (const auto* reserve = std::get_if<daemon::CreateReservation>(&command);
             reserve != nullptr && done) {
    daemon::ReservationRow row = std::get<daemon::ReservationReply>(*step.reply).reservation;
    row.bytes = whole_granules(reserve->bytes);
    reservations_[row.id] = row;
  } else if (std::holds_alternative<daemon::BeginMove>(command) && done) {
    targets_.insert(std::get<daemon::GrantPending>(*step.reply).lease);
  } else if (const auto* resized = std::get_if<daemon::ResizeFinished>(&command)) {
    growths_.erase(resized->lease);
  }
  for (const daemon::Effect& effect : step.effects) {
    const auto* resize = std::get_if<daemon::ResizeObject>(&effect);
    if (resize != nullptr && resize->to_bytes > resize->from_bytes) growths_[resize->lease] = resize->to_bytes;
  }
  std::erase_if(growths_, [&](const auto& growth) {
    const LeaseRow* lease = machine.find_lease(growth.first);
    return lease == nullptr || (lease->phase != LeasePhase::active && lease->phase != LeasePhase::revoking);
  });
  std::erase_if(targets_, [&](LeaseId id) { return machine.find_lease(id) == nullptr; });
  std::erase_if(reservations_,
                [&](const auto& entry) { return !machine.reservations().contains(entry.first); });
}

uint64_t Claims::unfilled(const View& view, PoolId pool, const std::string& tenant) const {
  uint64_t reserved = 0;
  for (const auto& [id, row] : reservations_)
    if (row.pool == pool && row.tenant == tenant) reserved += row.bytes;
  const auto use = view.bytes.find({pool, tenant});
  return reserved - std::min(reserved, use == view.bytes.end() ? 0 : use->second);
}

uint64_t Claims::unfilled_of_others(const View& view, PoolId pool, const std::string& tenant) const {
  std::set<std::string> others;
  for (const auto& [id, row] : reservations_)
    if (row.pool == pool && row.tenant != tenant) others.insert(row.tenant);
  uint64_t sum = 0;
  for (const std::string& other : others) sum += unfilled(view, pool, other);
  return sum;
}

// --- verdicts ---------------------------------------------------------------------------------------

void Claims::after(const daemon::Command& command, const daemon::Step& step,
                   const daemon::StateMachine& machine) {
  take_note(command, step, machine);
  const View now = look(machine);
  check_quotas(now);
  if (!std::holds_alternative<daemon::Transfer>(command) && !std::holds_alternative<daemon::SetQuota>(command))
    check_room_kept(now);
  if (const auto* grant = std::get_if<daemon::Grant>(&command)) check_refusal(*grant, step, machine);
  check_turns(command, step, now, machine);
  check_order(now, machine);
  check_phases(std::holds_alternative<daemon::Tick>(command), machine);
  check_accounting(environment_, machine);
  last_ = now;
}

void Claims::check_quotas(const View& now) {
  for (const auto& [tenant, use] : now.tenants) {
    auto quota = quotas_.find(tenant);
    if (quota == quotas_.end()) quota = quotas_.find("*");
    if (quota == quotas_.end()) continue;
    const auto before = last_.tenants.find(tenant);
    const Use had = before == last_.tenants.end() ? Use{} : before->second;
    const daemon::QuotaRow& most = quota->second;
    if (most.bytes_max != 0 && use.bytes > had.bytes && use.bytes > most.bytes_max) {
      environment_.fail("quota: %s was given memory up to %llu granules and may have %llu", tenant.c_str(),
                        number(use.bytes / limits::granule_bytes),
                        number(most.bytes_max / limits::granule_bytes));
    }
    if (most.leases_max != 0 && use.leases > had.leases && use.leases > most.leases_max) {
      environment_.fail("quota: %s was given lease number %llu and may have %llu", tenant.c_str(),
                        number(use.leases), number(most.leases_max));
    }
  }
}

// Whoever got more left the others what is kept for them.
void Claims::check_room_kept(const View& now) {
  if (reservations_.empty()) return;
  for (const auto& [key, bytes] : now.bytes) {
    const auto before = last_.bytes.find(key);
    if (before != last_.bytes.end() && bytes <= before->second) continue;
    const auto& [pool, tenant] = key;
    const auto free = now.free.find(pool);
    if (free == now.free.end()) continue;
    if (const uint64_t kept = unfilled_of_others(now, pool, tenant); kept > free->second) {
      environment_.fail("reservation: %s got room that was reserved: %llu granules are free, %llu are kept",
                        tenant.c_str(), number(free->second / limits::granule_bytes),
                        number(kept / limits::granule_bytes));
    }
  }
}

void Claims::check_refusal(const daemon::Grant& grant, const daemon::Step& step,
                           const daemon::StateMachine& machine) {
  const daemon::PoolRow* pool = machine.find_pool(grant.pool);
  if (pool == nullptr) return;
  if (step.reply.ok()) {
    const auto* pending = std::get_if<daemon::GrantPending>(&*step.reply);
    const LeaseRow* lease = pending == nullptr ? nullptr : machine.find_lease(pending->lease);
    if (lease == nullptr || lease->phase != LeasePhase::waiting ||
        last_.waiting.contains({grant.tenant, grant.request_high, grant.request_low}))
      return;
  } else if (step.reply.error().code != ErrorCode::capacity_exhausted) {
    return;
  }
  const uint64_t bytes = whole_granules(grant.bytes);
  const uint64_t kept = unfilled_of_others(last_, pool->id, grant.tenant);
  if (unfilled(last_, pool->id, grant.tenant) >= bytes && last_.free.at(pool->id) >= bytes + kept) {
    environment_.fail("reservation: %s was refused %llu granules that are reserved for it and free",
                      grant.tenant.c_str(), number(bytes / limits::granule_bytes));
  }
}

void Claims::check_turns(const daemon::Command& command, const daemon::Step& step, const View& now,
                         const daemon::StateMachine& machine) {
  if (const auto* grant = std::get_if<daemon::Grant>(&command); grant != nullptr && step.reply.ok()) {
    const auto* pending = std::get_if<daemon::GrantPending>(&*step.reply);
    const LeaseRow* lease = pending == nullptr ? nullptr : machine.find_lease(pending->lease);
    const bool known = last_.waiting.contains({grant->tenant, grant->request_high, grant->request_low});
    if (lease != nullptr && lease->phase == LeasePhase::pending && !known && !step.effects.empty())
      check_overtaking(now, lease->pool, lease->tenant, lease->bytes);
  }
  if (const auto* resize = std::get_if<daemon::Resize>(&command);
      resize != nullptr && growths_.contains(resize->lease) && !step.effects.empty()) {
    const LeaseRow& lease = *machine.find_lease(resize->lease);
    check_overtaking(now, lease.pool, lease.tenant, growths_.at(resize->lease) - lease.bytes);
  }
}

// `tenant` was let in, and did not wait. Where one left the queue in this step (refused at its turn, say) the
// turn went on, perhaps to the newcomer.
void Claims::check_overtaking(const View& now, PoolId pool, const std::string& tenant, uint64_t bytes) {
  const auto reserved = [pool](const auto& entry) { return entry.second.pool == pool; };
  const bool claims = std::any_of(reservations_.begin(), reservations_.end(), reserved);
  bool waited = false, smaller = false;
  for (const auto& [key, request] : last_.waiting) {
    if (request.pool != pool) continue;
    if (!now.waiting.contains(key)) return;
    waited = true;
    smaller = smaller || request.bytes <= bytes;
  }
  if (!waited || unfilled(last_, pool, tenant) >= bytes) return;
  if (last_.kept.contains(pool)) {
    environment_.fail("queue: %s was let into pool %llu while room was kept for those that wait for it",
                      tenant.c_str(), number(pool.value));
  } else if (smaller && !claims) {
    environment_.fail("queue: %s was let into pool %llu before one that waits and is no larger", tenant.c_str(),
                      number(pool.value));
  }
}

void Claims::check_order(const View& now, const daemon::StateMachine& machine) {
  for (const auto& [own_key, request] : last_.waiting) {
    const Key& key = own_key;  // what a lambda may capture
    const auto served = std::find_if(machine.leases().begin(), machine.leases().end(), [&](const auto& entry) {
      const LeaseRow& lease = entry.second;
      return lease.phase == LeasePhase::pending &&
             Key{lease.tenant, lease.request_high, lease.request_low} == key;
    });
    if (served == machine.leases().end()) continue;
    const std::string& tenant = std::get<0>(key);
    if (unfilled(last_, request.pool, tenant) > 0) continue;
    for (const auto& [other_key, other] : now.waiting) {
      if (std::get<0>(other_key) != tenant || other.pool != request.pool || other.arrived >= request.arrived ||
          other.bytes > request.bytes)
        continue;
      environment_.fail("queue: a later request of %s was served before an earlier one that is no larger",
                        tenant.c_str());
    }
  }
  std::erase_if(arrivals_, [&](const auto& entry) { return !now.waiting.contains(entry.first); });
}

// Judged after each Tick only: phases change in no other command, and one may come late.
void Claims::check_phases(bool ticked, const daemon::StateMachine& machine) {
  constexpr uint64_t late_ns = 2 * ns_per_s;
  const uint64_t now_ns = environment_.now_ns();
  std::erase_if(turns_, [&](const auto& entry) { return machine.queue_of(entry.first) == nullptr; });
  for (const auto& [id, pool] : machine.pools()) {
    const daemon::WaitingQueue* queue = machine.queue_of(id);
    if (queue == nullptr) continue;
    Turn& turn = turns_[id];
    if (turn.lease != queue->turn()) turn = {queue->turn(), queue->held(), now_ns, 0, 0};
    (turn.held ? turn.held_ns : turn.open_ns) += now_ns - turn.since_ns;
    turn.since_ns = now_ns;
    if (ticked && queue->held() && turn.held_ns > turn.open_ns + late_ns) {
      environment_.fail("queue: pool %s has kept room for one that waits for longer than others were let in",
                        pool.name.c_str());
    }
    turn.held = queue->held();
  }
}

// --- accounting -------------------------------------------------------------------------------------

std::string accounting_problem(const daemon::PoolUse& use) {
  const uint64_t sum =
      use.free_bytes + use.absent_bytes + use.leased_bytes + use.scrubbing_bytes + use.quarantined_bytes;
  if (sum == use.capacity_bytes) return {};
  return "free, absent, leased, scrubbing and quarantined are " + std::to_string(sum) + " bytes of " +
         std::to_string(use.capacity_bytes);
}

void check_accounting(Environment& environment, const daemon::StateMachine& machine) {
  for (const auto& [id, pool] : machine.pools()) {
    if (const std::string problem = accounting_problem(machine.pool_use(id)); !problem.empty())
      environment.fail("accounting: pool %s: %s", pool.name.c_str(), problem.c_str());
  }
  const auto uses = machine.device_uses();
  for (const auto& [id, device] : machine.devices()) {
    const auto use = uses.find(id);
    daemon::PoolUse sums;
    sums.capacity_bytes = device.capacity_bytes;
    sums.free_bytes = machine.device_free_bytes(id);
    sums.leased_bytes = use == uses.end() ? 0 : use->second.bytes;
    if (const std::string problem = accounting_problem(sums); !problem.empty())
      environment.fail("accounting: device %s: %s", device.serial.c_str(), problem.c_str());
  }
}

}  // namespace terrace::sim
