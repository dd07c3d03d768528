// SPDX-License-Identifier: Apache-2.0
// The manager as its clients and checkers see it: requests with their answers, sessions, crashes, and the state.
//
// Place     tests/sim/manager. SimDaemon is a shell made of events around the state machine; EngineManager is the
//           daemon's own engine. World picks one.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "daemon/state/state_machine.h"
#include "tests/sim/claims.h"

namespace terrace::sim {

using ReplyAction = std::function<void(const Result<daemon::Reply>&)>;
using NoticeAction = std::function<void(const daemon::NotifyHolders&)>;
using MoveRequest = std::function<void(LeaseId, uint64_t client)>;

class Manager {
 public:
  virtual ~Manager() = default;

  // Begins to load and recover; serves some events later.
  virtual void start() = 0;
  // Dies; a new process starts after a while.
  virtual void crash(const char* where) = 0;
  // The machine restarts: crash, objects and mappings gone, another boot id.
  virtual void reboot() = 0;

  // A request that reached the manager. When it is not serving, perhaps nobody ever answers.
  virtual void submit(daemon::Command command, ReplyAction reply) = 0;
  // The lease as it is, once that is durable; the client counts as its holder from now on.
  virtual void attach(LeaseId lease, const std::string& tenant, uint64_t client, ReplyAction reply) = 0;
  // Sessions say what they have mapped, also after a restart, and what no more.
  virtual void hold(LeaseId lease, uint64_t client) = 0;
  virtual void let_go(LeaseId lease, uint64_t client) = 0;
  // The client of a waiting grant went away.
  virtual void cancel(const daemon::Grant& grant) = 0;
  virtual void on_notice(NoticeAction action) = 0;
  virtual void on_move_request(MoveRequest action) = 0;

  virtual bool serving() const = 0;
  virtual uint64_t serving_since_ns() const = 0;  // steady
  // Nothing is under way: no commit, no effect, nothing waiting.
  virtual bool idle() const = 0;
  // Whether it moves, by itself, leases whose parts have owners.
  virtual bool moves_owned() const = 0;
  virtual const daemon::StateMachine& machine() const = 0;
  virtual const Claims& claims() const = 0;
  virtual uint64_t recoveries() const = 0;
  virtual uint64_t crashes() const = 0;
  virtual uint64_t moves() const = 0;
  // The commands that were ever accepted, by Command::index().
  virtual const std::set<size_t>& accepted() const = 0;
  // How often everybody who held the lease was shut out for its next tenant or host.
  virtual uint64_t hand_overs(LeaseId lease) const = 0;
};

}  // namespace terrace::sim
