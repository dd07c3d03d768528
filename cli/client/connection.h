// SPDX-License-Identifier: Apache-2.0
// One connection to a daemon, with kj and Cap'n Proto in it: for the files that translate calls, and no verb.
//
// Place     admin_*.cc, tenant_client.cc -> Connection -> unix socket, or TLS (tls_stream.h) -> daemon/rpc.
// Threads   The thread that opened it; it owns that thread's event loop.
#pragma once

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cli/client/own_certificate.h"
#include "cli/terminal/output.h"
#include "core/base/unique_fd.h"
#include "core/schema/enumerants.h"
#include "core/schema/terrace.capnp.h"
#include "libclient/session/wire.h"

namespace terrace::cli {

struct LongCall {
  uint64_t timeout_ns = 0;
  std::function<void()> waiting;
};

// Members in the order in which they depend on each other; destroyed in reverse.
struct Connection {
  // Connects and settles the protocol version.
  // Errors    unavailable        nobody listens; names the socket and how to start a daemon
  //           permission_denied  the socket refuses this user
  //           version_mismatch   no protocol version in common
  //           as connect_over_tls, where the manager is on another machine
  static Result<std::unique_ptr<Connection>> open(const Context& context);
  Connection(std::string socket_path, uint64_t timeout);

  std::string path;  // or "tls://HOST:PORT"
  uint64_t call_timeout_ns;
  bool remote = false;  // over TLS: no descriptors, so no memory
  kj::AsyncIoContext io;
  kj::Own<kj::AsyncIoStream> stream;
  kj::Own<capnp::TwoPartyClient> client;
  rpc::Gateway::Client gateway = nullptr;
  bool admin = false;  // whether the operator's interface may be opened here, all of it or an operator's part
  std::string role;    // of the socket; empty: an older daemon's
  std::string own_tenant;      // whom this program acts for there; empty: nobody
  OwnCertificate certificate;  // over TLS: with which this connection was made, or what has taken its place

  // Opens a tenant's session (empty: the tenant of this uid), whose name goes into `*name` unless that is null.
  Result<rpc::TenantSession::Client> open_session(const std::string& tenant, std::string* name = nullptr);

  // Sends `request`, waits within the limit, and gives what `read` makes of the reply, or the error in it.
  // Capabilities can be taken out of the reply by `read`: it gets the whole response. Errors name the method.
  // Errors    version_mismatch  the reply has a number of an enum that this program does not know
  template <typename Params, typename Results, typename Read>
  auto call(capnp::Request<Params, Results> request, Read read)
      -> Result<decltype(read(std::declval<capnp::Response<Results>&>()))> {
    keep_certificate();
    return finish<Results>(call_timeout_ns, method_name<Params>(), read, [&](bool* timed_out) {
      return send(kj::mv(request), call_timeout_ns, timed_out).wait(io.waitScope);
    });
  }

  // The same, for a call that may wait long in the daemon: `waiting` is called about once a second meanwhile,
  // and may make calls of its own.
  template <typename Params, typename Results, typename Read>
  auto call_reporting(capnp::Request<Params, Results> request, const LongCall& options, Read read)
      -> Result<decltype(read(std::declval<capnp::Response<Results>&>()))> {
    keep_certificate();
    return finish<Results>(options.timeout_ns, method_name<Params>(), read, [&](bool* timed_out) {
      return wait_reporting(send(kj::mv(request), options.timeout_ns, timed_out), options.waiting);
    });
  }

  // For replies that carry nothing but their error.
  template <typename Params, typename Results>
  Status call(capnp::Request<Params, Results> request) {
    const Result<bool> done = call(kj::mv(request), [](auto&) { return true; });
    if (!done.ok()) return done.error();
    return {};
  }

 private:
  Status reach(const Context& context);
  // Has a certificate that ends soon renewed, and says so where that cannot be. A connection may live for long, so it looks
  // again once a minute.
  void keep_certificate();
  // "Admin.drain"; lives as long as the process.
  template <typename Params>
  static const char* method_name() {
    static const auto* const name = new std::string(method_of(capnp::Schema::from<Params>()));
    return name->c_str();
  }
  static std::string method_of(capnp::StructSchema params);

  Error call_error(const kj::Exception& exception, bool timed_out, uint64_t timeout_ns,
                   const char* where) const;

  // `timed_out` must live as long as the promise.
  template <typename Params, typename Results>
  kj::Promise<capnp::Response<Results>> send(capnp::Request<Params, Results> request, uint64_t timeout_ns,
                                             bool* timed_out) {
    auto limit = io.provider->getTimer()
                     .afterDelay(static_cast<int64_t>(timeout_ns) * kj::NANOSECONDS)
                     .then([timed_out]() -> kj::Promise<capnp::Response<Results>> {
                       *timed_out = true;
                       return KJ_EXCEPTION(OVERLOADED, "time limit");
                     });
    kj::Promise<capnp::Response<Results>> reply = request.send();
    return reply.exclusiveJoin(kj::mv(limit));
  }

  template <typename Results, typename Read, typename Wait>
  auto finish(uint64_t timeout_ns, const char* where, Read read, Wait wait)
      -> Result<decltype(read(std::declval<capnp::Response<Results>&>()))> {
    bool timed_out = false;
    try {
      capnp::Response<Results> response = wait(&timed_out);
      TERRACE_RETURN_IF_ERROR(client::status_from_wire<Results>(response, where));
      return read(response);
    } catch (const kj::Exception& exception) {
      return call_error(exception, timed_out, timeout_ns, where);
    }
  }

  // Never inside the event loop's callbacks: `waiting` may wait for calls of its own.
  template <typename Response>
  Response wait_reporting(kj::Promise<Response> answer, const std::function<void()>& waiting) {
    auto ended = kj::newPromiseAndFulfiller<void>();
    bool done = false;
    const auto end = [&done, &ended]() {
      done = true;
      ended.fulfiller->fulfill();
    };
    kj::Promise<Response> watched = answer
                                        .then(
                                            [end](Response&& response) -> kj::Promise<Response> {
                                              end();
                                              return kj::mv(response);
                                            },
                                            [end](kj::Exception&& exception) -> kj::Promise<Response> {
                                              end();
                                              return kj::mv(exception);
                                            })
                                        .eagerlyEvaluate(nullptr);
    auto signal = ended.promise.fork();
    while (!done) {
      signal.addBranch().exclusiveJoin(io.provider->getTimer().afterDelay(1 * kj::SECONDS)).wait(io.waitScope);
      if (!done && waiting) waiting();
    }
    return watched.wait(io.waitScope);
  }

  std::optional<std::chrono::steady_clock::time_point> look_again_;  // at the certificate; none before hello
  bool warned_ = false;
};

}  // namespace terrace::cli
