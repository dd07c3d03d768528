// The only file of the CLI's verbs that knows kj and Cap'n Proto: exceptions and readers stop here.
#include "cli/admin_client.h"

#include <capnp/rpc-twoparty.h>
#include <fcntl.h>
#include <kj/async-io.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/base/clock.h"
#include "core/base/limits.h"
#include "core/base/prng.h"
#include "core/base/unique_fd.h"
#include "core/schema/terrace.capnp.h"
#include "libclient/session/wire.h"

namespace terrace::cli {
namespace {

constexpr uint32_t leases_per_call = 256;  // about 80 KiB of reply; keeps one call short for the daemon

Error no_daemon(const std::string& path, int os_errno) {
  return Error{
      .code = ErrorCode::unavailable,
      .os_errno = os_errno,
      .where = "AdminClient::connect",
      .detail = "no daemon answers at " + path +
                "; start one with 'terrace daemon start', or name its socket with --socket or TERRACE_SOCKET"};
}

Result<UniqueFd> connect_socket(const std::string& path, uint64_t timeout_ns) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path) || path.find('\0') != std::string::npos) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "AdminClient::connect",
                 .detail = "'" + path + "' cannot be a unix socket's path (1 to " +
                           std::to_string(sizeof(address.sun_path) - 1) + " bytes)"};
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return os_error(errno, "AdminClient::connect", "cannot make a socket");
  // A daemon that is stopped (SIGSTOP) with a full backlog would otherwise hold us for ever.
  const timeval limit{.tv_sec = static_cast<time_t>(timeout_ns / ns_per_s),
                      .tv_usec = static_cast<suseconds_t>(timeout_ns % ns_per_s / ns_per_us)};
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  while (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno == EINTR) continue;
    if (errno == EACCES || errno == EPERM)
      return os_error(errno, "AdminClient::connect", "this user may not connect to " + path);
    return no_daemon(path, errno);
  }
  return fd;
}

// A grant's session must name a listener; a command that ends at once has nobody to tell.
class SilentListener final : public rpc::LeaseListener::Server {
 protected:
  kj::Promise<void> revoking(RevokingContext) override { return kj::READY_NOW; }
  kj::Promise<void> fenced(FencedContext) override { return kj::READY_NOW; }
};

std::string host_name() {
  char name[256] = "";
  if (gethostname(name, sizeof(name) - 1) != 0) return "localhost";
  return name;
}

ServerStatus read_server(rpc::ServerInfo::Reader reader) {
  ServerStatus server;
  using client::text_from_wire;
  server.version = text_from_wire(reader.getVersion());
  server.boot_id = text_from_wire(reader.getBootId());
  server.runtime_directory = text_from_wire(reader.getRuntimeDirectory());
  server.state_file = text_from_wire(reader.getStateFile());
  server.object_directory = text_from_wire(reader.getObjectDirectory());
  server.huge_pages = text_from_wire(reader.getHugePages());
  server.recovered = text_from_wire(reader.getRecovered());
  server.pid = reader.getPid();
  server.uptime_ns = reader.getUptimeNs();
  server.store_commits = reader.getStoreCommits();
  server.commands_applied = reader.getCommandsApplied();
  server.connections = reader.getConnections();
  server.failpoints = reader.getFailpoints();
  return server;
}

DeviceStatus read_device(rpc::DeviceInfo::Reader reader) {
  using client::text_from_wire;
  DeviceStatus device;
  device.serial = text_from_wire(reader.getSerial());
  device.backend = text_from_wire(reader.getBackend());
  device.pool = text_from_wire(reader.getPool());
  device.detail = text_from_wire(reader.getDetail());
  device.capacity_bytes = reader.getCapacityBytes();
  device.granule_bytes = reader.getGranuleBytes();
  device.free_bytes = reader.getFreeBytes();
  device.adopted = reader.getAdopted();
  device.present = reader.getPresent();
  return device;
}

}  // namespace

// Members in the order in which they depend on each other; destroyed in reverse.
struct AdminClient::Impl {
  Impl(UniqueFd fd, std::string socket_path, uint64_t timeout)
      : path(std::move(socket_path)),
        call_timeout_ns(timeout),
        io(kj::setupAsyncIo()),
        stream(io.lowLevelProvider->wrapUnixSocketFd(
            fd.release(),
            kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP | kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC)),
        client(*stream, limits::rpc_fds_per_message_max),
        gateway(client.bootstrap().castAs<rpc::Gateway>()) {}

  std::string path;
  uint64_t call_timeout_ns;
  kj::AsyncIoContext io;
  kj::Own<kj::AsyncCapabilityStream> stream;
  capnp::TwoPartyClient client;
  rpc::Gateway::Client gateway;
  rpc::Admin::Client admin = nullptr;

