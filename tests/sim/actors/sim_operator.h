// SPDX-License-Identifier: Apache-2.0
// The operator: adopts the devices, makes pools of all placements, and then does what operators do: revokes,
// releases from quarantine, sets quotas, reserves, drains, gives devices up, removes, adopts and adds them,
// compacts, removes and remakes a pool. What was acknowledged to it goes into the ledger's settings.
//
// Place     tests/sim/actors.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/ledger.h"
#include "tests/sim/manager/connection.h"

namespace terrace::sim {

class SimOperator {
 public:
  SimOperator(Environment& environment, Manager& daemon, Ledger& ledger);

  void act();
  void end();
  void fall_silent() { silent_ = true; }
  // Takes back all claims and puts every device into service, so that everything can come to rest.
  void tidy_up();

  static constexpr int devices = 5;

 private:
  using Settings = std::vector<std::pair<std::string, std::string>>;  // name, value once acknowledged
  struct Request {
    daemon::Command command;
    Settings settings;
    std::vector<std::optional<std::string>> before;
    uint64_t tries = 0;
  };

  void ask(daemon::Command command, Settings settings = {});
  void send();
  void received(const Result<daemon::Reply>& result);
  void do_something();
  void revoke_one();
  void release_from_quarantine();
  void set_quota();
  void reserve();
  void change_device();
  void remake_pool();
  std::string some_serial();
  std::string some_pool();

  Environment& environment_;
  Manager& daemon_;
  Ledger& ledger_;
  Connection connection_;
  std::vector<daemon::AdoptDevice> shapes_;
  std::vector<std::pair<daemon::Command, Settings>> preparations_;
  size_t prepared_ = 0;
  std::optional<Request> asked_;
  uint64_t attempt_ = 0;
  uint64_t sent_ns_ = 0;
  bool silent_ = false;
  daemon::CreatePool pool_b_;
};

}  // namespace terrace::sim
