// SPDX-License-Identifier: Apache-2.0
// The daemon's configuration: every mistake is found at once, with its line and how to fix it.
#include <doctest/doctest.h>

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>

#include "core/base/failpoint.h"
#include "daemon/config/config.h"
#include "daemon/config/log.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

struct File {
  explicit File(const std::string& content) {
    char name[] = "/tmp/terrace-config-XXXXXX";
    const int fd = ::mkstemp(name);
    ::close(fd);
    path = name;
    std::ofstream(path) << content;
  }
  ~File() { ::unlink(path.c_str()); }
  std::string path;
};

}  // namespace

TEST_CASE("config: limits of the manager's health, each within its bounds") {
  const File file(
      "[health]\ninterval = \"500ms\"\nwindow = \"1m\"\nqueue_after = \"0s\"\ndenied_calls_min = 7\n"
      "state_free_min = \"1G\"\npool_grantable_percent_min = 0\n");
  const auto config = load_config_file(file.path, default_config());
  REQUIRE(config.ok());
  CHECK(config->health.interval_ns == 500 * ns_per_ms);
  CHECK(config->health.window_ns == 60 * ns_per_s);
  CHECK(config->health.queue_after_ns == 0);
  CHECK(config->health.denied_calls_min == 7);
  CHECK(config->health.state_free_bytes_min == gib);
  CHECK(config->health.pool_grantable_percent_min == 0);
  CHECK(config->health.fence_after_ns == 10 * ns_per_s);  // the default

  const File wrong(
      "[health]\ninterval = \"50ms\"\nwindow = \"60d\"\ndenied_calls_min = 0\n"
      "pool_largest_run_percent_min = 101\nqueue = \"1s\"\n");
  const auto refused = load_config_file(wrong.path, default_config());
  REQUIRE(!refused.ok());
  for (const char* told :
       {":2: interval of 50 ms is outside 100 ms to 30 d", ":3: window of 60 d is outside 1 s",
        ":4: denied_calls_min must be 1 at least", ":5: pool_largest_run_percent_min must be 0 to 100",
        ":6: unknown key 'queue' in [health]"})
    CHECK_MESSAGE(refused.error().detail.find(told) != std::string::npos, refused.error().detail);
}

TEST_CASE("config: a full file is taken") {
  const File file(R"(runtime_directory = "/run/x"
state = "/var/lib/x/state.db"
socket_mode = 0o660
host = "node-7"
admin_uids = [7]
[emulated]
object_directory = "/dev/shm/x"
mount = false
granule = "8M"
huge_pages = "within_size"
[emulated.devices]
cxl0 = "2G"
cxl1 = "512M"
[tenants]
allow_unmapped_uids = true
[tenants.uids]
1000 = "training"
[clients]
userfaultfd = false
[log]
level = "debug"
format = "json"
[audit]
file = "/var/log/x.jsonl"
rotate = "8M"
syslog = true
syslog_socket = "/run/x/log"
[events]
file = "/var/log/e.jsonl"
rotate = "9M"
journal = true
journal_socket = "/run/x/journal"
webhook = "https://h.example/x?y=z"
[traces]
endpoint = "http://h:4318/v1/traces"
sample = 0.25
[http]
listen = "127.0.0.1:9464"
[tls]
revoked = "/etc/x/revoked.pem"
ca_key = "/etc/x/ca.key"
renew_days = 7
[limits]
ttl_max = "7d"
connections_max = 10
)");
  const auto config = load_config_file(file.path, default_config());
  REQUIRE_MESSAGE(config.ok(), (config.ok() ? "" : config.error().detail));
  CHECK(config->runtime_directory == "/run/x");
  CHECK(config->socket_mode == 0660);
  CHECK(config->emulated == std::vector<EmulatedDevice>{{"cxl0", 2 * gib}, {"cxl1", 512 * mib}});
  CHECK_FALSE(config->mount);
  CHECK(config->granule_bytes == 8 * mib);
  CHECK(config->huge_pages == HugePages::within_size);
  CHECK(config->tenants.at(1000) == "training");
  CHECK(config->allow_unmapped_uids);
  CHECK(config->userfaultfd == UserfaultfdRule::none);  // as of a configuration of before
  CHECK(default_config().userfaultfd == UserfaultfdRule::kernel);
  CHECK(config->admin_uids.contains(7));
  CHECK(config->log_format == LogFormat::json);
  CHECK(config->audit_file == "/var/log/x.jsonl");
  CHECK(config->audit_rotate_bytes == 8 * mib);
  CHECK(config->audit_syslog);
  CHECK(config->audit_syslog_socket == "/run/x/log");
  CHECK_FALSE(default_config().audit_syslog);
  CHECK(config->events_file == "/var/log/e.jsonl");
  CHECK(config->events_rotate_bytes == 9 * mib);
  CHECK(config->events_journal);
  CHECK(config->events_journal_socket == "/run/x/journal");
  CHECK(config->events_webhook == "https://h.example/x?y=z");
  CHECK_FALSE(default_config().events_journal);
  CHECK(config->http_listen == "127.0.0.1:9464");
  CHECK(config->traces_endpoint == "http://h:4318/v1/traces");
  CHECK(config->traces_sample == 0.25);
  CHECK(default_config().http_listen.empty());
  CHECK(default_config().traces_endpoint.empty());
  CHECK(default_config().traces_sample == 1);
  CHECK(config->tls_revoked == "/etc/x/revoked.pem");
  CHECK(config->tls_ca_key == "/etc/x/ca.key");
  CHECK(config->tls_renew_days == 7);
  CHECK(config->ttl_ns_max == 7ull * 86400 * ns_per_s);
  CHECK(config->connections_max == 10);
  CHECK(validate(*config).empty());
}