  // Sends `request`, waits within the limit, and gives what `read` makes of the reply, or the error in it.
  // Capabilities can be taken out of the reply by `read`: it gets the whole response.
  template <typename Params, typename Results, typename Read>
  auto call(capnp::Request<Params, Results> request, const char* where, Read read)
      -> Result<decltype(read(std::declval<capnp::Response<Results>&>()))> {
    bool timed_out = false;
    try {
      auto limit = io.provider->getTimer()
                       .afterDelay(static_cast<int64_t>(call_timeout_ns) * kj::NANOSECONDS)
                       .then([&timed_out]() -> kj::Promise<capnp::Response<Results>> {
                         timed_out = true;
                         return KJ_EXCEPTION(OVERLOADED, "time limit");
                       });
      kj::Promise<capnp::Response<Results>> reply = request.send();
      capnp::Response<Results> response = reply.exclusiveJoin(kj::mv(limit)).wait(io.waitScope);
      TERRACE_RETURN_IF_ERROR(client::status_from_wire(response.getError(), where));
      return read(response);
    } catch (const kj::Exception& exception) {
      if (timed_out) {
        return Error{
            .code = ErrorCode::unavailable,
            .where = where,
            .detail = "the daemon at " + path + " did not answer within " + format_duration(call_timeout_ns) +
                      "; if it was asked for a change, that may still happen (--timeout gives it longer)"};
      }
      Error error = client::error_from_kj(exception, where);
      if (exception.getType() == kj::Exception::Type::DISCONNECTED) {
        error.detail = "the daemon at " + path +
                       " closed the connection before it answered; if it was asked for a change, that may have "
                       "happened or not";
      }
      return error;
    }
  }

  // For replies that carry nothing but their error.
  template <typename Params, typename Results>
  Status call(capnp::Request<Params, Results> request, const char* where) {
    const Result<bool> done = call(kj::mv(request), where, [](auto&) { return true; });
    if (!done.ok()) return done.error();
    return {};
  }

  static uint64_t now_ns() { return SystemClock().now_ns(); }
};

AdminClient::AdminClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AdminClient::~AdminClient() = default;

std::string socket_path_of(const Context& context) {
  return context.socket_path.empty() ? default_socket_path() : context.socket_path;
}

Result<std::unique_ptr<AdminClient>> AdminClient::connect(const Context& context) {
  constexpr const char* where = "AdminClient::connect";
  const std::string path = socket_path_of(context);
  TERRACE_ASSIGN_OR_RETURN(UniqueFd fd, connect_socket(path, context.call_timeout_ns));
  auto impl = std::make_unique<Impl>(std::move(fd), path, context.call_timeout_ns);

  auto hello = impl->gateway.helloRequest();
  hello.setOldest(rpc::PROTOCOL_VERSION_OLDEST);
  hello.setNewest(rpc::PROTOCOL_VERSION);
  hello.setClient("terrace " TERRACE_VERSION);
  TERRACE_ASSIGN_OR_RETURN(const uint32_t version,
                           impl->call(kj::mv(hello), where, [](auto& reply) { return reply.getVersion(); }));
  if (version < rpc::PROTOCOL_VERSION_OLDEST || version > rpc::PROTOCOL_VERSION) {
    return Error{.code = ErrorCode::version_mismatch,
                 .where = where,
                 .detail = "the daemon at " + path + " chose protocol version " + std::to_string(version) +
                           ", which this program does not speak"};
  }
  TERRACE_ASSIGN_OR_RETURN(impl->admin, impl->call(impl->gateway.openAdminRequest(), where,
                                                   [](auto& reply) { return reply.getAdmin(); }));
  return std::unique_ptr<AdminClient>(new AdminClient(std::move(impl)));
}

Result<StatusReply> AdminClient::status() {
  return impl_->call(impl_->admin.statusRequest(), "Admin.status", [](auto& reply) {
    return StatusReply{.server = read_server(reply.getServer()),
                       .pools = client::pool_infos_from_wire(reply.getPools()),
                       .leases = reply.getLeases()};
  });
}

Result<std::vector<DeviceStatus>> AdminClient::devices() {
  return impl_->call(impl_->admin.devicesRequest(), "Admin.devices", [](auto& reply) {
    std::vector<DeviceStatus> devices;
    for (const auto device : reply.getDevices()) devices.push_back(read_device(device));
    return devices;
  });
}

Result<DeviceStatus> AdminClient::adopt(const std::string& serial) {
  auto request = impl_->admin.adoptRequest();
  request.setSerial(serial);
  return impl_->call(kj::mv(request), "Admin.adopt",
                     [](auto& reply) { return read_device(reply.getDevice()); });
}

