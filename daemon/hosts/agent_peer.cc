// SPDX-License-Identifier: Apache-2.0
#include "daemon/hosts/agent_peer.h"

#include <algorithm>

#include "daemon/log/log.h"
#include "daemon/rpc/answers.h"
#include "daemon/state/names.h"
#include "daemon/traces/trace_context.h"

namespace terrace::daemon {
namespace {

Error ended_error(const char* where) {
  return Error{
      .code = ErrorCode::unavailable, .where = where, .detail = "this connection does not count any more"};
}

}  // namespace

AgentPeer::AgentPeer(Agents& agents, std::string host, std::string address, CertificateFacts certificate)
    : agents_(agents),
      host_(std::move(host)),
      address_(std::move(address)),
      certificate_(std::move(certificate)),
      closing_(kj::newPromiseAndFulfiller<void>()) {}

void AgentPeer::close(const std::string& reason) {
  if (!closing_.fulfiller->isWaiting()) return;
  agents_.log("host " + host_ + " at " + address_ + ": connection closed, " + reason);
  closing_.fulfiller->fulfill();
}

// Sessions first: their holders are gone, and what they hold is free to be attached again.
void AgentPeer::end() {
  if (std::exchange(ended_, true)) return;
  for (Session& session : sessions_) session.connection->end();
  sessions_.clear();
  agents_.disconnected(*this);
  agent_ = nullptr;
}

std::vector<WireExtent> AgentPeer::wire_extents(const std::vector<Extent>& extents) const {
  std::vector<WireExtent> wire;
  for (const Extent& extent : extents) {
    const DeviceRow* device = agents_.service_->engine().state().find_device(extent.device);
    if (device == nullptr) continue;
    wire.push_back({device->serial, extent.first_granule * device->granule_bytes,
                    extent.granules * device->granule_bytes});
  }
  return wire;
}

std::vector<SeenDevice> AgentPeer::adopted() const {
  std::vector<SeenDevice> all;
  for (const auto& [id, device] : agents_.service_->engine().state().devices()) {
    SeenDevice known;
    known.serial = device.serial;
    known.backend = device.backend;
    known.capacity_bytes = device.capacity_bytes;
    known.granule_bytes = device.granule_bytes;
    all.push_back(std::move(known));
  }
  return all;
}

std::vector<WireObject> AgentPeer::assigned() const {
  std::vector<WireObject> objects;
  for (const auto& [id, lease] : agents_.service_->engine().state().leases()) {
    for (const std::string& object : {lease.object, lease.next_object})
      if (object_host(object) == host_)
        objects.push_back({std::string(object_on_host(object)), lease.bytes, wire_extents(lease.extents)});
  }
  for (const auto& [id, view] : agents_.service_->engine().state().views()) {
    const LeaseRow* lease = agents_.service_->engine().state().find_lease(lease_of(id));
    if (lease != nullptr && object_host(view.object) == host_)
      objects.push_back({std::string(object_on_host(view.object)), lease->bytes, wire_extents(lease->extents)});
  }
  return objects;
}

Status AgentPeer::begin_registration(uint64_t instance, std::string version, std::vector<SeenDevice> devices,
                                     rpc::HostAgent::Client agent) {
  if (ended_) return ended_error("register");
  if (instance == 0 || registered())
    return Error{
        .code = ErrorCode::invalid_argument, .where = "register", .detail = "register once, with an instance"};
  TERRACE_RETURN_IF_ERROR(agents_.may_register(host_, *this, instance));
  instance_ = instance;
  version_ = std::move(version);
  devices_ = std::move(devices);
  agent_ = kj::mv(agent);
  return {};
}

kj::Promise<Status> AgentPeer::report(std::vector<WireObject> objects, const HostFencing& fencing) {
  if (ended_ || !registered()) return Status(ended_error("report"));
  agents_.host(host_).fencing = fencing;
  if (std::exchange(reported_, true))
    return Status(Error{.code = ErrorCode::invalid_argument, .where = "report", .detail = "reported already"});
  const uint64_t received_ns = agents_.now_ns();
  const auto observed = std::make_shared<std::map<std::string, uint64_t>>();
  for (WireObject& object : objects) {
    if (object.handed_out && object.bytes != 0) handed_out_.insert(object.name);
    (*observed)[std::move(object.name)] = object.bytes;
  }
  constexpr int rounds_max = 8;
  return agents_.settle(*this, observed, received_ns, rounds_max);
}

Status AgentPeer::heartbeat(std::vector<SeenDevice> devices, const HostFencing& fencing) {
  if (ended_) return ended_error("heartbeat");
  Agents::Host& known = agents_.host(host_);
  const uint64_t now_ns = agents_.now_ns();
  if (known.peer != this || !known.count.heard(now_ns)) {
    return Error{.code = ErrorCode::lease_expired,
                 .where = "heartbeat",
                 .detail = "the host lease of " + host_ + " has run out; its memory may be another's by now"};
  }
  known.heard_ns = now_ns;
  known.devices = std::move(devices);
  known.fencing = fencing;
  return {};
}

// Only for the one connection that counts: whoever stole a certificate cannot prolong it while its host is here.
Result<std::string> AgentPeer::renew_certificate() {
  if (ended_ || agents_.host(host_).peer != this) return ended_error("renewCertificate");
  TERRACE_ASSIGN_OR_RETURN(std::string pem, agents_.credentials_->renew(newest_certificate()));
  TERRACE_ASSIGN_OR_RETURN(renewed_, parse_facts(pem));
  agents_.service_->engine().note("renew-certificate", "host " + host_, "serial " + renewed_.serial, Actor{});
  log::info("the certificate of host {} was renewed: {}", host_, shown_certificate(renewed_));
  return pem;
}

Result<rpc::TenantSession::Client> AgentPeer::open_session(const std::string& tenant, const std::string& client,
                                                           uint32_t uid, rpc::LeaseListener::Client listener,
                                                           const std::string& trace) {
  constexpr const char* where = "openSession";
  if (ended_ || agents_.host(host_).peer != this) return ended_error(where);
  if (!valid_name(tenant) || !valid_text(client, limits::label_bytes_max))
    return Error{
        .code = ErrorCode::invalid_argument, .where = where, .detail = "an impossible tenant or client"};
  if (Status allowed = agents_.may_act_for(host_, tenant); !allowed.ok()) {
    Error error = allowed.error();
    error.detail += " (uid " + std::to_string(uid) + " there)";
    return error;
  }
  sessions_.remove_if([](const Session& one) { return one.connection->parts.empty(); });
  if (sessions_.size() >= agent_sessions_max) {
    return Error{
        .code = ErrorCode::limit_exceeded,
        .where = where,
        .detail = "host " + host_ + " has " + std::to_string(agent_sessions_max) + " sessions open already"};
  }
  Service& service = *agents_.service_;
  auto connection = kj::refcounted<Connection>(service, PeerCredentials{agents_.host(host_).uid, 0}, host_);
  connection->client_name = client;
  connection->greeted = true;
  connection->trace = parse_traceparent(trace);
  auto session = make_tenant_session(kj::addRef(*connection), tenant, host_, kj::mv(listener));
  auto closing = connection->on_close().then([&ended = *connection] { ended.end(); }).eagerlyEvaluate(nullptr);
  sessions_.push_back(Session{kj::mv(connection), kj::mv(closing)});
  return session;
}

// --- capabilities -------------------------------------------------------------------------------------

namespace {

// Shown, and asked before another lease is handed to that host: what is not true harms itself only. An older agent says
// nothing, which reads as zeros; what cannot be is taken for nothing, too.
template <typename Params>
HostFencing fencing_of(Params params) {
  const auto in = params.getFencing();
  const HostFencing told{in.getFenceNs(), in.getMarginNs(), in.getMarginMaxNs()};
  constexpr uint64_t year_ns = 365ull * 86400 * ns_per_s;
  return std::max({told.fence_ns, told.margin_ns, told.margin_max_ns}) < year_ns ? told : HostFencing{};
}

class AgentServiceServer final : public rpc::AgentService::Server {
 public:
  explicit AgentServiceServer(kj::Own<AgentPeer> peer) : peer_(kj::mv(peer)) {}

