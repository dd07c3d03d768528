// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/manager_place.h"

#include <cstdlib>

namespace terrace::cli {

std::string remote_address(const Context& context) {
  if (!context.remote.address.empty()) return context.remote.address;
  const char* set = context.socket_path.empty() ? std::getenv("TERRACE_CONNECT") : nullptr;
  return set == nullptr ? "" : set;
}

Status on_this_machine(const Context& context, const char* what) {
  const std::string remote = remote_address(context);
  if (remote.empty()) return {};
  const bool option = !context.remote.address.empty();
  return Error{.code = ErrorCode::unsupported,
               .where = what,
               .detail = std::string(what) +
                         " works on the manager's own machine, with its memory, files or "
                         "processes, and " +
                         (option ? "--connect" : "TERRACE_CONNECT") + " names " + remote +
                         ": run it there, or leave " + (option ? "that out" : "it unset, or give --socket") +
                         " for the terraced of this machine"};
}

}  // namespace terrace::cli