Result<PoolInfo> AdminClient::create_pool(const std::string& name, const std::vector<std::string>& devices) {
  auto request = impl_->admin.createPoolRequest();
  request.setName(name);
  auto list = request.initDevices(static_cast<unsigned>(devices.size()));
  for (unsigned at = 0; at < list.size(); ++at) list.set(at, devices[at]);
  return impl_->call(kj::mv(request), "Admin.createPool",
                     [](auto& reply) { return client::pool_info_from_wire(reply.getPool()); });
}

Result<std::vector<PoolInfo>> AdminClient::pools() {
  return impl_->call(impl_->admin.poolsRequest(), "Admin.pools",
                     [](auto& reply) { return client::pool_infos_from_wire(reply.getPools()); });
}

Status AdminClient::delete_pool(const std::string& name) {
  auto request = impl_->admin.deletePoolRequest();
  request.setName(name);
  return impl_->call(kj::mv(request), "Admin.deletePool");
}

Result<std::vector<LeaseInfo>> AdminClient::leases(const std::string& pool, const std::string& tenant) {
  std::vector<LeaseInfo> all;
  for (;;) {
    auto request = impl_->admin.leasesRequest();
    request.setPool(pool);
    request.setTenant(tenant);
    request.setAfter(all.empty() ? 0 : all.back().id.value);
    request.setLimit(leases_per_call);
    TERRACE_ASSIGN_OR_RETURN(std::vector<LeaseInfo> page,
                             impl_->call(kj::mv(request), "Admin.leases", [](auto& reply) {
                               return client::lease_infos_from_wire(reply.getLeases(), Impl::now_ns());
                             }));
    const bool last = page.size() < leases_per_call;
    for (LeaseInfo& lease : page) {
      // A daemon that does not advance would keep us here for ever.
      if (!all.empty() && lease.id <= all.back().id) {
        return Error{.code = ErrorCode::corrupt,
                     .where = "Admin.leases",
                     .detail = "the daemon's list of leases is not in ascending order"};
      }
      all.push_back(std::move(lease));
    }
    if (last) return all;
  }
}

Result<LeaseInfo> AdminClient::lease(LeaseId id, const std::string& label) {
  auto request = impl_->admin.leaseRequest();
  request.setLease(id.value);
  request.setLabel(label);
  return impl_->call(kj::mv(request), "Admin.lease",
                     [](auto& reply) { return client::lease_info_from_wire(reply.getInfo(), Impl::now_ns()); });
}

Result<LeaseInfo> AdminClient::revoke(LeaseId id, const RevokeOptions& options) {
  auto request = impl_->admin.revokeRequest();
  request.setLease(id.value);
  request.setGraceNs(options.grace_ns);
  request.setReason(options.reason);
  return impl_->call(kj::mv(request), "Admin.revoke",
                     [](auto& reply) { return client::lease_info_from_wire(reply.getInfo(), Impl::now_ns()); });
}

Result<LeaseInfo> AdminClient::renew(LeaseId id, uint64_t ttl_ns) {
  auto request = impl_->admin.renewRequest();
  request.setLease(id.value);
  request.setTtlNs(ttl_ns);
  return impl_->call(kj::mv(request), "Admin.renew",
                     [](auto& reply) { return client::lease_info_from_wire(reply.getInfo(), Impl::now_ns()); });
}

Status AdminClient::release(LeaseId id) {
  auto request = impl_->admin.releaseRequest();
  request.setLease(id.value);
  return impl_->call(kj::mv(request), "Admin.release");
}

Result<std::vector<std::string>> AdminClient::check() {
  return impl_->call(impl_->admin.checkRequest(), "Admin.check", [](auto& reply) {
    std::vector<std::string> problems;
    for (const auto problem : reply.getProblems()) problems.push_back(client::text_from_wire(problem));
    return problems;
  });
}

Result<LeaseInfo> AdminClient::grant(const std::string& tenant, const LeaseRequest& request) {
  auto open = impl_->gateway.openSessionRequest();
  open.setTenant(tenant);
  open.setHost(host_name());
  open.setListener(kj::heap<SilentListener>());
  TERRACE_ASSIGN_OR_RETURN(
      rpc::TenantSession::Client session,
      impl_->call(kj::mv(open), "Gateway.openSession", [](auto& reply) { return reply.getSession(); }));
  auto grant = session.grantRequest();
  auto wire = grant.initRequest();
  client::grant_to_wire(request, wire);
  wire.setRequestHigh(secure_random_u64());
  wire.setRequestLow(secure_random_u64());
  return impl_->call(kj::mv(grant), "TenantSession.grant",
                     [](auto& reply) { return client::lease_info_from_wire(reply.getInfo(), Impl::now_ns()); });
}

}  // namespace terrace::cli
