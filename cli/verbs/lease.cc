// SPDX-License-Identifier: Apache-2.0
// `terrace lease list|show|renew|revoke|release`, and what the other verbs of the family share.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/client/admin_client.h"
#include "cli/hold/hold_verbs.h"
#include "cli/show/describe.h"
#include "cli/show/list.h"
#include "cli/show/preview.h"
#include "cli/terminal/verb.h"
#include "cli/verbs/lease_verbs.h"
#include "core/schema/words.h"

namespace terrace::cli {
namespace {

// Those that leases are listed in: "pending" is never shown.
std::vector<std::string> shown_phases() {
  std::vector<std::string> phases = schema::enum_words<rpc::LeasePhase>();
  std::erase(phases, schema::enum_word(rpc::LeasePhase::PENDING));
  return phases;
}

struct LeaseArguments {
  std::string pool, tenant, phase;
  std::vector<std::string> names;
  std::string name;  // id or label
  uint64_t ttl_ns = 0;
  bool dry_run = false;
  RevokeOptions revoke{.grace_ns = 10 * ns_per_s, .reason = {}};
};

Status list_leases(const Context& context, const LeaseArguments& arguments, const Listing& listing) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, LeaseClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(std::vector<LeaseStatus> leases, client->leases(arguments.pool, arguments.tenant));
  if (!arguments.phase.empty())
    std::erase_if(leases, [&](const LeaseStatus& lease) {
      return schema::enum_word(lease->getPhase()) != arguments.phase;
    });
  return show_list<LeaseStatus>(context, listing, std::move(leases),
                                {.key = "leases", .name = "id", .table = lease_table, .none = "no leases\n"});
}

// Shows all that exist, then fails for the first that does not.
Status show_leases(const Context& context, const LeaseArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, LeaseClient::connect(context));
  std::vector<LeaseStatus> leases;
  Status missing;
  for (const std::string& name : arguments.names) {
    Result<LeaseStatus> lease = find_lease(*client, name);
    if (lease.ok()) {
      leases.push_back(std::move(lease).value());
    } else if (missing.ok()) {
      missing = lease.error();
    }
  }
  if (context.json) {
    if (missing.ok()) print_json({{"leases", to_json_list(leases)}});
    return missing;
  }
  std::string text;
  for (const LeaseStatus& lease : leases) text += (text.empty() ? "" : "\n") + lease_block(lease);
  print_text(text);
  return missing;
}

Status renew_lease(const Context& context, const LeaseArguments& arguments) {
  if (arguments.ttl_ns == 0) return zero_ttl("lease renew");
  TERRACE_ASSIGN_OR_RETURN(const auto client, LeaseClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const LeaseId id, find_lease_id(*client, arguments.name));
  TERRACE_ASSIGN_OR_RETURN(const LeaseStatus lease, client->renew(id, arguments.ttl_ns));
  if (context.json) {
    print_json({{"lease", to_json(lease)}});
  } else {
    print_text("renewed lease " + std::to_string(id.value) + ", expires " + describe_expiry(lease) + "\n");
  }
  return {};
}

Status revoke_lease(Context& context, const LeaseArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const LeaseId id, find_lease_id(*client, arguments.name));
  if (arguments.dry_run) {
    TERRACE_ASSIGN_OR_RETURN(const PreviewStatus preview, client->preview_revoke(id, arguments.revoke));
    show_preview(context, preview);
    return {};
  }
  TERRACE_ASSIGN_OR_RETURN(const LeaseStatus lease, client->revoke(id, arguments.revoke));
  if (context.json) {
    print_json({{"lease", to_json(lease)}});
  } else if (lease->getPhase() == rpc::LeasePhase::REVOKING) {
    // Sessions end with a manager, so that after its restart a program may have the memory and hear nothing.
    const std::string lease_id = std::to_string(id.value);
    const std::string grace = format_duration(arguments.revoke.grace_ns);
    print_text(lease->getHolders() != 0
                   ? "told the holder of lease " + lease_id + "; it is fenced within " + grace +
                         ", sooner if the holder lets go\n"
                   : "lease " + lease_id + " has no session here that could be told; it is fenced within " +
                         grace + ", as a program may still have its memory (--grace 0s: now)\n");
  } else {
    print_text((arguments.revoke.grace_ns == 0 ? "lease " : "nobody held lease ") + std::to_string(id.value) +
               (arguments.revoke.grace_ns == 0 ? " is " : "; it is ") +
               std::string(schema::enum_word(lease->getPhase())) + "\n");
  }
  return {};
}

