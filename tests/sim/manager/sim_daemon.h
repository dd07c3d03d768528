// SPDX-License-Identifier: Apache-2.0
// The simulated shell around the state machine under test: the same order of work as daemon/event_loop, with
// events instead of threads. Commands are applied at once; their row changes share the next commit; replies
// and effects wait until everything applied before them is durable. What is made new (a carve, a growth) and
// the refusal of a waiting grant come at once. A record that nobody waits for, an extent that is free again,
// goes with the next commit or by itself a little later. Once a second devices are looked for and moves driven.
//
// Place     tests/sim/manager. Sits between SimClient, SimStore and SimBackend.
// Crash     crash() forgets everything but the store, the objects and the mappings, between any two steps.
//           After a failed commit the shell recovers in process: work at the backend ends first.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "daemon/state/state_machine.h"
#include "tests/sim/claims.h"
#include "tests/sim/environment.h"
#include "tests/sim/ledger.h"
#include "tests/sim/manager/manager.h"
#include "tests/sim/manager/sim_backend.h"
#include "tests/sim/manager/sim_store.h"
#include "tests/sim/metrics_check.h"

namespace terrace::sim {

class SimDaemon final : public Manager {
 public:
  SimDaemon(Environment& environment, SimStore& store, SimBackend& backend, Ledger& ledger);

  void start() override;
  void crash(const char* where) override;
  void reboot() override;
  void submit(daemon::Command command, ReplyAction reply) override;
  void attach(LeaseId lease, const std::string& tenant, uint64_t client, ReplyAction reply) override;
  void hold(LeaseId lease, uint64_t client) override;
  void let_go(LeaseId lease, uint64_t client) override;
  void cancel(const daemon::Grant& grant) override;
  void on_notice(NoticeAction action) override { notice_ = std::move(action); }
  void on_move_request(MoveRequest action) override { move_request_ = std::move(action); }

  bool serving() const override { return serving_; }
  uint64_t serving_since_ns() const override { return serving_since_ns_; }
  bool idle() const override;
  bool moves_owned() const override { return true; }
  const daemon::StateMachine& machine() const override { return machine_; }
  const Claims& claims() const override { return claims_; }
  uint64_t recoveries() const override { return recoveries_; }
  uint64_t crashes() const override { return crashes_; }
  uint64_t moves() const override { return moves_; }
  const std::set<size_t>& accepted() const override { return accepted_; }
  uint64_t hand_overs(LeaseId lease) const override {
    const auto at = hand_overs_.find(lease);
    return at == hand_overs_.end() ? 0 : at->second;
  }

 private:
  struct Waiting {
    uint64_t batch;  // may go once this many deltas are durable
    std::function<void()> act;
    ReplyAction reply;  // set: a reply that turns into an error when the commit fails
  };
  struct Job {
    daemon::Effect effect;
    uint64_t left = 0;  // granules that are still to be erased, of a scrub in place
  };

  // sim_daemon.cc: commands and commits
  // Runs `action` later, unless the daemon has died by then.
  void later(uint64_t delay_ns, std::function<void()> action);
  bool crash_here(const char* where);
  uint64_t some_ns(uint64_t max_ns);
  void apply(const daemon::Command& command, ReplyAction reply);
  void check_applied(const daemon::Command& command, const daemon::Step& step);
  bool takes_part_of_the_dead(const daemon::Command& command) const;
  std::vector<ReplyAction> take_replies(const daemon::Command& command, const daemon::Step& step,
                                        ReplyAction reply);
  void hold_back(bool own_delta, std::function<void()> act, ReplyAction reply);
  void flush();
  void request_commit();
  void defer_commit();
  void begin_commit();
  void finish_commit();
  void check_stored();
  void arm_timer();

  // sim_daemon_effects.cc
  void perform(const daemon::Effect& effect);
  void perform_at_once(const daemon::Effect& effect, const daemon::Command& cause);
  void schedule(uint64_t job);
  void finish_effect(uint64_t job);
  void erase_piece(uint64_t job);
  daemon::Command work(const daemon::Effect& effect);
  void check_decided(const daemon::Effect& effect);
  void keep_house();
  void watch_devices();
  void drive_moves();
  void move_unheld(LeaseId lease);
  void copy_and_finish(const daemon::MoveReady& move);
  void finish_move(const daemon::MoveReady& move, bool copied);
  void end_move(LeaseId lease);

  // sim_daemon_recovery.cc
  void stop();
  void restart_after_commit_failure(const char* what);
  void recover();
  void check_idempotent(const daemon::Recovery& recovery, const daemon::Observation& observed);
  bool repair(const daemon::Recovery& recovery);
  void finish_recovery(const daemon::Recovery& recovery);

  // sim_daemon_plants.cc: the state machine, or one that is told something else
  daemon::Step decide(const daemon::Command& command);
  daemon::Step decide_overtaking(const daemon::Grant& grant);

  Environment& environment_;
  SimStore& store_;
  SimBackend& backend_;
  Ledger& ledger_;
  Claims claims_;
  MetricsCheck metrics_;
  NoticeAction notice_;
  MoveRequest move_request_;

  std::map<LeaseId, uint64_t> hand_overs_;

  daemon::StateMachine machine_;
  bool serving_ = false;
  uint64_t serving_since_ns_ = 0;
  uint64_t generation_ = 0;  // of the process; events of an earlier one do nothing
  uint64_t boot_ = 1;
  daemon::Delta open_;
  bool committing_ = false;
  bool commit_requested_ = false;
  bool deferring_ = false;
  uint64_t applied_ = 0;  // deltas so far
  uint64_t in_flight_ = 0;
  uint64_t durable_ = 0;
  std::vector<daemon::LeaseRow> quarantining_;  // by the commit under way
  std::deque<Waiting> waiting_;
  std::map<LeaseId, std::vector<ReplyAction>> carving_;
  std::map<LeaseId, ReplyAction> changing_;
  std::map<uint64_t, Job> jobs_;                // under way at the backend
  std::map<std::string, uint64_t> busy_until_;  // objects: their work is done in its order
  std::map<LeaseId, std::set<uint64_t>> holders_;
  std::map<LeaseId, uint64_t> asked_to_move_ns_;
  std::map<LeaseId, bool> moving_;  // by the manager itself; whether somebody attached meanwhile
  uint64_t moves_from_ns_ = 0;      // steady: sessions had the time to say what they hold
  uint64_t next_job_ = 1;
  uint64_t timer_ = 0;
  uint64_t recoveries_ = 0;
  uint64_t crashes_ = 0;
  uint64_t moves_ = 0;
  std::set<size_t> accepted_;
};

}  // namespace terrace::sim
