// SPDX-License-Identifier: Apache-2.0
// Defaults, and the checks of a finished configuration.
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "core/base/failpoint.h"
#include "daemon/config/config.h"
#include "daemon/config/events.h"
#include "daemon/config/health.h"
#include "daemon/config/sockets.h"
#include "daemon/config/traces.h"
#include "daemon/memory/remote/remote_memory.h"
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
  return config;
}

bool valid_address(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return false;
  const std::string port = text.substr(colon + 1);
  if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != std::string::npos)
    return false;
  const unsigned long number = std::stoul(port);
  return number >= 1 && number <= 65535 && text.find_first_of(" /@") == std::string::npos;
}

std::string socket_path_of(const DaemonConfig& config) {
  return config.socket_path.empty() ? config.runtime_directory + "/terraced.sock" : config.socket_path;
}

std::string http_socket_path_of(const DaemonConfig& config) {
  return config.runtime_directory + "/http.sock";
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

namespace {

using Problems = std::vector<ConfigProblem>;

// All emulated devices together; far above any machine, far below where sums of sizes overflow.
constexpr uint64_t emulated_bytes_max = uint64_t{1} << 50;

constexpr const char* name_rule =
    "needs letters, digits and -_.:@, at most 63, and must not begin with '-' or '.'";

void check_paths(const DaemonConfig& config, Problems& problems) {
  const auto absolute = [&](const char* key, const std::string& path) {
    if (path.empty() || path[0] != '/')
      problems.push_back({{key}, std::string(key) + " '" + path + "' must be an absolute path"});
  };
  absolute("runtime_directory", config.runtime_directory);
  absolute("state", config.state_path);
  if (!config.socket_path.empty()) absolute("socket", config.socket_path);
  if (!config.object_directory.empty() && config.object_directory[0] != '/') {
    problems.push_back({{"emulated", "object_directory"},
                        "object_directory '" + config.object_directory + "' must be an absolute path"});
  }
  constexpr size_t socket_bytes_max = sizeof(sockaddr_un{}.sun_path) - 1;
  if (const std::string socket = socket_path_of(config); socket.size() > socket_bytes_max) {
    problems.push_back({{config.socket_path.empty() ? "runtime_directory" : "socket"},
                        "socket '" + socket + "' is longer than the " + std::to_string(socket_bytes_max) +
                            " bytes of a unix socket's name; choose a shorter runtime_directory or socket"});
  }
  if (config.socket_mode > 0777)
    problems.push_back({{"socket_mode"}, "socket_mode must be at most 0777 (octal)"});
}

void check_devices(const DaemonConfig& config, Problems& problems) {
  const uint64_t granule = config.granule_bytes;
  if (granule < limits::granule_bytes || granule > limits::granule_bytes_max ||
      (granule & (granule - 1)) != 0) {
    problems.push_back({{"emulated", "granule"},
                        "a granule of " + format_size(granule) + " is none; choose a power of two from " +
                            format_size(limits::granule_bytes) + " to " +
                            format_size(limits::granule_bytes_max)});
    return;
  }
  std::set<std::string> names;
  uint64_t together = 0;
  for (const EmulatedDevice& device : config.emulated) {
    const auto problem = [&](const std::string& what) {
      problems.push_back(
          {{"emulated", "devices", device.name}, "emulated device '" + device.name + "' " + what});
    };
    if (!valid_name(device.name) || !valid_name("emu:" + device.name))
      problem("needs a plain name of at most 59 characters: letters, digits and -_.:@");
    if (!names.insert(device.name).second) problem("is named twice");
    if (device.size_bytes < granule || device.size_bytes % granule != 0) {
      problem("has " + std::to_string(device.size_bytes) + " bytes; it needs a whole number of granules of " +
              format_size(granule));
    }
    if (device.size_bytes > emulated_bytes_max - together) {
      problem("makes all devices together larger than " + format_size(emulated_bytes_max));
      break;
    }
    together += device.size_bytes;
  }
  if (config.emulated.size() > limits::devices_max) {
    problems.push_back({{"emulated", "devices"},
                        std::to_string(config.emulated.size()) + " emulated devices; a manager takes at most " +
                            std::to_string(limits::devices_max)});
  }
}

void check_identities(const DaemonConfig& config, Problems& problems) {
  if (!config.host.empty() && !valid_name(config.host))
    problems.push_back({{"host"}, "host '" + config.host + "' " + name_rule});
  for (const auto& [uid, tenant] : config.tenants) {
    const std::string id = std::to_string(uid);
    const std::vector<std::string> key{"tenants", "uids", id};
    if (!valid_name(tenant))
      problems.push_back({key, "tenant '" + tenant + "' of uid " + id + " " + name_rule});
    // An unmapped uid is tenant "uid-N": another uid under that name could take its leases.
    if (tenant.starts_with("uid-") && tenant != "uid-" + id) {
      problems.push_back(
          {key, "tenant '" + tenant + "' of uid " + id +
                    " has a name kept for users without one; choose one that does not begin with uid-"});
    }
  }
}

// The environment of a build without failpoints shortens nothing.
uint64_t shortest_host_lease_ns() {
  const bool tests = failpoints_enabled() && !environment("TERRACE_SHORT_HOST_LEASE").empty();
  return tests ? host_lease_ns_min_in_tests : host_lease_ns_min;
}

void check_host_lease(uint64_t length_ns, Problems& problems) {
  const uint64_t least_ns = shortest_host_lease_ns();
  if (length_ns >= least_ns && length_ns <= host_lease_ns_max) return;
  const std::string why =
      length_ns < least_ns
          ? "a host must have fenced its memory and its agent have got through to the manager within it, also "
            "when both are busy; give --host-lease, or host_lease under [listen], "
          : "a host that is dead keeps its memory for so long; give --host-lease, or host_lease under "
            "[listen], ";
  problems.push_back({{"listen", "host_lease"},
                      "host_lease of " + format_duration(length_ns) + " is outside " +
                          format_duration(least_ns) + " to " + format_duration(host_lease_ns_max) + ": " + why +
                          "within that"});
}

void check_hosts(const DaemonConfig& config, Problems& problems) {
  const bool agent = config.role == Role::agent;
  if (agent && config.manager.empty())
    problems.push_back({{"agent", "manager"}, "an agent needs its manager's address: --manager HOST:PORT"});
  if (!agent && !config.manager.empty())
    problems.push_back({{"agent", "manager"}, "a manager has none: --manager is for --role agent"});
  if (agent && !config.listen.empty())
    problems.push_back({{"listen", "address"}, "an agent listens for no others: --listen is for a manager"});
  if (!config.manager.empty() && !valid_address(config.manager))
    problems.push_back({{"agent", "manager"}, "manager '" + config.manager + "' must be HOST:PORT"});
  if (!config.listen.empty() && !valid_address(config.listen))
    problems.push_back(
        {{"listen", "address"}, "listen '" + config.listen + "' must be HOST:PORT, as 10.0.0.1:7311"});
  if (!config.http_listen.empty() && !valid_address(config.http_listen))
    problems.push_back(
        {{"http", "listen"}, "listen '" + config.http_listen + "' must be HOST:PORT, as 127.0.0.1:9464"});
  const bool clients = std::any_of(config.sockets.begin(), config.sockets.end(),
                                   [](const SocketConfig& socket) { return !socket.listen.empty(); });
  const bool tls = agent || !config.listen.empty() || clients;
  if (tls && (config.tls_ca.empty() || config.tls_certificate.empty() || config.tls_key.empty())) {
    problems.push_back(
        {{"tls"},
         "managers, agents and clients know each other by certificates: give --tls-ca, --tls-cert and "
         "--tls-key, which `terrace cert` makes"});
  }
  if (agent && !config.tls_ca_key.empty())
    problems.push_back({{"tls", "ca_key"}, "an agent has no use for the CA's key: keep it from every host"});
  if (config.tls_renew_clients && config.tls_ca_key.empty())
    problems.push_back({{"tls", "renew_clients"}, "renew_clients needs the CA's key: [tls] ca_key"});
  if (config.tls_renew_days < 1 || config.tls_renew_days > 36'500)
    problems.push_back({{"tls", "renew_days"}, "renew_days must be 1 to 36500"});
  check_host_lease(config.host_lease_ns, problems);
  for (const auto& [host, tenants] : config.host_tenants) {
    if (!valid_agent_name(host)) problems.push_back({{"hosts", host}, "'" + host + "' is no agent's name"});
    for (const std::string& tenant : tenants)
      if (!valid_name(tenant)) problems.push_back({{"hosts", host}, "tenant '" + tenant + "' " + name_rule});
  }
}

void check_limits(const DaemonConfig& config, Problems& problems) {
  const std::set<std::string> levels{"trace", "debug", "info", "warning", "error", "critical", "off"};
  if (!levels.contains(config.log_level)) {
    problems.push_back(
        {{"log", "level"},
         "log level '" + config.log_level + "' is none of trace, debug, info, warning, error, critical, off"});
  }
  if (!config.audit_file.empty() && config.audit_file[0] != '/')
    problems.push_back({{"audit", "file"}, "audit file '" + config.audit_file + "' must be an absolute path"});
  if (config.audit_syslog_socket.empty() || config.audit_syslog_socket[0] != '/' ||
      config.audit_syslog_socket.size() >= sizeof(sockaddr_un{}.sun_path)) {
    problems.push_back({{"audit", "syslog_socket"},
                        "syslog_socket '" + config.audit_syslog_socket +
                            "' must be an absolute path of at most 107 bytes, as /dev/log"});
  }
  if (config.audit_rotate_bytes < (1ull << 20))
    problems.push_back({{"audit", "rotate"}, "the audit file is rotated at 1M at least"});
  if (config.ttl_ns_max < limits::ttl_ns_min || config.ttl_ns_max > limits::ttl_ns_max) {
    problems.push_back({{"limits", "ttl_max"},
                        "ttl_max of " + format_duration(config.ttl_ns_max) + " is outside " +
                            format_duration(limits::ttl_ns_min) + " to " +
                            format_duration(limits::ttl_ns_max)});
  }
  const auto within = [&](const char* key, uint32_t value, uint32_t max) {
    if (value >= 1 && value <= max) return;
    problems.push_back(
        {{"limits", key},
         std::string(key) + " of " + std::to_string(value) + " is outside 1 to " + std::to_string(max)});
  };
  within("connections_max", config.connections_max, limits::rpc_connections_max);
  within("calls_outstanding_max", config.calls_outstanding_max, limits::rpc_calls_outstanding_max);
}

}  // namespace

std::vector<ConfigProblem> find_problems(const DaemonConfig& config) {
  Problems problems;
  check_paths(config, problems);
  check_devices(config, problems);
  check_identities(config, problems);
  check_limits(config, problems);
  check_hosts(config, problems);
  check_sockets(config, problems);
  check_health(config, problems);
  check_events(config, problems);
  check_traces(config, problems);
  return problems;
}

std::vector<std::string> validate(const DaemonConfig& config) {
  std::vector<std::string> texts;
  for (ConfigProblem& problem : find_problems(config)) texts.push_back(std::move(problem.text));
  return texts;
}

}  // namespace terrace::daemon
