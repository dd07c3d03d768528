// SPDX-License-Identifier: Apache-2.0
// A connection to a manager on another machine: TCP, then mutual TLS.
//
// Place     connection.cc -> here -> daemon/clients.
// Threads   The thread of `io`'s event loop.
#pragma once

#include <kj/async-io.h>

#include <memory>
#include <string>

#include "cli/client/own_certificate.h"
#include "cli/terminal/output.h"
#include "core/base/result.h"

namespace terrace::cli {

// The files of the options, of the environment, or of this user, in this order.
// Errors    not_found, io_error a file cannot be read
//           permission_denied   the key can be read by others
Result<ClientFiles> read_client_files(const RemoteOptions& options);

// Connects and shakes hands, within context.call_timeout_ns. That the manager takes our certificate shows only with its
// first answer: refused_over_tls().
// Errors    invalid_argument    the address, or one of the files, is not what it should be
//           permission_denied   what answers is not a manager of our CA
//           unavailable         nobody answers there
Result<kj::Own<kj::AsyncIoStream>> connect_over_tls(const Context& context, const ClientFiles& files,
                                                    kj::AsyncIoContext& io);

// What the other side said of our certificate when it closed the connection; none: nothing of TLS.
std::string refused_over_tls(const std::string& description);

}  // namespace terrace::cli
