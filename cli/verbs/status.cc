// SPDX-License-Identifier: Apache-2.0
// `terrace status` and `terrace check`.
#include <nlohmann/json.hpp>

#include "cli/client/admin_client.h"
#include "cli/show/describe.h"
#include "cli/terminal/verb.h"

namespace terrace::cli {
namespace {

// Of an older manager nothing is known.
std::string health_summary(const StatusReply& reply) {
  if (!reply->hasHealth()) return {};
  const auto health = reply->getHealth();
  if (health.getCritical() + health.getWarnings() == 0) return "health: nothing to do\n";
  std::string text;
  if (health.getCritical() != 0) text = std::to_string(health.getCritical()) + " critical";
  if (health.getWarnings() != 0)
    text += (text.empty() ? "" : ", ") + count_text(health.getWarnings(), "warning");
  return "health: " + text + " ('terrace health')\n";
}

Status show_status(const Context& context) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const StatusReply reply, client->status());
  if (context.json) {
    print_json({{"socket", socket_path_of(context)},
                {"server", to_json(reply->getServer())},
                {"pools", to_json_list(reply->getPools())},
                {"health", reply->hasHealth() ? to_json(reply->getHealth()) : nlohmann::json()},
                {"leases", reply->getLeases()}});
    return {};
  }
  std::string text = server_block(reply->getServer(), socket_path_of(context)) + "\n";
  if (reply->getServer().hasAgent()) {
    print_text(text + health_summary(reply));
    return {};
  }
  if (reply->getPools().size() == 0) {
    text += "no pools; 'terrace device list' shows what 'terrace pool create' can use\n";
  } else {
    text += pool_table(kept<rpc::PoolInfo>(reply->getPools()));
  }
  text += "\n" + count_text(reply->getLeases(), "lease") + "\n" + health_summary(reply);
  print_text(text);
  return {};
}

Status run_check(Context& context) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<std::string> problems, client->check());
  if (!problems.empty()) context.exit_code = exit_mismatch;
  if (context.json) {
    print_json({{"ok", problems.empty()}, {"problems", problems}});
    return {};
  }
  if (problems.empty()) {
    print_text("every invariant holds, and the objects match the leases\n");
    return {};
  }
  std::string text = std::to_string(problems.size()) + (problems.size() == 1 ? " problem:\n" : " problems:\n");
  for (const std::string& problem : problems) text += "  " + printable(problem) + "\n";
  print_text(text);
  return {};
}

}  // namespace

void add_status_verbs(Command app, Context& context) {
  on_verb(app.add_subcommand("status", "The daemon, its pools and how full they are"), context,
          [&context] { return show_status(context); });
  on_verb(app.add_subcommand("check",
                             "Re-derive every invariant in the daemon and compare with the objects that exist"),
          context, [&context] { return run_check(context); });
}

}  // namespace terrace::cli
