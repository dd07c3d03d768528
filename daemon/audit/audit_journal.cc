// SPDX-License-Identifier: Apache-2.0
#include "daemon/audit/audit_journal.h"

#include <string_view>

namespace terrace::daemon {
namespace {

constexpr std::string_view facility_authpriv = "10";
constexpr std::string_view priority_info = "6", priority_notice = "5";

struct SubjectKind {
  std::string_view begin, key;
};
constexpr SubjectKind subject_kinds[] = {{"lease ", "TERRACE_LEASE"},
                                         {"pool ", "TERRACE_POOL"},
                                         {"device ", "TERRACE_DEVICE"},
                                         {"host ", "TERRACE_HOST"}};

}  // namespace

std::string audit_journal_entry(const AuditRow& row) {
  const auto field = [](std::string& entry, std::string_view key, std::string_view value) {
    if (!value.empty()) add_journal_field(entry, key, value);
  };
  std::string message = row.actor.empty() ? "the manager" : row.actor;
  for (const std::string& part : {row.verb, row.subject}) message += part.empty() ? "" : ": " + part;
  if (!row.detail.empty()) message += " (" + row.detail + ")";
  std::string entry;
  field(entry, "MESSAGE", message);
  field(entry, "PRIORITY", row.verb.starts_with("denied ") ? priority_notice : priority_info);
  field(entry, "SYSLOG_FACILITY", facility_authpriv);
  field(entry, "SYSLOG_IDENTIFIER", "terraced-audit");
  field(entry, "TERRACE_ACTOR", row.actor);
  field(entry, "TERRACE_TENANT", row.tenant);
  field(entry, "TERRACE_VERB", row.verb);
  field(entry, "TERRACE_SUBJECT", row.subject);
  for (const SubjectKind& kind : subject_kinds)
    if (row.subject.starts_with(kind.begin))
      field(entry, kind.key, std::string_view(row.subject).substr(kind.begin.size()));
  field(entry, "TERRACE_DETAIL", row.detail);
  field(entry, "TERRACE_TIME_NS", std::to_string(row.wall_ns));
  return entry;
}

}  // namespace terrace::daemon
