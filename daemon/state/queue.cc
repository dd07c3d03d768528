// SPDX-License-Identifier: Apache-2.0
// Grants that wait for room in a full pool. In which order they are served, whose turn it is and when room is
// kept for that one: daemon/model/waiting_queue.h.
//
// Let in    While a turn is open whoever fits is: those that wait in their order, then newcomers. While room is
//           kept for it nobody is.
// Exception What a tenant's own reservation covers takes room that nobody else could have: it never waits for
//           another's turn.
// Phases    They change with a Tick only, in the same step in which those that may be let in are: a newcomer
//           never comes before who waits and fits.
// Ghosts    A request is in the queue for as long as a call waits for it (daemon/rpc/waiting_grants.h). One
//           that will not wait joins none.
#include <algorithm>

#include "core/base/check.h"
#include "core/base/limits.h"
#include "daemon/model/kinds.h"
#include "daemon/model/phases.h"
#include "daemon/state/refuse.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {
namespace {

std::string request_name(LeaseId id) {
  return "request " + std::to_string(id.value);
}

}  // namespace

bool StateMachine::has_waiting(PoolId pool) const {
  return queues_.contains(pool);
}

const WaitingQueue* StateMachine::queue_of(PoolId pool) const {
  const auto at = queues_.find(pool);
  return at == queues_.end() ? nullptr : &at->second;
}

Status StateMachine::check_turn(PoolId pool, const std::string& tenant, uint64_t bytes) const {
  const WaitingQueue* queue = queue_of(pool);
  if (queue == nullptr || !queue->held() || unfilled_reservation(pool, tenant) >= bytes) return {};
  const uint64_t left_ns = queue->phase_ends_ns() - std::min(queue->phase_ends_ns(), now_ns_);
  return refusal(ErrorCode::capacity_exhausted, "queue",
                 std::to_string(queue->size()) + (queue->size() == 1 ? " request waits" : " requests wait") +
                     " for pool " + find_pool(pool)->name +
                     " before this one, and room is kept for the next for " + format_duration(left_ns) +
                     " more; ask with a time to wait, or try again later");
}

// --- into the queue ---------------------------------------------------------------------------------

Status StateMachine::check_may_wait(const LeaseRow& lease) const {
  constexpr const char* where = "Grant";
  size_t waiting = 0;
  for (const auto& [pool, queue] : queues_) waiting += queue.size();
  if (waiting >= limits::waiting_max)
    return refusal(ErrorCode::limit_exceeded, where, "4096 requests wait already; try again later");
  const auto own = waiting_of_tenant_.find(lease.tenant);
  if (own != waiting_of_tenant_.end() && own->second >= limits::waiting_per_tenant_max) {
    return refusal(ErrorCode::limit_exceeded, where,
                   "256 requests of tenant " + lease.tenant + " wait already; wait for those, or cancel some");
  }
  const auto counters = pool_counters_.find(lease.pool);
  if (counters != pool_counters_.end() && counters->second.waiting_bytes > UINT64_MAX - lease.bytes) {
    return refusal(ErrorCode::limit_exceeded, where,
                   "requests for more bytes than can be counted wait already; try again later");
  }
  return check_waiting_quota(lease);
}

// A grant that found no room: `lease` has all but a place.
Step StateMachine::enqueue(LeaseRow lease, const Grant& command) {
  if (Status status = check_may_wait(lease); !status.ok()) return refuse(std::move(status).error());
  const LeaseId id = lease.id = LeaseId{meta_.next_lease++};
  lease.epoch = LeaseEpoch{meta_.next_epoch++};  // replaced when it is served: it must exceed the extents' last
  lease.object = object_name(lease, command.agent);
  lease.phase = LeasePhase::waiting;
  lease.deadline_ns = command.now_ns + command.wait_ns;
  const PoolId pool = lease.pool;
  queues_[pool].add(id, lease.tenant, lease.bytes, command.now_ns);
  add_lease(std::move(lease));
  Step step;
  serve_waiting(pool, step);
  const LeaseRow* row = find_lease(id);  // null: its turn came, and its quota forbids it by now
  step.reply = Reply{GrantPending{id, row != nullptr && row->phase == LeasePhase::waiting}};
  return step;
}

