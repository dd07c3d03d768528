// SPDX-License-Identifier: Apache-2.0
// `terrace doctor`: what this machine, and this user, can and cannot do for Terrace.
//
// Place     daemon/doctor has the checks of a machine; here are those of who asks, and the words for a terminal.
// Threads   One; blocks.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/terminal/output.h"
#include "daemon/doctor/checks.h"

namespace terrace::cli {

using doctor::Check;
using doctor::CheckState;

// doctor_user.cc
// Whether the daemon at `socket_path` gives this user /dev/userfaultfd, and whether that is of use: tried.
Check check_userfaultfd_device(const std::string& socket_path);
// Whether this user reaches the daemon, and what it may do there.
Check check_socket(const std::string& path);
// Connects once and hangs up: 0, or why not.
int try_connect(const std::string& path);

// doctor.cc
// All checks of this machine and this user, in the order in which they are shown.
std::vector<Check> run_checks(const std::string& socket_path);
std::string format_checks(const std::vector<Check>& checks);
nlohmann::json checks_json(const std::vector<Check>& checks);

// doctor_manager.cc
// `terrace doctor --manager`: what the manager's machine can, as the manager sees it.
// Errors    those of AdminClient; unsupported   this manager looks at no machine
Status run_manager_doctor(Context& context);

}  // namespace terrace::cli
