// SPDX-License-Identifier: Apache-2.0
// What is checked while the engine runs: each step before anything of it is out, each recovery, each commit; and
// what holders are told.
#include <utility>

#include "core/base/limits.h"
#include "tests/sim/engine/engine_manager.h"
#include "tests/sim/manager/sim_store.h"
#include "tests/support/reply_kinds.h"

namespace terrace::sim {
namespace {

using daemon::LeasePhase;

// What the engine reports to the state machine, not what somebody asks for.
bool report(const daemon::Command& command) {
  return std::holds_alternative<daemon::CarveFinished>(command) ||
         std::holds_alternative<daemon::ResizeFinished>(command) ||
         std::holds_alternative<daemon::RebindFinished>(command);
}

}  // namespace

// The planted defects that need a state machine which is told something else.
daemon::Command EngineManager::decoy(const daemon::Command& command) const {
  daemon::Command told = command;
  if (auto* quota = std::get_if<daemon::SetQuota>(&told); quota && environment_.planted(Plant::ignore_quota)) {
    quota->quota.bytes_max *= 2;
    quota->quota.leases_max *= 2;
  }
  if (auto* reserve = std::get_if<daemon::CreateReservation>(&told);
      reserve && environment_.planted(Plant::ignore_reservation))
    reserve->bytes = limits::granule_bytes;
  if (auto* claim = std::get_if<daemon::ClaimPart>(&told); claim && environment_.planted(Plant::ignore_death))
    claim->dead_epoch = 0;
  return told;
}

// A claim of a usable lease's part, whose owner was seen to have ended: nothing makes that busy.
bool EngineManager::takes_part_of_the_dead(const daemon::Command& command) const {
  const auto* claim = std::get_if<daemon::ClaimPart>(&command);
  if (claim == nullptr || claim->dead_epoch == 0) return false;
  const daemon::LeaseRow* lease = machine().find_lease(claim->lease);
  const daemon::OwnerRow* owner = machine().find_owner(claim->lease, claim->part);
  return lease != nullptr && lease->phase == LeasePhase::active && owner != nullptr &&
         owner->epoch == claim->dead_epoch;
}

void EngineManager::applied(const daemon::Command& command, const daemon::Step& step,
                            const daemon::StateMachine& state) {
  if (process_->fate.over()) return;
  const bool this_one = told_ != nullptr && told_->index() == command.index();
  const daemon::Command& asked = this_one ? *told_ : command;
  if (this_one && part_of_the_dead_ && !step.reply.ok() && step.reply.error().code == ErrorCode::busy)
    environment_.fail("owner liveness: a part is refused although its owner has ended");
  backend_.know(state);
  ledger_.check(state);
  claims_.after(asked, step, state);
  metrics_.applied(command, step);
  stepped_ = true;
  if (const auto* rebound = std::get_if<daemon::RebindFinished>(&command); rebound && step.reply.ok())
    ++hand_overs_[rebound->lease];
  if (const auto* move = std::get_if<daemon::BeginMove>(&command); move && move->tenant.empty()) {
    moving_.insert(move->lease);
    ledger_.move_begins(move->lease);
  }
  if (!step.reply.ok() && !step.delta.empty() && !report(command))
    environment_.fail("a refused command changed rows");
  if (step.reply.ok()) {
    accepted_.insert(command.index());
    if (!test::is_reply_to(command, *step.reply))
      environment_.fail("a command was answered with another kind of reply than it promises");
  }
  (void)process_->fate.strikes("after a command");
}

void EngineManager::recovered(const daemon::Recovery& recovery, const daemon::Observation& observed,
                              const daemon::StateMachine& state) {
  if (process_->fate.over()) return;
  process_->recovered = true;
  ++recoveries_;
  environment_.note("daemon: recovered, %zu effects, %zu orphans", recovery.effects.size(),
                    recovery.orphans.size());
  backend_.know(state);
  ledger_.check(state);
  ledger_.check_settings(state);
  claims_.recovered(state);
  stepped_ = true;
  daemon::StateMachine again;
  const auto repeated = again.recover(state.image(), observed, clock_.boot_id(), environment_.now_ns());
  if (!repeated.ok() || !repeated->delta.empty() || repeated->effects.size() != recovery.effects.size())
    environment_.fail("recovery is not idempotent: done again it changes rows or effects");
  if (!environment_.planted(Plant::skip_redo)) return;
  for (const daemon::Effect& effect : recovery.effects) {
    if (const auto* fence = std::get_if<daemon::FenceObject>(&effect)) process_->memory.ignore(fence->object);
    if (const auto* scrub = std::get_if<daemon::ScrubObject>(&effect)) process_->memory.ignore(scrub->object);
  }
}

void EngineManager::durable(const daemon::Delta& delta) {
  metrics_.committed();
  for (const auto& [id, row] : delta.leases) {
    const daemon::LeaseRow* now = machine().find_lease(id);
    if (row.has_value() && row->phase == LeasePhase::quarantined && now != nullptr &&
        now->phase == LeasePhase::quarantined)
      ledger_.quarantine_durable(*row);
  }
}

// Rows in memory and in the store agree whenever nothing is on its way: no change was left out of a Delta.
void EngineManager::check_stored() {
  if (!serving_ || !process_->engine->is_settled() || environment_.planted_anything()) return;
  if (checked_commits_ == store_.commits()) return;
  checked_commits_ = store_.commits();
  daemon::Image image = machine().image();
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

void EngineManager::check_metrics() {
  if (process_ == nullptr || !process_->recovered || !std::exchange(stepped_, false)) return;
  metrics_.check_state(process_->engine->state(), claims_);
  metrics_.check_engine(*process_->engine);
}

void EngineManager::look_after_moves() {
  for (auto at = moving_.begin(); at != moving_.end();) {
    if (process_->engine->is_moving(*at)) {
      ++at;
    } else {
      ledger_.move_over(*at);
      at = moving_.erase(at);
    }
  }
}

// --- what holders are told --------------------------------------------------------------------------

void EngineManager::revoking(LeaseId lease, uint64_t grace_ns, const std::string& reason) {
  if (process_->fate.strikes("before a notice")) return;
  ledger_.grace_announced(machine(), lease, grace_ns);
  daemon::NotifyHolders notice;
  notice.lease = lease;
  notice.grace_ns = grace_ns;
  notice.reason = reason;
  if (notice_) notice_(notice);
}

void EngineManager::fenced(LeaseId lease, const std::string& reason, daemon::LeaseCause cause) {
  if (process_->fate.strikes("before a notice")) return;
  holders_.erase(lease);
  daemon::NotifyHolders notice;
  notice.lease = lease;
  notice.reason = reason;
  notice.fenced = true;
  notice.cause = cause;
  if (notice_) notice_(notice);
}

size_t EngineManager::holders(LeaseId lease) const {
  if (environment_.planted(Plant::ignore_moves)) return 2;
  if (environment_.planted(Plant::ignore_holders)) return 0;
  const auto at = holders_.find(lease);
  return at == holders_.end() ? 0 : at->second.size();
}

bool EngineManager::move_requested(LeaseId lease, const std::string&) {
  if (process_->fate.strikes("before a notice")) return false;
  if (move_request_) move_request_(lease, *holders_.at(lease).begin());
  return true;
}

}  // namespace terrace::sim