// The request waits until the last of those who asked for it would give up; each leaves by itself before.
Step StateMachine::join_waiting(LeaseRow& lease, const Grant& command) {
  if (command.wait_ns == 0) {
    return refuse(ErrorCode::capacity_exhausted, "Grant",
                  "it waits already, as " + request_name(lease.id) + "; ask with a time to wait to join it");
  }
  if (command.wait_ns > limits::wait_ns_max) {
    return refuse(
        ErrorCode::invalid_argument, "Grant",
        "waiting " + format_duration(command.wait_ns) + " is beyond " + format_duration(limits::wait_ns_max));
  }
  if (const uint64_t deadline_ns = command.now_ns + command.wait_ns; deadline_ns > lease.deadline_ns) {
    unindex_lease(lease);
    lease.deadline_ns = deadline_ns;
    index_lease(lease);
    WaitingQueue& queue = queues_.at(lease.pool);
    if (queue.turn() == lease.id) queue.prolong_turn(command.wait_ns);
  }
  Step step;
  step.reply = Reply{GrantPending{lease.id, true}};
  return step;
}

// --- out of the queue -------------------------------------------------------------------------------

// `lease` is in the queue, and leaves it, served or not.
void StateMachine::leave_queue(const LeaseRow& lease, bool got_room) {
  WaitingQueue& queue = queues_.at(lease.pool);
  TERRACE_CHECK(queue.contains(lease.id, lease.tenant), "I12: a grant that leaves its queue is in it once");
  queue.remove(lease.id, lease.tenant, got_room);
  if (queue.empty()) queues_.erase(lease.pool);
}