Status release_lease(const Context& context, const LeaseArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, LeaseClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const LeaseId id, find_lease_id(*client, arguments.name));
  TERRACE_RETURN_IF_ERROR(client->release(id));
  if (context.json) {
    print_json({{"released", id.value}});
  } else {
    print_text("released lease " + std::to_string(id.value) +
               "; its memory is scrubbed before it is free again\n");
  }
  return {};
}

}  // namespace

Error zero_ttl(const char* where) {
  return Error{
      .code = ErrorCode::invalid_argument,
      .where = where,
      .detail = "a ttl of 0 is no time at all; 'lease grant --persistent' makes a lease without expiry"};
}

Result<LeaseStatus> find_lease(LeaseClient& client, const std::string& name) {
  TERRACE_ASSIGN_OR_RETURN(const LeaseId id, lease_id_in(name, "terrace lease"));
  return client.lease(id, id.value == 0 ? name : "");
}

Result<LeaseId> find_lease_id(LeaseClient& client, const std::string& name) {
  TERRACE_ASSIGN_OR_RETURN(const LeaseId id, lease_id_in(name, "terrace lease"));
  if (id.value != 0) return id;
  TERRACE_ASSIGN_OR_RETURN(const LeaseStatus lease, client.lease(LeaseId{}, name));
  return LeaseId{lease->getId()};
}

void add_lease_argument(Command verb, std::string& name) {
  verb.add_option("lease", name, "Id or label (all digits: an id)").required().type_name("ID|LABEL");
}

void add_lease_verbs(Command app, Context& context) {
  Command lease = app.add_subcommand("lease", "Leases: who holds which memory, until when");
  lease.require_subcommand();
  add_lease_grant_verb(lease, context);
  const auto arguments = std::make_shared<LeaseArguments>();

  Command list = lease.add_subcommand("list", "All leases, or those of a pool, tenant or phase");
  list.add_option("--pool", arguments->pool, "Only this pool's").type_name("POOL");
  list.add_option("--tenant", arguments->tenant, "Only this tenant's").type_name("TENANT");
  const std::vector<std::string> phases = shown_phases();
  list.add_option("--phase", arguments->phase, "Only those in this phase").one_of(phases);
  const auto listing = std::make_shared<Listing>();
  on_list(list, context, listing,
          [&context, arguments, listing] { return list_leases(context, *arguments, *listing); });

  Command show = lease.add_subcommand("show", "Everything about leases, with where their bytes are");
  show.add_option("lease", arguments->names, "Ids or labels (all digits: an id)")
      .required()
      .type_name("ID|LABEL");
  on_verb(show, context, [&context, arguments] { return show_leases(context, *arguments); });

  Command renew = lease.add_subcommand("renew", "Put a lease's expiry off");
  add_lease_argument(renew, arguments->name);
  add_duration_option(renew, "--ttl", arguments->ttl_ns, "How long from now").required();
  on_verb(renew, context, [&context, arguments] { return renew_lease(context, *arguments); });

  Command revoke =
      lease.add_subcommand("revoke", "Take a lease back: tell the holder, wait, fence it, scrub it");
  add_lease_argument(revoke, arguments->name);
  add_duration_option(revoke, "--grace", arguments->revoke.grace_ns,
                      "How long the holder has to let go (default 10s; 0s: fence now)");
  revoke.add_option("--reason", arguments->revoke.reason, "Shown to the holder and in lists").type_name("TEXT");
  revoke.add_flag("--dry-run", arguments->dry_run, dry_run_help);
  on_verb(revoke, context, [&context, arguments] { return revoke_lease(context, *arguments); });

  Command release =
      lease.add_subcommand("release",
                           "Give a lease back in its holder's name: it is fenced at once. A quarantined one "
                           "is fenced and erased once more");
  add_lease_argument(release, arguments->name);
  on_verb(release, context, [&context, arguments] { return release_lease(context, *arguments); });
  add_lease_change_verbs(lease, context);
  add_lease_exec_verb(lease, context);
  add_lease_hold_verb(lease, context);
  add_lease_path_verb(lease, context);
  add_lease_cdi_verb(lease, context);
}

}  // namespace terrace::cli
