// SPDX-License-Identifier: Apache-2.0
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
// What is quick (Store::quick, Backend::quick: memory, no disk) is done on the event loop's own thread: handing
// it over would cost more than the work. Commits wait for the end of the loop's turn, so that commands that
// arrived together share one all the same.
//
// Threads   The event loop's thread only. What is not quick runs on a Worker: the store's; the backend's urgent
//           one (fences, small carves) and its bulk one (large carves, copies, erasing). Objects of another
//           host have a lane of their own, two workers and a scrubber: an agent that hangs costs only its own
//           leases.
#pragma once

#include <kj/async.h>
#include <kj/timer.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/clock.h"
#include "core/base/limits.h"
#include "core/base/units.h"
#include "daemon/event_loop/audit.h"
#include "daemon/event_loop/scrubber.h"
#include "daemon/event_loop/snapshot_process.h"
#include "daemon/event_loop/worker.h"
#include "daemon/events/event_log.h"
#include "daemon/memory/backend.h"
#include "daemon/model/latency_histogram.h"
#include "daemon/state/state_machine.h"
#include "daemon/store/store.h"

namespace terrace::daemon {

// Told when holders should hear something; daemon/rpc implements it.
class HolderNotifier {
 public:
  virtual ~HolderNotifier() = default;
  virtual void revoking(LeaseId lease, uint64_t grace_ns, const std::string& reason) = 0;
  virtual void fenced(LeaseId lease, const std::string& reason, LeaseCause cause) = 0;
  // Sessions that have the lease attached now.
  virtual size_t holders(LeaseId lease) const = 0;
  // Asks the one session that has a movable lease attached to move it; false: there is not just one.
  virtual bool move_requested(LeaseId lease, const std::string& reason) = 0;
  // Those of `leases` of which it is sure that no session and no process has them. A look at the machine's
  // processes, which takes a while.
  virtual kj::Promise<std::set<LeaseId>> nobody_has(std::set<LeaseId> leases) {
    (void)leases;
    return std::set<LeaseId>{};
  }
};

// Ends processes that agreed to it before the memory of an object of this machine is taken (on_fence kill); daemon/consent
// implements it.
class HolderEnder {
 public:
  virtual ~HolderEnder() = default;
  // Resolves once they run no more, or when one takes too long. Done again it is no error.
  virtual kj::Promise<HoldersEnded> end_holders(const std::string& object) = 0;
  // The object is gone, and its name is never used again.
  virtual void forget(const std::string& object) = 0;
};

// Sees what the state machine decides, before anything of it is durable or known outside: the simulation's
// checkers (tests/sim). It changes nothing.
class EngineWatcher {
 public:
  virtual ~EngineWatcher() = default;
  virtual void applied(const Command& command, const Step& step, const StateMachine& state) = 0;
  virtual void recovered(const Recovery& recovery, const Observation& observed, const StateMachine& state) = 0;
};

struct EngineCounters {
  uint64_t commands = 0;
  uint64_t grants = 0;  // that succeeded
  uint64_t commits = 0;
  uint64_t recoveries = 0;
  uint64_t moves = 0;  // finished by the manager itself
};

// What the manager's health is judged by (daemon/health), since the start of the process.
struct EngineFacts {
  uint64_t slow_commits = 0;  // that took longer than EngineOptions::slow_commit_ns
  uint64_t slowest_commit_ns = 0;
  uint64_t commit_began_ns = 0;  // of the one under way; 0: none is
  uint64_t fences_failed = 0;
  std::string last_fence_failure = {};
  // Under way: since when, of which lease; the oldest first.
  std::set<std::pair<uint64_t, LeaseId>> fences = {};
  DenialCounts denials = {};  // of calls of the operator's interface
};

// What monitoring is told of (daemon/web), since the start of the process.
struct EngineTimes {
  LatencyHistogram grants = {};  // from the request to the answer, of those that did not wait for room
  LatencyHistogram waits = {};   // the same of those that did
  LatencyHistogram fences = {};  // from when it may begin until nobody reaches the memory
  LatencyHistogram scrubs =
      {};  // from the fence's end until the memory is erased, what waited before it included
  LatencyHistogram commits = {};  // of the store, successful or not
  std::map<ErrorCode, uint64_t> grants_refused = {};
  uint64_t renewals = 0;                             // of single leases
  std::map<LeaseCause, uint64_t> leases_ended = {};  // that were fenced, by why
};

struct EngineOptions {
  std::string state_path = {};               // of the store, for those who read of it; empty: it is in memory
  uint64_t ttl_ns_max = limits::ttl_ns_max;  // of a lease's term (StateMachine)
  uint64_t scrub_bytes_per_s = 0;            // bound of erasing in the background; 0: none
  uint64_t scrub_piece_bytes = limits::scrub_piece_bytes;  // erased at once
  // How long the first start waits for memory of live leases that the kernel may still be finding; 0: not.
  uint64_t settle_ns = 0;
  // How often devices are looked for and moves are driven; 0: never.
  uint64_t housekeeping_ns = 1 * ns_per_s;
  // How long complete looks have not shown a device before it counts as lost.
  uint64_t lost_after_ns = 200 * ns_per_ms;
  // How long a device that is back may lack what leases have on it: the kernel may find that later.
  uint64_t return_settle_ns = 10 * ns_per_s;
  // After which pause leftovers() are looked at again; it doubles up to a minute.
  uint64_t leftover_pause_ns = 2 * ns_per_s;
  // How long a movable lease must have been without a session before the manager moves it, where it is not sure
  // that nobody has it: a holder whose connection broke, or whose manager was restarted, comes back within that.
  uint64_t unheld_ns = limits::reconnect_ns;
  // The loop notes every fifth of a second that it runs. When it did not for as long as this, the time does not
  // count against leases (ResumeAfterGap). Below the two thirds of the shortest TTL that a holder has left when
  // it is about to renew. 0: never.
  uint64_t gap_ns = 400 * ns_per_ms;
  // A lease whose record of being scrubbed waits for the next commit gets one of its own after this.
  uint64_t deferred_commit_ns = 20 * ns_per_ms;
  // A commit that takes longer is counted as slow.
  uint64_t slow_commit_ns = 50 * ns_per_ms;
  // Told of the rows of the audit log that a commit made durable. On the event loop's thread: it must not wait.
  std::function<void(const std::vector<AuditRow>&)> audit_sink = {};
  // Whether what happens is told to events(). A bench measures what that costs.
  bool tell_events = true;
  // What the workers do their jobs with; null: a thread each.
  JobQueues* job_queues = nullptr;
};

class Engine final : private kj::TaskSet::ErrorHandler {
 public:
  Engine(Store& store, Backend& backend, const Clock& clock, kj::Timer& timer, EngineOptions options = {});
  ~Engine() noexcept;

