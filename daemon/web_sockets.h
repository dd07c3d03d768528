// SPDX-License-Identifier: Apache-2.0
// Where a manager or an agent answers over HTTP, from its configuration to its WebServer.
//
// Threads   The event loop's thread only.
#pragma once

#include "daemon/clients/clients.h"
#include "daemon/config/config.h"
#include "daemon/rpc/connection/listen.h"
#include "daemon/web/web_server.h"

namespace terrace::daemon {

// At its unix socket always, and over TCP where the configuration says so: an address that cannot be had is no error.
// Errors    as listen_unix
Result<SocketFile> serve_web(const DaemonConfig& config, WebServer& web, kj::AsyncIoContext& io);

// What is spoken at a port with protocol = "https".
PortProtocol https_at(WebServer& web, const ServedSocket& socket);
// Lets `web` answer to the names in our certificate, of now and of later. `web` lives as long as `credentials` is watched.
void answer_to_certificate(WebServer& web, Credentials& credentials);

}  // namespace terrace::daemon