  kj::Promise<void> heartbeat(HeartbeatContext context) override {
    auto devices = read_devices(context.getParams().getDevices());
    Status status = devices.ok() ? peer_->heartbeat(std::move(*devices), fencing_of(context.getParams()))
                                 : Status(devices.error());
    if (!status.ok()) {
      refuse(context, status.error());
      peer_->close(status.error().detail);
      return kj::READY_NOW;
    }
    const std::vector<SeenDevice> adopted = peer_->adopted();
    write_devices(context.getResults().initAdopted(static_cast<uint32_t>(adopted.size())), adopted);
    return kj::READY_NOW;
  }

  kj::Promise<void> renewCertificate(RenewCertificateContext context) override {
    const auto renewed = peer_->renew_certificate();
    if (renewed.ok()) {
      context.getResults().setCertificate(*renewed);
    } else {
      refuse(context, renewed.error());
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> openSession(OpenSessionContext context) override {
    const auto params = context.getParams();
    auto session =
        peer_->open_session(read_text(params.getTenant()), read_text(params.getClient()), params.getUid(),
                            params.getListener(), read_text(params.getTraceparent()));
    if (session.ok()) {
      context.getResults().setSession(kj::mv(*session));
    } else {
      refuse(context, session.error());
    }
    return kj::READY_NOW;
  }

 private:
  kj::Own<AgentPeer> peer_;
};

class RegistrationServer final : public rpc::Registration::Server {
 public:
  explicit RegistrationServer(kj::Own<AgentPeer> peer) : peer_(kj::mv(peer)) {}

  kj::Promise<void> report(ReportContext context) override {
    context.allowCancellation();
    auto objects = read_objects(context.getParams().getObjects());
    if (!objects.ok()) {
      refuse(context, objects.error());
      return kj::READY_NOW;
    }
    return peer_->report(std::move(*objects), fencing_of(context.getParams()))
        .then([this, context](Status status) mutable {
          if (status.ok()) {
            context.getResults().setService(kj::heap<AgentServiceServer>(kj::addRef(*peer_)));
          } else {
            refuse(context, status.error());
            peer_->close(status.error().detail);
          }
        });
  }

 private:
  kj::Own<AgentPeer> peer_;
};

class AgentGatewayServer final : public rpc::AgentGateway::Server {
 public:
  explicit AgentGatewayServer(kj::Own<AgentPeer> peer) : peer_(kj::mv(peer)) {}

  kj::Promise<void> enroll(EnrollContext context) override {
    const auto params = context.getParams();
    if (Status status = check_version(params); !status.ok()) return turn_away(context, status.error());
    auto devices = read_devices(params.getDevices());
    if (!devices.ok()) return turn_away(context, devices.error());
    std::string version = shown(read_text(params.getSoftware()));
    Status begun = peer_->begin_registration(params.getInstance(), std::move(version), std::move(*devices),
                                             params.getAgent());
    if (!begun.ok()) return turn_away(context, begun.error());
    auto results = context.getResults();
    results.setVersion(std::min<uint32_t>(params.getNewest(), rpc::AGENT_PROTOCOL_VERSION));
    results.setHost(peer_->host());
    results.setHostLeaseNs(peer_->agents().terms().length_ns);
    results.setStore(peer_->agents().store_text());
    const std::vector<SeenDevice> adopted = peer_->adopted();
    write_devices(results.initAdopted(static_cast<uint32_t>(adopted.size())), adopted);
    const std::vector<WireObject> assigned = peer_->assigned();
    auto objects = results.initObjects(static_cast<uint32_t>(assigned.size()));
    for (uint32_t i = 0; i < assigned.size(); ++i)
      write_object(objects[i], assigned[i].name, assigned[i].bytes, assigned[i].extents);
    results.setRegistration(kj::heap<RegistrationServer>(kj::addRef(*peer_)));
    return kj::READY_NOW;
  }

 private:
  static Status check_version(EnrollParams::Reader params) {
    if (params.getOldest() <= rpc::AGENT_PROTOCOL_VERSION &&
        params.getNewest() >= rpc::AGENT_PROTOCOL_VERSION_OLDEST)
      return {};
    return Error{.code = ErrorCode::version_mismatch,
                 .where = "register",
                 .detail =
                     "this manager speaks another protocol with agents than this agent; install matching "
                     "versions"};
  }

  kj::Promise<void> turn_away(EnrollContext& context, const Error& error) {
    refuse(context, error);
    peer_->agents().log("host " + peer_->host() + " at " + peer_->address() + " was refused: " + error.detail);
    return kj::READY_NOW;
  }

  kj::Own<AgentPeer> peer_;
};

}  // namespace

rpc::AgentGateway::Client make_agent_gateway(kj::Own<AgentPeer> peer) {
  return kj::heap<AgentGatewayServer>(kj::mv(peer));
}

}  // namespace terrace::daemon
