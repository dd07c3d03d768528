// SPDX-License-Identifier: Apache-2.0
// The operator's interface: grants that wait for room.
#include <algorithm>

#include "daemon/rpc/admin/admin.h"

namespace terrace::daemon {
namespace {

struct InQueue {
  const LeaseRow* lease;
  uint32_t place;  // from 1
};

// By pool, by name, and then by place; without those of other tenants.
std::vector<InQueue> those_that_wait(const StateMachine& state, const PoolRow* only,
                                     const std::string& tenant) {
  std::vector<const PoolRow*> pools;
  for (const auto& [id, pool] : state.pools())
    if ((only == nullptr || only->id == id) && state.has_waiting(id)) pools.push_back(&pool);
  std::sort(pools.begin(), pools.end(), [](const PoolRow* a, const PoolRow* b) { return a->name < b->name; });
  std::vector<InQueue> found;
  for (const PoolRow* pool : pools) {
    uint32_t place = 0;
    for (const LeaseId id : state.queue_of(pool->id)->in_order()) {
      const LeaseRow* lease = state.find_lease(id);
      ++place;
      if (tenant.empty() || lease->tenant == tenant) found.push_back({lease, place});
    }
  }
  return found;
}

void write_waiting(rpc::WaitingGrant::Builder out, const InQueue& one, Service& service) {
  const LeaseRow& lease = *one.lease;
  const StateMachine& state = service.engine().state();
  const WaitingQueue& queue = *state.queue_of(lease.pool);
  const uint64_t now_ns = service.engine().now_ns();
  out.setLease(lease.id.value);
  out.setPool(state.find_pool(lease.pool)->name);
  out.setTenant(lease.tenant);
  out.setHost(lease.host);
  out.setLabel(lease.label);
  out.setBytes(lease.bytes);
  out.setWaitedNs(now_ns - std::min(now_ns, queue.since_ns(lease.id, lease.tenant)));
  out.setEndsInNs(lease.deadline_ns - std::min(lease.deadline_ns, now_ns));
  out.setPlace(one.place);
  out.setTurn(queue.held() && queue.turn() == lease.id);
  out.setCalls(static_cast<uint32_t>(service.waiting_grants().calls(lease)));
}

}  // namespace

// At most limits::waiting_max of some hundred bytes: one message.
kj::Promise<void> AdminServer::queue(QueueContext context) {
  return answer_page(*connection_, context, [this](QueueContext& c) {
    const std::string name = read_text(c.getParams().getPool());
    const PoolRow* pool = name.empty() ? nullptr : state().find_pool(name);
    if (!name.empty() && pool == nullptr) {
      refuse(c, Error{.code = ErrorCode::not_found,
                      .where = "queue",
                      .detail = "there is no pool '" + shown(name) + "'"});
      return;
    }
    const auto found = those_that_wait(state(), pool, read_text(c.getParams().getTenant()));
    auto out = c.getResults().initWaiting(static_cast<uint32_t>(found.size()));
    for (uint32_t i = 0; i < found.size(); ++i) write_waiting(out[i], found[i], service());
  });
}

kj::Promise<void> AdminServer::cancelWaiting(CancelWaitingContext context) {
  const auto params = context.getParams();
  CancelWaiting request{LeaseId{params.getLease()}, read_text(params.getReason()), connection_->name(),
                        now_ns()};
  return command(context, std::move(request), [](CancelWaitingContext&, LeaseReply&) {});
}

}  // namespace terrace::daemon
