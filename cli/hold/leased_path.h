// SPDX-License-Identifier: Apache-2.0
// A lease's memory by a path: for programs, containers and machines that take no descriptor. Nobody holds the lease
// for it.
//
// Threads   The main thread.
#pragma once

#include <optional>
#include <string>

#include "cli/terminal/command_line.h"
#include "cli/terminal/output.h"
#include "core/base/result.h"
#include "terrace/session.h"

namespace terrace::cli {

struct PathArguments {
  std::string lease;  // an id or a label
  std::string tenant;
  bool read_only = false;
  std::string user;  // a name or a uid; empty: this process's own
};

struct LeasedPath {
  std::string path;
  bool is_device = false;  // a device node; otherwise a file
  LeaseInfo lease;
  bool read_only = false;
  uint32_t uid = 0;  // who was admitted
};

// A user of this machine, by name or number; this process's own where `user` is empty. Errors: invalid_argument.
Result<uint32_t> user_id_of(const std::string& user, const char* where);

void add_path_options(Command verb, PathArguments& arguments);

// Admits the user and looks whether the path leads to the lease's memory in this mount namespace.
// Errors    as Session's and Lease::open_path(); invalid_argument: there is no such user;
//           unsupported   the manager sees other mounts than this process, so that its path is of no use here
Result<LeasedPath> open_leased_path(const Context& context, const PathArguments& arguments, const char* where);

// What people should know of a path: that nobody renews the lease. Empty: nothing.
std::string path_advice(const LeasedPath& leased);

}  // namespace terrace::cli
