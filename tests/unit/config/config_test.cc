// The daemon's configuration: every mistake is found at once, with its line and how to fix it.
#include <doctest/doctest.h>

#include <unistd.h>

#include <cstdlib>
#include <fstream>

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
  CHECK_FALSE(config->userfaultfd);
  CHECK(default_config().userfaultfd);
  CHECK(config->admin_uids.contains(7));
  CHECK(config->log_format == LogFormat::json);
  CHECK(config->audit_file == "/var/log/x.jsonl");
  CHECK(config->audit_rotate_bytes == 8 * mib);
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
