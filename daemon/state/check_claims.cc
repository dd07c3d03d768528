// SPDX-License-Identifier: Apache-2.0
// The part of check_all about claims on a pool's room: reservations, waiting grants, moves.
#include <map>
#include <set>

#include "daemon/state/refuse.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {

// I11 itself is about what each grant leaves behind: a device may fail or be taken away after it, and then
// reservations are short of room through no grant's doing. What is checked here is what check_reservations
// uses.
void StateMachine::check_claims(std::vector<std::string>& problems) const {
  for (const auto& [id, offer] : offers_) {
    const LeaseRow* lease = find_lease(id);
    if (lease == nullptr || !usable(*lease) || lease->tenant == offer.to_tenant)
      problems.push_back("I12: " + lease_name(id) + " is offered, and cannot be");
  }
  const auto require = [&](bool holds, const std::string& what) {
    if (!holds) problems.push_back(what);
  };
  std::map<std::pair<PoolId, std::string>, uint64_t> reserved;
  std::set<std::pair<uint64_t, ReservationId>> due;
  for (const auto& [id, row] : reservations_) {
    const std::string name = "reservation " + std::to_string(id.value);
    require(id == row.id && id.value < meta_.next_reservation, "I11: " + name + " has a wrong id");
    require(pools_.contains(row.pool), "I11: " + name + " is in a pool that does not exist");
    require((row.ttl_ns == 0) == (row.expiry_ns == 0), "I7: " + name + " has a wrong expiry");
    reserved[{row.pool, row.tenant}] += row.bytes;
    if (row.expiry_ns != 0) due.insert({row.expiry_ns, id});
  }
  require(reserved == reserved_bytes_, "I11: the sums of reservations differ from their rows");
  require(due == due_reservations_, "I7: the due index differs from the reservations' expiries");

  std::set<LeaseId> queued;
  std::map<std::string, uint64_t> of_tenant;
  for (const auto& [pool, queue] : queues_) {
    const std::string name = "the queue of pool " + std::to_string(pool.value);
    require(pools_.contains(pool) && !queue.empty(), "I12: " + name + " has no pool or is empty");
    uint64_t bytes = 0;
    for (const LeaseId id : queue.in_order()) {
      const LeaseRow* lease = find_lease(id);
      if (lease == nullptr || lease->phase != LeasePhase::waiting || lease->pool != pool ||
          !queue.contains(id, lease->tenant)) {
        problems.push_back("I12: " + name + " has one that does not wait for it");
        continue;
      }
      require(queued.insert(id).second, "I12: " + name + " has a grant twice");
      bytes += lease->bytes;
      ++of_tenant[lease->tenant];
    }
    require(queue.turn().valid(), "I12: it is nobody's turn in " + name);
    const auto counters = pool_counters_.find(pool);
    require(counters != pool_counters_.end() && counters->second.waiting == queue.size() &&
                counters->second.waiting_bytes == bytes,
            "I12: " + name + " has other requests than the pool's counters");
    for (const std::string& problem : queue.problems()) problems.push_back(problem + " (" + name + ")");
  }
  require(of_tenant == waiting_of_tenant_, "I12: the tenants' counts of waiting grants differ from the queues");
  for (const auto& [id, lease] : leases_) {
    if (lease.phase != LeasePhase::waiting) continue;
    require(lease.extents.empty() && queued.contains(id),
            "I12: " + lease_name(id) + " waits in no queue, or has extents");
  }

  size_t live = 0;
  for (const auto& [id, move] : moves_) {
    const LeaseRow* target = find_lease(id);
    require(target != nullptr && target->phase == LeasePhase::pending && target->label.empty(),
            "I12: the move's target " + lease_name(id) + " is not pending and unlabelled");
    if (!move.lease.valid()) continue;
    ++live;
    const LeaseRow* lease = find_lease(move.lease);
    const auto back = move_of_.find(move.lease);
    require(lease != nullptr && usable(*lease) && back != move_of_.end() && back->second == id,
            "I12: " + lease_name(move.lease) + " does not know of its move");
  }
  require(live == move_of_.size(), "I12: a lease is said to be moving to a target that does not exist");
  check_owners(problems);
}

}  // namespace terrace::daemon
