// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/engine/engine_manager.h"

#include <kj/debug.h>

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>

#include "core/base/limits.h"
#include "daemon/log/log.h"

namespace terrace::sim {
namespace {

using daemon::LeasePhase;

kj::TimePoint point_of(uint64_t ns) {
  return kj::origin<kj::TimePoint>() + static_cast<int64_t>(ns) * kj::NANOSECONDS;
}

uint64_t ns_of(kj::TimePoint point) {
  return static_cast<uint64_t>((point - kj::origin<kj::TimePoint>()) / kj::NANOSECONDS);
}

}  // namespace

EngineManager::Process::Process(EngineManager& manager)
    : fate(manager.environment_),
      timer(point_of(manager.environment_.steady_ns())),
      jobs(manager.environment_, [&manager] { manager.turn(); }),
      store(manager.environment_, manager.store_, manager.real_.get(), fate,
            [&manager](const daemon::Delta& delta) { manager.durable(delta); }),
      memory(manager.environment_, manager.backend_, manager.store_, fate),
      tasks(manager) {}

EngineManager::EngineManager(Environment& environment, SimStore& store, SimBackend& backend, Ledger& ledger,
                             bool real_store)
    : environment_(environment),
      store_(store),
      backend_(backend),
      ledger_(ledger),
      claims_(environment),
      metrics_(environment),
      clock_(environment) {
  log::silence();  // the trace is what a run says
  Prng& prng = environment.prng();
  options_.scrub_piece_bytes = prng.between(1, 4) * limits::granule_bytes;
  options_.unheld_ns = prng.between(1, 5) * ns_per_s;  // sessions are back within a second
  if (prng.chance(1, 4)) options_.scrub_bytes_per_s = prng.between(8, 64) * limits::granule_bytes;
  if (!real_store) return;
  real_ = std::make_unique<RealStore>(environment, store, [this](std::function<void()> work) {
    later(environment_.prng().below(2 * ns_per_s), std::move(work));
  });
}

EngineManager::~EngineManager() noexcept = default;

void EngineManager::later(uint64_t delay_ns, std::function<void()> action) {
  environment_.after(delay_ns, [this, generation = generation_, action = std::move(action)] {
    if (generation == generation_) action();
  });
}

// --- a process --------------------------------------------------------------------------------------

void EngineManager::start() {
  later(environment_.prng().below(20 * ns_per_ms), [this] { begin(); });
}

void EngineManager::begin() {
  process_ = std::make_unique<Process>(*this);
  Process& process = *process_;
  not_serving_since_ns_ = environment_.steady_ns();
  metrics_.process_began();
  daemon::EngineOptions options = options_;
  options.job_queues = &process.jobs;
  process.engine =
      std::make_unique<daemon::Engine>(process.store, process.memory, clock_, process.timer, options);
  process.engine->set_watcher(this);
  process.engine->set_notifier(this);
  if (std::exchange(accept_lost_objects_, false)) process.engine->accept_lost_objects();
  process.tasks.add(process.engine->start().then([this](Status status) { started(status); }));
  turn();
}

// A start that fails ends the process; somebody starts it again.
void EngineManager::started(const Status& status) {
  Fate& fate = process_->fate;
  if (fate.over()) return;
  if (status.ok()) {
    process_->started = true;
    return;
  }
  environment_.note("daemon: does not start: %s", status.error().to_string().c_str());
  if (status.error().code == ErrorCode::corrupt)
    environment_.fail("recovery refused what the store holds: %s", status.error().to_string().c_str());
  accept_lost_objects_ = status.error().code == ErrorCode::invalid_argument;
  fate.end("its start failed");
}

// The loop runs until nothing is left to do at this moment; or until the process dies in between.
void EngineManager::turn() {
  if (process_ == nullptr) return;
  Process& process = *process_;
  const bool timeless = serving_ && environment_.planted(Plant::no_tick);
  if (!timeless) process.timer.advanceTo(point_of(environment_.steady_ns()));
  while (!process.fate.over() && loop_.isRunnable()) {
    loop_.run(1);
    note_serving();
    (void)process.fate.strikes("between two turns", 4);
  }
  if (process.fate.over()) {
    crash(process.fate.where());
    return;
  }
  process.asked.remove_if([](const Asked& asked) { return asked.answered; });
  look_after_moves();
  check_stored();
  check_metrics();
  give_up_lost_objects();
  if (process_ != nullptr && !timeless) wake_later();
}

void EngineManager::wake_later() {
  Process& process = *process_;
  KJ_IF_MAYBE (next, process.timer.nextEvent()) {
    const uint64_t now_ns = environment_.steady_ns();
    const uint64_t at_ns = std::max(ns_of(*next), now_ns);
    if (at_ns >= process.wake_ns) return;
    process.wake_ns = at_ns;
    later(at_ns - now_ns, [this, at_ns] {
      if (process_->wake_ns != at_ns) return;
      process_->wake_ns = UINT64_MAX;
      turn();
    });
  }
}

void EngineManager::note_serving() {
  const bool serves = process_->started && process_->engine->serving();
  if (serves) {
    process_->memory.serving();
  } else if (!process_->engine->serving()) {
    process_->memory.recovering();
  }
  if (serves == serving_) return;
  serving_ = serves;
  (serves ? serving_since_ns_ : not_serving_since_ns_) = environment_.steady_ns();
  environment_.note("daemon: %s", serves ? "serves" : "does not serve");
}

// Where all memory is gone, within one boot, the daemon waits for its operator (Engine::check_directory).
void EngineManager::give_up_lost_objects() {
  constexpr uint64_t patience_ns = 2 * ns_per_s;
  if (serving_ || !process_->started || environment_.steady_ns() - not_serving_since_ns_ < patience_ns) return;
  const daemon::Image image = store_.load();
  const bool any = std::any_of(image.leases.begin(), image.leases.end(), [&](const daemon::LeaseRow& lease) {
    return (lease.phase == LeasePhase::active || lease.phase == LeasePhase::revoking) &&
           backend_.objects().contains(lease.object);
  });
  if (any) return;
  accept_lost_objects_ = true;
  crash("its operator restarts it");
}

// --- death ------------------------------------------------------------------------------------------

void EngineManager::crash(const char* where) {
  environment_.note("daemon: crash (%s)", where);
  ++crashes_;
  ++generation_;
  if (process_ != nullptr) bury();
  // What the processes of this machine have in memory survives a lost disk cache here: that is only harder.
  if (real_ != nullptr) real_->end_process(power_is_lost_ || environment_.prng().chance(1, 2));
  holders_.clear();
  later(environment_.prng().below(300 * ns_per_ms), [this] { start(); });
}

// Of the work that was begun some is done, some in part and some never.
void EngineManager::bury() {
  Process& process = *process_;
  process.fate.end("buried");
  for (const std::function<void()>& job : process.jobs.take_begun()) {
    if (!environment_.prng().chance(1, 2)) continue;
    process.fate.cut_after(environment_.prng().below(3));
    job();
  }
  moves_ += process.engine->counters().moves;
  if (process.recovered) last_machine_ = process.engine->state().copy();
  for (const LeaseId lease : moving_) ledger_.move_over(lease);
  moving_.clear();
  serving_ = false;
  process_.reset();
}

void EngineManager::reboot() {
  power_is_lost_ = true;
  crash("reboot");
  power_is_lost_ = false;
  environment_.note("machine: rebooted");
  clock_.reboot();
  backend_.reboot();
  ledger_.rebooted();
}

// --- requests ---------------------------------------------------------------------------------------

namespace {

template <typename Answer>
kj::Promise<Result<daemon::Reply>> as_reply(kj::Promise<Result<Answer>> promise) {
  return promise.then([](Result<Answer> answer) -> Result<daemon::Reply> {
    if (!answer.ok()) return std::move(answer).error();
    return daemon::Reply{*std::move(answer)};
  });
}

kj::Promise<Result<daemon::Reply>> submit_to(daemon::Engine& engine, daemon::Command command) {
  return std::visit(
      [&engine](auto& one) -> kj::Promise<Result<daemon::Reply>> {
        if constexpr (std::is_same_v<std::decay_t<decltype(one)>, daemon::Grant>) {
          return as_reply(engine.submit_grant(std::move(one), {"somebody"}).answer);
        } else if constexpr (daemon::Asked<std::decay_t<decltype(one)>>) {
          return as_reply(engine.submit(std::move(one), {"somebody"}));
        } else {
          KJ_FAIL_REQUIRE("a client sends a report of the shell");
        }
      },
      command);
}

}  // namespace

void EngineManager::submit(daemon::Command command, ReplyAction reply) {
  if (process_ == nullptr || !process_->started) return;
  if (process_->fate.strikes("before a request")) return turn();
  Key key;
  if (const auto* grant = std::get_if<daemon::Grant>(&command))
    key = {grant->tenant, grant->request_high, grant->request_low};
  daemon::Engine& engine = *process_->engine;
  part_of_the_dead_ = takes_part_of_the_dead(command);
  const daemon::Command asked = command;
  ledger_.quarantines_may_end(machine(), command);
  told_ = &asked;
  if (const auto* adopt = std::get_if<daemon::AdoptDevice>(&command)) {
    answer(as_reply(engine.adopt(*adopt, {"operator"})), std::move(reply), key);
  } else {
    answer(submit_to(engine, decoy(command)), std::move(reply), key);
  }
  told_ = nullptr;
  part_of_the_dead_ = false;
  turn();
}

void EngineManager::answer(kj::Promise<Result<daemon::Reply>> promise, ReplyAction reply, Key grant) {
  Process& process = *process_;
  Asked& asked = process.asked.emplace_back();
  asked.grant = std::move(grant);
  process.tasks.add(asked.canceler.wrap(kj::mv(promise))
                        .then([this, &asked, &process, reply = std::move(reply)](Result<daemon::Reply> result) {
                          asked.answered = true;
                          if (asked.grant != Key()) metrics_.grant_answered(result);
                          if (process.fate.strikes("before a reply")) return;
                          if (reply) reply(result);
                          (void)process.fate.strikes("after a reply");
                        }));
}

void EngineManager::attach(LeaseId id, const std::string& tenant, uint64_t client, ReplyAction reply) {
  if (process_ == nullptr || !process_->started) return;
  daemon::Engine& engine = *process_->engine;
  const daemon::LeaseRow* lease = engine.state().find_lease(id);
  Result<daemon::Reply> result =
      Error{.code = ErrorCode::not_found, .where = "attach", .detail = "no such lease, or not now"};
  const bool whole = lease != nullptr && lease->target_bytes == 0 && !claims_.growing(id);
  if (whole && lease->tenant == tenant && lease->phase == LeasePhase::active && engine.serving()) {
    hold(id, client);
    engine.was_taken(id);
    result = daemon::Reply{daemon::LeaseReply{*lease}};
  } else if (lease != nullptr && lease->tenant == tenant &&
             (!whole || lease->phase == LeasePhase::transferring)) {
    result = Error{.code = ErrorCode::busy, .where = "attach", .detail = "it is being changed"};
  }
  answer(engine.settled().then([result = std::move(result)](Status status) -> Result<daemon::Reply> {
    if (!status.ok()) return std::move(status).error();
    return result;
  }),
         std::move(reply), {});
  turn();
}

void EngineManager::let_go(LeaseId lease, uint64_t client) {
  const auto at = holders_.find(lease);
  if (at == holders_.end()) return;
  at->second.erase(client);
  if (at->second.empty()) holders_.erase(at);
}

// As daemon/rpc/waiting_grants.h: the calls are dropped, and the engine is told.
void EngineManager::cancel(const daemon::Grant& grant) {
  if (!serving()) return;
  const Key key{grant.tenant, grant.request_high, grant.request_low};
  for (const auto& [id, lease] : machine().leases()) {
    if (lease.phase != LeasePhase::waiting || key != Key{lease.tenant, lease.request_high, lease.request_low})
      continue;
    for (Asked& asked : process_->asked) {
      if (asked.grant != key || asked.answered) continue;
      asked.canceler.cancel("its client is gone");
      asked.answered = true;
    }
    submit(daemon::CancelGrant{id, process_->engine->now_ns()}, nullptr);
    return;
  }
}

void EngineManager::taskFailed(kj::Exception&&) {}  // a call that was dropped

bool EngineManager::idle() const {
  return serving_ && process_->engine->idle() && process_->asked.empty() && moving_.empty();
}

const daemon::StateMachine& EngineManager::machine() const {
  return process_ != nullptr && process_->recovered ? process_->engine->state() : last_machine_;
}

uint64_t EngineManager::moves() const {
  return moves_ + (process_ != nullptr ? process_->engine->counters().moves : 0);
}

uint64_t EngineManager::hand_overs(LeaseId lease) const {
  const auto at = hand_overs_.find(lease);
  return at == hand_overs_.end() ? 0 : at->second;
}

}  // namespace terrace::sim
