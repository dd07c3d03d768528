// SPDX-License-Identifier: Apache-2.0
// SIGHUP: what is taken over of a configuration that was read again, and where the log goes then.
#include <doctest/doctest.h>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "daemon/config/config.h"
#include "daemon/config/log.h"
#include "daemon/config/reload.h"
#include "daemon/log/log.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

struct LogFolder {
  LogFolder() {
    char name[] = "/tmp/terrace-log-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    path = name;
  }
  ~LogFolder() {
    log::silence();
    std::filesystem::remove_all(path);
  }
  std::string file(const char* name) const { return path + "/" + name; }
  std::string read(const char* name) const {
    std::stringstream text;
    text << std::ifstream(file(name)).rdbuf();
    return text.str();
  }
  std::string path;
};

size_t lines(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

TEST_CASE(
    "reload: who may do what, the log and bounds of callers are taken over, the rest waits and is named") {
  DaemonConfig running = default_config();
  running.tenants = {{1000, "training"}};
  DaemonConfig read = running;
  read.tenants = {{1000, "training"}, {1001, "serving"}};
  read.admin_uids = {7};
  read.log_level = "warning";
  read.connections_max = 17;
  read.host_tenants = {{"hostb", {"training"}}};
  read.state_path = "/elsewhere/state.db";
  read.ttl_ns_max = 60 * ns_per_s;
  read.emulated = {{"cxl0", 4 * mib}};
  read.health.queue_after_ns = 5 * ns_per_s;
  read.http_listen = "127.0.0.1:9464";
  read.events_webhook = "http://h/";
  read.traces_endpoint = "http://h/v1/traces";
  read.traces_sample = 0.5;

  const Reloaded reloaded = take_over(running, read);
  CHECK(reloaded.taken == std::vector<std::string>{"hosts", "tenants.uids", "admin_uids", "log.level",
                                                   "traces.endpoint", "traces.sample",
                                                   "limits.connections_max"});
  CHECK(reloaded.need_restart == std::vector<std::string>{"state", "emulated.devices", "events.webhook",
                                                          "health", "http.listen", "limits.ttl_max"});
  CHECK(reloaded.config.tenants == read.tenants);
  CHECK(reloaded.config.admin_uids == read.admin_uids);
  CHECK(reloaded.config.log_level == "warning");
  CHECK(reloaded.config.state_path == running.state_path);
  CHECK(reloaded.config.ttl_ns_max == running.ttl_ns_max);
  CHECK(reloaded.config.emulated.empty());
  // What waits is still different at the next look, what was taken over is not.
  const Reloaded again = take_over(reloaded.config, read);
  CHECK(again.taken.empty());
  CHECK(again.need_restart == reloaded.need_restart);
}

TEST_CASE("reload: of the same configuration nothing") {
  const DaemonConfig running = default_config();
  const Reloaded reloaded = take_over(running, running);
  CHECK(reloaded.taken.empty());
  CHECK(reloaded.need_restart.empty());
  CHECK(reloaded.config == running);
}

TEST_CASE("log: a file that was renamed away is made anew, and no line is lost or torn") {
  LogFolder folder;
  DaemonConfig config = default_config();
  config.log_file = folder.file("log");
  set_up_log(config);
  constexpr size_t lines_of_each = 2000;
  std::thread other([] {
    for (size_t i = 0; i < lines_of_each; ++i) log::info("other {}", i);
  });
  for (size_t i = 0; i < lines_of_each; ++i) {
    log::info("this {}", i);
    if (i == lines_of_each / 2) {
      std::filesystem::rename(folder.file("log"), folder.file("log.1"));
      REQUIRE(reopen_log(config).ok());
    }
  }
  other.join();
  const std::string old = folder.read("log.1"), made = folder.read("log");
  CHECK(lines(old) + lines(made) == 2 * lines_of_each);
  CHECK(old.find("this 0\n") != std::string::npos);
  CHECK(made.find("this 1999\n") != std::string::npos);
  CHECK(made.find("this 1000\n") == std::string::npos);
}

TEST_CASE("log: level and form follow; a file that cannot be opened changes nothing") {
  LogFolder folder;
  DaemonConfig config = default_config();
  config.log_file = folder.file("log");
  set_up_log(config);
  log::info("as text");
  config.log_format = LogFormat::json;
  config.log_level = "warning";
  REQUIRE(reopen_log(config).ok());
  log::info("not said");
  log::warn("as \"json\"");
  DaemonConfig wrong = config;
  wrong.log_file = folder.path + "/none/log";
  wrong.log_level = "debug";
  const Status refused = reopen_log(wrong);
  CHECK(refused.error().code == ErrorCode::not_found);
  CHECK(refused.error().detail.find(wrong.log_file) != std::string::npos);
  log::info("nor this");
  log::warn("still here");
  const std::string text = folder.read("log");
  CHECK(text.find(" info as text\n") != std::string::npos);
  CHECK(text.find(R"("level":"warning")") != std::string::npos);
  CHECK(text.find(R"("message":"as \"json\""})") != std::string::npos);
  CHECK(text.find("nor this") == std::string::npos);
  CHECK(text.find("not said") == std::string::npos);
  CHECK(text.find("still here") != std::string::npos);
}

TEST_CASE("log: fields stand behind the text, as keys of JSON, and in no other line") {
  LogFolder folder;
  DaemonConfig config = default_config();
  config.log_file = folder.file("log");
  set_up_log(config);
  const std::vector<log::Field> fields{
      {"event", "device_lost", false}, {"lease", "7", true}, {"cause", "a \"b\"", false}};
  log::write_line(log::Level::warn, "it vanished", fields);
  log::info("another");
  config.log_format = LogFormat::json;
  REQUIRE(reopen_log(config).ok());
  log::write_line(log::Level::warn, "it vanished", fields);
  const std::string text = folder.read("log");
  CHECK(text.find(" warning it vanished event=device_lost lease=7 cause=\"a \\\"b\\\"\"\n") !=
        std::string::npos);
  CHECK(text.find(" info another\n") != std::string::npos);
  CHECK(text.find(R"("message":"it vanished","event":"device_lost","lease":7,"cause":"a \"b\""})") !=
        std::string::npos);
}
