// SPDX-License-Identifier: Apache-2.0
// One authenticated connection to a manager: socket, version agreed, session opened.
//
// Place     libclient/session; Loop opens one after another.
// Threads   The Session's thread.
#pragma once

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include <string>

#include "core/base/result.h"
#include "core/schema/terrace.capnp.h"
#include "terrace/session.h"

namespace terrace::client {

struct Connection {
  kj::Own<kj::AsyncCapabilityStream> stream;
  kj::Own<capnp::TwoPartyClient> client;  // uses stream
  rpc::TenantSession::Client session = nullptr;
  std::string tenant;
};

// Errors    unavailable        nobody listens at options.socket_path, or the connection broke on the way
//           permission_denied  the socket or the manager does not admit this user
//           version_mismatch   no common protocol version
//           invalid_argument   the socket's path is too long
//           others             what the manager replied
// The promise never rejects. Dropping it closes the half-made connection.
kj::Promise<Result<kj::Own<Connection>>> open_connection(kj::LowLevelAsyncIoProvider& provider,
                                                         const SessionOptions& options,
                                                         rpc::LeaseListener::Client listener);

}  // namespace terrace::client
