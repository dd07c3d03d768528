// `terrace host list`: the further hosts, as their manager knows them.
#include <nlohmann/json.hpp>

#include "cli/client/admin_client.h"
#include "cli/show/describe.h"
#include "cli/terminal/verb.h"

namespace terrace::cli {
namespace {

std::string state_text(const HostRecord& host) {
  if (str(host->getState()) != "away") return str(host->getState());
  return "away, fenced in " + format_duration(host->getEndsInNs() / ns_per_ms * ns_per_ms);
}

std::string contact_text(const HostRecord& host) {
  if (host->getAddress().size() == 0) return "not since the start";
  return format_duration(host->getLastContactNs() / ns_per_ms * ns_per_ms) + " ago";
}

Status list_hosts(const Context& context) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<HostRecord> hosts, client->hosts());
  if (context.json) {
    print_json({{"hosts", to_json_list(hosts)}});
    return {};
  }
  if (hosts.empty()) {
    print_text("no further hosts; 'terrace cert' and docs/operations/agents.md say how one joins\n");
    return {};
  }
  std::vector<std::vector<std::string>> rows;
  for (const HostRecord& host : hosts)
    rows.push_back({str(host->getName()), state_text(host), contact_text(host),
                    std::to_string(host->getLeases()), exact_size(host->getLeasedBytes()),
                    or_dash(join(strings(host->getDevices()), " "))});
  print_text(format_table({"HOST", "STATE", "LAST CONTACT", "LEASES", "BYTES", "DEVICES"}, rows));
  return {};
}

}  // namespace

void add_host_verbs(Command app, Context& context) {
  Command host = app.add_subcommand("host", "Further hosts, which lease through an agent");
  host.require_subcommand();
  Command list = host.add_subcommand("list", "Hosts, whether their agents are there, and what they lease");
  on_verb(list, context, [&context] { return list_hosts(context); });
}

}  // namespace terrace::cli