TEST_CASE("config: all mistakes are reported together, each with its line") {
  const File file(R"(runtime_directory = 7
nonsense = true
[emulated.devices]
cxl0 = "two gigabytes"
[log]
format = "xml"
[limits]
ttl_max = "10"
[tenants.uids]
root = "x"
)");
  const auto config = load_config_file(file.path, default_config());
  REQUIRE_FALSE(config.ok());
  CHECK(config.error().code == ErrorCode::invalid_argument);
  const std::string& detail = config.error().detail;
  for (const char* part : {":1: runtime_directory must be a text", ":2: unknown key 'nonsense'",
                           ":4: emulated.devices.cxl0 must be a size", ":6: log.format must be",
                           ":8: limits.ttl_max must be a duration", ":10: tenants.uids.root must map"}) {
    CHECK_MESSAGE(detail.find(part) != std::string::npos, "missing '" << part << "' in\n" << detail);
  }
}

TEST_CASE("config: sockets have a role, and a mode that goes with it") {
  const File file(R"(socket_role = "tenant"
root_is_administrator = false
[[sockets]]
path = "/run/x/admin/terraced.sock"
role = "administrator"
group = 12
mode = 0o660
[[sockets]]
path = "/run/x/watch/terraced.sock"
role = "operator"
owner = "root"
[[sockets]]
path = "/run/x/training/terraced.sock"
tenant = "training"
[[sockets]]
path = "/run/x/all/terraced.sock"
role = "tenant"
)");
  const auto config = load_config_file(file.path, default_config());
  REQUIRE_MESSAGE(config.ok(), (config.ok() ? "" : config.error().detail));
  CHECK(validate(*config).empty());
  const std::vector<SocketConfig> all = sockets_of(*config);
  REQUIRE(all.size() == 5);
  CHECK(all[0].path == socket_path_of(*config));
  CHECK(all[0].role == SocketRole::tenant);
  CHECK(all[0].mode == 0666);
  CHECK(all[1].role == SocketRole::administrator);
  CHECK(all[1].mode == 0660);
  CHECK(all[1].group == 12u);
  CHECK(all[2].role == SocketRole::oversight);
  CHECK(all[2].mode == 0600);
  CHECK(all[2].owner == 0u);
  CHECK(all[3].role == SocketRole::tenant);
  CHECK(all[3].tenant == "training");
  CHECK(all[3].mode == 0600);
  CHECK(all[4].mode == 0666);
  CHECK(administrators_of(*config).contains(0) == false);
}

