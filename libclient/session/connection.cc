// SPDX-License-Identifier: Apache-2.0
#include "libclient/session/connection.h"

#include <errno.h>
#include <kj/io.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>

#include "core/base/limits.h"
#include "core/base/unique_fd.h"
#include "libclient/session/wire.h"

namespace terrace::client {
namespace {

constexpr const char* where = "Session::connect";

using Opened = Result<kj::Own<Connection>>;

Error connect_error(int os_errno, const std::string& path) {
  switch (os_errno) {
    case ENOENT:
    case ECONNREFUSED:
      return {ErrorCode::unavailable, os_errno, where,
              "no manager listens at " + path +
                  "; start one with `terrace daemon start`, or name its socket in $TERRACE_SOCKET"};
    case EACCES:
    case EPERM:
      return {ErrorCode::permission_denied, os_errno, where,
              "this user may not open the manager's socket " + path};
    case EAGAIN:
      return {ErrorCode::unavailable, os_errno, where,
              "the manager at " + path + " has too many connections waiting"};
    default: return os_error(os_errno, where, "cannot connect to " + path);
  }
}

// Connecting to a unix socket never blocks: it is accepted by the queue, or refused, at once.
Result<UniqueFd> connect_socket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Error{ErrorCode::invalid_argument, 0, where,
                 "the socket path \"" + path + "\" is empty or longer than " +
                     std::to_string(sizeof address.sun_path - 1) + " bytes"};
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return os_error(errno, where, "cannot make a socket");
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return connect_error(errno, path);
  return socket;
}

kj::Promise<Opened> open_session(kj::Own<Connection> connection, rpc::Gateway::Client gateway,
                                 const SessionOptions& options, rpc::LeaseListener::Client listener) {
  auto request = gateway.openSessionRequest();
  request.setTenant(options.tenant);
  request.setHost(options.host);
  request.setListener(kj::mv(listener));
  return request.send().then([connection = kj::mv(connection)](
                                 capnp::Response<rpc::Gateway::OpenSessionResults>&& reply) mutable -> Opened {
    TERRACE_RETURN_IF_ERROR(status_from_wire(reply.getError(), where));
    if (!reply.hasSession())
      return Error{ErrorCode::internal, 0, where, "the manager opened no session and named no error"};
    connection->session = reply.getSession();
    connection->tenant = text_from_wire(reply.getTenant());
    return kj::mv(connection);
  });
}

Status check_version(uint32_t version) {
  if (version >= rpc::PROTOCOL_VERSION_OLDEST && version <= rpc::PROTOCOL_VERSION) return {};
  return Error{ErrorCode::version_mismatch, 0, where,
               "the manager chose protocol version " + std::to_string(version) + "; this library speaks " +
                   std::to_string(rpc::PROTOCOL_VERSION_OLDEST) + " to " +
                   std::to_string(rpc::PROTOCOL_VERSION)};
}

}  // namespace

kj::Promise<Result<kj::Own<Connection>>> open_connection(kj::LowLevelAsyncIoProvider& provider,
                                                         const SessionOptions& options,
                                                         rpc::LeaseListener::Client listener) {
  auto socket = connect_socket(options.socket_path);
  if (!socket.ok()) return Opened(std::move(socket).error());
  auto attempt = kj::evalNow([&]() -> kj::Promise<Opened> {
    auto connection = kj::heap<Connection>();
    connection->stream = provider.wrapUnixSocketFd(
        kj::AutoCloseFd(socket->release()),
        kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC | kj::LowLevelAsyncIoProvider::ALREADY_NONBLOCK);
    connection->client = kj::heap<capnp::TwoPartyClient>(*connection->stream, limits::rpc_fds_per_message_max);
    auto gateway = connection->client->bootstrap().castAs<rpc::Gateway>();
    auto hello = gateway.helloRequest();
    hello.setOldest(rpc::PROTOCOL_VERSION_OLDEST);
    hello.setNewest(rpc::PROTOCOL_VERSION);
    hello.setClient(options.client_name);
    hello.setTraceparent(options.traceparent);
    return hello.send().then(
        [connection = kj::mv(connection), gateway = kj::mv(gateway), options, listener = kj::mv(listener)](
            capnp::Response<rpc::Gateway::HelloResults>&& reply) mutable -> kj::Promise<Opened> {
          if (Status status = status_from_wire(reply.getError(), where); !status.ok())
            return Opened(std::move(status).error());
          if (Status status = check_version(reply.getVersion()); !status.ok())
            return Opened(std::move(status).error());
          return open_session(kj::mv(connection), kj::mv(gateway), options, kj::mv(listener));
        });
  });
  return attempt.catch_([](kj::Exception&& exception) -> Opened { return error_from_kj(exception, where); });
}

}  // namespace terrace::client