  // Loads, compares with what exists, destroys orphans, makes the findings durable. Call once, first.
  kj::Promise<Status> start();

  // Applies `command`; resolves when its outcome is durable (for a grant: carved and durable; for a resize or a
  // transfer: done). Dropping the promise of a waiting grant takes it out of the queue when its turn comes.
  template <Asked C>
  kj::Promise<Result<ReplyOf<C>>> submit(C command, Actor actor = {}) {
    return ask(std::move(command), actor).then([](Result<Reply> reply) {
      return answer_of<C>(std::move(reply));
    });
  }

  // The same for who has to know whether the grant waits for room.
  struct SubmittedGrant {
    kj::Promise<Result<LeaseReply>> answer;
    LeaseId queued;  // under which id it is in its pool's queue; invalid: in none
  };
  SubmittedGrant submit_grant(Grant command, const Actor& actor);

  // AdoptDevice, and then what the backend does to make the device ours (Backend::take_over). What stands
  // against that is looked for before anything is durable; when it fails all the same, a device that was not
  // adopted before is not adopted after. A crash in between leaves it adopted, with what was on it: the next
  // start destroys that as orphans, unless somebody uses it.
  kj::Promise<Result<DeviceReply>> adopt(AdoptDevice command, Actor actor);

  // Looks at the hardware again, and at what that means for leases, now instead of within a second.
  // What two such looks in turn do not show is lost.
  kj::Promise<void> look_at_devices();

