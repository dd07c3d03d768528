// SPDX-License-Identifier: Apache-2.0
// The audit log as entries of systemd's journal, each with its fields (`journalctl TERRACE_VERB=revoke`).
//
// Place     daemon/role_manager.cc makes one where the configuration says so ([audit] journal), beside AuditFile.
// Threads   As LineQueue.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "daemon/lines/journal.h"
#include "daemon/model/rows.h"

namespace terrace::daemon {

// MESSAGE in words; TERRACE_ACTOR, TERRACE_TENANT, TERRACE_VERB, TERRACE_SUBJECT, TERRACE_DETAIL, TERRACE_TIME_NS; what the
// subject is, as events have it: TERRACE_LEASE, TERRACE_POOL, TERRACE_DEVICE, TERRACE_HOST. What is empty is left out.
std::string audit_journal_entry(const AuditRow& row);

class AuditJournal {
 public:
  explicit AuditJournal(JournalOptions options) : journal_(std::move(options)) {}

  void append(const std::vector<AuditRow>& rows) {
    for (const AuditRow& row : rows) journal_.append(audit_journal_entry(row));
  }

 private:
  Journal journal_;
};

}  // namespace terrace::daemon
