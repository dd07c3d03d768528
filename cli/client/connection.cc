// SPDX-License-Identifier: Apache-2.0
#include "cli/client/connection.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "cli/client/admin_client.h"
#include "cli/client/tls_stream.h"
#include "cli/terminal/manager_place.h"
#include "core/base/clock.h"
#include "core/base/limits.h"
#include "core/base/traceparent.h"
#include "core/identity/machine_name.h"
#include "core/version/version.h"

namespace terrace::cli {
namespace {

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

// A session must name a listener; a command that ends at once has nobody to tell.
class SilentListener final : public rpc::LeaseListener::Server {
 protected:
  kj::Promise<void> revoking(RevokingContext) override { return kj::READY_NOW; }
  kj::Promise<void> fenced(FencedContext) override { return kj::READY_NOW; }
  kj::Promise<void> moveRequested(MoveRequestedContext) override { return kj::READY_NOW; }
};

}  // namespace

std::string socket_path_of(const Context& context) {
  if (std::string remote = remote_address(context); !remote.empty()) return remote;
  return context.socket_path.empty() ? default_socket_path() : context.socket_path;
}

Connection::Connection(std::string socket_path, uint64_t timeout)
    : path(std::move(socket_path)), call_timeout_ns(timeout), io(kj::setupAsyncIo()) {}

Status Connection::reach(const Context& context) {
  remote = !remote_address(context).empty();
  if (remote) {
    TERRACE_ASSIGN_OR_RETURN(const ClientFiles files, read_client_files(context.remote));
    certificate = OwnCertificate(files);
    TERRACE_ASSIGN_OR_RETURN(stream, connect_over_tls(context, files, io));
    client = kj::heap<capnp::TwoPartyClient>(*stream);
  } else {
    TERRACE_ASSIGN_OR_RETURN(UniqueFd fd, connect_socket(path, call_timeout_ns));
    auto local =
        io.lowLevelProvider->wrapUnixSocketFd(fd.release(), kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP |
                                                                kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC);
    client = kj::heap<capnp::TwoPartyClient>(*local, limits::rpc_fds_per_message_max);
    stream = kj::mv(local);
  }
  gateway = client->bootstrap().castAs<rpc::Gateway>();
  return {};
}

Result<std::unique_ptr<Connection>> Connection::open(const Context& context) {
  constexpr const char* where = "AdminClient::connect";
  const std::string path = socket_path_of(context);
  if (!context.socket_path.empty() && !context.remote.address.empty()) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = where,
                 .detail = "--connect " + context.remote.address + " and the socket " + context.socket_path +
                           " are two managers: give one of them"};
  }
  auto connection = std::make_unique<Connection>(path, context.call_timeout_ns);
  TERRACE_RETURN_IF_ERROR(connection->reach(context));

  auto hello = connection->gateway.helloRequest();
  hello.setOldest(rpc::PROTOCOL_VERSION_OLDEST);
  hello.setNewest(rpc::PROTOCOL_VERSION);
  hello.setClient("terrace " + std::string(version_number()));
  hello.setTraceparent(traceparent_of_environment());
  TERRACE_ASSIGN_OR_RETURN(const uint32_t version, connection->call(kj::mv(hello), [&connection](auto& reply) {
    connection->admin = reply.getAdmin();
    connection->role = client::text_from_wire(reply.getRole());
    connection->own_tenant = client::text_from_wire(reply.getTenant());
    return reply.getVersion();
  }));
  if (version < rpc::PROTOCOL_VERSION_OLDEST || version > rpc::PROTOCOL_VERSION) {
    return Error{.code = ErrorCode::version_mismatch,
                 .where = where,
                 .detail = "the daemon at " + path + " chose protocol version " + std::to_string(version) +
                           ", which this program does not speak"};
  }
  if (connection->remote) connection->look_again_ = std::chrono::steady_clock::now();
  return connection;
}

void Connection::keep_certificate() {
  const auto now = std::chrono::steady_clock::now();
  if (!look_again_.has_value() || now < *look_again_) return;
  look_again_ = now + std::chrono::minutes(1);  // first: to renew is a call, too
  const int64_t now_s = std::time(nullptr);
  if (!certificate.renewal_is_due(now_s)) return;
  const std::string warning = certificate.end_warning(now_s);
  const Status renewed = certificate.renew(*this);
  if (renewed.ok() || renewed.error().code == ErrorCode::busy || warning.empty() || warned_) return;
  warned_ = true;
  std::fprintf(stderr, "terrace: %s, and it was not renewed: %s; `terrace cert client` makes another\n",
               warning.c_str(), renewed.error().detail.c_str());
}

Result<rpc::TenantSession::Client> Connection::open_session(const std::string& tenant, std::string* name) {
  auto open = gateway.openSessionRequest();
  open.setTenant(tenant);
  open.setHost(machine_name());
  open.setListener(kj::heap<SilentListener>());
  return call(kj::mv(open), [name](auto& reply) {
    if (name != nullptr) *name = client::text_from_wire(reply.getTenant());
    return reply.getSession();
  });
}

// The schema calls them "core/schema/terrace.capnp:Admin.drain$Params".
std::string Connection::method_of(capnp::StructSchema params) {
  const std::string name = params.getProto().getDisplayName().cStr();
  const size_t begin = name.find(':') + 1;
  return name.substr(begin, name.find('$') - begin);
}

Error Connection::call_error(const kj::Exception& exception, bool timed_out, uint64_t timeout_ns,
                             const char* where) const {
  if (timed_out) {
    return Error{.code = ErrorCode::unavailable,
                 .where = where,
                 .detail = "the daemon at " + path + " did not answer within " + format_duration(timeout_ns) +
                           "; if it was asked for a change, that may still happen (--timeout gives it longer)"};
  }
  Error error = client::error_from_kj(exception, where);
  if (const std::string refused = remote ? refused_over_tls(exception.getDescription().cStr()) : "";
      !refused.empty()) {
    error.code = ErrorCode::permission_denied;
    error.detail = "the manager at " + path + " " + refused;
  } else if (exception.getType() == kj::Exception::Type::DISCONNECTED) {
    error.detail = "the daemon at " + path + " closed the connection before it answered" +
                   (remote ? " (" + std::string(exception.getDescription().cStr()) + ")" : "") +
                   "; if it was asked for a change, that may have "
                   "happened or not";
  }
  return error;
}

}  // namespace terrace::cli