  // Puts what was refused before it became a command into the audit log, unless its tenant has many there.
  void note_denied(const char* what, const std::string& tenant, const Error& error, const Actor& actor);
  // Puts into the audit log what is no command: "remove-host". Durable once settled() is.
  void note(const char* verb, const std::string& subject, const std::string& detail, const Actor& actor);
  // Durable entries of the audit log.
  kj::Promise<Result<AuditPage>> audit(AuditQuery query);

  JournalRoom journal_room() const { return store_.journal_room(); }
  // The store as it is now, with everything applied so far, in one file; commits go on meanwhile. One at a time.
  // Errors    busy   one is being made; unavailable, and what Store::backup says
  kj::Promise<Result<StoreBackup>> backup();

  // Runs blocking `work` (a scan, a comparison, a change to hardware) on the bulk worker, behind what waits
  // there.
  template <typename Work>
  auto run_blocking(Work work) {
    return bulk_worker_.run(std::move(work));
  }

  // As run_blocking, on a worker of its own: a look at files and at /proc that nothing bulky may hold up.
  template <typename Work>
  auto run_look(Work work) {
    if (look_worker_ == nullptr) look_worker_ = std::make_unique<Worker>(make_queue("look"));
    return look_worker_->run(std::move(work));
  }
  // What `work` finds in this process as it is now, all of it at one moment, while commands go on
  // (snapshot_process.h, whose rules `work` keeps). `seen` is what it compares with: let go on the worker, since that
  // takes its time, too. A snapshot that ends early is made anew, three times in all.
  kj::Promise<Result<SnapshotProcess::Found>> run_on_snapshot(std::function<SnapshotProcess::Found()> work,
                                                              std::shared_ptr<const void> seen = nullptr,
                                                              int tries = 3);

  // Resolves when everything applied so far is durable. A query takes its answer from state() first and sends
  // it after this: what was applied meanwhile is not in it.
  kj::Promise<Status> settled();

  // Finishes the commits and effects under way; what is not finished is recovered at the next start.
  kj::Promise<void> drain();

  bool serving() const { return !refusing_; }
  // Everything applied is durable.
  bool is_settled() const { return !committing_ && open_.empty(); }
  // And nothing is under way outside.
  bool idle() const { return is_settled() && backend_jobs_ == 0 && scrubbers_idle(); }

  const StateMachine& state() const { return *state_; }
  Backend& backend() { return backend_; }
  kj::Timer& timer() { return timer_; }
  uint64_t now_ns() const { return clock_.now_ns(); }
  const EngineCounters& counters() const { return counters_; }
  const EngineFacts& facts() const { return facts_; }
  const EngineTimes& times() const { return times_; }
  // What happened. Others tell theirs here, too.
  EventLog& events() { return events_; }
  const EventLog& events() const { return events_; }
  const Error& refusal() const { return refusal_; }  // unless serving(): why commands are refused
  ScrubCounters scrub_counters() const;
  const EngineOptions& options() const { return options_; }
  // Whether the manager copies the lease's bytes to another place now.
  bool is_moving(LeaseId lease) const { return moving_.contains(lease); }
  // Ends when that view's object was made, or not: at once where nothing is being made.
  kj::Promise<Status> view_opened(const ViewRow& view);
  // Somebody was given the lease's memory. A move of the manager's that is under way comes to nothing: what is stored
  // behind its copy would be lost.
  void was_taken(LeaseId lease) {
    if (const auto move = moving_.find(lease); move != moving_.end()) move->second = true;
  }
  const std::vector<std::string>& findings() const { return findings_; }
  // Goes on although every live lease's memory is gone (start() refuses otherwise).
  void accept_lost_objects() { accept_lost_objects_ = true; }
  // Destroys what no lease has, whoever had it or uses it, and takes over memory that belongs to another store.
  void destroy_orphans_at_start() { destroy_orphans_ = true; }
  // The memory has seen commits that the store does not have: the start is one from a restored copy.
  void memory_is_newer() { memory_is_newer_ = true; }
  // Whether memory may say that it is this store's. After start(), whether that failed or not.
  bool memory_claimed() const { return memory_claimed_; }
  // Who uses which objects: looked for, on the bulk worker, when there are objects without a lease.
  struct ObjectUsers {
    std::map<std::string, std::string> by_object = {};  // in words: "process 12 (python3)"
    bool complete = true;                               // false: there may be others
  };
  using LookForUsers = std::function<ObjectUsers(const Image&)>;
  void set_object_users(LookForUsers look) { object_users_ = std::move(look); }
  // Objects without a lease that nobody was granted and a process still uses, as the target of a move whose holder was
  // copying when the manager ended. Each is destroyed once nobody uses it.
  const std::set<std::string>& leftovers() const { return leftovers_; }
  // Looks at what the rows say nothing of (who still maps what was taken back), once, before the first start()
  // serves; on the bulk worker. What it returns, a sentence each, is logged and kept with the findings.
  using StartCheck = std::function<std::vector<std::string>(const Image&)>;
  void set_start_check(StartCheck check) { start_check_ = std::move(check); }
  void set_notifier(HolderNotifier* notifier) { notifier_ = notifier; }
  // Before start(), which may go on with fences. None: nobody is ended.
  void set_holder_ender(HolderEnder* ender) { ender_ = ender; }
  void set_watcher(EngineWatcher* watcher) { watcher_ = watcher; }
  // Of the calls that submit commands: their Actor has the call's own. None: nothing is traced.
  void set_tracer(std::shared_ptr<Tracer> tracer) { tracer_ = std::move(tracer); }
  Tracer* tracer() const { return tracer_.get(); }

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
    std::vector<Event> events;
    std::vector<std::shared_ptr<CallTrace>> traces;  // of calls whose changes are among these

