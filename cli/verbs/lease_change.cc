// SPDX-License-Identifier: Apache-2.0
// `terrace lease resize|transfer|offers|accept|withdraw|quarantined`.
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/show/describe.h"
#include "cli/terminal/confirm.h"
#include "cli/verbs/lease_verbs.h"

namespace terrace::cli {
namespace {

struct LeaseChangeArguments {
  std::string name;  // id or label
  std::string size;
  std::string to_tenant, to_host;
  bool yes = false;
};

Status resize_lease(const Context& context, const LeaseChangeArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, LeaseClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const LeaseStatus before, find_lease(*client, arguments.name));
  TERRACE_ASSIGN_OR_RETURN(const uint64_t bytes, parse_new_size(arguments.size, before->getBytes()));
  const uint64_t bytes_before = before->getBytes();
  const std::string id = std::to_string(before->getId());
  const uint64_t granule = before->getGranuleBytes();
  const uint64_t granules_bytes = is_power_of_two(granule) ? round_up(bytes, granule) : bytes;
  if (granules_bytes < bytes_before) {
    const std::string lost = exact_size(bytes_before - granules_bytes);
    TERRACE_RETURN_IF_ERROR(confirm(context, arguments.yes,
                                    "The last " + lost + " of lease " + id +
                                        " are cut off and erased; a holder that touches them gets SIGBUS (" +
                                        count_text(before->getHolders(), "session") + " attached).\n",
                                    "Shrink lease " + id + " from " + exact_size(bytes_before) + " to " +
                                        exact_size(granules_bytes) + "?"));
  }
  TERRACE_ASSIGN_OR_RETURN(const LeaseStatus lease, client->resize(LeaseId{before->getId()}, bytes));
  if (context.json) {
    print_json({{"lease", to_json(lease)}, {"bytes_before", bytes_before}});
  } else if (lease->getBytes() == bytes_before) {
    print_text("lease " + id + " has " + exact_size(lease->getBytes()) + " already\n");
  } else {
    print_text("lease " + id + " has " + exact_size(lease->getBytes()) + " now, " + exact_size(bytes_before) +
               " before" +
               (lease->getBytes() > bytes_before ? "; holders map the rest when they attach again\n" : "\n"));
  }
  return {};
}

Status transfer_lease(const Context& context, const LeaseChangeArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, LeaseClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const LeaseStatus before, find_lease(*client, arguments.name));
  const std::string id = std::to_string(before->getId());
  const std::string to =
      "tenant " + arguments.to_tenant + (arguments.to_host.empty() ? "" : " on " + arguments.to_host);
  TERRACE_RETURN_IF_ERROR(
      confirm(context, arguments.yes,
              "The bytes stay; once it is the other's, whoever holds the lease is fenced (" +
                  count_text(before->getHolders(), "session") + " attached), and tenant " +
                  printable(str(before->getTenant())) + " loses it.\n",
              "Give lease " + id + " to " + to + "?"));
  TERRACE_ASSIGN_OR_RETURN(const LeaseStatus lease,
                           client->transfer(LeaseId{before->getId()}, arguments.to_tenant, arguments.to_host));
  if (context.json) {
    print_json({{"lease", to_json(lease)}});
  } else if (lease->getOfferedTo().size() != 0) {
    print_text("lease " + id + " is offered to tenant " + printable(str(lease->getOfferedTo())) +
               ", and yours until that one says 'terrace lease accept " + id + "'; 'terrace lease withdraw " +
               id + "' takes the offer back\n");
  } else {
    print_text(
        "lease " + id + " belongs to tenant " + printable(str(lease->getTenant())) +
        (lease->getHost().size() == 0 ? "" : " on " + printable(str(lease->getHost()))) + ", epoch " +
        std::to_string(lease->getEpoch()) + "; it attaches with that id" +
        (lease->getLabel().size() == 0 ? "\n" : " or label " + printable(str(lease->getLabel())) + "\n"));
  }
  return {};
}

Status list_offers(const Context& context) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, LeaseClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<LeaseStatus> leases, client->offers());
  if (context.json) {
    print_json({{"leases", to_json_list(leases)}});
  } else if (leases.empty()) {
    print_text("nothing is offered to you\n");
  } else {
    print_text(lease_table(leases));
  }
  return {};
}

// What is meant by `name` among the offers: labels are unique within a tenant only.
Result<LeaseId> find_offer(LeaseClient& client, const std::string& name) {
  TERRACE_ASSIGN_OR_RETURN(const LeaseId id, lease_id_in(name, "terrace lease"));
  if (id.value != 0) return id;
  TERRACE_ASSIGN_OR_RETURN(std::vector<LeaseStatus> leases, client.offers());
  std::erase_if(leases, [&](const LeaseStatus& lease) { return str(lease->getLabel()) != name; });
  if (leases.size() == 1) return LeaseId{leases[0]->getId()};
  return Error{.code = leases.empty() ? ErrorCode::not_found : ErrorCode::invalid_argument,
               .where = "lease accept",
               .detail = leases.empty() ? "nothing labelled '" + name + "' is offered to you"
                                        : "several tenants offer a lease labelled '" + name + "'; give its id"};
}

