// SPDX-License-Identifier: Apache-2.0
#include "daemon/event_loop/engine.h"

#include <kj/debug.h>

#include <algorithm>

#include "core/base/failpoint.h"
#include "core/base/units.h"
#include "daemon/events/commands/command_events.h"
#include "daemon/log/log.h"

namespace terrace::daemon {
namespace {

constexpr uint64_t beat_ns = 200 * ns_per_ms;  // how often the loop notes that it runs

}  // namespace

Engine::Engine(Store& store, Backend& backend, const Clock& clock, kj::Timer& timer, EngineOptions options)
    : store_(store),
      backend_(backend),
      clock_(clock),
      timer_(timer),
      options_(options),
      state_(std::make_unique<StateMachine>(options.ttl_ns_max)),
      refusal_{.code = ErrorCode::unavailable, .where = "Engine", .detail = "the manager is still starting"},
      events_(clock),
      tasks_(*this),
      scrubber_(backend, bulk_worker_, clock, timer, options.scrub_bytes_per_s, scrub_reports(), tasks_,
                options.scrub_piece_bytes) {}

void Engine::taskFailed(kj::Exception&& exception) {
  log::critical("a task of the engine failed: {}", exception.getDescription().cStr());
}

// --- commands ---------------------------------------------------------------------------------------

kj::Promise<Result<Reply>> Engine::ask(const Command& command, const Actor& actor, LeaseId* queued) {
  if (refusing_) return Result<Reply>(refusal_);
  auto pair = kj::newPromiseAndFulfiller<Result<Reply>>();
  const LeaseId waits = apply(command, &pair.fulfiller, actor);
  if (queued != nullptr) *queued = waits;
  return kj::mv(pair.promise);
}

Engine::SubmittedGrant Engine::submit_grant(Grant command, const Actor& actor) {
  LeaseId queued;
  const uint64_t asked_ns = clock_.now_ns();
  auto asked = ask(std::move(command), actor, &queued);
  const bool waits = queued.valid();
  auto answer = asked.then([this, asked_ns, waits](Result<Reply> reply) {
    if (reply.ok())
      (waits ? times_.waits : times_.grants).add(clock_.now_ns() - asked_ns);
    else
      ++times_.grants_refused[reply.error().code];
    return answer_of<Grant>(std::move(reply));
  });
  return {kj::mv(answer), queued};
}

Error Engine::unexpected_answer() {
  return Error{.code = ErrorCode::internal,
               .where = "Engine::submit",
               .detail = "the manager answered in an unexpected way; please report it"};
}

kj::Promise<Status> Engine::settled() {
  if (refusing_) return Status(refusal_);
  if (!committing_ && open_.empty()) return Status();
  auto pair = kj::newPromiseAndFulfiller<Result<Reply>>();
  hold(Step{}, &pair.fulfiller);
  return pair.promise.then([](Result<Reply> reply) -> Status {
    if (!reply.ok()) return std::move(reply).error();
    return {};
  });
}

kj::Promise<Result<AuditPage>> Engine::audit(AuditQuery query) {
  return settled().then(
      [this, query = std::move(query)](Status status) mutable -> kj::Promise<Result<AuditPage>> {
        if (!status.ok()) return Result<AuditPage>(status.error());
        ++audits_;
        return store_worker_.run([this, query = std::move(query)] { return store_.audit(query); })
            .attach(kj::defer([this] { --audits_; }));
      });
}

kj::Promise<Result<SnapshotProcess::Found>> Engine::run_on_snapshot(
    std::function<SnapshotProcess::Found()> work, std::shared_ptr<const void> seen, int tries) {
  using Found = Result<SnapshotProcess::Found>;
  Result<SnapshotProcess> started = SnapshotProcess::start(work);
  if (!started.ok()) return Found(started.error());
  auto child = std::make_shared<SnapshotProcess>(std::move(started).value());
  auto kept = std::make_shared<std::shared_ptr<const void>>(std::move(seen));
  // The first one may spin for a lock of another thread's (snapshot_process.cc); the last one takes what it takes.
  const uint32_t patience_s = tries <= 1 ? 0 : tries == 2 ? 60 : 15;
  return run_look([child, kept, patience_s]() {
           Found found = child->wait(patience_s);
           if (found.ok()) kept->reset();
           return found;
         })
      .then([this, work = std::move(work), kept, tries](Found found) mutable -> kj::Promise<Found> {
        if (found.ok() || tries <= 1) return found;
        log::warn("{}", found.error().to_string());
        return run_on_snapshot(std::move(work), std::move(*kept), tries - 1);
      });
}

kj::Promise<Result<StoreBackup>> Engine::backup() {
  return settled().then([this](Status status) -> kj::Promise<Result<StoreBackup>> {
    if (!status.ok()) return Result<StoreBackup>(status.error());
    if (backing_up_) {
      return Result<StoreBackup>(Error{.code = ErrorCode::busy,
                                       .where = "Engine::backup",
                                       .detail = "a backup of the store is being made already; wait for it"});
    }
    backing_up_ = true;
    if (backup_worker_ == nullptr) backup_worker_ = std::make_unique<Worker>(make_queue("backup"));
    return backup_worker_->run([this] { return store_.backup(); }).attach(kj::defer([this] {
      backing_up_ = false;
    }));
  });
}

void Engine::deny(AuditRow row, const Error& error, const Actor& actor) {
  if (!options_.tell_events) return;
  Event event = denial_event(row, error_code_name(error.code));
  if (actor.trace != nullptr) event.trace_id = actor.trace->trace_id();
  events_.tell(std::move(event));
}

void Engine::note_denied(const char* what, const std::string& tenant, const Error& error, const Actor& actor) {
  if (std::string_view(what) == "admin") facts_.denials.add(tenant, error.detail);
  AuditRow row = denial_row(what, tenant, error.detail, actor, wall_clock_ns());
  deny(row, error, actor);
  if (refusing_ || !denial_limit_.admit(row, clock_.now_ns())) return;
  Step step;
  step.delta.audit.push_back(std::move(row));
  hold(std::move(step), nullptr);
}

void Engine::note(const char* verb, const std::string& subject, const std::string& detail, const Actor& actor) {
  if (refusing_) return;
  Step step;
  step.delta.audit.push_back(note_row(verb, subject, detail, actor, wall_clock_ns()));
  hold(std::move(step), nullptr);
}

LeaseId Engine::apply(const Command& command, ReplyFulfiller* fulfiller, const Actor& actor) {
  note_time();  // first: a renewal that waited while this process was stopped is in time
  ++counters_.commands;
  std::vector<Event> events;
  Step step = decide(command, actor, events);
  if (!step.delta.devices.empty()) tell_devices();
  for (AuditRow& row : audit_rows(command, step, *state_, actor, wall_clock_ns())) {
    if (!step.reply.ok()) deny(row, step.reply.error(), actor);
    if (!step.reply.ok() && !denial_limit_.admit(row, clock_.now_ns())) continue;
    step.delta.audit.push_back(std::move(row));
  }
  LeaseId queued;
  if (step.reply.ok() && fulfiller != nullptr) {
    if (const auto* pending = std::get_if<GrantPending>(&step.reply.value())) {
      // Answered when the carve was applied; a retry of the same request joins the first one.
      if (pending->queued) {
        queued = pending->lease;
        if (actor.trace != nullptr) actor.trace->waits_since_ns = clock_.now_ns();
      }
      carving_[pending->lease.value].push_back(kj::mv(*fulfiller));
      actors_.try_emplace(pending->lease.value, actor);
      fulfiller = nullptr;
    } else if (const auto* change = std::get_if<ChangePending>(&step.reply.value())) {
      changing_.insert_or_assign(change->lease.value, kj::mv(*fulfiller));
      actors_.insert_or_assign(change->lease.value, actor);
      fulfiller = nullptr;
      trace_work_begins(actor);
    }
  }
  // What runs at once applies commands of its own: after this step was put in its place.
  std::vector<Effect> immediate;
  std::erase_if(step.effects, [&immediate](Effect& effect) {
    if (!is_immediate(effect)) return false;
    immediate.push_back(std::move(effect));
    return true;
  });
  const bool durable = !step.delta.empty();
  hold(std::move(step), fulfiller, std::move(events));
  trace_change(actor, durable);
  for (const Effect& effect : immediate) perform_immediate(effect);
  if (const auto* cancelled = std::get_if<CancelGrant>(&command)) end_cancelled(cancelled->lease);
  if (std::holds_alternative<DrainDevice>(command) || std::holds_alternative<CompactPool>(command))
    drive_moves_soon();
  arm_timer();
  const LeaseRow* waits = state_->find_lease(queued);  // an effect of this very step may have served it
  return waits != nullptr && waits->phase == LeasePhase::waiting ? queued : LeaseId{};
}

// Whoever waits all the same, with the request key of the cancelled grant, is told.
void Engine::end_cancelled(LeaseId lease) {
  if (state_->find_lease(lease) != nullptr || !carving_.contains(lease.value)) return;
  refuse({lease, Error{.code = ErrorCode::cancelled,
                       .where = "Grant",
                       .detail = "the grant was cancelled while it waited for room"}});
}

void Engine::count(const Command& command, const Step& step) {
  if (const auto* many = std::get_if<RenewMany>(&command); many != nullptr && step.reply.ok())
    times_.renewals += many->leases.size() - std::get<RenewalsReply>(*step.reply).failed.size();
  else if (std::holds_alternative<Renew>(command) && step.reply.ok())
    ++times_.renewals;
}

Step Engine::decide(const Command& command) {
  Step step = state_->apply(command);
  count(command, step);
  if (watcher_ != nullptr) watcher_->applied(command, step, *state_);
  return step;
}

Step Engine::decide(const Command& command, const Actor& actor, std::vector<Event>& events) {
  if (!options_.tell_events) {
    Step step = decide(command);
    trace_command(actor, command, step, events);
    return step;
  }
  CommandFacts facts{
      .actor = actor.text, .took_ns = fence_took_ns_, .subject = subject_before(command, *state_)};
  Step step = decide(command);
  events = command_events(command, step, *state_, std::move(facts));
  trace_command(actor, command, step, events);
  return step;
}

// Puts a step's outcome behind everything that has to be durable before it.
void Engine::hold(Step step, ReplyFulfiller* fulfiller, std::vector<Event> events) {
  Batch& batch = committing_ && open_.empty() && step.delta.empty() ? in_flight_ : open_;
  const bool silent = fulfiller == nullptr && step.effects.empty();
  if (silent && step.delta.empty()) return;
  std::move(events.begin(), events.end(), std::back_inserter(batch.events));
  batch.delta.merge(std::move(step.delta));
  std::move(step.effects.begin(), step.effects.end(), std::back_inserter(batch.effects));
  if (fulfiller != nullptr) batch.waiters.push_back({kj::mv(*fulfiller), std::move(step.reply)});
  if (!silent) {
    request_commit();
  } else if (!commit_requested_ && !deferring_) {
    // Nobody waits for it (an extent became free again): it goes with the next commit, or soon by itself.
    deferring_ = true;
    const auto delay = static_cast<int64_t>(options_.deferred_commit_ns) * kj::NANOSECONDS;
    tasks_.add(timer_.afterDelay(delay).then([this] {
      deferring_ = false;
      request_commit();
    }));
  }
}

// At the end of the loop's turn, so that what arrived together is committed together.
void Engine::request_commit() {
  if (commit_requested_ || committing_) return;
  commit_requested_ = true;
  tasks_.add(kj::evalLast([this] {
    commit_requested_ = false;
    begin_commit();
  }));
}

void Engine::begin_commit() {
  if (committing_ || open_.empty() || refusing_) return;
  if (open_.delta.empty()) {  // nothing to make durable, and nothing under way before it
    release_batch(std::exchange(open_, Batch{}));
    return;
  }
  in_flight_ = std::exchange(open_, Batch{});
  committing_ = true;
  facts_.commit_began_ns = clock_.now_ns();
  if (store_.quick() && audits_ == 0) {
    commit_finished(store_.commit(in_flight_.delta));
    return;
  }
  // The batch's delta stays put while the store reads it: only waiters and effects are added to it.
  tasks_.add(store_worker_.run([this]() -> Status { return store_.commit(in_flight_.delta); })
                 .then([this](Status status) { commit_finished(std::move(status)); }));
}

void Engine::commit_finished(Status status) {
  committing_ = false;
  const uint64_t began_ns = std::exchange(facts_.commit_began_ns, 0);
  const uint64_t took_ns = clock_.now_ns() - began_ns;
  times_.commits.add(took_ns);
  facts_.slowest_commit_ns = std::max(facts_.slowest_commit_ns, took_ns);
  if (took_ns > options_.slow_commit_ns) ++facts_.slow_commits;
  Batch batch = std::exchange(in_flight_, Batch{});
  trace_commit(batch, began_ns);
  if (!status.ok()) {
    begin_recovery(status.error());
    fail_batch(std::move(batch), refusal_);
    return;
  }
  ++counters_.commits;
  if (options_.audit_sink && !batch.delta.audit.empty()) options_.audit_sink(batch.delta.audit);
  recovery_pause_ns_ = recovery_pause_ns_min;
  release_batch(std::move(batch));
  // A record that nobody waits for may have had its time while this commit was under way.
  if (!open_.empty() && !deferring_) request_commit();
  if (!open_.waiters.empty() || !open_.effects.empty()) request_commit();
}

void Engine::release_batch(Batch batch) {
  if (!batch.waiters.empty() && TERRACE_FAILPOINT(reply_before_send) != 0) return;
  const bool replied = !batch.waiters.empty();
  for (Waiter& waiter : batch.waiters) waiter.fulfiller->fulfill(std::move(waiter.reply));
  events_.tell(std::move(batch.events));
  if (!batch.effects.empty()) {
    // Behind the replies: those who wait need not wait for a fence as well.
    tasks_.add(kj::evalLater([this, effects = std::move(batch.effects)]() mutable {
      if (refusing_) return;  // recovery derives them again
      for (Effect& effect : effects) perform(std::move(effect));
    }));
  }
  if (replied && failpoints_enabled()) {  // a moment later the replies have left through the sockets
    tasks_.add(timer_.afterDelay(2 * kj::MILLISECONDS).then([] {
      [[maybe_unused]] const int armed = TERRACE_FAILPOINT(reply_after_send);
    }));
  }
}

void Engine::fail_batch(Batch batch, const Error& error) {
  for (const auto& trace : batch.traces) trace->failed(error_code_name(error.code));
  for (Waiter& waiter : batch.waiters) waiter.fulfiller->fulfill(Result<Reply>(error));
}

// --- time -------------------------------------------------------------------------------------------

// What housekeeping saw before the gap says nothing of now: holders and devices had no time to come back. This
// loop may have run for a beat since it last said so; that counts, or a manager that is stopped again and again
// would never end a lease.
void Engine::note_time() {
  const uint64_t now_ns = clock_.now_ns();
  const uint64_t before_ns = std::exchange(noted_ns_, now_ns);
  const uint64_t gap_ns = before_ns != 0 && now_ns > before_ns ? now_ns - before_ns : 0;
  if (options_.gap_ns == 0 || gap_ns < options_.gap_ns || refusing_) return;
  log::warn("this process did not run for {}: that time does not count against leases",
            format_duration(gap_ns / ns_per_ms * ns_per_ms));
  unheld_since_ns_.clear();
  missed_since_ns_.clear();
  incomplete_since_ns_.clear();
  apply(ResumeAfterGap{gap_ns - std::min(gap_ns, beat_ns), now_ns}, nullptr);
}

kj::Promise<void> Engine::keep_time() {
  note_time();
  return timer_.afterDelay(static_cast<int64_t>(beat_ns) * kj::NANOSECONDS).then([this] {
    return keep_time();
  });
}

void Engine::arm_timer() {
  const auto due = state_->next_due_ns();
  if (!due.has_value() || (armed_for_ns_ != UINT64_MAX && *due >= armed_for_ns_)) return;
  armed_for_ns_ = *due;
  const uint64_t generation = ++timer_generation_;
  const uint64_t now = clock_.now_ns();
  // CLOCK_BOOTTIME goes on during suspend and the loop's timer does not: look again every minute.
  const uint64_t wait_ns = std::min<uint64_t>(*due > now ? *due - now : 0, 60 * ns_per_s);
  tasks_.add(timer_.afterDelay(static_cast<int64_t>(wait_ns) * kj::NANOSECONDS + 1 * kj::MILLISECONDS)
                 .then([this, generation] {
                   if (generation != timer_generation_) return;  // a nearer one was armed since
                   armed_for_ns_ = UINT64_MAX;
                   if (refusing_) return;
                   apply(Tick{clock_.now_ns()}, nullptr);
                 }));
}

}  // namespace terrace::daemon
