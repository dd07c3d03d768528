// SPDX-License-Identifier: Apache-2.0
// Where the manager is: at a socket of this machine, or on another machine over TLS.
//
// Place     Below cli/client, which connects, and the verbs that work on this machine only.
// Threads   The main thread.
#pragma once

#include <string>

#include "cli/terminal/output.h"

namespace terrace::cli {

// "tls://HOST:PORT" of --connect, or where neither it nor --socket was given of TERRACE_CONNECT. Empty: this machine.
std::string remote_address(const Context& context);

// For what needs a descriptor, a process or a device of the manager's own machine.
// Errors    unsupported   the manager is on another machine; says which option or variable says so
Status on_this_machine(const Context& context, const char* what);

}  // namespace terrace::cli
