// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/manager/sim_daemon.h"

#include <algorithm>
#include <utility>

#include "tests/support/reply_kinds.h"

namespace terrace::sim {
namespace {

using daemon::LeasePhase;

constexpr uint64_t deferred_ns = 20 * ns_per_ms;

bool immediate(const daemon::Effect& effect) {
  return std::holds_alternative<daemon::CarveObject>(effect) ||
         std::holds_alternative<daemon::RefuseGrant>(effect);
}

// What the shell reports to the state machine, not what somebody asks for.
bool report(const daemon::Command& command) {
  return std::holds_alternative<daemon::CarveFinished>(command) ||
         std::holds_alternative<daemon::ResizeFinished>(command) ||
         std::holds_alternative<daemon::RebindFinished>(command);
}

}  // namespace

SimDaemon::SimDaemon(Environment& environment, SimStore& store, SimBackend& backend, Ledger& ledger)
    : environment_(environment),
      store_(store),
      backend_(backend),
      ledger_(ledger),
      claims_(environment),
      metrics_(environment) {}

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
  return serving_ && !committing_ && open_.empty() && waiting_.empty() && jobs_.empty() && carving_.empty() &&
         changing_.empty() && moving_.empty();
}

// --- requests ---------------------------------------------------------------------------------------

void SimDaemon::submit(daemon::Command command, ReplyAction reply) {
  if (!serving_) return;
  apply(command, std::move(reply));
}

void SimDaemon::attach(LeaseId id, const std::string& tenant, uint64_t client, ReplyAction reply) {
  if (!serving_) return;
  const daemon::LeaseRow* lease = machine_.find_lease(id);
  Result<daemon::Reply> result =
      Error{.code = ErrorCode::not_found, .where = "attach", .detail = "no such lease, or not now"};
  const bool whole = lease != nullptr && lease->target_bytes == 0 && !claims_.growing(id);
  if (whole && lease->tenant == tenant && lease->phase == LeasePhase::active) {
    hold(id, client);
    result = daemon::Reply{daemon::LeaseReply{*lease}};
  } else if (lease != nullptr && lease->tenant == tenant &&
             (!whole || lease->phase == LeasePhase::transferring)) {
    result = Error{.code = ErrorCode::busy, .where = "attach", .detail = "it is being resized or handed over"};
  }
  hold_back(
      false, [reply, result] { reply(result); }, reply);
  request_commit();
}

void SimDaemon::hold(LeaseId lease, uint64_t client) {
  holders_[lease].insert(client);
  if (const auto move = moving_.find(lease); move != moving_.end()) move->second = true;
}

void SimDaemon::let_go(LeaseId lease, uint64_t client) {
  const auto at = holders_.find(lease);
  if (at == holders_.end()) return;
  at->second.erase(client);
  if (at->second.empty()) holders_.erase(at);
}

void SimDaemon::cancel(const daemon::Grant& grant) {
  if (!serving_) return;
  for (const auto& [id, lease] : machine_.leases()) {
    if (lease.phase != LeasePhase::waiting || lease.tenant != grant.tenant ||
        lease.request_high != grant.request_high || lease.request_low != grant.request_low)
      continue;
    carving_.erase(id);
    apply(daemon::CancelGrant{id, environment_.now_ns()}, nullptr);
    return;
  }
}

// --- commands ---------------------------------------------------------------------------------------

void SimDaemon::apply(const daemon::Command& command, ReplyAction reply) {
  const bool due = takes_part_of_the_dead(command);
  daemon::Step step = decide(command);
  if (due && !step.reply.ok() && step.reply.error().code == ErrorCode::busy)
    environment_.fail("owner liveness: a part is refused although its owner has ended");
  check_applied(command, step);
  const bool own_delta = !step.delta.empty();
  if (own_delta) {
    ++applied_;
    open_.merge(std::move(step.delta));
  }
  std::vector<daemon::Effect> at_once;
  std::erase_if(step.effects, [&](daemon::Effect& effect) {
    if (!immediate(effect) && !environment_.planted(Plant::effects_before_commit)) return false;
    at_once.push_back(std::move(effect));
    return true;
  });
  const std::vector<ReplyAction> told = take_replies(command, step, std::move(reply));
  const uint64_t generation = generation_;
  for (const ReplyAction& one : told) {
    hold_back(
        own_delta, [one, result = step.reply] { one(result); }, one);
  }
  for (const daemon::Effect& effect : step.effects) {
    hold_back(
        own_delta, [this, effect] { perform(effect); }, nullptr);
  }
  if (!told.empty() || !step.effects.empty()) {
    request_commit();
  } else if (own_delta) {
    defer_commit();
  }
  for (const daemon::Effect& effect : at_once) {
    perform_at_once(effect, command);
    if (generation != generation_) return;
  }
  for (const auto& [lease, waiting] : carving_) {
    if (machine_.find_lease(lease) == nullptr)
      environment_.fail("queue: nobody answers the client that waited for lease %llu",
                        static_cast<unsigned long long>(lease.value));
  }
  if (crash_here("after a command")) return;
  arm_timer();
}

