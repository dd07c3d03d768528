// SPDX-License-Identifier: Apache-2.0
// The shell's death and its start.
#include <utility>

#include "tests/sim/manager/sim_daemon.h"

namespace terrace::sim {
namespace {

constexpr uint64_t reconnect_ns = 5 * ns_per_s;  // for sessions to come back after a restart

}  // namespace

// --- death ------------------------------------------------------------------------------------------

void SimDaemon::stop() {
  ++generation_;
  serving_ = false;
  committing_ = commit_requested_ = deferring_ = false;
  open_ = {};
  waiting_.clear();
  carving_.clear();
  changing_.clear();
  jobs_.clear();
  busy_until_.clear();
  asked_to_move_ns_.clear();
  for (const auto& [lease, disturbed] : moving_) ledger_.move_over(lease);
  moving_.clear();
  applied_ = in_flight_ = durable_ = 0;
}

void SimDaemon::crash(const char* where) {
  environment_.note("daemon: crash (%s)", where);
  ++crashes_;
  store_.crash();
  for (const auto& [number, job] : jobs_) backend_.cut_off(job.effect);
  stop();
  holders_.clear();
  moves_from_ns_ = UINT64_MAX;
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
  for (auto& [lease, reply] : changing_) told.push_back(std::move(reply));
  for (const auto& [number, job] : std::exchange(jobs_, {})) {
    if (std::holds_alternative<daemon::ScrubObject>(job.effect)) {
      backend_.cut_off(job.effect);  // it ends with its piece
    } else {
      (void)work(job.effect);
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
  daemon::Image image = store_.load();
  for (const auto& device : image.devices)
    if (backend_.seen(device.serial)) observed.device_serials.push_back(device.serial);
  const std::string boot_id = "boot-" + std::to_string(boot_);
  machine_ = daemon::StateMachine();
  auto recovered = machine_.recover(std::move(image), observed, boot_id, environment_.now_ns());
  if (!recovered.ok()) {
    environment_.fail("recovery refused what the store holds: %s", recovered.error().to_string().c_str());
    return;
  }
  ++recoveries_;
  const daemon::Recovery recovery = std::move(recovered).value();
  environment_.note("daemon: recovered, %zu effects, %zu orphans", recovery.effects.size(),
                    recovery.orphans.size());
  backend_.know(machine_);
  ledger_.check(machine_);
  ledger_.check_settings(machine_);
  claims_.recovered(machine_);
  metrics_.check_state(machine_, claims_);
  check_idempotent(recovery, observed);
  if (!repair(recovery)) return;
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

void SimDaemon::check_idempotent(const daemon::Recovery& recovery, const daemon::Observation& observed) {
  daemon::StateMachine again;
  const auto repeated =
      again.recover(machine_.image(), observed, "boot-" + std::to_string(boot_), environment_.now_ns());
  if (!repeated.ok() || !repeated->delta.empty() || repeated->effects.size() != recovery.effects.size()) {
    environment_.fail("recovery is not idempotent: done again it changes rows or effects");
  }
}

// Before anything is granted: objects that no lease has, and what a growth that nobody was told of left behind.
bool SimDaemon::repair(const daemon::Recovery& recovery) {
  if (crash_here("before orphans")) return false;
  for (const std::string& orphan : recovery.orphans) {
    if (!environment_.planted(Plant::keep_orphans)) backend_.destroy(orphan);
  }
  if (crash_here("after orphans")) return false;
  for (const daemon::Effect& effect : recovery.effects) {
    const auto* resize = std::get_if<daemon::ResizeObject>(&effect);
    if (resize == nullptr || environment_.planted(Plant::skip_resize_redo)) continue;
    if (!backend_.resize(*resize).ok()) {
      crash("an object could not be cut back");  // stands for trying again later
      return false;
    }
  }
  return true;
}

void SimDaemon::finish_recovery(const daemon::Recovery& recovery) {
  serving_ = true;
  serving_since_ns_ = environment_.steady_ns();
  if (moves_from_ns_ == UINT64_MAX) moves_from_ns_ = serving_since_ns_ + reconnect_ns;
  const uint64_t generation = generation_;
  for (const daemon::Effect& effect : recovery.effects) {
    const bool resize = std::holds_alternative<daemon::ResizeObject>(effect);
    if (environment_.planted(Plant::skip_redo) || (resize && environment_.planted(Plant::skip_resize_redo)))
      continue;
    perform(effect);
    if (generation != generation_) return;
  }
  later(ns_per_s, [this] { keep_house(); });
  arm_timer();
}

}  // namespace terrace::sim
