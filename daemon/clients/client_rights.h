// SPDX-License-Identifier: Apache-2.0
// What a client may do here: the lesser of what its certificate says and of what the socket gives.
//
// Threads   Pure.
#pragma once

#include <string>

#include "daemon/model/remote_client.h"
#include "daemon/tls/certificate.h"

namespace terrace::daemon {

// The client of a certificate that the CA signed, which came through `socket` from `address`. One that may do nothing is
// described, too: `refused` says why not. `number` is left to the caller.
RemoteClient remote_client(const CertificateFacts& certificate, const ServedSocket& socket,
                           const std::string& address);

}  // namespace terrace::daemon
