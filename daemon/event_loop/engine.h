// The shell around the state machine: applies commands, makes their row changes durable, then lets replies
// and effects go. It decides nothing.
//
//   command -> StateMachine::apply -> Delta into the open batch -> store commit on the store's thread
//                                  -> durable: replies, effects (fence, scrub, notices) on the backend's thread
//   A grant is carved first: its lease becomes durable together with a finished object.
//
// Commands that arrive while a commit is under way share the next one (group commit). Nothing that a
// crash could undo is ever shown: replies, and reads through settled(), wait for every earlier change.
//
// When a commit fails, the state in memory is ahead of the store. Then every waiting reply gets the error,
// and the engine recovers as at start: it loads the store and compares it with what exists. Until that is
// done commands are refused as `unavailable`; holders of leases notice nothing.
//
// Threads   The event loop's thread only. Store and Backend are called on their own Worker each.
#pragma once

#include <kj/async.h>
#include <kj/timer.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/clock.h"
#include "core/base/units.h"
#include "daemon/backend/backend.h"
#include "daemon/event_loop/worker.h"
#include "daemon/state/state_machine.h"
#include "daemon/store/store.h"

namespace terrace::daemon {

// Told when holders should hear something; daemon/rpc implements it.
class HolderNotifier {
 public:
  virtual ~HolderNotifier() = default;
  virtual void revoking(LeaseId lease, uint64_t grace_ns, const std::string& reason) = 0;
  virtual void fenced(LeaseId lease, const std::string& reason) = 0;
};

struct EngineCounters {
  uint64_t commands = 0;
  uint64_t commits = 0;
  uint64_t recoveries = 0;
};

class Engine final : private kj::TaskSet::ErrorHandler {
 public:
  Engine(Store& store, Backend& backend, const Clock& clock, kj::Timer& timer);
  ~Engine() noexcept;

  // Loads, compares with what exists, destroys orphans, makes the findings durable. Call once, first.
  kj::Promise<Status> start();

  // Applies `command`; resolves when its outcome is durable (for a grant: carved and durable).
  kj::Promise<Result<Reply>> submit(Command command);

  // Resolves when everything applied so far is durable. A query takes its answer from state() first and sends
  // it after this: what was applied meanwhile is not in it.
  kj::Promise<Status> settled();

  // Finishes the commits and effects under way; what is not finished is recovered at the next start.
  kj::Promise<void> drain();

  const StateMachine& state() const { return *state_; }
  Backend& backend() { return backend_; }
  uint64_t now_ns() const { return clock_.now_ns(); }
  const EngineCounters& counters() const { return counters_; }
  const std::vector<std::string>& findings() const { return findings_; }
  // Goes on although every live lease's memory is gone (start() refuses otherwise).
  void accept_lost_objects() { accept_lost_objects_ = true; }
  void set_notifier(HolderNotifier* notifier) { notifier_ = notifier; }

 private:
  using ReplyFulfiller = kj::Own<kj::PromiseFulfiller<Result<Reply>>>;
  struct Waiter {
    ReplyFulfiller fulfiller;
    Result<Reply> reply;
  };
  struct Batch {
    Delta delta;
    std::vector<Waiter> waiters;
    std::vector<Effect> effects;

    bool empty() const { return delta.empty() && waiters.empty() && effects.empty(); }
  };

  void apply(const Command& command, ReplyFulfiller* fulfiller);
  void hold(Step step, ReplyFulfiller* fulfiller);
  void begin_commit();
  void commit_finished(Status status);
  void release_batch(Batch batch);
  void fail_batch(Batch batch, const Error& error);
  void perform(Effect effect);
  template <typename Work, typename Finished>
  void run_backend(Work work, Finished finished, bool urgent);
  void carve(const CarveObject& effect);
  void arm_timer();
  kj::Promise<Status> recover();
  Status check_directory(const Image& image, const Observation& observed) const;
  void begin_recovery(const Error& cause);
  kj::Promise<void> recover_until_done();
  void taskFailed(kj::Exception&& exception) override;

  Store& store_;
  Backend& backend_;
  const Clock& clock_;
  kj::Timer& timer_;
  HolderNotifier* notifier_ = nullptr;
  std::unique_ptr<StateMachine> state_;

  Batch open_;
  Batch in_flight_;
  bool committing_ = false;
  bool refusing_ = true;  // until start() is done, and during a recovery
  Error refusal_;
  size_t backend_jobs_ = 0;
  bool accept_lost_objects_ = false;
  std::unordered_map<uint64_t, std::vector<ReplyFulfiller>> carving_;  // lease -> clients waiting for it
  uint64_t armed_for_ns_ = UINT64_MAX;
  uint64_t timer_generation_ = 0;
  static constexpr uint64_t recovery_pause_ns_min = 200 * ns_per_ms;
  static constexpr uint64_t recovery_pause_ns_max = 5 * ns_per_s;
  uint64_t recovery_pause_ns_ = recovery_pause_ns_min;
  EngineCounters counters_;
  std::vector<std::string> findings_;

  kj::TaskSet tasks_;
  Worker store_worker_;
  Worker backend_worker_;
};

}  // namespace terrace::daemon
