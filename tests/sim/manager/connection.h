// SPDX-License-Identifier: Apache-2.0
// Delivers commands to the daemon and replies back, in their order, late or never. The daemon's clock stamps
// the command.
//
// Place     tests/sim/manager, between SimClient or SimOperator and the manager.
#pragma once

#include <optional>

#include "tests/sim/environment.h"
#include "tests/sim/manager/manager.h"

namespace terrace::sim {

class Connection {
 public:
  // `client`: whom the daemon enters as holder of what it grants; nullopt: nobody's.
  Connection(Environment& environment, Manager& daemon, std::optional<uint64_t> client = std::nullopt)
      : environment_(environment), daemon_(daemon), client_(client) {}

  // `received` runs at most once, and not after cut().
  void send(const daemon::Command& command, ReplyAction received);
  void send_attach(LeaseId lease, const std::string& tenant, ReplyAction received);
  // Messages under way in either direction are lost.
  void cut() { ++life_; }

 private:
  // How long a message takes that follows the one which arrives at `last_ns`.
  uint64_t delay_ns(uint64_t& last_ns);
  bool lost() { return environment_.chance_percent(environment_.faults().message_loss_percent); }
  void deliver(std::function<void(ReplyAction)> request, ReplyAction received);

  Environment& environment_;
  Manager& daemon_;
  std::optional<uint64_t> client_;
  uint64_t life_ = 0;
  uint64_t last_request_ns_ = 0;
  uint64_t last_reply_ns_ = 0;
};

}  // namespace terrace::sim
