// SPDX-License-Identifier: Apache-2.0
// The TOML file. Everything is read, and every mistake collected with its line, before anything is refused.
#include <fcntl.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

#include "core/base/unique_fd.h"
#include "daemon/config/config.h"
#include "daemon/config/events.h"
#include "daemon/config/health.h"
#include "daemon/config/section.h"
#include "daemon/config/sockets.h"
#include "daemon/config/traces.h"

namespace terrace::daemon {
namespace {

void read_huge_pages(Section& section, const toml::table& table, DaemonConfig& config) {
  std::string word = huge_pages_word(config.huge_pages);
  section.text("huge_pages", word);
  for (const HugePages known :
       {HugePages::always, HugePages::within_size, HugePages::advise, HugePages::never}) {
    if (word != huge_pages_word(known)) continue;
    config.huge_pages = known;
    return;
  }
  section.problem(*table.get("huge_pages"), "huge_pages",
                  "must be \"always\", \"within_size\", \"advise\" or \"never\"");
}

void read_devices(Section& top, const std::string& path, std::vector<std::string>& problems,
                  DaemonConfig& config) {
  const toml::table* emulated = top.table("emulated");
  if (emulated == nullptr) return;
  Section section(path, *emulated, "emulated", problems);
  section.text("object_directory", config.object_directory);
  section.boolean("mount", config.mount);
  section.size("granule", config.granule_bytes);
  section.boolean("overcommit", config.overcommit);
  read_huge_pages(section, *emulated, config);
  if (const toml::table* devices = section.table("devices")) {
    config.emulated.clear();
    for (const auto& [name, node] : *devices) {
      const auto size = node.value_exact<std::string>();
      const auto device = parse_emulated_device(std::string(name.str()) + "=" + size.value_or(""));
      if (size.has_value() && device.ok()) {
        config.emulated.push_back(*device);
      } else {
        section.problem(node, "devices." + std::string(name.str()), "must be a size in quotes, as \"2G\"");
      }
    }
  }
  section.finish();
}

void read_identities(Section& top, const std::string& path, std::vector<std::string>& problems,
                     DaemonConfig& config) {
  top.boolean("root_is_administrator", config.root_is_administrator);
  if (const toml::array* admins = top.array("admin_uids")) {
    for (const toml::node& node : *admins) {
      const auto uid = node.value_exact<int64_t>();
      if (uid.has_value() && *uid >= 0 && *uid <= UINT32_MAX) {
        config.admin_uids.insert(static_cast<uint32_t>(*uid));
      } else {
        top.problem(node, "admin_uids", "must hold user ids, as [0, 1000]");
      }
    }
  }
  const toml::table* tenants = top.table("tenants");
  if (tenants == nullptr) return;
  Section section(path, *tenants, "tenants", problems);
  section.boolean("allow_unmapped_uids", config.allow_unmapped_uids);
  if (const toml::table* uids = section.table("uids")) {
    for (const auto& [key, node] : *uids) {
      const std::string uid(key.str());
      const auto tenant = node.value_exact<std::string>();
      uint32_t number = 0;
      const std::from_chars_result parsed = std::from_chars(uid.data(), uid.data() + uid.size(), number);
      // Leading zeros are refused: two keys must not mean one user.
      const bool is_uid = parsed.ec == std::errc{} && std::to_string(number) == uid;
      if (is_uid && tenant.has_value()) {
        config.tenants[number] = *tenant;
      } else {
        section.problem(node, "uids." + uid, "must map a user id to a tenant, as 1000 = \"training\"");
      }
    }
  }
  section.finish();
}

void read_clients(Section& top, const std::string& path, std::vector<std::string>& problems,
                  DaemonConfig& config) {
  const toml::table* clients = top.table("clients");
  if (clients == nullptr) return;
  Section section(path, *clients, "clients", problems);
  std::string word = userfaultfd_rule_name(config.userfaultfd);
  section.word("userfaultfd", word);
  if (word == "true" || word == "false")
    word = userfaultfd_rule_name(word == "true" ? UserfaultfdRule::all : UserfaultfdRule::none);
  if (const auto rule = userfaultfd_rule_of(word)) {
    config.userfaultfd = *rule;
  } else {
    section.problem(*clients->get("userfaultfd"), "userfaultfd", "must be \"kernel\", \"all\" or \"none\"");
  }
  section.finish();
}

void read_log(Section& top, const std::string& path, std::vector<std::string>& problems, DaemonConfig& config) {
  const toml::table* log = top.table("log");
  if (log == nullptr) return;
  Section section(path, *log, "log", problems);
  section.text("level", config.log_level);
  section.text("file", config.log_file);
  std::string format = config.log_format == LogFormat::json ? "json" : "text";
  section.text("format", format);
  if (format != "text" && format != "json")
    section.problem(*log->get("format"), "format", "must be \"text\" or \"json\"");
  config.log_format = format == "json" ? LogFormat::json : LogFormat::text;
  section.finish();
}

void read_limits(Section& top, const std::string& path, std::vector<std::string>& problems,
                 DaemonConfig& config) {
  const toml::table* limits_table = top.table("limits");
  if (limits_table == nullptr) return;
  Section section(path, *limits_table, "limits", problems);
  section.duration("ttl_max", config.ttl_ns_max);
  section.number("connections_max", config.connections_max);
  section.number("calls_outstanding_max", config.calls_outstanding_max);
  section.finish();
}

void read_http(Section& top, const std::string& path, std::vector<std::string>& problems,
               DaemonConfig& config) {
  const toml::table* http = top.table("http");
  if (http == nullptr) return;
  Section section(path, *http, "http", problems);
  section.text("listen", config.http_listen);
  section.finish();
}

void read_audit(Section& top, const std::string& path, std::vector<std::string>& problems,
                DaemonConfig& config) {
  const toml::table* audit = top.table("audit");
  if (audit == nullptr) return;
  Section section(path, *audit, "audit", problems);
  section.text("file", config.audit_file);
  section.size("rotate", config.audit_rotate_bytes);
  section.boolean("syslog", config.audit_syslog);
  section.text("syslog_socket", config.audit_syslog_socket);
  section.boolean("journal", config.audit_journal);
  section.finish();
}

void read_scrub(Section& top, const std::string& path, std::vector<std::string>& problems,
                DaemonConfig& config) {
  const toml::table* scrub = top.table("scrub");
  if (scrub == nullptr) return;
  Section section(path, *scrub, "scrub", problems);
  section.size("bytes_per_s", config.scrub_bytes_per_s);
  section.finish();
}

// Managers and agents: who listens where, who connects whither, and as whom.
void read_hosts(Section& top, const std::string& path, std::vector<std::string>& problems,
                DaemonConfig& config) {
  std::string role = config.role == Role::agent ? "agent" : "manager";
  top.text("role", role);
  if (role == "manager" || role == "agent") {
    config.role = role == "agent" ? Role::agent : Role::manager;
  } else {
    problems.push_back(path + ": role must be \"manager\" or \"agent\"");
  }
  if (const toml::table* listen = top.table("listen")) {
    Section section(path, *listen, "listen", problems);
    section.text("address", config.listen);
    section.duration("host_lease", config.host_lease_ns);
    section.finish();
  }
  if (const toml::table* agent = top.table("agent")) {
    Section section(path, *agent, "agent", problems);
    section.text("manager", config.manager);
    section.finish();
  }
  if (const toml::table* tls = top.table("tls")) {
    Section section(path, *tls, "tls", problems);
    section.text("ca", config.tls_ca);
    section.text("certificate", config.tls_certificate);
    section.text("key", config.tls_key);
    section.text("revoked", config.tls_revoked);
    section.text("ca_key", config.tls_ca_key);
    section.number("renew_days", config.tls_renew_days);
    section.boolean("renew_clients", config.tls_renew_clients);
    section.finish();
  }
  const toml::table* hosts = top.table("hosts");
  if (hosts == nullptr) return;
  for (const auto& [name, node] : *hosts) {
    const std::string host(name.str());
    const toml::table* entry = node.as_table();
    if (entry == nullptr) {
      problems.push_back(path + ":" + std::to_string(node.source().begin.line) + ": hosts." + host +
                         " must be a table: write it as [hosts." + host + "]");
      continue;
    }
    Section section(path, *entry, "hosts." + host, problems);
    if (const toml::array* tenants = section.array("tenants")) {
      std::set<std::string>& allowed = config.host_tenants[host];
      for (const toml::node& one : *tenants) {
        if (const auto tenant = one.value_exact<std::string>()) {
          allowed.insert(*tenant);
        } else {
          section.problem(one, "tenants", "must hold tenants' names, as [\"training\"]");
        }
      }
    }
    section.finish();
  }
}

// A configuration is a page or two; a mebibyte is some other file.
constexpr size_t file_bytes_max = 1 << 20;

Result<std::string> read_whole(const std::string& path) {
  constexpr const char* where = "load_config_file";
  const std::string what = "the configuration file " + path;
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return os_error(errno, where, what + " cannot be read");
  std::string content(file_bytes_max + 1, '\0');
  size_t bytes = 0;
  while (bytes < content.size()) {
    const ssize_t n = ::read(file.get(), content.data() + bytes, content.size() - bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return os_error(errno, where, what + " cannot be read");
    if (n == 0) break;
    bytes += static_cast<size_t>(n);
  }
  if (bytes > file_bytes_max)
    return Error{.code = ErrorCode::invalid_argument, .where = where, .detail = what + " is larger than 1 MiB"};
  content.resize(bytes);
  return content;
}

// Where the file says what `key` leads to: the innermost of its keys that is there. nullopt: it says nothing of
// it.
std::optional<uint32_t> line_of(const toml::table& table, const std::vector<std::string>& key) {
  std::optional<uint32_t> line;
  const toml::table* at = &table;
  const toml::array* list = nullptr;
  for (const std::string& part : key) {
    const toml::node* node = nullptr;
    if (at != nullptr) {
      node = at->get(part);
    } else if (list != nullptr) {  // [[several tables]]: the part is the number of one
      size_t index = 0;
      std::from_chars(part.data(), part.data() + part.size(), index);
      node = list->get(index);
    }
    if (node == nullptr) break;
    line = node->source().begin.line;
    at = node->as_table();
    list = node->as_array();
  }
  return line;
}

}  // namespace

Result<DaemonConfig> load_config_file(const std::string& path, DaemonConfig base) {
  constexpr const char* where = "load_config_file";
  TERRACE_ASSIGN_OR_RETURN(const std::string content, read_whole(path));
  toml::table parsed;
  try {
    parsed = toml::parse(content, path);
  } catch (const toml::parse_error& error) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = where,
                 .detail = path + ":" + std::to_string(error.source().begin.line) + ": " +
                           std::string(error.description())};
  }
  std::vector<std::string> problems;
  Section top(path, parsed, "", problems);
  top.text("runtime_directory", base.runtime_directory);
  top.text("socket", base.socket_path);
  top.number("socket_mode", base.socket_mode);
  read_sockets(top, parsed, base);
  top.text("state", base.state_path);
  top.text("host", base.host);
  top.boolean("hardware", base.hardware);
  read_devices(top, path, problems, base);
  read_identities(top, path, problems, base);
  read_clients(top, path, problems, base);
  read_log(top, path, problems, base);
  read_audit(top, path, problems, base);
  read_events(top, base);
  read_traces(top, base);
  read_http(top, path, problems, base);
  read_scrub(top, path, problems, base);
  read_health(top, base);
  read_limits(top, path, problems, base);
  read_hosts(top, path, problems, base);
  top.finish();
  for (const ConfigProblem& problem : find_problems(base)) {
    if (const auto line = line_of(parsed, problem.key); line.has_value())
      problems.push_back(path + ":" + std::to_string(*line) + ": " + problem.text);
  }
  if (problems.empty()) return base;
  std::string detail;
  for (const std::string& problem : problems) detail += (detail.empty() ? "" : "\n") + problem;
  return Error{.code = ErrorCode::invalid_argument, .where = where, .detail = detail};
}

}  // namespace terrace::daemon
