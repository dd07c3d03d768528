// Grants that wait for room in a full pool.
//
// Order     The tenant that was served longest ago is next, with its oldest request; tenants never served come
//           first, in the order of arrival. Whose turn it is keeps it until served, cancelled or past its
//           deadline, and nothing overtakes it meanwhile: a large request is not starved by small ones. However
//           a turn ends it counts as a service, so that a tenant whose requests never fit does not block the
//           others one deadline after the other.
// Exception What a tenant's own reservation covers takes room that nobody else could have: it never waits for
//           another's turn.
#include <algorithm>

#include "core/base/check.h"
#include "core/base/limits.h"
#include "daemon/model/phases.h"
#include "daemon/state/refuse.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {

bool StateMachine::has_waiting(PoolId pool) const {
  return queues_.contains(pool);
}

Status StateMachine::check_turn(PoolId pool, const std::string& tenant, uint64_t bytes) const {
  const auto queue = queues_.find(pool);
  if (queue == queues_.end() || unfilled_reservation(pool, tenant) >= bytes) return {};
  const size_t count = queue->second.waiting.size();
  return refusal(ErrorCode::capacity_exhausted, "queue",
                 std::to_string(count) + (count == 1 ? " request waits" : " requests wait") + " for pool " +
                     find_pool(pool)->name + " before this one; ask with a time to wait, or try again later");
}

// A grant that found no room: `lease` has all but a place.
Step StateMachine::enqueue(LeaseRow lease, const Grant& command) {
  constexpr const char* where = "Grant";
  size_t waiting = 0;
  for (const auto& [pool, queue] : queues_) waiting += queue.waiting.size();
  if (waiting >= limits::waiting_max)
    return refuse(ErrorCode::limit_exceeded, where, "4096 requests wait already; try again later");
  const auto own = waiting_of_tenant_.find(lease.tenant);
  if (own != waiting_of_tenant_.end() && own->second >= limits::waiting_per_tenant_max) {
    return refuse(ErrorCode::limit_exceeded, where,
                  "256 requests of tenant " + lease.tenant + " wait already; wait for those, or cancel some");
  }
  if (pool_counters_[lease.pool].waiting_bytes > UINT64_MAX - lease.bytes) {
    return refuse(ErrorCode::limit_exceeded, where,
                  "requests for more bytes than can be counted wait already; try again later");
  }
  const LeaseId id = lease.id = LeaseId{meta_.next_lease++};
  lease.epoch = LeaseEpoch{meta_.next_epoch++};  // replaced when it is served: it must exceed the extents' last
  lease.object = object_name(lease, command.agent);
  lease.phase = LeasePhase::waiting;
  lease.deadline_ns = command.now_ns + command.wait_ns;
  const PoolId pool = lease.pool;
  queues_[pool].waiting.push_back({id, command.now_ns});
  add_lease(std::move(lease));
  Step step;
  serve_waiting(pool, step);
  const LeaseRow* row = find_lease(id);  // null: its turn came, and its quota forbids it by now
  step.reply = Reply{GrantPending{id, row != nullptr && row->phase == LeasePhase::waiting}};
  return step;
}

// `lease` is in the queue, and leaves it, served or not.
void StateMachine::leave_queue(const LeaseRow& lease) {
  WaitingQueue& queue = queues_.at(lease.pool);
  const size_t left = std::erase_if(queue.waiting, [&](const Waiting& one) { return one.lease == lease.id; });
  TERRACE_CHECK(left == 1, "I12: a grant that leaves its queue is in it once");
  if (queue.turn == lease.id) {
    queue.turn = LeaseId{};
    queue.last_served[lease.tenant] = ++queue.services;
    // A queue that never empties must not remember every tenant for ever.
    if (queue.last_served.size() > 2 * limits::waiting_max)
      std::erase_if(queue.last_served,
                    [&](const auto& entry) { return !waiting_of_tenant_.contains(entry.first); });
  }
  if (queue.waiting.empty()) queues_.erase(lease.pool);
}

