// SPDX-License-Identifier: Apache-2.0
#include "daemon/reload.h"

#include <csignal>
#include <utility>

#include "daemon/config/log.h"
#include "daemon/config/reload.h"
#include "daemon/log/log.h"

namespace terrace::daemon {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

// A configuration's mistakes are a line each; an event of the log is one.
std::string one_line(std::string text) {
  for (size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at))
    text.replace(at, 1, "; ");
  return text;
}

}  // namespace

kj::Promise<void> Reload::at_hangup(kj::UnixEventPort& port) {
  return port.onSignal(SIGHUP).then([this, &port](const siginfo_t&) {
    try {
      once();
    } catch (const std::exception& exception) {  // the next one is to be heard all the same
      log::error("SIGHUP: {}", exception.what());
      surroundings_.service_manager.ready(status_());
    }
    return at_hangup(port);
  });
}

void Reload::once() {
  surroundings_.service_manager.reloading();
  // First, and whatever the file says: what was rotated away must not be written to for ever.
  if (Status status = reopen_log(running_); !status.ok()) log::error("SIGHUP: {}", status.error().to_string());
  auto read = surroundings_.read_config();
  if (read.ok()) {
    take(*read);
    surroundings_.service_manager.ready(status_());
  } else {
    const std::string why = one_line(read.error().detail);
    tell(false, "the configuration is refused, and the one from before stays in force: " + why);
    surroundings_.service_manager.ready("the last reload was refused: " + why);
  }
}

void Reload::tell(bool taken, const std::string& text) const {
  if (tell_) return tell_(taken, text);
  log::write(taken ? log::Level::info : log::Level::error, "SIGHUP: {}", text);
}

void Reload::take(const DaemonConfig& read) {
  Reloaded reloaded = take_over(running_, read);
  if (Status status = reopen_log(reloaded.config); !status.ok()) {
    log::error("SIGHUP: {}; the log goes where it went before", status.error().to_string());
    reloaded.config.log_file = running_.log_file;
    std::erase(reloaded.taken, "log.file");
  }
  running_ = reloaded.config;
  PeerOptions options = peers_.peer_options();
  options.admin_uids = administrators_of(running_);
  options.tenants = running_.tenants;
  options.allow_unmapped_uids = running_.allow_unmapped_uids;
  options.userfaultfd = running_.userfaultfd;
  options.connections_max = running_.connections_max;
  options.calls_outstanding_max = running_.calls_outstanding_max;
  peers_.set_peer_options(std::move(options));
  if (take_) take_(running_);
  tell(true, "the configuration was read again; " + (reloaded.taken.empty()
                                                         ? "nothing that takes effect now has changed"
                                                         : "in force now: " + joined(reloaded.taken)));
  if (!reloaded.need_restart.empty())
    log::warn("SIGHUP: as before until terraced is started again: {}", joined(reloaded.need_restart));
}

}  // namespace terrace::daemon
