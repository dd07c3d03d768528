// SPDX-License-Identifier: Apache-2.0
// `terrace health`: what is wrong with the manager, and what to do. Its exit codes are its own.
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/client/admin_client.h"
#include "cli/show/describe.h"
#include "cli/terminal/local_time.h"
#include "cli/terminal/verb.h"
#include "core/base/clock.h"
#include "core/schema/words.h"

namespace terrace::cli {
namespace {

using HealthList = capnp::List<rpc::HealthFinding>::Reader;

// Those of monitoring programs: a script that asks needs no text. A manager that cannot be asked is exit_unavailable.
int exit_code_of_health(rpc::HealthSeverity severity) {
  switch (severity) {
    case rpc::HealthSeverity::HEALTHY: return 0;
    case rpc::HealthSeverity::WARNING: return 1;
    case rpc::HealthSeverity::CRITICAL: return 2;
  }
  return 2;
}

std::string health_subject(rpc::HealthFinding::Reader finding) {
  const std::string name = str(finding.getName());
  return printable(str(finding.getKind()) + (name.empty() ? "" : " " + name));
}

std::string health_line(rpc::HealthFinding::Reader finding) {
  return std::string(schema::enum_word(finding.getCode())) + ", " + health_subject(finding) + ": " +
         printable(str(finding.getText()));
}

std::string health_text(HealthList findings) {
  if (findings.size() == 0) return "healthy\n";
  std::string text;
  for (const auto severity : {rpc::HealthSeverity::CRITICAL, rpc::HealthSeverity::WARNING}) {
    std::string group;
    uint64_t count = 0;
    for (const auto finding : findings) {
      if (finding.getSeverity() != severity) continue;
      ++count;
      group += "  " + health_line(finding) + "\n    since " + format_moment(finding.getSinceWallNs()) +
               "\n    do: " + printable(str(finding.getAdvice())) +
               "\n    see: " + printable(str(finding.getPage())) + "\n";
    }
    if (count == 0) continue;
    const bool critical = severity == rpc::HealthSeverity::CRITICAL;
    text += (critical ? std::to_string(count) + " critical" : count_text(count, "warning")) + "\n" + group;
  }
  return text;
}

// What changes from one answer to the next, a line each.
class HealthChangePrinter {
 public:
  explicit HealthChangePrinter(bool json) : json_(json) {}

  void print(HealthList findings) {
    std::map<std::string, HealthRecord> now;
    for (const auto finding : findings) {
      const std::string key = std::string(schema::enum_word(finding.getCode())) + " " + str(finding.getKind()) +
                              " " + str(finding.getName());
      const auto before = before_.find(key);
      if (before == before_.end() || before->second->getSeverity() != finding.getSeverity())
        print_one("raised", finding);
      now.insert_or_assign(key, HealthRecord(finding));
    }
    for (const auto& [key, finding] : before_)
      if (!now.contains(key)) print_one("cleared", *finding);
    before_ = std::move(now);
  }

 private:
  void print_one(const char* change, rpc::HealthFinding::Reader finding) const {
    if (json_) {
      const nlohmann::json line = {{"change", change}, {"finding", to_json(finding)}};
      print_text(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    } else {
      print_text(format_moment(wall_clock_ns()) + "  " + change + "  " +
                 std::string(schema::enum_word(finding.getSeverity())) + "  " + health_line(finding) + "\n");
    }
  }

  const bool json_;
  std::map<std::string, HealthRecord> before_;
};

// Until the reader or the manager goes away.
Status watch_health(const Context& context, AdminClient& client) {
  HealthChangePrinter printer(context.json);
  for (bool first = true;; first = false) {
    TERRACE_ASSIGN_OR_RETURN(const HealthReply reply, client.health());
    if (first && !context.json && reply->getFindings().size() == 0) print_text("healthy\n");
    printer.print(reply->getFindings());
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

Status show_health(Context& context, bool watch) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  if (watch) return watch_health(context, *client);
  TERRACE_ASSIGN_OR_RETURN(const HealthReply reply, client->health());
  context.exit_code = exit_code_of_health(reply->getSummary().getSeverity());
  if (context.json) {
    nlohmann::json document = to_json(reply->getSummary());
    document["findings"] = to_json_list(reply->getFindings());
    print_json(document);
  } else {
    print_text(health_text(reply->getFindings()));
  }
  return {};
}

}  // namespace

void add_health_verb(Command app, Context& context) {
  const auto watch = std::make_shared<bool>(false);
  Command health = app.add_subcommand(
      "health", "What is wrong with the manager, and what to do. Exit 0: nothing, 1: warnings, 2: critical");
  health.add_flag("--watch", *watch, "Go on with what changes, until ended; with --json one object a line");
  on_verb(health, context, [&context, watch] { return show_health(context, *watch); });
}

}  // namespace terrace::cli
