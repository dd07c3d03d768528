// SPDX-License-Identifier: Apache-2.0
// The operator's interface: pools and their compaction.
#include "daemon/rpc/admin/admin.h"
#include "daemon/rpc/admin/drain_progress.h"

namespace terrace::daemon {

// What is said of a pool's memory is looked at before anything of it is granted. Others may look at the same
// devices meanwhile, so that they are asked of once more in the turn in which the command is submitted.
template <typename Context, Asked C>
kj::Promise<void> AdminServer::command_of_coherent(Context context, std::vector<std::string> serials,
                                                   const std::string& pool, C request) {
  KJ_IF_MAYBE (slot, daemon::admit(*connection_, context)) {
    return service()
        .litmus_runs()
        .admit(serials, shown(pool), connection_->caller())
        .attach(kj::mv(*slot))
        .then([this, context, serials, pool,
               request = std::move(request)](Status looked) mutable -> kj::Promise<void> {
          if (looked.ok()) looked = service().litmus_runs().may_join(serials, shown(pool));
          if (looked.ok()) return pool_command(context, std::move(request));
          refuse(context, looked.error());
          return kj::READY_NOW;
        });
  }
  return kj::READY_NOW;
}

kj::Promise<void> AdminServer::createPool(CreatePoolContext context) {
  const auto params = context.getParams();
  CreatePool create;
  create.name = read_text(params.getName());
  create.placement = static_cast<Placement>(params.getPlacement());
  create.stripe_bytes = params.getStripeBytes();
  create.coherence = static_cast<PoolCoherence>(params.getCoherence());
  create.trust = static_cast<TenantTrust>(params.getTrust());
  for (const auto serial : params.getDevices()) create.device_serials.push_back(read_text(serial));
  for (const std::string& serial : create.device_serials) {
    if (const Status status = service().litmus_runs().may_change(serial); !status.ok()) {
      refuse(context, status.error());
      return kj::READY_NOW;
    }
  }
  if (create.coherence != PoolCoherence::coherent) return pool_command(context, std::move(create));
  return command_of_coherent(context, create.device_serials, create.name, create);
}

kj::Promise<void> AdminServer::setPoolCoherence(SetPoolCoherenceContext context) {
  const auto params = context.getParams();
  const SetPoolCoherence request{read_text(params.getName()),
                                 static_cast<PoolCoherence>(params.getCoherence())};
  const PoolRow* pool = state().find_pool(request.pool);
  if (pool != nullptr && request.coherence == PoolCoherence::coherent) {
    if (const Status status = service().litmus_runs().may_be_coherent(*pool); !status.ok()) {
      refuse(context, status.error());
      return kj::READY_NOW;
    }
  }
  return pool_command(context, request);
}

kj::Promise<void> AdminServer::setPoolTrust(SetPoolTrustContext context) {
  const auto params = context.getParams();
  return pool_command(context,
                      SetPoolTrust{read_text(params.getName()), static_cast<TenantTrust>(params.getTrust())});
}

kj::Promise<void> AdminServer::addDevice(AddDeviceContext context) {
  const auto params = context.getParams();
  const AddDevice request{read_text(params.getPool()), read_text(params.getSerial()), now_ns()};
  if (const Status status = service().litmus_runs().may_change(request.serial); !status.ok()) {
    refuse(context, status.error());
    return kj::READY_NOW;
  }
  const PoolRow* pool = state().find_pool(request.pool);
  if (pool == nullptr || pool->coherence != PoolCoherence::coherent) return pool_command(context, request);
  return command_of_coherent(context, {request.serial}, request.pool, request);
}

kj::Promise<void> AdminServer::pools(PoolsContext context) {
  return query(context, [this](PoolsContext& c) {
    write_pools(c.getResults().initPools(static_cast<uint32_t>(state().pools().size())), service());
  });
}

kj::Promise<void> AdminServer::deletePool(DeletePoolContext context) {
  return command(context, DeletePool{read_text(context.getParams().getName())},
                 [](DeletePoolContext&, Done&) {});
}

kj::Promise<void> AdminServer::compact(CompactContext context) {
  const auto params = context.getParams();
  const std::string name = read_text(params.getPool());
  if (params.getRunBytes() == 0) {
    return query(context, [this, name](CompactContext& c) {
      if (const PoolRow* pool = state().find_pool(name)) {
        write_compaction(c.getResults().initCompaction(), *pool, service());
      } else {
        refuse(c, Error{.code = ErrorCode::not_found,
                        .where = "compact",
                        .detail = "there is no pool '" + shown(name) + "'"});
      }
    });
  }
  const uint64_t timeout_ns = params.getTimeoutNs() == 0
                                  ? limits::compaction_ns_max
                                  : std::min(params.getTimeoutNs(), limits::compaction_ns_max);
  const CompactPool request{name, params.getRunBytes(), now_ns() + timeout_ns, now_ns()};
  return command(context, request, [this, name](CompactContext& c, CompactionReply&) {
    if (const PoolRow* pool = state().find_pool(name))
      write_compaction(c.getResults().initCompaction(), *pool, service());
  });
}

kj::Promise<void> AdminServer::endCompaction(EndCompactionContext context) {
  return command(context, CompactPool{read_text(context.getParams().getPool()), 0, 0, now_ns()},
                 [](EndCompactionContext&, CompactionReply&) {});
}

}  // namespace terrace::daemon