Status accept_lease(const Context& context, const LeaseChangeArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, LeaseClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const LeaseId id, find_offer(*client, arguments.name));
  TERRACE_ASSIGN_OR_RETURN(const LeaseStatus lease, client->accept_offer(id));
  if (context.json) {
    print_json({{"lease", to_json(lease)}});
  } else {
    print_text("lease " + std::to_string(id.value) + " belongs to tenant " +
               printable(str(lease->getTenant())) + " on " + printable(str(lease->getHost())) + ", " +
               exact_size(lease->getBytes()) + ", epoch " + std::to_string(lease->getEpoch()) + "\n");
  }
  return {};
}

Status withdraw_offer(const Context& context, const LeaseChangeArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, LeaseClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const LeaseId id, find_lease_id(*client, arguments.name));
  TERRACE_RETURN_IF_ERROR(client->withdraw_offer(id));
  if (context.json) {
    print_json({{"withdrawn", id.value}});
  } else {
    print_text("lease " + std::to_string(id.value) + " is offered to nobody\n");
  }
  return {};
}

Status list_quarantined(const Context& context) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<LeaseStatus> leases, client->quarantined());
  if (context.json) {
    print_json({{"leases", to_json_list(leases)}});
    return {};
  }
  if (leases.empty()) {
    print_text("nothing is quarantined\n");
    return {};
  }
  std::vector<std::vector<std::string>> rows;
  uint64_t bytes = 0;
  for (const LeaseStatus& lease : leases) {
    bytes += lease->getBytes();
    rows.push_back({std::to_string(lease->getId()), or_dash(str(lease->getLabel())), str(lease->getPool()),
                    str(lease->getTenant()), exact_size(lease->getBytes()), or_dash(cause_words(lease)),
                    str(lease->getReason())});
  }
  print_text(
      format_table({"ID", "LABEL", "POOL", "TENANT", "SIZE", "CAUSE", "WHY"}, rows) + "\n" + exact_size(bytes) +
      " could not be fenced or erased, and are granted to nobody: a former holder may still reach them.\n"
      "Fix what WHY says (end the process that maps them, say), then 'terrace lease release ID' fences and "
      "erases "
      "once more.\n"
      "On a device that is gone for good: 'terrace device remove SERIAL --forget-quarantined'.\n");
  return {};
}

}  // namespace

Result<uint64_t> parse_new_size(const std::string& text, uint64_t bytes) {
  const bool relative = !text.empty() && (text[0] == '+' || text[0] == '-');
  TERRACE_ASSIGN_OR_RETURN(const uint64_t size, parse_size(relative ? text.substr(1) : text));
  if (relative && size == 0) return bytes;
  if (relative && text[0] == '+') return size > UINT64_MAX / 2 - bytes ? UINT64_MAX / 2 : bytes + size;
  if (!relative && size != 0) return size;
  if (relative && size < bytes) return bytes - size;
  return Error{.code = ErrorCode::invalid_argument,
               .where = "lease resize",
               .detail = "'" + text + "' would leave nothing of " + exact_size(bytes) +
                         "; 'terrace lease release' gives all of it back"};
}

void add_lease_change_verbs(Command lease, Context& context) {
  const auto arguments = std::make_shared<LeaseChangeArguments>();
  Command resize = lease.add_subcommand("resize", "Make a lease larger, or cut off its end");
  add_lease_argument(resize, arguments->name);
  resize.add_option("size", arguments->size, "The new size, or +SIZE or -SIZE; rounded up to granules")
      .required()
      .type_name("SIZE");
  resize.add_flag("--yes", arguments->yes, "Do not ask before a shrink");
  on_verb(resize, context, [&context, arguments] { return resize_lease(context, *arguments); });

  Command transfer = lease.add_subcommand(
      "transfer",
      "Offer a lease, its bytes kept, to another tenant; an administrator gives it at once. Then holders are "
      "fenced, the epoch steps");
  add_lease_argument(transfer, arguments->name);
  transfer.add_option("--to-tenant", arguments->to_tenant, "Whose it will be").required().type_name("TENANT");
  transfer.add_option("--to-host", arguments->to_host, "On which host (default: the same)").type_name("HOST");
  transfer.add_flag("--yes", arguments->yes, "Do not ask");
  on_verb(transfer, context, [&context, arguments] { return transfer_lease(context, *arguments); });

  Command offers = lease.add_subcommand("offers", "What other tenants offer to this user's");
  on_verb(offers, context, [&context] { return list_offers(context); });
  Command accept =
      lease.add_subcommand("accept", "Take a lease that is offered: it counts against the quota from now on");
  add_lease_argument(accept, arguments->name);
  on_verb(accept, context, [&context, arguments] { return accept_lease(context, *arguments); });
  Command withdraw = lease.add_subcommand("withdraw", "Take back an offer that nobody has accepted");
  add_lease_argument(withdraw, arguments->name);
  on_verb(withdraw, context, [&context, arguments] { return withdraw_offer(context, *arguments); });

  Command quarantined =
      lease.add_subcommand("quarantined", "What could not be fenced or erased, why, and what to do");
  on_verb(quarantined, context, [&context] { return list_quarantined(context); });
}

}  // namespace terrace::cli