    bool empty() const { return delta.empty() && waiters.empty() && effects.empty(); }
  };

  // engine.cc: commands and commits
  kj::Promise<Result<Reply>> ask(const Command& command, const Actor& actor, LeaseId* queued = nullptr);
  template <Asked C>
  static Result<ReplyOf<C>> answer_of(Result<Reply> reply) {
    if (!reply.ok()) return std::move(reply).error();
    if (auto* answer = std::get_if<ReplyOf<C>>(&*reply)) return std::move(*answer);
    return unexpected_answer();
  }
  static Error unexpected_answer();  // a defect of the state machine, which costs one call
  // Returns  the grant that the step put into a queue, or found there; invalid for any other step.
  LeaseId apply(const Command& command, ReplyFulfiller* fulfiller, const Actor& actor = {});
  Step decide(const Command& command);
  void count(const Command& command, const Step& step);
  // Applies `command`; its events become `events`.
  Step decide(const Command& command, const Actor& actor, std::vector<Event>& events);
  void deny(AuditRow row, const Error& error, const Actor& actor);
  void hold(Step step, ReplyFulfiller* fulfiller, std::vector<Event> events = {});
  void request_commit();
  void begin_commit();
  void commit_finished(Status status);
  void release_batch(Batch batch);
  void fail_batch(Batch batch, const Error& error);
  void arm_timer();
  void note_time();
  kj::Promise<void> keep_time();
  void taskFailed(kj::Exception&& exception) override;

  // call_traces.cc: what is told of the calls that commands come from
  void trace_command(const Actor& actor, const Command& command, const Step& step, std::vector<Event>& events);
  void trace_change(const Actor& actor, bool durable);
  void trace_commit(const Batch& batch, uint64_t began_ns);
  void trace_work_begins(const Actor& actor);
  void trace_work_ends(const Actor& actor, const char* name);
  void trace_lease(LeaseId lease, const char* name, uint64_t began_ns);

  // kept_memory.cc: holders that are ended before their memory is taken, where they agreed to that
  // `then(status)`: they run no more, or one still does. At once for leases whose holders go on.
  void end_holders(LeaseId lease, std::string object, std::function<void(Status)> then);
  kj::Promise<HoldersEnded> ask_to_end(const std::string& object);
  void tell_ended(LeaseId lease, const std::vector<std::string>& ended);
  void ask_for_unended();
  void look_at_unended();

  // kept_memory.cc: memory that waits for pages that somebody still holds
  void ask_for_kept_memory();
  void note_kept_memory(LeaseId lease, const Status& scrubbed);
  void look_at_kept_memory();

