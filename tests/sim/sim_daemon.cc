#include "tests/sim/sim_daemon.h"

#include <utility>

namespace terrace::sim {
namespace {

using daemon::LeasePhase;

unsigned long long number(LeaseId id) {
  return id.value;
}

}  // namespace

SimDaemon::SimDaemon(Environment& environment, SimStore& store, SimBackend& backend, Ledger& ledger)
    : environment_(environment), store_(store), backend_(backend), ledger_(ledger) {}

void SimDaemon::later(uint64_t delay_ns, std::function<void()> action) {
  environment_.after(delay_ns, [this, generation = generation_, action = std::move(action)] {
    if (generation == generation_) action();
  });
}

uint64_t SimDaemon::some_ns(uint64_t max_ns) {
  return environment_.prng().below(max_ns + 1);
}

bool SimDaemon::crash_here(const char* where) {
  const uint32_t rate = environment_.faults().crash_point_per_10000;
  if (rate == 0 || !environment_.prng().chance(rate, 10'000)) return false;
  crash(where);
  return true;
}

bool SimDaemon::idle() const {
  return serving_ && !committing_ && open_.empty() && waiting_.empty() && jobs_.empty() && carving_.empty();
}

// --- death ------------------------------------------------------------------------------------------

void SimDaemon::stop() {
  ++generation_;
  serving_ = false;
  committing_ = false;
  open_ = {};
  waiting_.clear();
  carving_.clear();
  jobs_.clear();
  applied_ = in_flight_ = durable_ = 0;
}

void SimDaemon::crash(const char* where) {
  environment_.note("daemon: crash (%s)", where);
  ++crashes_;
  store_.crash();
  for (const auto& [job, effect] : jobs_) backend_.cut_off(effect);
  stop();
  later(some_ns(300 * ns_per_ms), [this] { start(); });
}

void SimDaemon::reboot() {
  crash("reboot");
  environment_.note("machine: rebooted");
  ++boot_;
  backend_.reboot();
  ledger_.rebooted();
}

// The state in memory is ahead of the store. As in daemon/event_loop every waiting reply gets the error,
// jobs at the backend run to their end, and then the store is loaded again.
void SimDaemon::restart_after_commit_failure(const char* what) {
  environment_.note("daemon: commit failed (%s), recovers", what);
  const Result<daemon::Reply> failed = Error{.code = ErrorCode::io_error, .where = "SimStore", .detail = what};
  std::vector<ReplyAction> told;
  for (Waiting& waiting : waiting_) {
    if (waiting.reply) told.push_back(std::move(waiting.reply));
  }
  for (auto& [lease, replies] : carving_) {
    for (ReplyAction& reply : replies) told.push_back(std::move(reply));
  }
  while (!jobs_.empty()) {
    const daemon::Effect effect = jobs_.begin()->second;
    jobs_.erase(jobs_.begin());
    if (const auto* carving = std::get_if<daemon::CarveObject>(&effect)) (void)backend_.carve(*carving);
    if (const auto* fencing = std::get_if<daemon::FenceObject>(&effect)) (void)backend_.fence(fencing->object);
    if (const auto* scrubbing = std::get_if<daemon::ScrubObject>(&effect)) {
      (void)backend_.scrub(scrubbing->object);
    }
  }
  stop();
  for (const ReplyAction& reply : told) reply(failed);
  later(some_ns(300 * ns_per_ms), [this] { start(); });
}

// --- start ------------------------------------------------------------------------------------------

void SimDaemon::start() {
  later(some_ns(20 * ns_per_ms), [this] { recover(); });
}

void SimDaemon::recover() {
  daemon::Observation observed;
  observed.objects = backend_.list();
  for (const auto& device : store_.load().devices) observed.device_serials.push_back(device.serial);
  const std::string boot_id = "boot-" + std::to_string(boot_);
  machine_ = daemon::StateMachine();
  auto recovered = machine_.recover(store_.load(), observed, boot_id, environment_.now_ns());
  if (!recovered.ok()) {
    environment_.fail("recovery refused what the store holds: %s", recovered.error().to_string().c_str());
    return;
  }
  ++recoveries_;
  const daemon::Recovery recovery = std::move(recovered).value();
  environment_.note("daemon: recovered, %zu effects, %zu orphans", recovery.effects.size(),
                    recovery.orphans.size());
  ledger_.check(machine_);

  daemon::StateMachine again;
  const auto repeated = again.recover(machine_.image(), observed, boot_id, environment_.now_ns());
  if (!repeated.ok() || !repeated->delta.empty() || repeated->effects.size() != recovery.effects.size()) {
    environment_.fail("recovery is not idempotent: done again it changes rows or effects");
  }
  if (crash_here("before orphans")) return;
  for (const std::string& orphan : recovery.orphans) {
    if (environment_.planted(Plant::keep_orphans)) break;
    if (!backend_.fence(orphan).ok() || !backend_.scrub(orphan).ok()) {
      crash("an orphan could not be destroyed");  // stands for trying again later
      return;
    }
  }
  if (crash_here("after orphans")) return;
  if (recovery.delta.empty()) {
    finish_recovery(recovery);
    return;
  }
  store_.begin(recovery.delta);
  later(some_ns(environment_.faults().commit_ns_max), [this, recovery] {
    if (store_.finish() != CommitOutcome::done && !environment_.planted(Plant::ignore_commit_error)) {
      restart_after_commit_failure("during recovery");
      return;
    }
    finish_recovery(recovery);
  });
}

void SimDaemon::finish_recovery(const daemon::Recovery& recovery) {
  serving_ = true;
  for (const daemon::Effect& effect : recovery.effects) {
    if (!environment_.planted(Plant::skip_redo)) perform(effect);
  }
  arm_timer();
}

// --- commands ---------------------------------------------------------------------------------------

void SimDaemon::submit(daemon::Command command, ReplyAction reply) {
  if (!serving_) return;
  apply(command, std::move(reply));
}

void SimDaemon::apply(const daemon::Command& command, ReplyAction reply) {
  daemon::Step step = machine_.apply(command);
  ledger_.check(machine_);
  const bool own_delta = !step.delta.empty();
  if (!step.reply.ok() && own_delta) environment_.fail("a refused command changed rows");
  if (own_delta) {
    ++applied_;
    open_.merge(std::move(step.delta));
  }
  if (const auto* carved = std::get_if<daemon::CarveFinished>(&command)) {
    std::vector<ReplyAction> waiting = std::move(carving_[carved->lease]);
    carving_.erase(carved->lease);
    for (ReplyAction& waiter : waiting) {
      hold(
          own_delta, [waiter, result = step.reply] { waiter(result); }, waiter);
    }
  } else if (step.reply.ok() && std::holds_alternative<daemon::GrantPending>(*step.reply)) {
    carving_[std::get<daemon::GrantPending>(*step.reply).lease].push_back(std::move(reply));
  } else if (reply) {
    hold(
        own_delta, [reply, result = step.reply] { reply(result); }, reply);
  }
  for (const daemon::Effect& effect : step.effects) {
    if (std::holds_alternative<daemon::CarveObject>(effect) ||
        environment_.planted(Plant::effects_before_commit)) {
      perform(effect);
    } else {
      hold(
          own_delta, [this, effect] { perform(effect); }, nullptr);
    }
  }
  if (crash_here("after a command")) return;
  arm_timer();
  begin_commit();
  flush();
}

// Everything applied so far must be durable before `act`, be it this step's own delta or an earlier one.
void SimDaemon::hold(bool own_delta, std::function<void()> act, ReplyAction reply) {
  const bool early = reply && (environment_.planted(Plant::reply_before_commit) ||
                               (environment_.planted(Plant::early_retry_reply) && !own_delta));
  if (early) {
    act();
    return;
  }
  waiting_.push_back({applied_, std::move(act), std::move(reply)});
}

void SimDaemon::flush() {
  while (!waiting_.empty() && waiting_.front().batch <= durable_) {
    const std::function<void()> act = std::move(waiting_.front().act);
    waiting_.pop_front();
    if (crash_here("before a reply or effect")) return;
    act();
    if (crash_here("after a reply or effect")) return;
  }
}

void SimDaemon::begin_commit() {
  if (committing_ || open_.empty()) return;
  committing_ = true;
  in_flight_ = applied_;
  quarantining_.clear();
  for (const auto& [id, row] : open_.leases) {
    if (row.has_value() && row->phase == LeasePhase::quarantined) quarantining_.push_back(id);
  }
  store_.begin(std::exchange(open_, {}));
  later(some_ns(environment_.faults().commit_ns_max), [this] { finish_commit(); });
}

void SimDaemon::finish_commit() {
  const CommitOutcome outcome = store_.finish();
  if (outcome != CommitOutcome::done && !environment_.planted(Plant::ignore_commit_error)) {
    restart_after_commit_failure(outcome == CommitOutcome::full ? "disk full" : "i/o error");
    return;
  }
  committing_ = false;
  durable_ = in_flight_;
  for (const LeaseId id : quarantining_) ledger_.quarantine_durable(id);
  if (crash_here("after a commit")) return;
  check_stored();
  begin_commit();
  flush();
}

// Rows in memory and in the store agree whenever nothing is on its way: no change was left out of a Delta.
void SimDaemon::check_stored() {
  if (!open_.empty() || environment_.planted_anything()) return;
  daemon::Image image = machine_.image();
  const daemon::Image stored = store_.load();
  for (auto& lease : image.leases) {  // reaching `scrubbing` is not recorded
    if (lease.phase == LeasePhase::scrubbing) lease.phase = LeasePhase::fencing;
  }
  if (image.leases != stored.leases) environment_.fail("the store misses a change of a lease");
  if (image.pools != stored.pools) environment_.fail("the store misses a change of a pool");
  if (image.devices != stored.devices) environment_.fail("the store misses a change of a device");
}

// --- effects ----------------------------------------------------------------------------------------

// Nobody is shut out, and nothing erased, by a decision that a crash could undo.
void SimDaemon::check_decided(const daemon::Effect& effect) {
  const auto undecided = [&](const std::string& object) {
    const daemon::LeaseRow* row = store_.find_by_object(object);
    return row != nullptr && row->phase != LeasePhase::fencing && row->phase != LeasePhase::scrubbing;
  };
  if (const auto* fencing = std::get_if<daemon::FenceObject>(&effect)) {
    if (undecided(fencing->object)) {
      environment_.fail("lease %llu is fenced before that is durable", number(fencing->lease));
    }
  } else if (const auto* scrubbing = std::get_if<daemon::ScrubObject>(&effect)) {
    if (undecided(scrubbing->object)) {
      environment_.fail("lease %llu is scrubbed before that is durable", number(scrubbing->lease));
    }
  }
}

void SimDaemon::perform(const daemon::Effect& effect) {
  if (const auto* notice = std::get_if<daemon::NotifyHolders>(&effect)) {
    if (!notice->fenced) ledger_.grace_announced(machine_, notice->lease, notice->grace_ns);
    if (notice_) notice_(*notice);
    return;
  }
  const uint64_t job = next_job_++;
  jobs_[job] = effect;
  later(some_ns(environment_.faults().effect_ns_max), [this, job] { finish_effect(job); });
}

void SimDaemon::finish_effect(uint64_t job) {
  const daemon::Effect effect = jobs_.at(job);
  if (crash_here("in the middle of an effect")) return;
  jobs_.erase(job);
  check_decided(effect);
  const uint64_t now_ns = environment_.now_ns();
  daemon::Command finished;
  if (const auto* carving = std::get_if<daemon::CarveObject>(&effect)) {
    finished = daemon::CarveFinished{carving->lease, backend_.carve(*carving), now_ns};
  } else if (const auto* fencing = std::get_if<daemon::FenceObject>(&effect)) {
    finished = daemon::FenceFinished{fencing->lease, backend_.fence(fencing->object), now_ns};
  } else if (const auto* scrubbing = std::get_if<daemon::ScrubObject>(&effect)) {
    finished = daemon::ScrubFinished{scrubbing->lease, backend_.scrub(scrubbing->object), now_ns};
  }
  environment_.note("backend: %s", std::visit(
                                       [](const auto& e) {
                                         using E = std::decay_t<decltype(e)>;
                                         if constexpr (std::is_same_v<E, daemon::CarveObject>) {
                                           return "carved " + e.object;
                                         } else if constexpr (std::is_same_v<E, daemon::FenceObject>) {
                                           return "fenced " + e.object;
                                         } else if constexpr (std::is_same_v<E, daemon::ScrubObject>) {
                                           return "scrubbed " + e.object;
                                         } else {
                                           return std::string("told holders");
                                         }
                                       },
                                       effect)
                                       .c_str());
  if (crash_here("after an effect")) return;
  apply(finished, nullptr);
}

// --- time -------------------------------------------------------------------------------------------

void SimDaemon::arm_timer() {
  const auto due_ns = machine_.next_due_ns();
  if (!due_ns.has_value() || environment_.planted(Plant::no_tick)) return;
  const uint64_t timer = ++timer_;
  const uint64_t now_ns = environment_.now_ns();
  later(*due_ns > now_ns ? *due_ns - now_ns : 0, [this, timer] {
    if (timer == timer_) apply(daemon::Tick{environment_.now_ns()}, nullptr);
  });
}

}  // namespace terrace::sim
