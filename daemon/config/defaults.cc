// Defaults, and the checks of a finished configuration.
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>

#include "daemon/config/config.h"
#include "daemon/state/names.h"

namespace terrace::daemon {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string or_else(std::string value, const std::string& other) {
  return value.empty() ? other : value;
}

}  // namespace

DaemonConfig default_config() {
  DaemonConfig config;
  const uid_t uid = ::geteuid();
  if (uid == 0) {
    config.runtime_directory = "/run/terrace";
    config.state_path = "/var/lib/terrace/state.db";
  } else {
    const std::string home = or_else(environment("HOME"), "/tmp/terrace-" + std::to_string(uid));
    config.runtime_directory =
        or_else(environment("XDG_RUNTIME_DIR"), "/tmp/terrace-" + std::to_string(uid)) + "/terrace";
    config.state_path = or_else(environment("XDG_STATE_HOME"), home + "/.local/state") + "/terrace/state.db";
  }
  config.admin_uids = {0, static_cast<uint32_t>(uid)};
  return config;
}

std::string socket_path_of(const DaemonConfig& config) {
  return config.socket_path.empty() ? config.runtime_directory + "/terraced.sock" : config.socket_path;
}

Result<EmulatedDevice> parse_emulated_device(std::string_view text) {
  const size_t equals = text.find('=');
  const std::string hint = "'" + std::string(text) + "': write an emulated device as NAME=SIZE, as cxl0=2G; ";
  const auto refused = [&](const std::string& why) {
    return Error{.code = ErrorCode::invalid_argument, .where = "parse_emulated_device", .detail = hint + why};
  };
  if (equals == std::string_view::npos) return refused("there is no '='");
  EmulatedDevice device{.name = std::string(text.substr(0, equals))};
  if (!valid_name(device.name)) return refused("the name needs letters, digits and -_.:@, at most 63");
  auto size = parse_size(text.substr(equals + 1));
  if (!size.ok()) return refused(size.error().detail);
  device.size_bytes = *size;
  return device;
}

std::vector<std::string> validate(const DaemonConfig& config) {
  std::vector<std::string> problems;
  if (config.runtime_directory.empty() || config.runtime_directory[0] != '/')
    problems.push_back("runtime_directory '" + config.runtime_directory + "' must be an absolute path");
  if (config.state_path.empty() || config.state_path[0] != '/')
    problems.push_back("state '" + config.state_path + "' must be an absolute path");
  if (socket_path_of(config).size() >= sizeof(sockaddr_un{}.sun_path)) {
    problems.push_back("socket '" + socket_path_of(config) + "' is longer than the " +
                       std::to_string(sizeof(sockaddr_un{}.sun_path) - 1) +
                       " bytes of a unix socket's name; choose a shorter runtime_directory or socket");
  }
  if (config.socket_mode > 0777) problems.push_back("socket_mode must be at most 0777 (octal)");
  if (!config.host.empty() && !valid_name(config.host))
    problems.push_back("host '" + config.host + "' needs letters, digits and -_.:@, at most 63");
  std::set<std::string> names;
  for (const EmulatedDevice& device : config.emulated) {
    if (!valid_name(device.name) || !valid_name("emu:" + device.name))
      problems.push_back("emulated device '" + device.name + "' needs a plain name of at most 59 characters");
    if (!names.insert(device.name).second)
      problems.push_back("emulated device '" + device.name + "' is named twice");
    if (device.size_bytes < limits::granule_bytes) {
      problems.push_back("emulated device '" + device.name + "' has " + format_size(device.size_bytes) +
                         "; the smallest is one granule, " + format_size(limits::granule_bytes));
    }
  }
  for (const auto& [uid, tenant] : config.tenants)
    if (!valid_name(tenant))
      problems.push_back("tenant '" + tenant + "' of uid " + std::to_string(uid) +
                         " needs letters, digits and -_.:@, at most 63");
  const std::set<std::string> levels{"trace", "debug", "info", "warning", "error", "critical", "off"};
  if (!levels.contains(config.log_level))
    problems.push_back("log level '" + config.log_level +
                       "' is none of trace, debug, info, warning, error, critical, off");
  if (config.ttl_ns_max < limits::ttl_ns_min || config.ttl_ns_max > limits::ttl_ns_max) {
    problems.push_back("ttl_max of " + format_duration(config.ttl_ns_max) + " is outside " +
                       format_duration(limits::ttl_ns_min) + " to " + format_duration(limits::ttl_ns_max));
  }
  if (config.connections_max == 0 || config.calls_outstanding_max == 0)
    problems.push_back("connections_max and calls_outstanding_max must be at least 1");
  return problems;
}

}  // namespace terrace::daemon