  // lanes.cc: which worker does what
  std::unique_ptr<JobQueue> make_queue(const char* worker) const;
  struct Lane {  // of one other host: what waits for its agent waits here, and nothing else does
    explicit Lane(Engine& engine);
    Worker urgent;
    Worker bulk;
    Scrubber scrubber;
  };
  Lane* lane_of(const std::string& object);  // null: this machine's
  Worker& worker_of(const std::string& object, bool urgent);
  Scrubber& scrubber_of(const std::string& object);
  ShareKey share_of(LeaseId lease) const;  // its tenant's
  Scrubber::Reports scrub_reports();
  bool scrubbers_idle() const;
  void clear_scrubbers();

  // effects.cc: what is done outside once a step is durable, or at once
  static bool is_immediate(const Effect& effect);
  void perform(Effect effect);
  void perform_immediate(const Effect& effect);
  void perform_one(const Effect& effect);
  void carve(const CarveObject& effect);
  void carved(const CarveObject& effect, Status status);
  void refuse(const RefuseGrant& effect);
  void end_cancelled(LeaseId lease);
  void finish_change(LeaseId lease, Command finished);
  void notify(const NotifyHolders& effect);
  void fence(const FenceObject& effect);
  void fence_object(const FenceObject& effect, const std::function<void(Status)>& done);
  struct FenceOfMany;
  void show(const ShowObject& effect);
  void shown(const ShowObject& effect, Status status);
  void hide(const HideObject& effect);
  void hide(LeaseId lease, const std::string& view, const std::vector<Extent>& extents,
            const std::function<void(Result<Hidden>)>& done);
  void hide_later(const HideObject& effect, const Status& why);
  void fenced(const FenceObject& effect, std::pair<uint64_t, LeaseId> begun, Status status);
  void rebind(const RebindObject& effect);
  // Runs `work` where it is cheapest: here when it is quick, else on a worker; then `finished(status)` here.
  // One that lacks descriptors or memory is tried again until it does not.
  void tell_devices();  // the backend: which of them are adopted now
  template <typename Work, typename Finished>
  void run_backend(Work work, Finished finished, const std::string& object, uint64_t bytes, bool urgent,
                   ShareKey share = JobQueue::of_nobody);
  template <typename Work, typename Finished>
  void settle_backend(Work work, Finished finished, const std::string& object, uint64_t bytes, bool urgent,
                      ShareKey share, Status status);

  // housekeeping.cc: devices that come and go, leases that drains and compactions want elsewhere
  kj::Promise<void> keep_house();
  kj::Promise<Result<DeviceReply>> adopt_present(AdoptDevice command, Actor actor);
  static bool is_seen(const std::vector<SeenDevice>& seen, const DeviceRow& device);
  kj::Promise<void> watch_devices();
  kj::Promise<void> end_waits(std::vector<std::string> back);
  void drive_moves();
  void drive_moves_soon();
  void ask_to_move(const WantedMove& move, uint64_t now_ns);
  void move_if_nobody_has(std::set<LeaseId> leases);
  void move_unheld(LeaseId lease);
  void copy_and_finish(const MoveReady& move);

  // recovery.cc
  struct Loaded {
    Image image;
    std::vector<ObservedObject> objects;
    std::map<std::string, std::string> kept = {};  // of them: without a lease, and not to be destroyed; why
    std::set<std::string> leftovers = {};          // of those: nobody was granted it, but a process may use it
    bool older_copy = false;                       // there is what was granted after the store was what it is
  };
  kj::Promise<Status> recover();
  kj::Promise<Result<Loaded>> load();
  Result<Loaded> look_around(Image image);
  std::string still_missing(const Image& image, const Result<std::vector<ObservedObject>>& objects);
  bool lacks_objects(const Image& image, const DeviceRow& device,
                     const std::vector<ObservedObject>& objects) const;
  Status all_seen(const Image& image, const Status& looked) const;
  kj::Promise<Status> take_over(Loaded loaded);
  void tell_recovered(const Recovery& recovery);
  std::vector<ResizeFinished> finish_resizes(const std::vector<Effect>& effects);
  Status check_directory(const Image& image, const Observation& observed) const;
  void begin_recovery(const Error& cause);
  kj::Promise<void> recover_until_done();

  // orphans.cc
  Status claim_memory(const Image& image);
  void keep_orphans(Loaded& loaded) const;
  void destroy_orphans(const std::vector<std::string>& orphans);
  void watch_leftovers();
  kj::Promise<void> remove_leftovers();

