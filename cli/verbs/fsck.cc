// SPDX-License-Identifier: Apache-2.0
// `terrace fsck`: the store against itself, the devices, the objects and what processes have mapped.
#include "cli/verbs/fsck.h"

#include <sys/wait.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/client/admin_client.h"
#include "cli/program/run_program.h"
#include "cli/show/describe.h"
#include "cli/terminal/manager_place.h"
#include "cli/terminal/verb.h"
#include "cli/verbs/daemon_arguments.h"
#include "cli/verbs/daemon_process.h"

namespace terrace::cli {
namespace {

struct Checked {
  std::vector<FindingStatus> findings;
  std::string by;  // in words
  bool daemon = false;
};

Result<Checked> check_offline(const Context& context, const DaemonArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const std::string program, find_daemon_program());
  std::vector<std::string> list = daemon_arguments(arguments, runtime_directory_of(context, arguments));
  list.insert(list.begin(), {"--fsck", "--json"});
  TERRACE_ASSIGN_OR_RETURN(const ProgramOutput output, run_program(program, list));
  constexpr int checked_clean = 0;
  constexpr int checked_findings = 1;
  const int code = WIFEXITED(output.status) ? WEXITSTATUS(output.status) : -1;
  Result<std::vector<FindingStatus>> findings = parse_findings(output.out);
  if ((code != checked_clean && code != checked_findings) || !findings.ok()) {
    std::string said = output.err.empty() ? output.out : output.err;
    while (!said.empty() && said.back() == '\n') said.pop_back();
    return Error{.code = code == 2 ? ErrorCode::invalid_argument : ErrorCode::io_error,
                 .where = "fsck",
                 .detail = program + " --fsck could not check" + (said.empty() ? "" : ": " + said)};
  }
  return Checked{.findings = std::move(findings).value(), .by = program + " --fsck; no daemon runs on it"};
}

Result<Checked> check_store(const Context& context, const DaemonArguments& arguments) {
  const Context other = context_of(context, arguments);
  Result<std::unique_ptr<AdminClient>> client = AdminClient::connect(other);
  if (!client.ok() && !remote_address(other).empty()) return client.error();  // its store is not here
  if (!client.ok() && client.error().code != ErrorCode::unavailable) return client.error();
  if (!client.ok()) return check_offline(context, arguments);
  TERRACE_ASSIGN_OR_RETURN(const StatusReply reply, (*client)->status());
  if (!same_store(str(reply->getServer().getStateFile()), arguments)) return check_offline(context, arguments);
  TERRACE_ASSIGN_OR_RETURN(std::vector<FindingStatus> findings, (*client)->fsck());
  return Checked{.findings = std::move(findings),
                 .by = "the daemon, pid " + std::to_string(reply->getServer().getPid()),
                 .daemon = true};
}

Status run_fsck(Context& context, const DaemonArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const Checked checked, check_store(context, arguments));
  if (needs_repair(checked.findings)) context.exit_code = exit_mismatch;
  if (context.json) {
    print_json({{"clean", checked.findings.empty()},
                {"checked_by", checked.daemon ? "daemon" : "terraced --fsck"},
                {"findings", to_json_list(checked.findings)}});
    return {};
  }
  print_text(findings_text(checked.findings) + "checked by " + printable(checked.by) + "\n");
  return {};
}

// Their order, and how each group is headed.
constexpr std::pair<const char*, const char*> severities[] = {
    {"error", "errors"}, {"warning", "warnings"}, {"note", "notes"}};

}  // namespace

std::string findings_text(const std::vector<FindingStatus>& findings) {
  if (findings.empty()) return "clean: the store, the devices and the memory agree\n";
  std::string text;
  const auto add_group = [&text, &findings](const std::string& title, auto belongs) {
    std::string group;
    size_t count = 0;
    for (const FindingStatus& finding : findings) {
      if (!belongs(finding)) continue;
      ++count;
      group += "  " + printable(str(finding->getSubject())) + ": " + printable(str(finding->getWhat())) + "\n";
      if (finding->getRepair().size() != 0) group += "    fix: " + printable(str(finding->getRepair())) + "\n";
    }
    if (count > 0) text += std::to_string(count) + " " + title + "\n" + group;
  };
  for (const auto& [severity, title] : severities) {
    const std::string wanted = severity;
    const auto here = static_cast<size_t>(std::count_if(
        findings.begin(), findings.end(),
        [&wanted](const FindingStatus& finding) { return str(finding->getSeverity()) == wanted; }));
    add_group(here == 1 ? wanted : std::string(title),
              [&wanted](const FindingStatus& finding) { return str(finding->getSeverity()) == wanted; });
  }
  add_group("other", [](const FindingStatus& finding) {
    return std::none_of(std::begin(severities), std::end(severities),
                        [&finding](const auto& known) { return str(finding->getSeverity()) == known.first; });
  });
  return text;
}

bool needs_repair(const std::vector<FindingStatus>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const FindingStatus& finding) { return str(finding->getSeverity()) != "note"; });
}

Result<std::vector<FindingStatus>> parse_findings(const std::string& text) {
  const Error refused{
      .code = ErrorCode::corrupt, .where = "fsck", .detail = "not a document of terraced --fsck"};
  const nlohmann::json document = nlohmann::json::parse(text, nullptr, false);
  if (!document.is_object() || !document.contains("findings") || !document["findings"].is_array())
    return refused;
  std::vector<FindingStatus> findings;
  for (const nlohmann::json& one : document["findings"]) {
    if (!one.is_object()) return refused;
    const auto field = [&one](const char* name) {
      const auto found = one.find(name);
      return found != one.end() && found->is_string() ? found->get<std::string>() : std::string();
    };
    findings.push_back(FindingStatus().changed([&field](rpc::Finding::Builder out) {
      out.setSeverity(field("severity"));
      out.setSubject(field("subject"));
      out.setWhat(field("what"));
      out.setRepair(field("repair"));
    }));
  }
  return findings;
}

void add_fsck_verb(Command app, Context& context) {
  const auto arguments = std::make_shared<DaemonArguments>();
  Command fsck = app.add_subcommand(
      "fsck", "Compare the store with the devices, objects and mappings; changes nothing. Exit 8: findings");
  fsck.add_option("--runtime-dir", arguments->runtime_directory, "Where the daemon's socket is")
      .type_name("DIR");
  add_start_options(fsck, arguments);
  on_verb(fsck, context, [&context, arguments] { return run_fsck(context, *arguments); });
}

}  // namespace terrace::cli