bool StateMachine::try_serve(LeaseRow& lease, Step& step) {
  const uint64_t granule_bytes = pool_granule_bytes(lease.pool);
  const uint64_t granules = (lease.bytes - 1) / granule_bytes + 1;  // the pool's devices may be others by now
  const uint64_t bytes = granules * granule_bytes;
  if (!check_reservations(lease.pool, lease.tenant, bytes).ok()) return false;
  if (bytes > lease.bytes && !check_quota(lease.tenant, bytes, 1).ok()) return false;
  auto extents = place(lease.pool, granules);
  if (!extents.ok()) return false;
  leave_queue(lease, true);
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

// The caller serves the pool's others.
void StateMachine::refuse_waiting(LeaseId id, Error error, Step& step) {
  step.effects.push_back(RefuseGrant{id, std::move(error)});
  leave_queue(leases_.at(id));
  forget(id);
}

Error StateMachine::waited_in_vain(const LeaseRow& lease, uint64_t waited_ns) const {
  const WaitingQueue* queue = queue_of(lease.pool);
  const size_t others = queue == nullptr ? 0 : queue->size() - 1;
  return refusal(ErrorCode::capacity_exhausted, "Grant",
                 "waited " + format_duration(waited_ns) + " for " + format_size(lease.bytes) + "; pool " +
                     find_pool(lease.pool)->name + " has " + format_size(grantable_bytes(lease.pool)) +
                     " free, " + std::to_string(others) + (others == 1 ? " other waits" : " others wait"));
}

// --- turns ------------------------------------------------------------------------------------------

void StateMachine::serve_waiting(PoolId pool, Step& step) {
  serve_reserved(pool, step);
  serve_turns(pool, step);
  serve_others(pool, step);
}

void StateMachine::serve_all_waiting(Step& step) {
  std::vector<PoolId> pools;
  for (const auto& [pool, queue] : queues_) pools.push_back(pool);
  std::sort(pools.begin(), pools.end());
  for (const PoolId pool : pools) serve_waiting(pool, step);
}

void StateMachine::serve_reserved(PoolId pool, Step& step) {
  for (auto at = reserved_bytes_.lower_bound({pool, ""});
       at != reserved_bytes_.end() && at->first.first == pool && queues_.contains(pool); ++at) {
    const std::string& tenant = at->first.second;
    for (const LeaseId id : queues_.at(pool).requests(tenant, unfilled_reservation(pool, tenant))) {
      LeaseRow& lease = leases_.at(id);
      if (unfilled_reservation(pool, tenant) < lease.bytes) continue;  // the one before had it
      if (check_quota(tenant, lease.bytes, 1).ok()) try_serve(lease, step);
      if (!queues_.contains(pool)) return;
    }
  }
}

// Until it is the turn of one that does not fit.
void StateMachine::serve_turns(PoolId pool, Step& step) {
  for (auto at = queues_.find(pool); at != queues_.end(); at = queues_.find(pool)) {
    WaitingQueue& queue = at->second;
    if (!queue.turn().valid()) {
      const LeaseRow& next = leases_.at(queue.next());
      queue.begin_turn(next.id, now_ns_, next.deadline_ns - std::min(next.deadline_ns, now_ns_));
    }
    LeaseRow& lease = leases_.at(queue.turn());
    if (Status status = check_quota(lease.tenant, lease.bytes, 1); !status.ok()) {
      refuse_waiting(lease.id, std::move(status).error(), step);
    } else if (!try_serve(lease, step)) {
      return;
    }
  }
}

// In rounds of one request a tenant, as turns would come. What found no place shows that as much or more finds
// none: what is tried in vain only gets smaller, so that thousands that wait cost little.
void StateMachine::serve_others(PoolId pool, Step& step) {
  uint64_t bytes_max = UINT64_MAX;
  for (bool some = true; some;) {
    some = false;
    const WaitingQueue* queue = queue_of(pool);
    if (queue == nullptr || queue->held() || queue->smallest_bytes() > grantable_bytes(pool)) return;
    for (const std::string& tenant : queue->tenants()) {
      if (!serve_one_of(pool, tenant, bytes_max, step)) continue;
      some = true;
      const auto left = queues_.find(pool);
      if (left == queues_.end() || left->second.smallest_bytes() > grantable_bytes(pool)) return;
    }
  }
}

// Returns  whether one left the queue.
bool StateMachine::serve_one_of(PoolId pool, const std::string& tenant, uint64_t& bytes_max, Step& step) {
  const WaitingQueue& queue = queues_.at(pool);
  for (const LeaseId id : queue.requests(tenant, std::min(grantable_bytes(pool), bytes_max))) {
    LeaseRow& lease = leases_.at(id);
    if (id == queue.turn() || lease.bytes > bytes_max) continue;  // it was tried; one of its size was
    if (!check_reservations(pool, tenant, lease.bytes).ok()) continue;
    if (Status status = check_quota(tenant, lease.bytes, 1); !status.ok()) {
      refuse_waiting(id, std::move(status).error(), step);
      return true;
    }
    if (try_serve(lease, step)) return true;
    bytes_max = lease.bytes - 1;
  }
  return false;
}

// Whether all leases that can end leave it room, on the devices that are in service now.
bool StateMachine::may_fit(const LeaseRow& lease) const {
  uint64_t room = 0, largest = 0;
  for (const auto& [id, device] : devices_) {
    if (device.pool != lease.pool || !placeable(device)) continue;
    room += device.capacity_bytes;
    largest = std::max(largest, device.capacity_bytes);
  }
  uint64_t kept = 0;
  for (auto at = reserved_bytes_.lower_bound({lease.pool, ""}); at != reserved_bytes_.end(); ++at) {
    if (at->first.first != lease.pool) break;
    if (at->first.second != lease.tenant) kept += at->second;
  }
  if (memory_kind(pool_backend(lease.pool)).one_device && lease.bytes > largest) return false;
  return lease.bytes <= room && kept <= room - lease.bytes;
}

void StateMachine::next_phases(uint64_t now_ns, Step& step) {
  std::vector<PoolId> due;
  for (const auto& [pool, queue] : queues_)
    if (queue.phase_ends_ns() <= now_ns) due.push_back(pool);
  std::sort(due.begin(), due.end());
  for (const PoolId pool : due) {
    WaitingQueue& queue = queues_.at(pool);
    queue.next_phase(now_ns, may_fit(leases_.at(queue.turn())));
    serve_waiting(pool, step);
  }
}

// --- given up ---------------------------------------------------------------------------------------

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

Step StateMachine::on(const CancelWaiting& command) {
  constexpr const char* where = "CancelWaiting";
  const LeaseRow* lease = find_lease(command.lease);
  if (lease == nullptr) {
    return refuse(
        ErrorCode::not_found, where,
        "there is no " + request_name(command.lease) + "; `terrace queue list` shows those that wait");
  }
  if (lease->phase == LeasePhase::pending) {
    return refuse(
        ErrorCode::busy, where,
        request_name(command.lease) + " does not wait: it has found room, and its lease is being made");
  }
  if (lease->phase != LeasePhase::waiting) {
    return refuse(ErrorCode::busy, where,
                  lease_name(command.lease) + " does not wait: it was granted; `terrace lease revoke " +
                      std::to_string(command.lease.value) + "` takes it back");
  }
  if (!valid_text(command.reason, limits::reason_bytes_max))
    return refuse(ErrorCode::invalid_argument, where, "a reason is printable text of at most 255 bytes");
  const LeaseRow row = *lease;
  Step step;
  refuse_waiting(row.id,
                 refusal(ErrorCode::cancelled, "Grant",
                         request_name(row.id) + " was taken out of the queue of pool " +
                             find_pool(row.pool)->name + (command.by.empty() ? "" : " by " + command.by) +
                             (command.reason.empty() ? "" : ": " + command.reason)),
                 step);
  serve_waiting(row.pool, step);
  step.reply = Reply{LeaseReply{row}};
  return step;
}

}  // namespace terrace::daemon
