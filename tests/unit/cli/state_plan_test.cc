// SPDX-License-Identifier: Apache-2.0
// The configuration as a file: written and read back, judged, and turned into what is to be done.
#include <doctest/doctest.h>

#include "cli/verbs/state_plan.h"
#include "core/base/units.h"

using namespace terrace;
using namespace terrace::cli;

namespace {

ManagerConfig some_config() {
  ManagerConfig config;
  config.devices = {"emu:a", "emu:b"};
  config.pools = {{.name = "p",
                   .devices = {"emu:a", "emu:b"},
                   .placement = rpc::Placement::STRIPED,
                   .stripe_bytes = 4 * mib,
                   .coherence = rpc::Coherence::COHERENT}};
  config.quotas = {{"alice", 3 * gib, 7}, {"*", 0, 9}};
  config.reservations = {{"p", "alice", 16 * mib, 90 * ns_per_s}, {"p", "bob", 1000, 0}};
  return config;
}

std::vector<DeviceStatus> seen(std::initializer_list<const char*> serials, const char* contents = "") {
  std::vector<DeviceStatus> devices;
  for (const char* serial : serials)
    devices.push_back(DeviceStatus().changed([&](rpc::DeviceInfo::Builder device) {
      device.setSerial(serial);
      device.setContents(contents);
    }));
  return devices;
}

std::vector<std::string> words_of_steps(const ConfigPlan& plan) {
  std::vector<std::string> words;
  for (const PlanStep& step : plan.steps) words.push_back(step.words);
  return words;
}

std::string problem(const std::string& text) {
  const auto config = parse_config(text, "FILE");
  REQUIRE(!config.ok());
  CHECK(config.error().code == ErrorCode::invalid_argument);
  return config.error().detail;
}

}  // namespace

TEST_CASE("state export: the file reads back as what was written") {
  const std::string text = config_text(some_config());
  const auto config = parse_config(text, "FILE");
  REQUIRE_MESSAGE(config.ok(), config.error().to_string());
  CHECK(config_text(*config) == text);
  CHECK(plan_config(*config, some_config(), {}).steps.empty());
  CHECK(config->pools[0].stripe_bytes == 4 * mib);
  CHECK(config->reservations[0].ttl_ns == 90 * ns_per_s);
  CHECK(config->reservations[1].bytes == 1000);
  const auto empty = parse_config(config_text({}), "FILE");
  REQUIRE(empty.ok());
  CHECK(config_text(*empty) == config_text({}));
}

TEST_CASE("state apply: what is wrong in a file is named by its place, with what may stand there") {
  const auto with = [](const std::string& rest) { return "{\"terrace_configuration\": 1, " + rest + "}"; };
  CHECK(problem("{").find("FILE: not JSON") == 0);
  CHECK(problem("{}").find("terrace state export") != std::string::npos);
  CHECK(problem("{\"terrace_configuration\": 2}").find("this program knows 1") != std::string::npos);
  CHECK(problem(with(R"("pools": [{"name": "p", "devices": ["a"], "placement": "liner"}])"))
            .find("FILE: pools[0].placement must be one of linear, striped, spread") == 0);
  CHECK(problem(with(R"("pools": [{"name": "p", "devices": "a"}])")).find("pools[0].devices must be a list") !=
        std::string::npos);
  CHECK(problem(with(R"("quotas": [{"tenant": "a"}, {"tenant": "b", "bytes_max": "much"}])"))
            .find("quotas[1].bytes_max must be a size") != std::string::npos);
  CHECK(problem(with(R"("quotas": [{"tenant": "a", "bytes": "1GiB"}])")).find("quotas[0].bytes is nothing") !=
        std::string::npos);
  CHECK(problem(with(R"("devices": ["emu:a"])")).find("devices[0] is no object") != std::string::npos);
  CHECK(problem(with(R"("tenants": [])")).find("tenants is nothing") != std::string::npos);
}

TEST_CASE("state apply: an empty manager gets everything, in an order that works") {
  const ConfigPlan plan = plan_config(some_config(), {}, seen({"emu:a", "emu:b"}));
  CHECK(words_of_steps(plan) ==
        std::vector<std::string>{"adopt device emu:a", "adopt device emu:b", "create pool p of emu:a, emu:b",
                                 "set the quota of tenant alice", "set the quota of tenant *",
                                 "reserve 16 MiB of pool p for tenant alice",
                                 "reserve 1000 B of pool p for tenant bob"});
  CHECK(plan.conflicts.empty());
  CHECK(plan.left.empty());
  CHECK(plan.steps[2].new_pool.stripe_bytes == 4 * mib);
}

TEST_CASE("state apply: what is there and not in the file is left, what differs is changed or said") {
  ManagerConfig present = some_config();
  present.devices.push_back("emu:c");
  present.pools[0].devices = {"emu:a", "emu:c"};
  present.pools[0].coherence = rpc::Coherence::UNKNOWN;
  present.pools.push_back({.name = "q", .devices = {}});
  present.quotas = {{"alice", 1 * gib, 7}, {"carol", 0, 1}};
  present.reservations.push_back(present.reservations[0]);
  ConfigPlan plan = plan_config(some_config(), present, seen({}));
  CHECK(words_of_steps(plan) ==
        std::vector<std::string>{"set pool p to coherence coherent", "add device emu:b to pool p",
                                 "set the quota of tenant alice", "set the quota of tenant *"});
  CHECK(plan.left == std::vector<std::string>{"device emu:c of pool p",
                                              "the reservation of 16 MiB of pool p for tenant alice",
                                              "device emu:c", "pool q", "the quota of tenant carol"});
  CHECK(plan.conflicts.empty());

  ManagerConfig trusting = some_config();
  trusting.pools[0].trust = rpc::Trust::MUTUAL;
  CHECK(parse_config(config_text(trusting), "FILE")->pools[0].trust == rpc::Trust::MUTUAL);
  CHECK(words_of_steps(plan_config(trusting, some_config(), seen({}))) ==
        std::vector<std::string>{"say of pool p that its tenants trust each other"});
  plan = plan_config(some_config(), trusting, seen({}));
  CHECK(plan.steps.empty());
  CHECK(plan.left == std::vector<std::string>{"the word that the tenants of pool p trust each other"});

  present = some_config();
  present.pools[0].stripe_bytes = 2 * mib;
  present.pools.push_back({.name = "q", .devices = {"emu:z"}});
  ManagerConfig wanted = some_config();
  wanted.pools[0].devices.push_back("emu:z");
  wanted.devices = {"emu:x", "emu:y"};
  plan = plan_config(wanted, present, seen({"emu:y"}, "2 dax devices"));
  REQUIRE(plan.conflicts.size() == 5);
  CHECK(plan.conflicts[0].find("device emu:x is not there") == 0);
  CHECK(plan.conflicts[1].find("2 dax devices; if that may go: terrace device adopt emu:y") !=
        std::string::npos);
  CHECK(plan.conflicts[2].find("device emu:z is not there") == 0);
  CHECK(plan.conflicts[3].find("device emu:z is in pool q") == 0);
  CHECK(plan.conflicts[4].find("pool p has placement striped of 2MiB") == 0);
}
