// SPDX-License-Identifier: Apache-2.0
// The arguments with terraced's places, shared by `daemon run`, `daemon start` and `fsck`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/terminal/verb.h"

namespace terrace::cli {

struct DaemonArguments {
  std::string runtime_directory, state_file, config_file, log_file;
  std::vector<std::string> emulated;
  std::vector<std::string> others;  // passed on as they are
  uint64_t wait_ns = 60 * ns_per_s;
};

// terraced wants absolute paths, so that it means the same files after a restart from elsewhere.
std::string absolute_path(const std::string& path);
// terraced's own arguments.
std::vector<std::string> daemon_arguments(const DaemonArguments& arguments,
                                          const std::string& runtime_directory);
// --runtime-dir; else, where --socket or TERRACE_SOCKET says DIR/terraced.sock, that DIR; else "" (terraced's
// own default, or what its configuration says).
std::string runtime_directory_of(const Context& context, const DaemonArguments& arguments);
// Where the daemon of these arguments is reached.
Context context_of(const Context& context, const DaemonArguments& arguments);
// Whether the daemon that answers has the store that is meant: without --state it is always that one.
bool same_store(const std::string& state_file, const DaemonArguments& arguments);
// --state, --config, --emulate and what follows --.
void add_start_options(Command verb, const std::shared_ptr<DaemonArguments>& arguments);

}  // namespace terrace::cli
