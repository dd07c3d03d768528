// The simulated shell around the state machine under test: the same order of work as daemon/event_loop, with
// events instead of threads. Commands are applied at once; their row changes share the next commit; replies
// and effects wait until everything applied before them is durable; a grant is carved before it is durable.
//
// Place     tests/sim. Sits between SimClient, SimStore and SimBackend.
// Crash     crash() forgets everything but the store, the objects and the mappings, between any two steps.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "daemon/state/state_machine.h"
#include "tests/sim/environment.h"
#include "tests/sim/ledger.h"
#include "tests/sim/sim_backend.h"
#include "tests/sim/sim_store.h"

namespace terrace::sim {

using ReplyAction = std::function<void(const Result<daemon::Reply>&)>;
using NoticeAction = std::function<void(const daemon::NotifyHolders&)>;

class SimDaemon {
 public:
  SimDaemon(Environment& environment, SimStore& store, SimBackend& backend, Ledger& ledger);

  // Begins to load and recover; serves some events later.
  void start();
  // Dies; a new process starts after a while.
  void crash(const char* where);
  // The machine restarts: crash, objects and mappings gone, another boot id.
  void reboot();

  // A request that reached the daemon. When it is not serving, nobody ever answers.
  void submit(daemon::Command command, ReplyAction reply);
  void on_notice(NoticeAction action) { notice_ = std::move(action); }

  bool serving() const { return serving_; }
  // Nothing is under way: no commit, no effect, nothing waiting.
  bool idle() const;
  const daemon::StateMachine& machine() const { return machine_; }
  uint64_t recoveries() const { return recoveries_; }
  uint64_t crashes() const { return crashes_; }

 private:
  struct Waiting {
    uint64_t batch;  // may go once this many deltas are durable
    std::function<void()> act;
    ReplyAction reply;  // set: a reply that turns into an error when the commit fails
  };

  // Runs `action` later, unless the daemon has died by then.
  void later(uint64_t delay_ns, std::function<void()> action);
  bool crash_here(const char* where);
  uint64_t some_ns(uint64_t max_ns);

  void recover();
  void finish_recovery(const daemon::Recovery& recovery);
  void stop();
  void restart_after_commit_failure(const char* what);
  void apply(const daemon::Command& command, ReplyAction reply);
  void hold(bool own_delta, std::function<void()> act, ReplyAction reply);
  void flush();
  void begin_commit();
  void finish_commit();
  void perform(const daemon::Effect& effect);
  void finish_effect(uint64_t job);
  void check_decided(const daemon::Effect& effect);
  void check_stored();
  void arm_timer();

  Environment& environment_;
  SimStore& store_;
  SimBackend& backend_;
  Ledger& ledger_;
  NoticeAction notice_;

  daemon::StateMachine machine_;
  bool serving_ = false;
  uint64_t generation_ = 0;  // of the process; events of an earlier one do nothing
  uint64_t boot_ = 1;
  daemon::Delta open_;
  bool committing_ = false;
  uint64_t applied_ = 0;  // deltas so far
  uint64_t in_flight_ = 0;
  uint64_t durable_ = 0;
  std::vector<LeaseId> quarantining_;  // by the commit under way
  std::deque<Waiting> waiting_;
  std::map<LeaseId, std::vector<ReplyAction>> carving_;
  std::map<uint64_t, daemon::Effect> jobs_;  // under way at the backend
  uint64_t next_job_ = 1;
  uint64_t timer_ = 0;
  uint64_t recoveries_ = 0;
  uint64_t crashes_ = 0;
};

}  // namespace terrace::sim