bool StateMachine::try_serve(LeaseRow& lease, Step& step) {
  const uint64_t granule_bytes = pool_granule_bytes(lease.pool);
  const uint64_t granules = (lease.bytes - 1) / granule_bytes + 1;  // the pool's devices may be others by now
  const uint64_t bytes = granules * granule_bytes;
  if (!check_reservations(lease.pool, lease.tenant, bytes).ok()) return false;
  if (bytes > lease.bytes && !check_quota(lease.tenant, bytes, 1).ok()) return false;
  auto extents = place(lease.pool, granules);
  if (!extents.ok()) return false;
  leave_queue(lease);
  unindex_lease(lease);
  change_phase(lease, LeasePhase::pending);
  lease.bytes = bytes;
  lease.deadline_ns = 0;
  lease.epoch = LeaseEpoch{meta_.next_epoch++};
  lease.extents = std::move(extents).value();
  index_lease(lease);
  step.effects.push_back(CarveObject{lease.id, lease.object, lease.bytes, lease.extents});
  return true;
}

void StateMachine::serve_waiting(PoolId pool, Step& step) {
  // What a reservation covers, whosever turn it is.
  if (const auto reserved = reserved_bytes_.lower_bound({pool, ""});
      queues_.contains(pool) && reserved != reserved_bytes_.end() && reserved->first.first == pool) {
    const std::vector<Waiting> waiting = queues_.at(pool).waiting;
    for (const Waiting& entry : waiting) {
      LeaseRow& lease = leases_.at(entry.lease);
      if (unfilled_reservation(pool, lease.tenant) < lease.bytes) continue;
      if (check_quota(lease.tenant, lease.bytes, 1).ok()) try_serve(lease, step);
    }
  }
  for (auto at = queues_.find(pool); at != queues_.end(); at = queues_.find(pool)) {
    WaitingQueue& queue = at->second;
    if (!queue.turn.valid()) {
      uint64_t longest_ago = UINT64_MAX;
      for (const Waiting& entry : queue.waiting) {
        const auto served = queue.last_served.find(leases_.at(entry.lease).tenant);
        const uint64_t when = served == queue.last_served.end() ? 0 : served->second;
        if (when >= longest_ago) continue;
        longest_ago = when;
        queue.turn = entry.lease;
      }
    }
    LeaseRow& lease = leases_.at(queue.turn);
    if (Status status = check_quota(lease.tenant, lease.bytes, 1); !status.ok()) {
      step.effects.push_back(RefuseGrant{lease.id, std::move(status).error()});
      leave_queue(lease);
      forget(lease.id);
    } else if (!try_serve(lease, step)) {
      return;
    }
  }
}

void StateMachine::serve_all_waiting(Step& step) {
  std::vector<PoolId> pools;
  for (const auto& [pool, queue] : queues_) pools.push_back(pool);
  std::sort(pools.begin(), pools.end());
  for (const PoolId pool : pools) serve_waiting(pool, step);
}

// Its deadline has come. The caller serves the pool's others.
void StateMachine::time_out(LeaseId id, uint64_t now_ns, Step& step) {
  const LeaseRow& lease = leases_.at(id);
  const WaitingQueue& queue = queues_.at(lease.pool);
  const auto entry = std::find_if(queue.waiting.begin(), queue.waiting.end(),
                                  [id](const Waiting& other) { return other.lease == id; });
  const uint64_t waited_ns = now_ns - std::min(now_ns, entry->since_ns);
  const size_t others = queue.waiting.size() - 1;
  step.effects.push_back(RefuseGrant{
      id, refusal(ErrorCode::capacity_exhausted, "Grant",
                  "waited " + format_duration(waited_ns) + " for " + format_size(lease.bytes) + "; pool " +
                      find_pool(lease.pool)->name + " has " + format_size(grantable_bytes(lease.pool)) +
                      " free, " + std::to_string(others) + (others == 1 ? " other waits" : " others wait"))});
  leave_queue(lease);
  forget(id);
}

Step StateMachine::on(const CancelGrant& command) {
  Step step;
  const LeaseRow* lease = find_lease(command.lease);
  if (lease == nullptr || lease->phase != LeasePhase::waiting) return step;
  const PoolId pool = lease->pool;
  leave_queue(*lease);
  forget(command.lease);
  serve_waiting(pool, step);
  return step;
}

}  // namespace terrace::daemon
