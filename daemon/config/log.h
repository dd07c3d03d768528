// SPDX-License-Identifier: Apache-2.0
// The structured log: one line an event, text for people or JSON for machines, to standard error or a file.
#pragma once

#include "daemon/config/config.h"

namespace terrace::daemon {

// Makes the process's default spdlog logger. Throws spdlog::spdlog_ex when the file cannot be opened.
// Threads   Before there are others.
void set_up_log(const DaemonConfig& config);

// After set_up_log: level, format and file as `config` says, the file opened again also where it is the same one, which
// may have been renamed away (logrotate).
// Errors    permission_denied, not_found, ...   the file; the log goes where it went before, in its old form
// Threads   Any; lines of others go to the one file or the other, whole.
Status reopen_log(const DaemonConfig& config);

// Whether standard error is the stream to systemd's journal that $JOURNAL_STREAM names.
bool stderr_is_journal();

// `text` as the inside of a JSON string.
std::string json_escape(std::string_view text);

}  // namespace terrace::daemon
