// `terrace lease grant|list|show|renew|revoke|release`.
#include <algorithm>
#include <charconv>
#include <memory>

#include "cli/admin_client.h"
#include "cli/cli.h"
#include "cli/describe.h"

namespace terrace::cli {
namespace {

struct GrantArguments {
  LeaseRequest request;
  std::string mode = "exclusive";
  std::string tenant;
  bool ttl_given = false;
};

struct LeaseArguments {
  std::string pool, tenant;
  std::vector<std::string> names;
  std::string name;  // id or label
  uint64_t ttl_ns = 0;
  RevokeOptions revoke{.grace_ns = 10 * ns_per_s, .reason = {}};
};

// On the wire 0 would mean the default, or the lease's own.
Error zero_ttl(const char* where) {
  return Error{
      .code = ErrorCode::invalid_argument,
      .where = where,
      .detail = "a ttl of 0 is no time at all; 'lease grant --persistent' makes a lease without expiry"};
}

// All digits: an id; anything else: a label, for which the id of the result is 0.
Result<LeaseId> parse_id(const std::string& name) {
  if (name.empty()) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "terrace lease",
                 .detail = "an empty text names no lease"};
  }
  if (!only_digits(name)) return LeaseId{};
  uint64_t id = 0;
  if (std::from_chars(name.data(), name.data() + name.size(), id).ec != std::errc() || id == 0) {
    return Error{.code = ErrorCode::not_found,
                 .where = "terrace lease",
                 .detail = "there is no lease " + name + "; ids begin at 1"};
  }
  return LeaseId{id};
}

Result<LeaseInfo> find_lease(AdminClient& client, const std::string& name) {
  TERRACE_ASSIGN_OR_RETURN(const LeaseId id, parse_id(name));
  return client.lease(id, id.value == 0 ? name : "");
}

// The id that `name` stands for; the daemon is asked only for labels.
Result<LeaseId> find_id(AdminClient& client, const std::string& name) {
  TERRACE_ASSIGN_OR_RETURN(const LeaseId id, parse_id(name));
  if (id.value != 0) return id;
  TERRACE_ASSIGN_OR_RETURN(const LeaseInfo lease, client.lease(LeaseId{}, name));
  return lease.id;
}

Status grant_lease(const Context& context, GrantArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(arguments.request.mode, parse_mode(arguments.mode));
  TERRACE_RETURN_IF_ERROR(check_label(arguments.request.label));
  if (arguments.ttl_given && arguments.request.ttl_ns == 0) return zero_ttl("lease grant");
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(LeaseInfo lease, client->grant(arguments.tenant, arguments.request));
  // The grant's reply does not measure the object; a second look does. The lease stands whether it works or
  // not.
  if (Result<LeaseInfo> measured = client->lease(lease.id, ""); measured.ok())
    lease = std::move(measured).value();
  if (context.json) {
    print_json({{"lease", to_json(lease)}});
    return {};
  }
  const std::string id = std::to_string(lease.id.value);
  std::string text = "granted " + lease_block(lease);
  if (lease.ttl_ns == 0) {
    text += "It is persistent: it stays until 'terrace lease release " + id + "'.\n";
  } else {
    text += "It lives by its ttl of " + format_duration(lease.ttl_ns) +
            " from now, not by this command: nobody renews it until 'terrace lease renew " + id +
            " --ttl 1h'.\n";
  }
  print_text(text);
  return {};
}

Status list_leases(const Context& context, const LeaseArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<LeaseInfo> leases,
                           client->leases(arguments.pool, arguments.tenant));
  if (context.json) {
    print_json({{"leases", to_json_list(leases)}});
  } else if (leases.empty()) {
    print_text("no leases\n");
  } else {
    print_text(lease_table(leases));
  }
  return {};
}

// Shows all that exist, then fails for the first that does not.
Status show_leases(const Context& context, const LeaseArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  std::vector<LeaseInfo> leases;
  Status missing;
  for (const std::string& name : arguments.names) {
    Result<LeaseInfo> lease = find_lease(*client, name);
    if (lease.ok()) {
      leases.push_back(std::move(lease).value());
    } else if (missing.ok()) {
      missing = lease.error();
    }
  }
  if (context.json) {
    nlohmann::json list = nlohmann::json::array();
    for (const LeaseInfo& lease : leases) list.push_back(to_json(lease));
    if (missing.ok()) print_json({{"leases", list}});
    return missing;
  }
  std::string text;
  for (const LeaseInfo& lease : leases) text += (text.empty() ? "" : "\n") + lease_block(lease);
  print_text(text);
  return missing;
}

Status renew_lease(const Context& context, const LeaseArguments& arguments) {
  if (arguments.ttl_ns == 0) return zero_ttl("lease renew");
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const LeaseId id, find_id(*client, arguments.name));
  TERRACE_ASSIGN_OR_RETURN(const LeaseInfo lease, client->renew(id, arguments.ttl_ns));
  if (context.json) {
    print_json({{"lease", to_json(lease, Measured::no)}});
  } else {
    print_text("renewed lease " + std::to_string(id.value) + ", expires " + describe_expiry(lease) + "\n");
  }
  return {};
}

