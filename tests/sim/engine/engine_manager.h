// SPDX-License-Identifier: Apache-2.0
// The daemon's own engine (daemon/event_loop) in virtual time: one process after the other, each with an engine on
// an event loop that is turned here, one turn after the other, with the timer and the workers of the simulation.
// What daemon/rpc does around the engine (sessions, who holds what, waiting grants) is done here, in short.
//
// Place     tests/sim/engine. Sits between the actors and SimStore, SimBackend; engine_checks.cc has the checkers.
// Crash     crash() takes everything but the rows, the objects and the mappings, between any two turns of the loop or
//           inside of one, where a seam is called (fate.h).
#pragma once

#include <kj/async.h>
#include <kj/timer.h>

#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>

#include "daemon/event_loop/engine.h"
#include "tests/sim/claims.h"
#include "tests/sim/engine/engine_seams.h"
#include "tests/sim/engine/sim_jobs.h"
#include "tests/sim/ledger.h"
#include "tests/sim/manager/manager.h"
#include "tests/sim/metrics_check.h"

namespace terrace::sim {

class EngineManager final : public Manager,
                            private daemon::EngineWatcher,
                            private daemon::HolderNotifier,
                            private kj::TaskSet::ErrorHandler {
 public:
  // `real_store`: the daemon's own store runs too, and `store` is what it has to have.
  EngineManager(Environment& environment, SimStore& store, SimBackend& backend, Ledger& ledger,
                bool real_store);
  ~EngineManager() noexcept override;

  void start() override;
  void crash(const char* where) override;
  void reboot() override;
  void submit(daemon::Command command, ReplyAction reply) override;
  void attach(LeaseId lease, const std::string& tenant, uint64_t client, ReplyAction reply) override;
  void hold(LeaseId lease, uint64_t client) override { holders_[lease].insert(client); }
  void let_go(LeaseId lease, uint64_t client) override;
  void cancel(const daemon::Grant& grant) override;
  void on_notice(NoticeAction action) override { notice_ = std::move(action); }
  void on_move_request(MoveRequest action) override { move_request_ = std::move(action); }

  bool serving() const override { return serving_; }
  uint64_t serving_since_ns() const override { return serving_since_ns_; }
  bool idle() const override;
  bool moves_owned() const override { return false; }  // nobody can tell that an owner has ended
  const daemon::StateMachine& machine() const override;
  const Claims& claims() const override { return claims_; }
  uint64_t recoveries() const override { return recoveries_; }
  uint64_t crashes() const override { return crashes_; }
  uint64_t moves() const override;
  const std::set<size_t>& accepted() const override { return accepted_; }
  uint64_t hand_overs(LeaseId lease) const override;

 private:
  using Key = std::tuple<std::string, uint64_t, uint64_t>;  // tenant and request key of a grant
  struct Asked {
    Key grant;
    bool answered = false;
    kj::Canceler canceler;
  };
  // What a crash takes.
  struct Process {
    Process(EngineManager& manager);

    Fate fate;
    kj::TimerImpl timer;
    SimJobs jobs;
    EngineStore store;
    EngineMemory memory;
    std::unique_ptr<daemon::Engine> engine;
    bool recovered = false;  // has a state
    bool started = false;    // its start has ended well
    uint64_t wake_ns = UINT64_MAX;
    std::list<Asked> asked;
    kj::TaskSet tasks;  // replies under way
  };

  // engine_manager.cc
  void later(uint64_t delay_ns, std::function<void()> action);
  void begin();
  void started(const Status& status);
  void turn();
  void wake_later();
  void bury();
  void note_serving();
  void look_after_moves();
  void give_up_lost_objects();
  daemon::Command decoy(const daemon::Command& command) const;
  void answer(kj::Promise<Result<daemon::Reply>> promise, ReplyAction reply, Key grant);
  void taskFailed(kj::Exception&& exception) override;

  // engine_checks.cc
  void applied(const daemon::Command& command, const daemon::Step& step,
               const daemon::StateMachine& state) override;
  void recovered(const daemon::Recovery& recovery, const daemon::Observation& observed,
                 const daemon::StateMachine& state) override;
  void durable(const daemon::Delta& delta);
  void check_stored();
  void check_metrics();
  bool takes_part_of_the_dead(const daemon::Command& command) const;

  // HolderNotifier
  void revoking(LeaseId lease, uint64_t grace_ns, const std::string& reason) override;
  void fenced(LeaseId lease, const std::string& reason, daemon::LeaseCause cause) override;
  size_t holders(LeaseId lease) const override;
  bool move_requested(LeaseId lease, const std::string& reason) override;

  Environment& environment_;
  SimStore& store_;
  std::unique_ptr<RealStore> real_;
  SimBackend& backend_;
  Ledger& ledger_;
  Claims claims_;
  MetricsCheck metrics_;
  bool stepped_ = false;  // since the metrics were compared
  NoticeAction notice_;
  MoveRequest move_request_;

  kj::EventLoop loop_;
  kj::WaitScope scope_{loop_};
  EngineClock clock_;
  daemon::EngineOptions options_;
  std::unique_ptr<Process> process_;
  daemon::StateMachine last_machine_;  // of the process that died last
  uint64_t generation_ = 0;            // of the process; events of an earlier one do nothing
  bool accept_lost_objects_ = false;   // said to the next one
  bool power_is_lost_ = false;
  bool serving_ = false;
  uint64_t serving_since_ns_ = 0;
  uint64_t not_serving_since_ns_ = 0;
  std::map<LeaseId, std::set<uint64_t>> holders_;
  std::set<LeaseId> moving_;  // by the manager itself
  std::map<LeaseId, uint64_t> hand_overs_;
  const daemon::Command* told_ = nullptr;  // what was asked for, where a planted defect tells something else
  bool part_of_the_dead_ = false;
  uint64_t checked_commits_ = 0;
  uint64_t recoveries_ = 0;
  uint64_t crashes_ = 0;
  uint64_t moves_ = 0;  // of processes that died
  std::set<size_t> accepted_;
};

}  // namespace terrace::sim
