// SPDX-License-Identifier: Apache-2.0
// `terrace doctor`: all checks, and the daemon's own view when one answers.
#include "cli/doctor/doctor.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/client/admin_client.h"
#include "cli/doctor/doctor_fix.h"
#include "cli/show/describe.h"
#include "cli/terminal/manager_place.h"
#include "cli/terminal/verb.h"

namespace terrace::cli {
namespace {

// Until when a manager and its agents know each other.
Check check_certificates(rpc::ServerInfo::Reader server, const std::vector<HostRecord>& hosts) {
  Check check{.name = "certificates"};
  bool soon = false;
  const auto add = [&](const std::string& what, int32_t days, bool ends_soon) {
    check.found += (check.found.empty() ? "" : ", ") + what + " for " +
                   count_text(static_cast<uint64_t>(std::max(days, 0)), "day");
    soon = soon || ends_soon;
  };
  for (const auto end : server.getCertificates())
    add(str(end.getWhat()) + " " + str(end.getName()), end.getDaysLeft(), end.getSoon());
  for (const HostRecord& host : hosts)
    if (host->getCertificateEndsSoon())
      add("host " + str(host->getName()), host->getCertificateDaysLeft(), true);
  if (!soon) return check;
  check.state = CheckState::limited;
  check.meaning = "after its end agents and manager refuse each other, and the hosts lose their leases";
  check.fix = "terrace cert issue, or terrace cert revoke --none for the list (docs/operations/agents.md)";
  return check;
}

void run_doctor(Context& context) {
  const std::string path = socket_path_of(context);
  std::vector<Check> checks = run_checks(path);
  const bool possible = doctor::basic_service_possible(checks);

  Result<StatusReply> daemon = Error{.code = ErrorCode::unavailable, .detail = "not asked"};
  if (try_connect(path) == 0) {
    // The doctor must end even when the daemon hangs.
    Context quick = context;
    quick.call_timeout_ns = std::min<uint64_t>(context.call_timeout_ns, 5 * ns_per_s);
    Result<std::unique_ptr<AdminClient>> client = AdminClient::connect(quick);
    if (client.ok())
      daemon = (*client)->status();
    else
      daemon = client.error();
    if (daemon.ok() && (*daemon)->getServer().getCertificates().size() != 0) {
      const auto hosts = (*client)->hosts();
      checks.push_back(
          check_certificates((*daemon)->getServer(), hosts.ok() ? *hosts : std::vector<HostRecord>()));
    }
  }

  context.exit_code = possible ? exit_ok : exit_failed;
  if (context.json) {
    nlohmann::json view = nullptr;
    if (daemon.ok()) view = to_json((*daemon)->getServer());
    print_json(
        {{"basic_service", possible}, {"checks", checks_json(checks)}, {"socket", path}, {"daemon", view}});
    return;
  }
  std::string text = format_checks(checks) + "\n";
  if (daemon.ok()) text += server_block((*daemon)->getServer(), path) + "\n";
  text += possible ? "This machine can run Terrace with an emulated pool.\n"
                   : "This machine cannot run even an emulated pool: fix what is essential above.\n";
  print_text(text);
}

}  // namespace

nlohmann::json checks_json(const std::vector<Check>& checks) {
  nlohmann::json list = nlohmann::json::array();
  for (const Check& check : checks) {
    list.push_back({{"name", check.name},
                    {"group", doctor::group_name(doctor::group_of(check.name))},
                    {"state", doctor::state_name(check.state)},
                    {"found", check.found},
                    {"meaning", check.meaning},
                    {"fix", check.fix},
                    {"essential", check.essential}});
  }
  return list;
}

std::vector<Check> run_checks(const std::string& socket_path) {
  std::vector<Check> checks = doctor::run_checks({check_userfaultfd_device(socket_path)});
  checks.push_back(check_socket(socket_path));
  return checks;
}

std::string format_checks(const std::vector<Check>& checks) {
  size_t width = 0;
  for (const Check& check : checks) width = std::max(width, check.name.size());
  const std::string indent(9 + width + 2, ' ');
  std::string text;
  for (const Check& check : checks) {
    std::string state = doctor::state_name(check.state);
    state.resize(9, ' ');
    std::string name = check.name;
    name.resize(width + 2, ' ');
    text += state + name + printable(check.found) + "\n";
    if (!check.meaning.empty()) text += indent + printable(check.meaning) + "\n";
    if (!check.fix.empty()) text += indent + "fix: " + printable(check.fix) + "\n";
  }
  return text;
}

void add_doctor_verb(Command app, Context& context) {
  Command doctor = app.add_subcommand(
      "doctor", "What this machine can and cannot do for Terrace, and how to fix it; needs no daemon");
  struct Arguments {
    bool fix = false, yes = false, manager = false;
  };
  const auto arguments = std::make_shared<Arguments>();
  Option fix =
      doctor.add_flag("--fix", arguments->fix,
                      "Fix what can be fixed safely: dax devices that came up as system-ram; asks first");
  doctor.add_flag("--yes", arguments->yes, "With --fix: do not ask").needs(fix);
  doctor
      .add_flag("--manager", arguments->manager,
                "Of the machine that the manager runs on, as the manager sees it; asks the manager")
      .excludes(fix);
  on_verb(doctor, context, [&context, arguments]() -> Status {
    if (arguments->manager) return run_manager_doctor(context);
    TERRACE_RETURN_IF_ERROR(on_this_machine(context, "terrace doctor"));
    if (arguments->fix) return run_fix(context, arguments->yes);
    run_doctor(context);
    return {};
  });
}

}  // namespace terrace::cli
