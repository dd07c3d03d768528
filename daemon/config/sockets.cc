// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/sockets.h"

#include <grp.h>
#include <pwd.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "daemon/state/names.h"

namespace terrace::daemon {
namespace {

// Each is a file to look after and a backlog to serve; a machine has as many containers, not thousands.
constexpr size_t sockets_max = 256;

constexpr const char* role_words = "\"by-uid\", \"tenant\", \"operator\" or \"administrator\"";

constexpr const char* no_operator_of_agent =
    "an agent administers nothing, so that no socket of it has the role operator; have one at its manager";

std::optional<uint32_t> uid_of_name(const std::string& name) {
  const passwd* found = ::getpwnam(name.c_str());
  return found == nullptr ? std::nullopt : std::optional<uint32_t>(found->pw_uid);
}

std::optional<uint32_t> gid_of_name(const std::string& name) {
  const group* found = ::getgrnam(name.c_str());
  return found == nullptr ? std::nullopt : std::optional<uint32_t>(found->gr_gid);
}

void read_role(Section& section, const toml::table& table, const char* key, SocketRole& role) {
  std::string word = socket_role_name(role);
  section.text(key, word);
  if (const auto known = socket_role_of(word)) {
    role = *known;
  } else {
    section.problem(*table.get(key), key, "'" + word + "' is no role; it is " + role_words);
  }
}

void read_protocol(Section& section, const toml::table& table, SocketProtocol& protocol) {
  std::string word = "rpc";
  section.text("protocol", word);
  if (word == "https") {
    protocol = SocketProtocol::https;
  } else if (word != "rpc") {
    section.problem(
        *table.get("protocol"), "protocol",
        "'" + word + "' is no protocol of a socket; it is \"rpc\" (for terrace) or \"https\" (the console)");
  }
}

// By the socket's name alone whoever opens an operator's or administrator's is one; one tenant's gives that tenant.
uint32_t default_mode(const SocketConfig& socket) {
  return gives_authority(socket.role) || !socket.tenant.empty() ? 0600 : 0666;
}

std::string normal(const std::string& path) {
  return std::filesystem::path(path).lexically_normal().string();
}

// What is wrong with one socket by itself.
class OneSocket {
 public:
  // `number`: among [[sockets]]; none: the main one, whose keys are at the top and whose path is checked there.
  OneSocket(std::optional<size_t> number, const SocketConfig& socket, std::vector<ConfigProblem>& problems)
      : number_(number), socket_(socket), problems_(problems) {}

  void check() {
    if (socket_.protocol == SocketProtocol::https) check_https();
    if (!socket_.listen.empty()) return check_listen();
    const std::string& path = socket_.path;
    constexpr size_t bytes_max = sizeof(sockaddr_un{}.sun_path) - 1;
    if (path.empty()) {
      problem("path", "a socket needs a path: path = \"/run/terrace/NAME/terraced.sock\"");
    } else if (path[0] != '/' || path.back() == '/' || path.find('\0') != std::string::npos) {
      problem("path", "the socket's path '" + path + "' must be an absolute path of a file");
    } else if (path.size() > bytes_max) {
      problem("path", "the socket's path '" + path + "' is longer than the " + std::to_string(bytes_max) +
                          " bytes of a unix socket's name; choose a shorter one");
    }
    check_tenant();
    if (socket_.mode > 0777) problem("mode", "a socket's mode must be at most 0o777");
    check_who_may_open();
  }
  void check_who_may_open() {
    if (!socket_.listen.empty()) return;  // who may connect is the certificates' matter
    if (!gives_authority(socket_.role) || (socket_.mode & 0007) == 0) return;
    problem("mode", "any user may open a socket of mode " + octal(socket_.mode) + ", and with the role " +
                        socket_role_name(socket_.role) +
                        " that alone is the right: close it to others, as 0o600, or 0o660 with a group");
  }

 private:
  void check_https() {
    if (socket_.listen.empty()) {
      problem("protocol",
              "HTTPS is served at a TCP port: give this socket listen = \"HOST:PORT\" in place of a path");
    } else if (socket_.role == SocketRole::tenant) {
      problem("protocol",
              "the console is for operators and administrators, and nobody at " + socket_.listen +
                  " would be more than a tenant: leave role and tenant out, or protocol = \"https\"");
    }
  }
  void check_listen() {
    const std::string& listen = socket_.listen;
    if (!valid_address(listen))
      problem("listen", "listen '" + listen + "' must be HOST:PORT, as 10.0.0.1:7443");
    if (!socket_.path.empty()) {
      problem("path", "a socket has a path or listens at an address, not both: make " + listen +
                          " a [[sockets]] of its own");
    }
    if (socket_.role == SocketRole::by_uid) {
      problem("role",
              "who connects to " + listen +
                  " has a certificate and no uid: role = \"operator\" (the default), \"administrator\" or "
                  "\"tenant\" says what the certificates may give at most");
    }
    if (socket_.mode != SocketConfig{}.mode || socket_.owner.has_value() || socket_.group.has_value()) {
      problem("listen", "mode, owner and group are of a socket's file, and " + listen +
                            " has none: who may connect is said by certificates (`terrace cert client`)");
    }
    check_tenant();
  }
  void check_tenant() {
    const std::string& tenant = socket_.tenant;
    if (tenant.empty()) return;
    if (socket_.role != SocketRole::tenant) {
      problem("tenant", std::string("a socket of the role ") + socket_role_name(socket_.role) +
                            " has no tenant of its own: leave tenant out, or give it role = \"tenant\"");
    }
    if (!valid_name(tenant)) {
      problem("tenant",
              "tenant '" + tenant +
                  "' needs letters, digits and -_.:@, at most 63, and must not begin with '-' or '.'");
    } else if (tenant.starts_with("uid-")) {
      problem("tenant",
              "tenant '" + tenant +
                  "' has a name kept for users without one; choose one that does not begin with uid-");
    }
  }
  static std::string octal(uint32_t mode) {
    std::string digits;
    for (int shift = 6; shift >= 0; shift -= 3) digits += static_cast<char>('0' + (mode >> shift & 7u));
    return "0o" + digits;
  }
  void problem(const char* what, std::string text) {
    std::vector<std::string> key{"socket_mode"};
    if (number_.has_value()) key = {"sockets", std::to_string(*number_), what};
    problems_.push_back({std::move(key), std::move(text)});
  }