  DenialLimit denial_limit_;
  Store& store_;
  Backend& backend_;
  const Clock& clock_;
  kj::Timer& timer_;
  const EngineOptions options_;
  HolderNotifier* notifier_ = nullptr;
  HolderEnder* ender_ = nullptr;
  EngineWatcher* watcher_ = nullptr;
  std::unique_ptr<StateMachine> state_;

  Batch open_;
  Batch in_flight_;
  bool committing_ = false;
  bool commit_requested_ = false;
  bool deferring_ = false;         // a timer will commit what open_ holds
  bool refusing_ = true;           // until start() is done, and during a recovery
  uint64_t recoveries_begun_ = 0;  // what was put off before one belongs to a state that is gone
  Error refusal_;
  size_t backend_jobs_ = 0;
  std::deque<Effect> immediate_;
  bool performing_ = false;
  size_t audits_ = 0;  // under way on the store's worker
  bool backing_up_ = false;
  bool accept_lost_objects_ = false;
  bool destroy_orphans_ = false;
  bool memory_claimed_ = false;
  bool memory_is_newer_ = false;
  LookForUsers object_users_;
  std::set<std::string> leftovers_;
  bool watching_leftovers_ = false;
  uint64_t leftover_pause_ns_ = 0;
  StartCheck start_check_;
  std::set<LeaseId> unended_;  // quarantined, since a holder that was killed has not ended
  std::set<LeaseId> looking_at_unended_;
  std::set<LeaseId> kept_;  // quarantined, maybe for pages that somebody holds
  std::set<Worker*> looking_at_kept_;
  std::unordered_map<uint64_t, std::vector<ReplyFulfiller>> carving_;  // lease -> clients waiting for it
  std::unordered_map<uint64_t, Actor> actors_;  // of those grants and changes, for the audit log
  std::unordered_map<uint64_t, TraceContext>
      ended_by_;  // leases under way to their end -> the call that ended them
  std::shared_ptr<Tracer> tracer_;
  std::map<std::string, std::vector<kj::Own<kj::PromiseFulfiller<Status>>>>
      opening_;                                              // who waits for a view to be made
  std::unordered_map<uint64_t, ReplyFulfiller> changing_;    // lease -> who resizes or transfers it
  std::unordered_map<uint64_t, uint64_t> asked_to_move_ns_;  // lease -> when its holder was asked
  std::unordered_map<uint64_t, uint64_t> unheld_since_ns_;   // leases that should move, by housekeeping's looks
  std::map<LeaseId, bool> moving_;    // by the manager itself; true: somebody was given the lease meanwhile
  bool looking_for_holders_ = false;  // of leases that should move
  std::map<DeviceId, uint64_t> missed_since_ns_;      // the first of complete looks that do not show a device
  std::map<DeviceId, uint64_t> incomplete_since_ns_;  // since when it is back and lacks objects of leases
  std::string look_failure_;                          // of the last look, in words; logged once
  bool looking_again_ = false;
  uint64_t armed_for_ns_ = UINT64_MAX;
  uint64_t noted_ns_ = 0;  // when this loop last ran; 0: not yet
  uint64_t timer_generation_ = 0;
  static constexpr uint64_t recovery_pause_ns_min = 200 * ns_per_ms;
  static constexpr uint64_t recovery_pause_ns_max = 5 * ns_per_s;
  uint64_t recovery_pause_ns_ = recovery_pause_ns_min;
  EngineCounters counters_;
  EngineFacts facts_;
  EngineTimes times_;
  EventLog events_;
  uint64_t fence_took_ns_ = 0;  // of the fence whose end is being applied
  std::vector<std::string> findings_;

  kj::TaskSet tasks_;
  Worker store_worker_{make_queue("store")};
  Worker urgent_worker_{make_queue("urgent")};
  Worker bulk_worker_{make_queue("bulk")};
  std::unique_ptr<Worker> look_worker_;    // made for the first look
  std::unique_ptr<Worker> backup_worker_;  // made for the first backup: it must hold up nobody else
  Scrubber scrubber_;
  std::map<std::string, std::unique_ptr<Lane>> lanes_;  // by host
};

}  // namespace terrace::daemon