TEST_CASE("config: root is an administrator unless the file says otherwise, and then if it is listed") {
  DaemonConfig config = default_config();
  const auto own = static_cast<uint32_t>(::geteuid());
  CHECK(administrators_of(config) == std::set<uint32_t>{0, own});
  config.root_is_administrator = false;
  config.admin_uids = {1000};
  CHECK(administrators_of(config).contains(1000));
  CHECK_FALSE(administrators_of(config).contains(0));
  CHECK(administrators_of(config).contains(own) == (own != 0));
  CHECK(validate(config).empty());
  config.admin_uids = {0};
  CHECK(administrators_of(config).contains(0));
  config.socket_role = SocketRole::tenant;  // nobody's uid counts then
  REQUIRE(validate(config).size() == 1);
  CHECK(validate(config)[0].find("nobody could administer this daemon: list a uid under admin_uids") == 0);
  config.role = Role::agent;
  config.manager = "10.0.0.1:7311";
  config.tls_ca = config.tls_certificate = config.tls_key = "/x";
  CHECK(validate(config).empty());
  SocketConfig watched;
  watched.path = "/run/x/o.sock";
  watched.mode = 0600;
  watched.role = SocketRole::oversight;
  config.sockets = {watched};
  REQUIRE(validate(config).size() == 1);
  CHECK(validate(config)[0].find("an agent administers nothing") == 0);
}

TEST_CASE("config: what is wrong with a socket is named with its line and its mend") {
  const std::string long_path = "/" + std::string(120, 'x');
  const struct {
    std::string text, expected;
  } cases[] = {
      {"[[sockets]]\nrole = \"tenant\"", ":1: a socket needs a path: path = "},
      {"[[sockets]]\npath = \"a.sock\"", ":2: the socket's path 'a.sock' must be an absolute path"},
      {"[[sockets]]\npath = \"/run/x/\"", ":2: the socket's path '/run/x/' must be an absolute path of a file"},
      {"[[sockets]]\npath = \"" + long_path + "\"", "is longer than the 107 bytes"},
      {"[[sockets]]\npath = \"/a\"\nrole = \"boss\"",
       ":3: sockets.role 'boss' is no role; it is \"by-uid\", \"tenant\", \"operator\" or \"administrator\""},
      {"socket_role = \"root\"", ":1: socket_role 'root' is no role"},
      {"[[sockets]]\npath = \"/a\"\nrole = \"administrator\"\ntenant = \"x\"",
       ":4: a socket of the role administrator has no tenant of its own: leave tenant out"},
      {"[[sockets]]\npath = \"/a\"\ntenant = \"x y\"", ":3: tenant 'x y' needs letters"},
      {"[[sockets]]\npath = \"/a\"\ntenant = \"uid-7\"",
       ":3: tenant 'uid-7' has a name kept for users without one"},
      {"[[sockets]]\npath = \"/a\"\nrole = \"administrator\"\nmode = 0o666",
       ":4: any user may open a socket of mode 0o666, and with the role administrator that alone is the right: "
       "close it to others, as 0o600"},
      {"[[sockets]]\npath = \"/a\"\nrole = \"operator\"\nmode = 0o602",
       ":4: any user may open a socket of mode 0o602"},
      {"socket_role = \"administrator\"\nsocket_mode = 0o666", ":2: any user may open a socket of mode 0o666"},
      {"[[sockets]]\npath = \"/a\"\nmode = 0o1777", ":3: a socket's mode must be at most 0o777"},
      {"[[sockets]]\npath = \"/a\"\nmode = \"0660\"", ":3: sockets.mode must be a whole number"},
      {"[[sockets]]\npath = \"/a\"\n[[sockets]]\npath = \"//a\"",
       ":4: the socket //a is there twice; give each a path of its own"},
      {"socket = \"/a\"\n[[sockets]]\npath = \"/b/../a\"", ":3: the socket /b/../a is there twice"},
      {"[[sockets]]\npath = \"/a\"\ngroup = \"no-such-group\"",
       ":3: sockets.group 'no-such-group' is no group of this machine"},
      {"[[sockets]]\npath = \"/a\"\nowner = -1",
       ":3: sockets.owner must be a user's name in quotes, or its number"},
      {"[[sockets]]\npath = \"/a\"\nuid = 1", ":3: unknown key 'uid' in [sockets]; known are "},
      {"sockets = [1]", ":1: sockets must be tables: write each as [[sockets]]"},
      {"root_is_administrator = 0", ":1: root_is_administrator must be true or false"},
  };
  for (const auto& one : cases) {
    const File file(one.text + "\n");
    const auto config = load_config_file(file.path, default_config());
    REQUIRE_MESSAGE(!config.ok(), one.text);
    CHECK_MESSAGE(config.error().detail.find(one.expected) != std::string::npos,
                  one.text << "\nmissing '" << one.expected << "' in\n"
                           << config.error().detail);
    CHECK_MESSAGE(config.error().detail.find('\n') == std::string::npos, config.error().detail);
  }
}