  const std::optional<size_t> number_;
  const SocketConfig& socket_;
  std::vector<ConfigProblem>& problems_;
};

void check_address(const DaemonConfig& config, const std::string& listen, const std::string& number,
                   std::set<std::string>& addresses, std::vector<ConfigProblem>& problems) {
  std::vector<std::string> key{"sockets", number, "listen"};
  if (config.role == Role::agent) {
    problems.push_back({std::move(key),
                        "an agent serves programs of its own machine only; clients of other machines "
                        "connect to its manager"});
  } else if (!addresses.insert(listen).second || listen == config.listen || listen == config.http_listen) {
    problems.push_back(
        {std::move(key), "two listen at " + listen +
                             " (another of [[sockets]], [listen] address or [http] listen); give "
                             "each a port of its own"});
  }
}

bool somebody_administers(const DaemonConfig& config) {
  const bool by_uid = !administrators_of(config).empty();
  for (const SocketConfig& socket : sockets_of(config)) {
    if (socket.role == SocketRole::administrator || (socket.role == SocketRole::by_uid && by_uid)) return true;
  }
  return false;
}

}  // namespace

void read_sockets(Section& top, const toml::table& file, DaemonConfig& config) {
  read_role(top, file, "socket_role", config.socket_role);
  const toml::array* list = top.array("sockets");
  if (list == nullptr) return;
  for (const toml::node& node : *list) {
    const toml::table* table = node.as_table();
    if (table == nullptr) {
      top.problem(node, "sockets", "must be tables: write each as [[sockets]]");
      continue;
    }
    Section section = top.inner(*table, "sockets");
    SocketConfig socket;
    section.text("path", socket.path);
    section.text("listen", socket.listen);
    section.text("tenant", socket.tenant);
    read_protocol(section, *table, socket.protocol);
    if (!socket.listen.empty()) socket.role = SocketRole::oversight;
    if (!socket.tenant.empty()) socket.role = SocketRole::tenant;
    read_role(section, *table, "role", socket.role);
    if (socket.listen.empty()) socket.mode = default_mode(socket);
    section.number("mode", socket.mode);
    section.id("owner", "user", uid_of_name, socket.owner);
    section.id("group", "group", gid_of_name, socket.group);
    section.finish();
    config.sockets.push_back(std::move(socket));
  }
}

void check_sockets(const DaemonConfig& config, std::vector<ConfigProblem>& problems) {
  const std::vector<SocketConfig> all = sockets_of(config);
  if (all.size() > sockets_max) {
    problems.push_back(
        {{"sockets"},
         std::to_string(all.size()) + " sockets; a daemon serves at most " + std::to_string(sockets_max)});
    return;
  }
  OneSocket(std::nullopt, all[0], problems).check_who_may_open();
  std::set<std::string> paths{normal(all[0].path)}, addresses;
  for (size_t i = 0; i < config.sockets.size(); ++i) {
    const SocketConfig& socket = config.sockets[i];
    const std::string number = std::to_string(i);
    OneSocket(i, socket, problems).check();
    if (!socket.path.empty() && !paths.insert(normal(socket.path)).second) {
      problems.push_back({{"sockets", number, "path"},
                          "the socket " + socket.path + " is there twice; give each a path of its own"});
    }
    if (!socket.listen.empty()) check_address(config, socket.listen, number, addresses, problems);
    if (config.role == Role::agent && socket.protocol == SocketProtocol::https) {
      problems.push_back({{"sockets", number, "protocol"},
                          "an agent has no console; have a socket with protocol = \"https\" at its manager"});
    }
    if (config.role == Role::agent && socket.role == SocketRole::oversight)
      problems.push_back({{"sockets", number, "role"}, no_operator_of_agent});
  }
  if (config.role == Role::agent && config.socket_role == SocketRole::oversight)
    problems.push_back({{"socket_role"}, no_operator_of_agent});
  // No key: a flag may still name a uid.
  if (config.role == Role::manager && !somebody_administers(config)) {
    problems.push_back(
        {{},
         "nobody could administer this daemon: list a uid under admin_uids (with a socket of the role by-uid), "
         "leave "
         "root_is_administrator at true, or add a socket with role = \"administrator\" to [[sockets]]"});
  }
}

std::string place_of(const SocketConfig& socket) {
  if (socket.listen.empty()) return socket.path;
  return (socket.protocol == SocketProtocol::https ? "https://" : "tls://") + socket.listen;
}

std::vector<SocketConfig> sockets_of(const DaemonConfig& config) {
  std::vector<SocketConfig> all;
  SocketConfig main;
  main.path = socket_path_of(config);
  main.mode = config.socket_mode;
  main.role = config.socket_role;
  all.push_back(std::move(main));
  all.insert(all.end(), config.sockets.begin(), config.sockets.end());
  return all;
}

std::set<uint32_t> administrators_of(const DaemonConfig& config) {
  std::set<uint32_t> uids = config.admin_uids;
  const uint32_t own = ::geteuid();
  if (own != 0 || config.root_is_administrator) uids.insert(own);
  if (config.root_is_administrator) uids.insert(0);
  return uids;
}

}  // namespace terrace::daemon
