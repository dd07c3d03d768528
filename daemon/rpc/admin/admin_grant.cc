// SPDX-License-Identifier: Apache-2.0
// The operator's interface: a grant for a tenant by somebody who will not hold it, as from a browser.
#include "daemon/rpc/admin/admin.h"
#include "daemon/rpc/ended_holders.h"

namespace terrace::daemon {
namespace {

Error unusable(std::string detail) {
  return Error{.code = ErrorCode::invalid_argument, .where = "grant", .detail = std::move(detail)};
}

}  // namespace

Result<Grant> AdminServer::read_grant(rpc::AdminGrant::Reader asked) {
  Grant command;
  command.pool = read_text(asked.getPool());
  const auto& pools = state().pools();
  if (command.pool.empty() && pools.size() == 1) command.pool = pools.begin()->second.name;
  command.tenant = read_text(asked.getTenant());
  if (command.tenant.empty()) command.tenant = service().tenant_of(connection_->peer).value_or("");
  if (command.tenant.empty())
    return unusable("name a tenant: " + connection_->peer.text() + " has none of its own");
  // As in a session: what a tenant may have is its quota, and who may use that up is the tenant.
  TERRACE_RETURN_IF_ERROR(service().may_act_for(connection_->peer, command.tenant));
  command.host = service().options().host;
  command.label = read_text(asked.getLabel());
  command.bytes = asked.getBytes();
  command.mode = static_cast<LeaseMode>(asked.getMode());
  command.persistent = asked.getPersistent();
  command.ttl_ns = asked.getTtlNs();
  command.request_high = asked.getRequestHigh();
  command.request_low = asked.getRequestLow();
  command.movable = asked.getMovable();
  command.on_fence = static_cast<OnFence>(asked.getOnFence());
  command.wait_ns = asked.getWaitNs();
  command.pins_outlast = service().pins_outlast(state().find_pool(command.pool));
  command.now_ns = now_ns();
  return command;
}

kj::Promise<void> AdminServer::grant(GrantContext context) {
  KJ_IF_MAYBE (slot, admit(*connection_, context)) {
    Result<Grant> command = read_grant(context.getParams().getGrant());
    if (command.ok() && command->wait_ns != 0)
      command = unusable("an operator's grant does not wait in the queue; ask again once there is room");
    if (!command.ok()) {
      if (command.error().code == ErrorCode::permission_denied) deny(command.error());
      refuse(context, command.error());
      return kj::READY_NOW;
    }
    auto submit = [this, context](Grant wanted) mutable {
      wanted.now_ns = now_ns();
      return service()
          .waiting_grants()
          .submit(std::move(wanted), connection_->actor())
          .answer.then([this, context](Result<LeaseReply> granted) mutable {
            if (!granted.ok()) return refuse(context, granted.error());
            write_lease(context.getResults().initInfo(), granted->lease, service(), false);
          });
    };
    const LeaseRow* namesake = state().find_lease_by_label(command->tenant, command->label);
    if (namesake == nullptr) return submit(std::move(command).value()).attach(kj::mv(*slot));
    return service()  // whose holder has ended a moment ago, perhaps
        .ended_holders()
        .settle(namesake->id)
        .then([submit, wanted = std::move(command).value()]() mutable { return submit(std::move(wanted)); })
        .attach(kj::mv(*slot));
  }
  return kj::READY_NOW;
}

}  // namespace terrace::daemon