// A claim of a usable lease's part, whose owner was seen to have ended: nothing makes that busy.
bool SimDaemon::takes_part_of_the_dead(const daemon::Command& command) const {
  const auto* claim = std::get_if<daemon::ClaimPart>(&command);
  if (claim == nullptr || claim->dead_epoch == 0) return false;
  const daemon::LeaseRow* lease = machine_.find_lease(claim->lease);
  const daemon::OwnerRow* owner = machine_.find_owner(claim->lease, claim->part);
  return lease != nullptr && lease->phase == LeasePhase::active && owner != nullptr &&
         owner->epoch == claim->dead_epoch;
}

void SimDaemon::check_applied(const daemon::Command& command, const daemon::Step& step) {
  backend_.know(machine_);
  ledger_.check(machine_);
  claims_.after(command, step, machine_);
  metrics_.check_state(machine_, claims_);
  if (const auto* rebound = std::get_if<daemon::RebindFinished>(&command); rebound && step.reply.ok())
    ++hand_overs_[rebound->lease];
  if (!step.reply.ok() && !step.delta.empty() && !report(command))
    environment_.fail("a refused command changed rows");
  if (!step.reply.ok()) return;
  accepted_.insert(command.index());
  if (!test::is_reply_to(command, *step.reply))
    environment_.fail("a command was answered with another kind of reply than it promises");
}

// Who is answered by this step; who has to wait is kept until the carve or change has ended.
std::vector<ReplyAction> SimDaemon::take_replies(const daemon::Command& command, const daemon::Step& step,
                                                 ReplyAction reply) {
  std::vector<ReplyAction> told;
  const auto changed = [&](LeaseId lease) {
    if (const auto at = changing_.find(lease); at != changing_.end()) {
      told.push_back(std::move(at->second));
      changing_.erase(at);
    }
  };
  if (const auto* carved = std::get_if<daemon::CarveFinished>(&command)) {
    if (const auto at = carving_.find(carved->lease); at != carving_.end()) {
      told = std::move(at->second);
      carving_.erase(at);
    }
  } else if (const auto* resized = std::get_if<daemon::ResizeFinished>(&command)) {
    changed(resized->lease);
  } else if (const auto* rebound = std::get_if<daemon::RebindFinished>(&command)) {
    changed(rebound->lease);
  }
  if (!reply) return told;
  if (step.reply.ok() && std::holds_alternative<daemon::GrantPending>(*step.reply)) {
    carving_[std::get<daemon::GrantPending>(*step.reply).lease].push_back(std::move(reply));
  } else if (step.reply.ok() && std::holds_alternative<daemon::ChangePending>(*step.reply)) {
    changing_[std::get<daemon::ChangePending>(*step.reply).lease] = std::move(reply);
  } else {
    told.push_back(std::move(reply));
  }
  return told;
}

// --- commits ----------------------------------------------------------------------------------------

// Everything applied so far must be durable before `act`, be it this step's own delta or an earlier one.
void SimDaemon::hold_back(bool own_delta, std::function<void()> act, ReplyAction reply) {
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
    const uint64_t generation = generation_;
    act();
    if (generation != generation_ || crash_here("after a reply or effect")) return;
  }
}

// At the end of the loop's turn, so that what arrived together is committed together.
void SimDaemon::request_commit() {
  if (commit_requested_ || committing_) return;
  commit_requested_ = true;
  later(0, [this] {
    commit_requested_ = false;
    begin_commit();
  });
}

void SimDaemon::defer_commit() {
  if (commit_requested_ || deferring_) return;
  deferring_ = true;
  later(deferred_ns, [this] {
    deferring_ = false;
    request_commit();
  });
}

void SimDaemon::begin_commit() {
  if (committing_) return;
  if (open_.empty()) {
    flush();
    return;
  }
  committing_ = true;
  in_flight_ = applied_;
  quarantining_.clear();
  for (const auto& [id, row] : open_.leases) {
    if (row.has_value() && row->phase == LeasePhase::quarantined) quarantining_.push_back(*row);
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
  for (const daemon::LeaseRow& row : quarantining_) {
    const daemon::LeaseRow* now = machine_.find_lease(row.id);
    if (now != nullptr && now->phase == LeasePhase::quarantined) ledger_.quarantine_durable(row);
  }
  if (crash_here("after a commit")) return;
  check_stored();
  const uint64_t generation = generation_;
  flush();
  if (generation == generation_ && (!open_.empty() || !waiting_.empty())) request_commit();
}

// Rows in memory and in the store agree whenever nothing is on its way: no change was left out of a Delta.
void SimDaemon::check_stored() {
  if (!open_.empty() || environment_.planted_anything()) return;
  daemon::Image image = machine_.image();
  daemon::Image stored = store_.load();
  leave_out_unrecorded(image.leases);
  leave_out_unrecorded(stored.leases);
  if (image.leases != stored.leases) environment_.fail("the store misses a change of a lease");
  if (image.pools != stored.pools) environment_.fail("the store misses a change of a pool");
  if (image.devices != stored.devices) environment_.fail("the store misses a change of a device");
  if (image.quotas != stored.quotas) environment_.fail("the store misses a change of a quota");
  if (image.reservations != stored.reservations)
    environment_.fail("the store misses a change of a reservation");
  if (image.owners != stored.owners) environment_.fail("the store misses a change of an owner");
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
