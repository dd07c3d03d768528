// SPDX-License-Identifier: Apache-2.0
// What the shell does outside: objects made, changed, fenced and erased, holders told, devices watched, leases
// moved.
#include <algorithm>

#include "core/base/limits.h"
#include "tests/sim/manager/sim_daemon.h"

namespace terrace::sim {
namespace {

using daemon::LeasePhase;

constexpr uint64_t ask_again_ns = 10 * ns_per_s;
constexpr size_t moves_at_once = 4;

unsigned long long number(LeaseId id) {
  return id.value;
}

// The objects whose work is done in its order, and the name of the work for the trace.
struct Work {
  std::string name;
  std::vector<std::string> objects;
};

Work work_of(const daemon::Effect& effect) {
  struct Describe {
    Work operator()(const daemon::CarveObject& e) { return {"carve " + e.object, {e.object}}; }
    Work operator()(const daemon::FenceObject& e) { return {"fence " + e.object, {}}; }  // never waits
    Work operator()(const daemon::ScrubObject& e) { return {"scrub " + e.object, {e.object}}; }
    Work operator()(const daemon::RefuseGrant&) { return {"refuse a grant", {}}; }
    Work operator()(const daemon::ResizeObject& e) {
      return {"resize " + e.object + " to " + std::to_string(e.to_bytes / limits::granule_bytes), {e.object}};
    }
    Work operator()(const daemon::RebindObject& e) {
      return {"hand over " + e.from + " to " + e.to, {e.from, e.to}};
    }
    Work operator()(const daemon::ShowObject& e) { return {"show " + e.view, {e.view}}; }
    Work operator()(const daemon::HideObject& e) { return {"hide " + e.view, {e.view}}; }
    Work operator()(const daemon::NotifyHolders&) { return {"tell holders", {}}; }
  };
  return std::visit(Describe{}, effect);
}

}  // namespace

// Nobody is shut out, and nothing erased or cut, by a decision that a crash could undo.
void SimDaemon::check_decided(const daemon::Effect& effect) {
  const auto taken_back = [&](const std::string& object) {
    const daemon::LeaseRow* row = store_.find_by_object(object);
    return row == nullptr || row->phase == LeasePhase::fencing || row->phase == LeasePhase::scrubbing ||
           row->phase == LeasePhase::quarantined;
  };
  if (const auto* fencing = std::get_if<daemon::FenceObject>(&effect)) {
    if (!taken_back(fencing->object))
      environment_.fail("lease %llu is fenced before that is durable", number(fencing->lease));
  } else if (const auto* scrubbing = std::get_if<daemon::ScrubObject>(&effect)) {
    if (!taken_back(scrubbing->object))
      environment_.fail("lease %llu is scrubbed before that is durable", number(scrubbing->lease));
  } else if (const auto* rebinding = std::get_if<daemon::RebindObject>(&effect)) {
    const daemon::LeaseRow* row = store_.find_by_object(rebinding->from);
    if (row != nullptr && row->phase != LeasePhase::transferring && !taken_back(rebinding->from))
      environment_.fail("lease %llu is handed over before that is durable", number(rebinding->lease));
  } else if (const auto* resizing = std::get_if<daemon::ResizeObject>(&effect)) {
    const daemon::LeaseRow* row = store_.find_by_object(resizing->object);
    const bool shrinks = resizing->to_bytes < resizing->from_bytes;
    if (shrinks && row != nullptr && !taken_back(resizing->object) && row->target_bytes != resizing->to_bytes &&
        row->bytes != resizing->to_bytes)
      environment_.fail("lease %llu is cut before that is durable", number(resizing->lease));
    if (resizing->to_bytes > resizing->from_bytes && row != nullptr && !taken_back(resizing->object) &&
        (row->bytes != resizing->to_bytes || row->target_bytes != resizing->from_bytes))
      environment_.fail("lease %llu grows before that is durable", number(resizing->lease));
  }
}

void SimDaemon::perform_at_once(const daemon::Effect& effect, const daemon::Command& cause) {
  if (const auto* refused = std::get_if<daemon::RefuseGrant>(&effect)) {
    if (environment_.planted(Plant::drop_refusals)) return;
    const auto at = carving_.find(refused->lease);
    if (at == carving_.end()) return;
    const std::vector<ReplyAction> told = std::move(at->second);
    carving_.erase(at);
    for (const ReplyAction& one : told)
      hold_back(
          false, [one, error = refused->error] { one(Result<daemon::Reply>(error)); }, one);
    request_commit();
    return;
  }
  if (const auto* carve = std::get_if<daemon::CarveObject>(&effect)) {
    const bool asked_now =
        std::holds_alternative<daemon::Grant>(cause) || std::holds_alternative<daemon::BeginMove>(cause);
    if (!asked_now && environment_.planted(Plant::stall_queue)) return;
    if (!carving_.contains(carve->lease)) {  // it was served from the queue and its client is gone
      const Status gone = Error{.code = ErrorCode::cancelled, .where = "Grant", .detail = "its client is gone"};
      apply(daemon::CarveFinished{carve->lease, gone, environment_.now_ns()}, nullptr);
      return;
    }
  }
  perform(effect);
}

void SimDaemon::perform(const daemon::Effect& effect) {
  if (const auto* notice = std::get_if<daemon::NotifyHolders>(&effect)) {
    if (!notice->fenced) ledger_.grace_announced(machine_, notice->lease, notice->grace_ns);
    if (notice_) notice_(*notice);
    return;
  }
  const uint64_t number = next_job_++;
  Job& job = jobs_[number];
  job.effect = effect;
  const auto* scrub = std::get_if<daemon::ScrubObject>(&effect);
  if (scrub != nullptr && backend_.erases_in_place()) job.left = scrub->bytes / limits::granule_bytes;
  schedule(number);
}

void SimDaemon::schedule(uint64_t job) {
  const uint64_t now_ns = environment_.now_ns();
  const uint64_t max_ns = environment_.faults().effect_ns_max;
  uint64_t at_ns = now_ns + some_ns(jobs_.at(job).left > 0 ? max_ns / 8 : max_ns);
  const Work work = work_of(jobs_.at(job).effect);
  for (const std::string& object : work.objects) at_ns = std::max(at_ns, busy_until_[object] + 1);
  for (const std::string& object : work.objects) busy_until_[object] = at_ns;
  later(at_ns - now_ns, [this, job] { finish_effect(job); });
}

void SimDaemon::finish_effect(uint64_t job) {
  const daemon::Effect effect = jobs_.at(job).effect;
  if (crash_here("in the middle of an effect")) return;
  const bool carve = std::holds_alternative<daemon::CarveObject>(effect);
  if (!carve && environment_.chance_percent(environment_.faults().passing_failure_percent)) {
    environment_.note("backend: %s has to be tried again", work_of(effect).name.c_str());
    later(ns_per_s, [this, job] { schedule(job); });
    return;
  }
  check_decided(effect);
  if (jobs_.at(job).left > 0) {
    erase_piece(job);
    return;
  }
  jobs_.erase(job);
  const daemon::Command finished = work(effect);
  const Status& status = std::visit(
      [](const auto& c) -> const Status& {
        static const Status none;
        if constexpr (requires { c.status; }) return c.status;
        return none;
      },
      finished);
  environment_.note("backend: %s%s", work_of(effect).name.c_str(), status.ok() ? "" : ": failed");
  if (crash_here("after an effect")) return;
  apply(finished, nullptr);
}

// From the end; the last piece of a lease becomes free with the lease itself.
void SimDaemon::erase_piece(uint64_t number) {
  Job& job = jobs_.at(number);
  auto& scrub = std::get<daemon::ScrubObject>(job.effect);
  const uint64_t count = std::min(job.left, environment_.prng().between(1, 3));
  const bool early = environment_.planted(Plant::early_free_on_advance);
  const uint64_t now_ns = environment_.now_ns();
  const Status status = early ? Status{} : backend_.erase(scrub, job.left - count, count);
  if (!status.ok()) {
    const LeaseId lease = scrub.lease;
    jobs_.erase(number);
    apply(daemon::ScrubFinished{lease, status, now_ns}, nullptr);
    return;
  }
  environment_.note("backend: erased %llu granules of %s", static_cast<unsigned long long>(count),
                    scrub.object.c_str());
  job.left -= count;
  scrub.bytes -= count * limits::granule_bytes;
  const bool more = job.left > 0;
  schedule(number);
  if (!more) return;
  if (crash_here("after a piece of a scrub")) return;
  apply(daemon::ScrubAdvanced{scrub.lease, count, now_ns}, nullptr);
}

daemon::Command SimDaemon::work(const daemon::Effect& effect) {
  const uint64_t now_ns = environment_.now_ns();
  if (const auto* carving = std::get_if<daemon::CarveObject>(&effect))
    return daemon::CarveFinished{carving->lease, backend_.carve(*carving), now_ns};
  if (const auto* fencing = std::get_if<daemon::FenceObject>(&effect)) {
    const daemon::LeaseRow* lease = machine_.find_lease(fencing->lease);
    if (lease != nullptr && lease->cause == daemon::LeaseCause::moved &&
        environment_.planted(Plant::move_without_fence)) {
      backend_.pretend_fence(fencing->object);
      return daemon::FenceFinished{fencing->lease, {}, now_ns};
    }
    return daemon::FenceFinished{fencing->lease, backend_.fence(fencing->object), now_ns};
  }
  if (const auto* scrubbing = std::get_if<daemon::ScrubObject>(&effect))
    return daemon::ScrubFinished{scrubbing->lease, backend_.scrub(scrubbing->object), now_ns};
  if (const auto* resizing = std::get_if<daemon::ResizeObject>(&effect))
    return daemon::ResizeFinished{resizing->lease, backend_.resize(*resizing), now_ns};
  if (const auto* rebinding = std::get_if<daemon::RebindObject>(&effect))
    return daemon::RebindFinished{rebinding->lease, backend_.rebind(*rebinding), now_ns};
  return daemon::Tick{now_ns};
}

// --- housekeeping -----------------------------------------------------------------------------------

void SimDaemon::keep_house() {
  const uint64_t generation = generation_;
  watch_devices();
  if (generation == generation_ && environment_.steady_ns() >= moves_from_ns_) drive_moves();
  if (generation == generation_) later(ns_per_s, [this] { keep_house(); });
}

void SimDaemon::watch_devices() {
  std::vector<std::pair<std::string, bool>> changed;  // serial, lost
  for (const auto& [id, device] : machine_.devices()) {
    const bool here = backend_.seen(device.serial);
    if (here == machine_.absent(id)) changed.emplace_back(device.serial, !here);
  }
  const uint64_t generation = generation_;
  for (const auto& [serial, lost] : changed) {
    if (lost && environment_.planted(Plant::keep_lost_device)) continue;
    environment_.note("daemon: device %s %s", serial.c_str(), lost ? "vanished" : "is back");
    if (lost) {
      apply(daemon::DeviceLost{serial, environment_.now_ns()}, nullptr);
    } else {
      apply(daemon::DeviceBack{serial, environment_.now_ns()}, nullptr);
    }
    if (generation != generation_) return;
  }
}

void SimDaemon::drive_moves() {
  if (environment_.planted(Plant::ignore_moves)) return;
  const uint64_t generation = generation_;
  for (const daemon::WantedMove& move : machine_.moves_wanted()) {
    if (!move.movable || move.target.valid() || moving_.contains(move.lease)) continue;
    const auto holders = holders_.find(move.lease);
    if (holders == holders_.end()) {
      move_unheld(move.lease);
    } else if (holders->second.size() == 1) {
      uint64_t& asked_ns = asked_to_move_ns_[move.lease];
      if (asked_ns != 0 && environment_.now_ns() - asked_ns < ask_again_ns) continue;
      asked_ns = environment_.now_ns();
      if (move_request_) move_request_(move.lease, *holders->second.begin());
    }
    if (generation != generation_) return;
  }
}

void SimDaemon::move_unheld(LeaseId lease) {
  if (moving_.size() >= moves_at_once) return;
  moving_[lease] = false;
  ledger_.move_begins(lease);
  environment_.note("daemon: moves lease %llu", number(lease));
  apply(daemon::BeginMove{lease, "", environment_.now_ns()}, [this, lease](const Result<daemon::Reply>& reply) {
    const auto* ready = reply.ok() ? std::get_if<daemon::MoveReady>(&*reply) : nullptr;
    if (ready == nullptr) {
      end_move(lease);
    } else {
      copy_and_finish(*ready);
    }
  });
}

void SimDaemon::end_move(LeaseId lease) {
  moving_.erase(lease);
  ledger_.move_over(lease);
}

// Copying takes its time, and somebody may attach, write and be gone again before it has ended.
void SimDaemon::copy_and_finish(const daemon::MoveReady& move) {
  const daemon::LeaseRow* lease = machine_.find_lease(move.lease);
  if (lease == nullptr) {
    end_move(move.lease);
    return;
  }
  const uint64_t half_ns = environment_.faults().effect_ns_max / 2;
  later(some_ns(half_ns), [this, move, half_ns, from = lease->object] {
    const bool copied = backend_.copy(from, move.object).ok();
    later(some_ns(half_ns), [this, move, copied] { finish_move(move, copied); });
  });
}

// Whoever attached it meanwhile has, or had, the old memory: the lease stays where it is.
void SimDaemon::finish_move(const daemon::MoveReady& move, bool copied) {
  const auto state = moving_.find(move.lease);
  const bool held = state == moving_.end() || state->second || holders_.contains(move.lease);
  const bool commit = copied && (!held || environment_.planted(Plant::ignore_holders));
  apply(daemon::FinishMove{move.lease, move.target, "", commit, environment_.now_ns()},
        [this, move, commit](const Result<daemon::Reply>& reply) {
          end_move(move.lease);
          if (commit && reply.ok()) ++moves_;
        });
}

}  // namespace terrace::sim