TEST_CASE("config: a file that is no TOML names the line") {
  const File file("runtime_directory = \"/x\"\nthis is not toml\n");
  const auto config = load_config_file(file.path, default_config());
  REQUIRE_FALSE(config.ok());
  CHECK(config.error().detail.find(":2: ") != std::string::npos);
}

TEST_CASE("config: a missing file is not an empty one") {
  const auto config = load_config_file("/nonexistent/terraced.toml", default_config());
  REQUIRE_FALSE(config.ok());
  CHECK(config.error().code == ErrorCode::not_found);
}

TEST_CASE("config: contradictions of a finished configuration are all named") {
  DaemonConfig config = default_config();
  config.runtime_directory = "relative";
  config.emulated = {{"a", 1}, {"a", 4 * mib}, {"b/c", 4 * mib}};
  config.log_level = "loud";
  config.socket_path = "/" + std::string(200, 'x');
  const auto problems = validate(config);
  CHECK(problems.size() == 6);  // b/c, the second a, 1 byte, level, socket, runtime
}

TEST_CASE("config: a granule is a power of two of at least 2 MiB, and devices are whole numbers of it") {
  for (const uint64_t granule : {0 * mib, 1 * mib, 3 * mib, 2 * gib}) {
    DaemonConfig config = default_config();
    config.granule_bytes = granule;
    REQUIRE(validate(config).size() == 1);
    CHECK(validate(config)[0].find("choose a power of two from 2 MiB to 1 GiB") != std::string::npos);
  }
  DaemonConfig config = default_config();
  config.granule_bytes = 1 * gib;
  config.emulated = {{"whole", 2 * gib}, {"broken", 1536 * mib}};
  REQUIRE(validate(config).size() == 1);
  CHECK(validate(config)[0].find("broken") != std::string::npos);
}

TEST_CASE("config: contradictions in a file name their line as well") {
  const File file(R"(socket = "/run/terraced.sock"
state = "relative.db"
[emulated.devices]
good = "2M"
odd = "3M"
vast = "8000000T"
[tenants.uids]
1000 = "uid-1001"
4294967295 = "fine"
[limits]
ttl_max = "31d"
connections_max = 100000
[log]
level = "loud"
)");
  const auto config = load_config_file(file.path, default_config());
  REQUIRE_FALSE(config.ok());
  const std::string& detail = config.error().detail;
  for (const char* part : {":2: state 'relative.db'", ":5: emulated device 'odd'", ":6: emulated device 'vast'",
                           ":8: tenant 'uid-1001'", ":11: ttl_max", ":12: connections_max", ":14: log level"}) {
    CHECK_MESSAGE(detail.find(part) != std::string::npos, "missing '" << part << "' in\n" << detail);
  }
  CHECK(detail.find(":9:") == std::string::npos);
}

