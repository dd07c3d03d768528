// SPDX-License-Identifier: Apache-2.0
// `terrace lease grant`.
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/show/describe.h"
#include "cli/show/preview.h"
#include "cli/terminal/confirm.h"
#include "cli/verbs/lease_verbs.h"
#include "core/schema/words.h"
#include "terrace/words.h"

namespace terrace::cli {
namespace {

struct GrantArguments {
  GrantOptions grant;
  std::string mode = "exclusive";
  bool ttl_given = false;
  bool dry_run = false;
  std::string on_fence = "keep";
};

Status grant_lease(Context& context, GrantArguments& arguments) {
  LeaseRequest& request = arguments.grant.request;
  request.detached = true;  // this process keeps no hold on it
  TERRACE_ASSIGN_OR_RETURN(const rpc::LeaseMode mode, parse_mode(arguments.mode));
  request.mode = static_cast<LeaseMode>(mode);  // the same numbers
  request.on_fence = on_fence_of_name(arguments.on_fence).value_or(OnFence::keep);
  TERRACE_RETURN_IF_ERROR(check_label(request.label));
  if (arguments.ttl_given && request.ttl_ns == 0) return zero_ttl("lease grant");
  if (arguments.dry_run) {
    TERRACE_ASSIGN_OR_RETURN(const auto admin, AdminClient::connect(context));
    TERRACE_ASSIGN_OR_RETURN(const PreviewStatus preview, admin->preview_grant(arguments.grant));
    show_preview(context, preview);
    return {};
  }
  TERRACE_ASSIGN_OR_RETURN(const auto client, LeaseClient::connect(context));
  StatusLines lines(context);
  const auto report = [&lines, &request](uint32_t before_it, uint64_t in_the_queue) {
    lines.say(
        "waiting for room, at most " + format_duration(request.wait_ns) + ": " +
        (before_it == 0 ? std::string("first in the queue") : count_text(before_it, "grant") + " before it") +
        " of " + std::to_string(in_the_queue));
  };
  TERRACE_ASSIGN_OR_RETURN(LeaseStatus lease, client->grant(arguments.grant, report));
  // The grant's reply does not measure the object; a second look does. The lease stands whether it works or
  // not.
  if (Result<LeaseStatus> measured = client->lease(LeaseId{lease->getId()}, ""); measured.ok())
    lease = std::move(measured).value();
  if (context.json) {
    print_json({{"lease", to_json(lease)}});
    return {};
  }
  const std::string id = std::to_string(lease->getId());
  std::string text = "granted " + lease_block(lease);
  if (lease->getTtlNs() == 0) {
    text += "It is persistent: it stays until 'terrace lease release " + id + "'.\n";
  } else {
    text += "It lives by its ttl of " + format_duration(lease->getTtlNs()) +
            " from now, not by this command: nobody renews it until 'terrace lease renew " + id +
            " --ttl 1h'.\n";
  }
  print_text(text);
  return {};
}

}  // namespace

void add_lease_grant_verb(Command lease, Context& context) {
  Command grant = lease.add_subcommand("grant", "Grant memory of a pool to a tenant");
  const auto arguments = std::make_shared<GrantArguments>();
  LeaseRequest& request = arguments->grant.request;
  grant.add_option("--pool", request.pool, "The pool; may be left out where there is only one")
      .type_name("POOL");
  add_size_option(grant, "--size", request.bytes, "How much; rounded up to granules").required();
  Option ttl = add_duration_option(grant, "--ttl", request.ttl_ns,
                                   "How long without renewal (default: the daemon's, 60 s)");
  grant.add_flag("--persistent", request.persistent, "No expiry: it stays until it is released").excludes(ttl);
  grant.add_option("--mode", arguments->mode, "Who may hold it besides the grantee")
      .type_name(join(schema::enum_words<rpc::LeaseMode>(), "|"))
      .check(
          [](const std::string& text) { return parse_mode(text).ok() ? "" : parse_mode(text).error().detail; });
  grant.add_option("--label", request.label, "A name for people, unique within the tenant").type_name("LABEL");
  grant.add_option("--tenant", arguments->grant.tenant, "Grant to another tenant than this user's")
      .type_name("TENANT");
  add_on_fence_option(
      grant, arguments->on_fence,
      "What becomes of its holders when its memory is taken: keep (they go on, and get SIGBUS) or kill "
      "(each agrees to be ended first, and may pin its memory; default keep)");
  grant.add_flag("--movable", request.movable,
                 "A drain or compaction may move it: at once while nobody has it attached, else with its "
                 "holder's consent");
  add_duration_option(grant, "--wait", request.wait_ns,
                      "Wait in the queue of a full pool, at most so long (default: not at all)");
  grant.add_flag("--dry-run", arguments->dry_run, dry_run_help);
  on_verb(grant, context, [&context, arguments, ttl] {
    arguments->ttl_given = ttl.count() > 0;
    return grant_lease(context, *arguments);
  });
}

}  // namespace terrace::cli
