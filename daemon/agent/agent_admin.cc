// SPDX-License-Identifier: Apache-2.0
#include "daemon/agent/agent_admin.h"

#include <capnp/dynamic.h>

#include <ctime>

#include "daemon/agent/local_service.h"
#include "daemon/log/log.h"
#include "daemon/rpc/admin/rights.h"
#include "daemon/rpc/answers.h"
#include "daemon/rpc/server_info.h"

namespace terrace::daemon {

AgentHealth::AgentHealth(AgentPlaces places, HealthLimits limits, const Uplink& uplink,
                         const Credentials& credentials, const Clock& clock, kj::Timer& timer)
    : places_(std::move(places)),
      limits_(limits),
      uplink_(uplink),
      credentials_(credentials),
      clock_(clock),
      timer_(timer),
      started_ns_(clock.now_ns()),
      engine_(limits),
      tasks_(*this) {}

void AgentHealth::taskFailed(kj::Exception&& exception) {
  log::error("a look at the agent's health failed: {}", exception.getDescription().cStr());
}

void AgentHealth::begin() {
  tasks_.add(look_again());
}

kj::Promise<void> AgentHealth::look_again() {
  look();
  return timer_.afterDelay(static_cast<int64_t>(limits_.interval_ns) * kj::NANOSECONDS).then([this] {
    return look_again();
  });
}

const HealthEngine& AgentHealth::look() {
  const uint64_t now_ns = clock_.now_ns();
  log_health_changes(engine_.look(gather(), now_ns), now_ns);
  return engine_;
}

void AgentHealth::note_guard(const Status& status) {
  guard_ = status;
}

uint64_t AgentHealth::host_lease_left_ns() const {
  const uint64_t until_ns = uplink_.promised_until_ns(), now_ns = clock_.now_ns();
  return until_ns > now_ns ? until_ns - now_ns : 0;
}

std::vector<CertificateEnd> AgentHealth::certificate_ends() const {
  return credentials_.ends(static_cast<int64_t>(::time(nullptr)));
}

HealthView AgentHealth::gather() const {
  HealthView view;
  view.agent = HealthView::Agent{.manager = uplink_.manager(),
                                 .connected = uplink_.connected(),
                                 .trouble = uplink_.trouble(),
                                 .lease_ns = uplink_.host_lease_ns(),
                                 .lease_left_ns = host_lease_left_ns(),
                                 .guarded = guard_.ok(),
                                 .guard_trouble = guard_.ok() ? std::string() : guard_.error().detail};
  for (const CertificateEnd& end : certificate_ends())
    view.certificates.push_back({end.what, end.name, end.days_left, end.soon});
  return view;
}

void AgentHealth::write(rpc::AgentInfo::Builder out, uint32_t sessions) const {
  out.setHost(uplink_.host());
  out.setManager(uplink_.manager());
  out.setConnected(uplink_.connected());
  if (!uplink_.connected()) out.setTrouble(uplink_.trouble());
  out.setHostLeaseLeftNs(host_lease_left_ns());
  out.setSessions(sessions);
  out.setGuarded(guard_.ok());
}

namespace {

class AgentAdmin final : public rpc::Admin::Server {
 public:
  AgentAdmin(kj::Own<LocalConnection> connection, AgentHealth& health)
      : connection_(kj::mv(connection)), health_(health) {}

  DispatchCallResult dispatchCall(uint64_t interface_id, uint16_t method_id,
                                  capnp::CallContext<capnp::AnyPointer, capnp::AnyPointer> context) override {
    const AdminMethod method = find_admin_method(interface_id, method_id);
    const std::string name = method.name == nullptr ? "" : method.name;
    if (name.empty() || name == "status" || name == "health")
      return rpc::Admin::Server::dispatchCall(interface_id, method_id, context);
    // Every method's results have `error`: unit_rpc looks at them all.
    auto results = context.getResults().initAs<capnp::DynamicStruct>(method.schema.getResultType());
    write_error(results.init("error").as<capnp::DynamicStruct>().as<rpc::Error>(),
                connection_->service.managers_business(method.name));
    return {kj::Promise<void>(kj::READY_NOW), false};
  }

  kj::Promise<void> status(StatusContext context) override {
    KJ_IF_MAYBE (slot, admit(*connection_, context)) {
      const CallSlot held = kj::mv(*slot);
      auto server = context.getResults().initServer();
      write_process(server, connection_->service, health_.started_ns());
      server.setRuntimeDirectory(health_.places().runtime_directory);
      server.setObjectDirectory(health_.places().object_directory);
      server.setHugePages(health_.places().memory);
      write_certificates(server, health_.certificate_ends());
      health_.write(server.initAgent(), connection_->service.session_count());
      write_health_summary(context.getResults().initHealth(), health_.look());
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> health(HealthContext context) override {
    KJ_IF_MAYBE (slot, admit(*connection_, context)) {
      const CallSlot held = kj::mv(*slot);
      write_health_findings(context.getResults(), health_.look(), connection_->service.now_ns());
    }
    return kj::READY_NOW;
  }

 private:
  kj::Own<LocalConnection> connection_;
  AgentHealth& health_;
};

}  // namespace

rpc::Admin::Client make_agent_admin(kj::Own<LocalConnection> connection, AgentHealth& health) {
  return kj::heap<AgentAdmin>(kj::mv(connection), health);
}

}  // namespace terrace::daemon
