// The structured log: one line an event, text for people or JSON for machines, to standard error or a file.
#pragma once

#include "daemon/config/config.h"

namespace terrace::daemon {

// Makes the process's default spdlog logger. Throws spdlog::spdlog_ex when the file cannot be opened.
void set_up_log(const DaemonConfig& config);

// `text` as the inside of a JSON string.
std::string json_escape(std::string_view text);

}  // namespace terrace::daemon