TEST_CASE("config: where logging services listen, and who may have the CA's key") {
  const auto problem_of = [](const std::function<void(DaemonConfig&)>& change) {
    DaemonConfig config = default_config();
    change(config);
    const std::vector<std::string> problems = validate(config);
    return problems.size() == 1 ? problems.front() : std::to_string(problems.size()) + " problems";
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(has(problem_of([](DaemonConfig& c) { c.audit_syslog_socket = "log"; }), "absolute"));
  CHECK(has(problem_of([](DaemonConfig& c) { c.events_journal_socket = "log"; }), "absolute"));
  CHECK(has(problem_of([](DaemonConfig& c) { c.events_file = "events"; }), "absolute"));
  CHECK(has(problem_of([](DaemonConfig& c) { c.events_file = c.audit_file = "/x"; }), "cannot share"));
  CHECK(has(problem_of([](DaemonConfig& c) { c.events_rotate_bytes = 1; }), "1M"));
  for (const char* url :
       {"host:80", "ftp://h/", "http://", "http:///x", "http://:80/", "http://u:p@h/", "http://h/a b"})
    CHECK_MESSAGE(has(problem_of([url](DaemonConfig& c) { c.events_webhook = url; }), "must be http://"), url);
  CHECK(has(problem_of([](DaemonConfig& c) { c.traces_endpoint = "h:4318"; }), "must be http://"));
  CHECK(has(problem_of([](DaemonConfig& c) { c.http_listen = "9464"; }), "must be HOST:PORT"));
  CHECK(has(problem_of([](DaemonConfig& c) { c.audit_syslog_socket = "/" + std::string(107, 'x'); }), "107"));
  CHECK(has(problem_of([](DaemonConfig& c) { c.tls_renew_days = 0; }), "renew_days"));
  CHECK(has(problem_of([](DaemonConfig& c) {
              c.role = Role::agent;
              c.manager = "a:1";
              c.tls_ca = c.tls_certificate = c.tls_key = c.tls_ca_key = "/x";
            }),
            "no use for the CA's key"));
}

TEST_CASE("config: a host lease is 10 s at least, but for tests with failpoints") {
  const auto problems_of = [](uint64_t length_ns) {
    DaemonConfig config = default_config();
    config.host_lease_ns = length_ns;
    return validate(config);
  };
  ::unsetenv("TERRACE_SHORT_HOST_LEASE");
  CHECK(problems_of(10 * ns_per_s).empty());
  CHECK(problems_of(600 * ns_per_s).empty());
  CHECK(problems_of(601 * ns_per_s).size() == 1);
  const auto refused = problems_of(9 * ns_per_s);
  REQUIRE(refused.size() == 1);
  for (const char* part : {"host_lease of 9 s", "10 s to 10 min", "--host-lease", "[listen]"})
    CHECK_MESSAGE(refused.front().find(part) != std::string::npos, refused.front());
  ::setenv("TERRACE_SHORT_HOST_LEASE", "1", 1);
  CHECK(problems_of(4 * ns_per_s).size() == (failpoints_enabled() ? 0 : 1));
  CHECK(problems_of(999 * ns_per_ms).size() == 1);
  ::unsetenv("TERRACE_SHORT_HOST_LEASE");
}

TEST_CASE("config: what was wrong before the file is not blamed on the file") {
  const File file("host = \"node-7\"\n");
  DaemonConfig base = default_config();
  base.state_path = "relative";
  CHECK(load_config_file(file.path, base).ok());
  CHECK(validate(*load_config_file(file.path, base)).size() == 1);
}

TEST_CASE("config: what is no file of a sensible size is refused") {
  CHECK(load_config_file("/tmp", default_config()).error().code == ErrorCode::io_error);
  CHECK(load_config_file("/dev/zero", default_config()).error().code == ErrorCode::invalid_argument);
}

TEST_CASE("config: malformed text of any kind is refused, never taken and never a crash") {
  for (const char* text :
       {"[", "a =", "= 1", "\"", "[emulated\n", "state = \"\\q\"", "\xff\xfe", "a = 1\na = 2",
        "[tenants.uids]\n01000 = \"x\"", "[tenants.uids]\n-1 = \"x\"", "admin_uids = [-1]",
        "admin_uids = [4294967296]", "socket_mode = 1024", "emulated = 1", "admin_uids = 0",
        "[emulated.devices]\nx = 5", "[[emulated]]\n", "[limits]\nconnections_max = 0"}) {
    const File file(text);
    const auto config = load_config_file(file.path, default_config());
    CHECK_MESSAGE(!config.ok(), text);
    if (config.ok()) continue;
    CHECK(config.error().code == ErrorCode::invalid_argument);
    CHECK_MESSAGE(config.error().detail.starts_with(file.path + ":"), config.error().detail);
  }
}

TEST_CASE("config: the default can be used as it is") {
  CHECK(validate(default_config()).empty());
}

TEST_CASE("config: emulated devices are NAME=SIZE") {
  CHECK(*parse_emulated_device("cxl0=2G") == EmulatedDevice{"cxl0", 2 * gib});
  for (const char* text : {"cxl0", "=2G", "a b=2G", "cxl0=", "cxl0=big"})
    CHECK_FALSE(parse_emulated_device(text).ok());
}

TEST_CASE("log: a message becomes the inside of a JSON string") {
  CHECK(json_escape("say \"hi\"\\\n") == "say \\\"hi\\\"\\\\\\u000a");
}

TEST_CASE("config: the example in the manual is taken") {
  std::ifstream manual(TERRACE_SOURCE_FOLDER "/docs/operations/configuration.md");
  REQUIRE(manual.good());
  std::string example;
  bool inside = false;
  for (std::string line; std::getline(manual, line);) {
    if (line.starts_with("```")) {
      inside = line == "```toml";
    } else if (inside) {
      example += line + "\n";
    }
  }
  REQUIRE(example.size() > 100);
  const File file(example);
  const auto config = load_config_file(file.path, default_config());
  REQUIRE_MESSAGE(config.ok(), config.error().detail);
  CHECK(validate(*config).empty());
  CHECK(config->emulated.size() == 2);
  CHECK(config->tenants.size() == 2);
}
