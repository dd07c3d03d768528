// SPDX-License-Identifier: Apache-2.0
// `terrace host`: the further hosts, as their manager knows them, and which of them it lets in.
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/client/admin_client.h"
#include "cli/show/describe.h"
#include "cli/show/list.h"
#include "cli/terminal/confirm.h"
#include "cli/terminal/verb.h"

namespace terrace::cli {
namespace {

std::string state_text(const HostRecord& host) {
  const std::string state = str(host->getState());
  if (host->getEndsInNs() == 0 || (state != "away" && state != "removed")) return state;
  return state + ", fenced in " + format_duration(host->getEndsInNs() / ns_per_ms * ns_per_ms);
}

std::string contact_text(const HostRecord& host) {
  if (host->getAddress().size() == 0) return "not since the start";
  return format_duration(host->getLastContactNs() / ns_per_ms * ns_per_ms) + " ago";
}

std::string certificate_text(const HostRecord& host) {
  const int32_t days = host->getCertificateDaysLeft();
  if (days < 0) return "-";
  return count_text(static_cast<uint64_t>(days), "day") + (host->getCertificateEndsSoon() ? "!" : "");
}

// To the millisecond, but never as nothing.
std::string brief_duration(uint64_t ns) {
  return ns < ns_per_ms ? format_duration(ns) : format_duration(ns / ns_per_ms * ns_per_ms);
}

std::string fencing_text(const HostRecord& host) {
  if (host->getMarginNs() == 0) return "-";
  const bool full = host->getMarginNs() >= host->getMarginMaxNs();
  return brief_duration(host->getFenceNs()) + " of " + brief_duration(host->getMarginMaxNs() / 2) +
         ", begins " + brief_duration(host->getMarginNs()) + " early" + (full ? "!" : "");
}

std::string host_table(const std::vector<HostRecord>& hosts) {
  std::vector<std::vector<std::string>> rows;
  for (const HostRecord& host : hosts)
    rows.push_back({str(host->getName()), state_text(host), contact_text(host), certificate_text(host),
                    std::to_string(host->getLeases()), exact_size(host->getLeasedBytes()), fencing_text(host),
                    or_dash(join(strings(host->getDevices()), " "))});
  return format_table({"HOST", "STATE", "LAST CONTACT", "CERTIFICATE", "LEASES", "BYTES", "FENCING", "DEVICES"},
                      rows);
}

Status list_hosts(const Context& context, const Listing& listing) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(std::vector<HostRecord> hosts, client->hosts());
  return show_list<HostRecord>(
      context, listing, std::move(hosts),
      {.key = "hosts",
       .name = "name",
       .table = host_table,
       .none = "no further hosts; 'terrace cert' and docs/operations/agents.md say how one joins\n"});
}

struct HostArguments {
  std::string name;
  bool revoke = false, yes = false;
};

Status remove_host(const Context& context, const HostArguments& arguments) {
  const std::string& name = arguments.name;
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  if (arguments.revoke) {
    TERRACE_RETURN_IF_ERROR(
        confirm(context, arguments.yes,
                "Its leases end at once, with all that is in them; their memory is others' once "
                "its host lease has run out.\n",
                "Remove host " + printable(name) + " and take its leases back?"));
  }
  TERRACE_RETURN_IF_ERROR(client->remove_host(name, arguments.revoke));
  if (context.json) {
    print_json({{"removed", name}});
  } else {
    print_text("removed " + printable(name) + "; its agent is refused until 'terrace host allow " +
               printable(name) + "'\n");
  }
  return {};
}

Status allow_host(const Context& context, const HostArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_RETURN_IF_ERROR(client->allow_host(arguments.name));
  if (context.json) {
    print_json({{"allowed", arguments.name}});
  } else {
    print_text(printable(arguments.name) + " may come back: its agent registers by itself within seconds\n");
  }
  return {};
}

}  // namespace

void add_host_verbs(Command app, Context& context) {
  Command host = app.add_subcommand("host", "Further hosts, which lease through an agent");
  host.require_subcommand();
  Command list = host.add_subcommand("list", "Hosts, whether their agents are there, and what they lease");
  const auto listing = std::make_shared<Listing>();
  on_list(list, context, listing, [&context, listing] { return list_hosts(context, *listing); });

  const auto arguments = std::make_shared<HostArguments>();
  Command remove = host.add_subcommand("remove", "Forget a host, and refuse its agent from now on");
  remove.add_option("name", arguments->name, "The host").type_name("HOST").required();
  remove.add_flag("--revoke", arguments->revoke, "Take back what it leases");
  remove.add_flag("--yes", arguments->yes, "Do not ask");
  on_verb(remove, context, [&context, arguments] { return remove_host(context, *arguments); });

  Command allow = host.add_subcommand("allow", "Let the agent of a removed host in again");
  allow.add_option("name", arguments->name, "The host").type_name("HOST").required();
  on_verb(allow, context, [&context, arguments] { return allow_host(context, *arguments); });
}

}  // namespace terrace::cli
