// The operator's interface: pools and their compaction.
#include "daemon/rpc/admin.h"
#include "daemon/rpc/moves.h"

namespace terrace::daemon {

kj::Promise<void> AdminServer::createPool(CreatePoolContext context) {
  const auto params = context.getParams();
  CreatePool create;
  create.name = read_text(params.getName());
  create.placement = read_placement(params.getPlacement());
  create.stripe_bytes = params.getStripeBytes();
  create.coherence = read_coherence(params.getCoherence());
  for (const auto serial : params.getDevices()) create.device_serials.push_back(read_text(serial));
  return command(context, std::move(create), [this](CreatePoolContext& c, Reply& reply) {
    write_pool(c.getResults().initPool(), std::get<PoolReply>(reply).pool, service());
  });
}

kj::Promise<void> AdminServer::setPoolCoherence(SetPoolCoherenceContext context) {
  const auto params = context.getParams();
  const SetPoolCoherence request{read_text(params.getName()), read_coherence(params.getCoherence())};
  return command(context, request, [this](SetPoolCoherenceContext& c, Reply& reply) {
    write_pool(c.getResults().initPool(), std::get<PoolReply>(reply).pool, service());
  });
}

kj::Promise<void> AdminServer::addDevice(AddDeviceContext context) {
  const auto params = context.getParams();
  return command(context, AddDevice{read_text(params.getPool()), read_text(params.getSerial())},
                 [this](AddDeviceContext& c, Reply& reply) {
                   write_pool(c.getResults().initPool(), std::get<PoolReply>(reply).pool, service());
                 });
}

kj::Promise<void> AdminServer::pools(PoolsContext context) {
  return query(context, [this](PoolsContext& c) {
    write_pools(c.getResults().initPools(static_cast<uint32_t>(state().pools().size())), service());
  });
}

kj::Promise<void> AdminServer::deletePool(DeletePoolContext context) {
  return command(context, DeletePool{read_text(context.getParams().getName())},
                 [](DeletePoolContext&, Reply&) {});
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
  return command(context, request, [this, name](CompactContext& c, Reply&) {
    if (const PoolRow* pool = state().find_pool(name))
      write_compaction(c.getResults().initCompaction(), *pool, service());
  });
}

kj::Promise<void> AdminServer::endCompaction(EndCompactionContext context) {
  return command(context, CompactPool{read_text(context.getParams().getPool()), 0, 0, now_ns()},
                 [](EndCompactionContext&, Reply&) {});
}

}  // namespace terrace::daemon
