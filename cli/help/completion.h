// SPDX-License-Identifier: Apache-2.0
// Completion scripts for shells, made from the parser's own tree, so that they never fall behind it. What is live
// (pools, leases, devices, hosts, tenants) they ask the daemon for, for two seconds at most.
#pragma once

#include <string>

#include "cli/terminal/command_line.h"

namespace terrace::cli {

std::string bash_completion(Command root);
std::string zsh_completion(Command root);
std::string fish_completion(Command root);

}  // namespace terrace::cli