Status revoke_lease(const Context& context, const LeaseArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const LeaseId id, find_id(*client, arguments.name));
  TERRACE_ASSIGN_OR_RETURN(const LeaseInfo lease, client->revoke(id, arguments.revoke));
  if (context.json) {
    print_json({{"lease", to_json(lease, Measured::no)}});
  } else if (lease.phase == "revoking") {
    print_text("told the holder of lease " + std::to_string(id.value) + "; it is fenced within " +
               format_duration(arguments.revoke.grace_ns) + ", sooner if the holder lets go\n");
  } else {
    print_text("lease " + std::to_string(id.value) + " is " + lease.phase + "\n");
  }
  return {};
}

Status release_lease(const Context& context, const LeaseArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const LeaseId id, find_id(*client, arguments.name));
  TERRACE_RETURN_IF_ERROR(client->release(id));
  if (context.json) {
    print_json({{"released", id.value}});
  } else {
    print_text("released lease " + std::to_string(id.value) +
               "; its memory is scrubbed before it is free again\n");
  }
  return {};
}

void add_grant(CLI::App& lease, Context& context) {
  CLI::App* grant = lease.add_subcommand("grant", "Grant memory of a pool to a tenant");
  const auto arguments = std::make_shared<GrantArguments>();
  grant->add_option("--pool", arguments->request.pool, "The pool; may be left out where there is only one")
      ->type_name("POOL");
  add_size_option(*grant, "--size", arguments->request.bytes, "How much; rounded up to granules")->required();
  CLI::Option* ttl = add_duration_option(*grant, "--ttl", arguments->request.ttl_ns,
                                         "How long without renewal (default: the daemon's, 60 s)");
  grant->add_flag("--persistent", arguments->request.persistent, "No expiry: it stays until it is released")
      ->excludes(ttl);
  grant->add_option("--mode", arguments->mode, "Who may hold it besides the grantee")
      ->type_name("exclusive|shared-ro|shared-coherent")
      ->check(CLI::IsMember({"exclusive", "shared-ro", "shared-coherent"}).description(""));
  grant->add_option("--label", arguments->request.label, "A name for people, unique within the tenant")
      ->type_name("LABEL");
  grant->add_option("--tenant", arguments->tenant, "Grant to another tenant than this user's")
      ->type_name("TENANT");
  grant->callback([&context, arguments, ttl] {
    arguments->ttl_given = ttl->count() > 0;
    if (const Status done = grant_lease(context, *arguments); !done.ok()) fail(context, done.error());
  });
}

void add_lease_argument(CLI::App& verb, std::string& name) {
  verb.add_option("lease", name, "Id or label (all digits: an id)")->required()->type_name("ID|LABEL");
}

}  // namespace

void add_lease_verbs(CLI::App& app, Context& context) {
  CLI::App* lease = app.add_subcommand("lease", "Leases: who holds which memory, until when");
  lease->require_subcommand(1);
  add_grant(*lease, context);
  const auto arguments = std::make_shared<LeaseArguments>();

  CLI::App* list = lease->add_subcommand("list", "All leases, or those of a pool or tenant");
  list->add_option("--pool", arguments->pool, "Only this pool's")->type_name("POOL");
  list->add_option("--tenant", arguments->tenant, "Only this tenant's")->type_name("TENANT");
  list->callback([&context, arguments] {
    if (const Status done = list_leases(context, *arguments); !done.ok()) fail(context, done.error());
  });

  CLI::App* show = lease->add_subcommand("show", "Everything about leases, with where their bytes are");
  show->add_option("lease", arguments->names, "Ids or labels (all digits: an id)")
      ->required()
      ->type_name("ID|LABEL");
  show->callback([&context, arguments] {
    if (const Status done = show_leases(context, *arguments); !done.ok()) fail(context, done.error());
  });

  CLI::App* renew = lease->add_subcommand("renew", "Put a lease's expiry off");
  add_lease_argument(*renew, arguments->name);
  add_duration_option(*renew, "--ttl", arguments->ttl_ns, "How long from now")->required();
  renew->callback([&context, arguments] {
    if (const Status done = renew_lease(context, *arguments); !done.ok()) fail(context, done.error());
  });

  CLI::App* revoke =
      lease->add_subcommand("revoke", "Take a lease back: tell the holder, wait, fence it, scrub it");
  add_lease_argument(*revoke, arguments->name);
  add_duration_option(*revoke, "--grace", arguments->revoke.grace_ns,
                      "How long the holder has to let go (default 10s; 0s: fence now)");
  revoke->add_option("--reason", arguments->revoke.reason, "Shown to the holder and in lists")
      ->type_name("TEXT");
  revoke->callback([&context, arguments] {
    if (const Status done = revoke_lease(context, *arguments); !done.ok()) fail(context, done.error());
  });

  CLI::App* release =
      lease->add_subcommand("release", "Give a lease back in its holder's name: it is fenced at once");
  add_lease_argument(*release, arguments->name);
  release->callback([&context, arguments] {
    if (const Status done = release_lease(context, *arguments); !done.ok()) fail(context, done.error());
  });
}

}  // namespace terrace::cli
