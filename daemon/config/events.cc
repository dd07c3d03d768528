// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/events.h"

#include <sys/un.h>

#include <string_view>

namespace terrace::daemon {

bool names_server(std::string_view url) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!url.starts_with(scheme)) continue;
    const std::string_view rest = url.substr(scheme.size());
    const std::string_view server = rest.substr(0, rest.find_first_of("/?#"));
    return !server.empty() && server.front() != ':' && url.find_first_of(" @#\t\n") == std::string_view::npos;
  }
  return false;
}

void read_events(Section& top, DaemonConfig& config) {
  const toml::table* table = top.table("events");
  if (table == nullptr) return;
  Section section = top.inner(*table, "events");
  section.boolean("journal", config.events_journal);
  section.text("journal_socket", config.events_journal_socket);
  section.text("file", config.events_file);
  section.size("rotate", config.events_rotate_bytes);
  section.text("webhook", config.events_webhook);
  section.finish();
}

void check_events(const DaemonConfig& config, std::vector<ConfigProblem>& problems) {
  const auto problem = [&problems](const char* key, std::string text) {
    problems.push_back({{"events", key}, std::move(text)});
  };
  if (!config.events_file.empty() && config.events_file[0] != '/')
    problem("file", "events file '" + config.events_file + "' must be an absolute path");
  if (!config.events_file.empty() && config.events_file == config.audit_file)
    problem("file", "events and the audit log cannot share the file " + config.events_file);
  const std::string& socket = config.events_journal_socket;
  if (socket.empty() || socket[0] != '/' || socket.size() >= sizeof(sockaddr_un{}.sun_path))
    problem("journal_socket", "journal_socket '" + socket + "' must be an absolute path of at most 107 bytes");
  if (config.events_rotate_bytes < (1ull << 20)) problem("rotate", "the events file is rotated at 1M at least");
  if (!config.events_webhook.empty() && !names_server(config.events_webhook))
    problem("webhook", "webhook '" + config.events_webhook +
                           "' must be http://HOST:PORT/PATH or https://HOST/PATH, without a name and password");
}

}  // namespace terrace::daemon
