// SPDX-License-Identifier: Apache-2.0
// `terrace quota list|set|remove` and `terrace reserve create|list|remove`.
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/client/admin_client.h"
#include "cli/show/describe.h"
#include "cli/show/list.h"
#include "cli/show/preview.h"
#include "cli/terminal/verb.h"

namespace terrace::cli {
namespace {

struct QuotaArguments {
  std::string tenant;
  uint64_t bytes_max = 0;
  uint64_t leases_max = 0;
  bool bytes_given = false;
  bool leases_given = false;
  bool dry_run = false;
};

std::string bound(uint64_t value, const std::string& text) {
  return value == 0 ? "no bound" : text;
}

std::string quota_table(const std::vector<QuotaStatus>& quotas) {
  std::vector<std::vector<std::string>> rows;
  for (const QuotaStatus& quota : quotas) {
    const bool others = str(quota->getTenant()) == "*";
    rows.push_back({str(quota->getTenant()), others ? "-" : exact_size(quota->getBytes()),
                    bound(quota->getBytesMax(), exact_size(quota->getBytesMax())),
                    others ? "-" : std::to_string(quota->getLeases()),
                    bound(quota->getLeasesMax(), std::to_string(quota->getLeasesMax()))});
  }
  return format_table({"TENANT", "BYTES", "MOST BYTES", "LEASES", "MOST LEASES"}, rows);
}

Status list_quotas(const Context& context, const Listing& listing) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(std::vector<QuotaStatus> quotas, client->quotas());
  return show_list<QuotaStatus>(
      context, listing, std::move(quotas),
      {.key = "quotas",
       .name = "tenant",
       .table = quota_table,
       .none = "no quotas: every tenant may lease all there is; 'terrace quota set TENANT --bytes SIZE'\n"});
}

QuotaStatus unbounded(const std::string& tenant) {
  return QuotaStatus().changed([&tenant](rpc::Quota::Builder quota) { quota.setTenant(tenant); });
}

// The quota that stands for exactly `tenant` now; one without bounds when there is none.
Result<QuotaStatus> find_quota(AdminClient& client, const std::string& tenant, bool* found) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<QuotaStatus> quotas, client.quotas());
  for (const QuotaStatus& quota : quotas) {
    *found = str(quota->getTenant()) == tenant;
    if (*found) return quota;
  }
  return unbounded(tenant);
}

Status set_quota(Context& context, const QuotaArguments& arguments) {
  if (!arguments.bytes_given && !arguments.leases_given) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "quota set",
                 .detail = "say what is bounded: --bytes SIZE, --leases N, or both"};
  }
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  bool found = false;
  TERRACE_ASSIGN_OR_RETURN(QuotaStatus quota, find_quota(*client, arguments.tenant, &found));
  quota = quota.changed([&arguments](rpc::Quota::Builder wanted) {
    if (arguments.bytes_given) wanted.setBytesMax(arguments.bytes_max);
    if (arguments.leases_given) wanted.setLeasesMax(arguments.leases_max);
  });
  if (arguments.dry_run) {
    TERRACE_ASSIGN_OR_RETURN(const PreviewStatus preview, client->preview_quota(quota));
    show_preview(context, preview);
    return {};
  }
  TERRACE_RETURN_IF_ERROR(client->set_quota(quota));
  TERRACE_ASSIGN_OR_RETURN(quota, find_quota(*client, arguments.tenant, &found));
  if (context.json) {
    print_json({{"quota", to_json(quota)}});
    return {};
  }
  std::string text = quota_table({quota});
  const auto exceeds = [](uint64_t used, uint64_t most) { return most != 0 && used > most; };
  const bool over =
      exceeds(quota->getBytes(), quota->getBytesMax()) || exceeds(quota->getLeases(), quota->getLeasesMax());
  if (over) text += "It holds more than that now: what it has stays, but it gets nothing more.\n";
  print_text(text);
  return {};
}

Status remove_quota(const Context& context, const std::string& tenant) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  bool found = false;
  TERRACE_RETURN_IF_ERROR(find_quota(*client, tenant, &found));
  if (!found) {
    return Error{.code = ErrorCode::not_found,
                 .where = "quota remove",
                 .detail = "tenant '" + tenant + "' has no quota of its own"};
  }
  TERRACE_RETURN_IF_ERROR(client->set_quota(unbounded(tenant)));
  if (context.json) {
    print_json({{"removed", tenant}});
  } else {
    print_text("tenant " + printable(tenant) + " has no quota of its own any more\n");
  }
  return {};
}

