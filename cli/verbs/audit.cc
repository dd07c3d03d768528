// SPDX-License-Identifier: Apache-2.0
// `terrace audit`: who did what, from the daemon's log.
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/client/admin_client.h"
#include "cli/show/describe.h"
#include "cli/terminal/local_time.h"
#include "cli/terminal/output.h"
#include "cli/terminal/verb.h"
#include "core/base/clock.h"

namespace terrace::cli {
namespace {

struct AuditArguments {
  AuditFilter filter;
  std::string since;
  uint64_t limit = 100;
  bool follow = false;
};

std::vector<std::string> audit_row(const AuditRecord& entry) {
  return {format_moment(entry->getWallNs()), or_dash(str(entry->getActor())),
          or_dash(str(entry->getTenant())),  str(entry->getVerb()),
          or_dash(str(entry->getSubject())), str(entry->getDetail())};
}

std::string audit_table(const std::vector<AuditRecord>& entries, bool titles) {
  std::vector<std::vector<std::string>> rows;
  for (const AuditRecord& entry : entries) rows.push_back(audit_row(entry));
  const std::string table = format_table({"TIME", "ACTOR", "TENANT", "VERB", "SUBJECT", "DETAIL"}, rows);
  return titles ? table : table.substr(table.find('\n') + 1);
}

// One object a line: a reader can begin before the end, which there is none of.
void print_entries(const Context& context, const std::vector<AuditRecord>& entries, bool titles) {
  if (!context.json) {
    if (titles || !entries.empty()) print_text(audit_table(entries, titles));
    return;
  }
  for (const AuditRecord& entry : entries)
    print_text(to_json(entry).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

// Until the reader or the daemon goes away.
Status follow(const Context& context, AdminClient& client, const AuditArguments& arguments, uint64_t last) {
  for (;;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    TERRACE_ASSIGN_OR_RETURN(const std::vector<AuditRecord> entries,
                             client.audit_after(arguments.filter, last));
    if (entries.empty()) continue;
    last = entries.back()->getSequence();
    print_entries(context, entries, false);
  }
}

Status show_audit(const Context& context, AuditArguments& arguments) {
  if (!arguments.since.empty()) {
    TERRACE_ASSIGN_OR_RETURN(arguments.filter.since_ns, parse_moment(arguments.since, wall_clock_ns()));
  }
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  // What is new during the first answer is not lost: what follows begins behind the last entry of all.
  uint64_t last = 0;
  if (arguments.follow) {
    TERRACE_ASSIGN_OR_RETURN(const std::vector<AuditRecord> newest, client->audit_newest({}, 1));
    if (!newest.empty()) last = newest.back()->getSequence();
  }
  TERRACE_ASSIGN_OR_RETURN(std::vector<AuditRecord> entries,
                           client->audit_newest(arguments.filter, arguments.limit));
  if (arguments.follow) {
    print_entries(context, entries, true);
    if (!entries.empty()) last = std::max(last, entries.back()->getSequence());
    return follow(context, *client, arguments, last);
  }
  if (context.json) {
    print_json({{"entries", to_json_list(entries)}});
  } else if (entries.empty()) {
    print_text("no entries\n");
  } else {
    std::string text = audit_table(entries, true);
    if (arguments.limit != 0 && entries.size() == arguments.limit)
      text += "The newest " + std::to_string(arguments.limit) + "; --limit 0 shows all that are kept.\n";
    print_text(text);
  }
  return {};
}

}  // namespace

void add_audit_verb(Command app, Context& context) {
  const auto arguments = std::make_shared<AuditArguments>();
  Command audit = app.add_subcommand("audit", "Who did what and when, newest last");
  audit.add_option("--tenant", arguments->filter.tenant, "Only what concerns this tenant").type_name("TENANT");
  audit.add_option("--verb", arguments->filter.verb, "Only verbs that begin so, as 'grant' or 'device'")
      .type_name("VERB");
  audit.add_option("--subject", arguments->filter.subject, "Only this one, as 'lease 7' or 'device emu:a'")
      .type_name("SUBJECT");
  audit.add_option("--since", arguments->since, "From then on: 2h (ago), 11:30, 2026-11-21, '2026-11-21 11:30'")
      .type_name("DURATION|TIME");
  audit.add_option("--limit", arguments->limit, "At most so many, the newest (default 100; 0: all)")
      .type_name("N");
  audit.add_flag("--follow", arguments->follow,
                 "Go on with what is new, until ended; with --json one object a line");
  on_verb(audit, context, [&context, arguments] { return show_audit(context, *arguments); });
}

}  // namespace terrace::cli
