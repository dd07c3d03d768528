// SPDX-License-Identifier: Apache-2.0
// Where a manager or an agent is read over HTTP, from its configuration to its WebServer.
//
// Threads   The event loop's thread only.
#pragma once

#include "daemon/config/config.h"
#include "daemon/rpc/connection/listen.h"
#include "daemon/web/web_server.h"

namespace terrace::daemon {

// At its unix socket always, and over TCP where the configuration says so: an address that cannot be had is no error.
// Errors    as listen_unix
Result<SocketFile> serve_web(const DaemonConfig& config, WebServer& web, kj::AsyncIoContext& io);

}  // namespace terrace::daemon
