// SPDX-License-Identifier: Apache-2.0
// What the socket of a daemon gives whoever connects there.
#pragma once

#include <string>

#include "cli/terminal/output.h"
#include "core/base/result.h"

namespace terrace::cli {

struct SocketRole {
  std::string role;    // "tenant", "operator", "administrator", "by-uid"; empty: of an older daemon, not known
  std::string tenant;  // whom this program acts for there; empty: nobody
};

// Asks at the context's socket. Errors as Connection::open().
Result<SocketRole> socket_role(const Context& context);

}  // namespace terrace::cli