std::string reservation_table(const std::vector<ReservationStatus>& reservations) {
  std::vector<std::vector<std::string>> rows;
  for (const ReservationStatus& reservation : reservations) {
    rows.push_back({std::to_string(reservation->getId()), str(reservation->getPool()),
                    str(reservation->getTenant()), exact_size(reservation->getBytes()),
                    exact_size(reservation->getUsedBytes()),
                    reservation->getTtlNs() == 0 ? "until removed"
                                                 : "in " + format_duration(reservation->getExpiresInNs())});
  }
  return format_table({"ID", "POOL", "TENANT", "RESERVED", "LEASED THERE", "ENDS"}, rows);
}

Status create_reservation(const Context& context, const ReservationOptions& wanted) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const ReservationStatus made, client->reserve(wanted));
  if (context.json) {
    print_json({{"reservation", to_json(made)}});
  } else {
    print_text(reservation_table({made}));
  }
  return {};
}

Status list_reservations(const Context& context, const Listing& listing) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(std::vector<ReservationStatus> reservations, client->reservations());
  return show_list<ReservationStatus>(
      context, listing, std::move(reservations),
      {.key = "reservations", .name = "id", .table = reservation_table, .none = "no reservations\n"});
}

Status remove_reservation(const Context& context, uint64_t id) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_RETURN_IF_ERROR(client->unreserve(id));
  if (context.json) {
    print_json({{"removed", id}});
  } else {
    print_text("removed reservation " + std::to_string(id) + "\n");
  }
  return {};
}

}  // namespace

void add_quota_verbs(Command app, Context& context) {
  Command quota = app.add_subcommand("quota", "How much each tenant may lease at most, in all pools together");
  quota.require_subcommand();
  const auto arguments = std::make_shared<QuotaArguments>();
  const auto listing = std::make_shared<Listing>();
  on_list(quota.add_subcommand("list", "All quotas, and what is used of them"), context, listing,
          [&context, listing] { return list_quotas(context, *listing); });

  Command set = quota.add_subcommand("set", "Bound a tenant; '*': all without a quota of their own");
  set.add_option("tenant", arguments->tenant, "The tenant, or '*'").required().type_name("TENANT");
  Option bytes = add_size_option(set, "--bytes", arguments->bytes_max,
                                 "The most bytes (none or 0: no bound; left out: as it is)");
  Option leases = set.add_option("--leases", arguments->leases_max,
                                 "The most leases (none or 0: no bound; left out: as it is)")
                      .type_name("N");
  bytes.also("none", "0");
  leases.also("none", "0");
  set.add_flag("--dry-run", arguments->dry_run, dry_run_help);
  on_verb(set, context, [&context, arguments, bytes, leases] {
    arguments->bytes_given = bytes.count() > 0;
    arguments->leases_given = leases.count() > 0;
    return set_quota(context, *arguments);
  });

  Command remove = quota.add_subcommand("remove", "Take a tenant's quota away; that of '*' holds then");
  remove.add_option("tenant", arguments->tenant, "The tenant, or '*'").required().type_name("TENANT");
  on_verb(remove, context, [&context, arguments] { return remove_quota(context, arguments->tenant); });
}

void add_reserve_verbs(Command app, Context& context) {
  Command reserve = app.add_subcommand("reserve", "Memory of a pool that is kept free for a tenant");
  reserve.require_subcommand();
  const auto wanted = std::make_shared<ReservationOptions>();
  const auto id = std::make_shared<uint64_t>(0);
  Command create = reserve.add_subcommand("create", "Keep memory of a pool for a tenant");
  create.add_option("pool", wanted->pool, "The pool").required().type_name("POOL");
  create.add_option("tenant", wanted->tenant, "The tenant; what it has leased there counts towards it")
      .required();
  add_size_option(create, "size", wanted->bytes, "How much").required();
  add_duration_option(create, "--ttl", wanted->ttl_ns, "How long (default: until it is removed)");
  on_verb(create, context, [&context, wanted] { return create_reservation(context, *wanted); });

  const auto listing = std::make_shared<Listing>();
  on_list(reserve.add_subcommand("list", "All reservations"), context, listing,
          [&context, listing] { return list_reservations(context, *listing); });

  Command remove = reserve.add_subcommand("remove", "End a reservation; leases stay");
  remove.add_option("id", *id, "Its id").required().type_name("ID");
  on_verb(remove, context, [&context, id] { return remove_reservation(context, *id); });
}

}  // namespace terrace::cli
