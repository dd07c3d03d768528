// SPDX-License-Identifier: Apache-2.0
// Who may not even look, and asks a manager over HTTP.
//
// Threads   The event loop's thread only.
#pragma once

#include "daemon/rpc/service.h"
#include "daemon/web/web_answer.h"

namespace terrace::daemon {

// 403, and a line in the audit log. `what` was asked for: a method of Admin, or a page.
WebAnswer deny_web(Service& service, const PeerCredentials& peer, const char* what);

}  // namespace terrace::daemon
