// SPDX-License-Identifier: Apache-2.0
// `terrace lease path`: a path that opens a lease's memory, for a user who then may.
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/hold/held_lease.h"
#include "cli/hold/hold_verbs.h"
#include "cli/hold/leased_path.h"
#include "cli/terminal/verb.h"

namespace terrace::cli {
namespace {

Status print_path(const Context& context, const PathArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const LeasedPath leased, open_leased_path(context, arguments, "terrace lease path"));
  if (context.json) {
    print_json({{"id", leased.lease.id.value},
                {"label", leased.lease.label},
                {"bytes", leased.lease.bytes},
                {"path", leased.path},
                {"device", leased.is_device},
                {"read_only", leased.read_only},
                {"uid", leased.uid}});
    return {};
  }
  if (const std::string advice = path_advice(leased); !advice.empty()) say_of_lease(advice);
  print_text(leased.path + "\n");
  return {};
}

}  // namespace

void add_lease_path_verb(Command lease, Context& context) {
  const auto arguments = std::make_shared<PathArguments>();
  Command verb = lease.add_subcommand(
      "path", "A path that opens a lease's memory, and the right to open it: a file, or the dax device");
  verb.footer(
      "Whoever opens it is no holder: nobody renews the lease for them, and a fence is SIGBUS. While it is "
      "taken "
      "back\n"
      "(revoke --grace) the modification time of the file is in the future: when its memory goes. Path and "
      "right end\n"
      "with the lease, and with its transfer. Not for movable leases.");
  add_path_options(verb, *arguments);
  on_verb(verb, context, [&context, arguments] { return print_path(context, *arguments); });
}

}  // namespace terrace::cli
