// SPDX-License-Identifier: Apache-2.0
// Memory that is not taken, or not free, before somebody has let go of it.
//
// Holders that agreed to be ended first (on_fence kill): only when they run no more is the object fenced, or handed over.
// What they pinned is let go with them, so that the memory comes back at once. A process that does not end (it hangs in the
// kernel) keeps its lease in quarantine, which is looked at once a second: when it has ended the fence goes on by itself, also after a
// restart.
//
// Quarantined leases whose memory is only kept for pages that somebody still holds without a mapping: once a second
// the backend is asked whether they have ended, and then the lease leaves quarantine by itself.
#include "core/base/failpoint.h"
#include "daemon/event_loop/engine.h"
#include "daemon/events/commands/command_events.h"
#include "daemon/log/log.h"
#include "daemon/memory/remote/remote_memory.h"

namespace terrace::daemon {

// --- holders that are ended ---

void Engine::end_holders(LeaseId id, std::string object, std::function<void(Status)> then) {
  const LeaseRow* lease = state_->find_lease(id);
  if (lease == nullptr || lease->on_fence != OnFence::kill) return then(Status{});
  ++backend_jobs_;
  auto asked = ask_to_end(object);
  tasks_.add(
      asked.then([this, id, object = std::move(object), then = std::move(then)](HoldersEnded ended) mutable {
        --backend_jobs_;
        tell_ended(id, ended.ended);
        [[maybe_unused]] const int armed = TERRACE_FAILPOINT(fence_after_end);
        if (refusing_) return;  // recovery looks at every lease again
        if (ended.status.ok() || !passing_failure(ended.status)) {
          if (!ended.status.ok()) unended_.insert(id);
          then(std::move(ended.status));
          return;
        }
        tasks_.add(timer_.afterDelay(1 * kj::SECONDS)
                       .then([this, id, object = std::move(object), then = std::move(then),
                              recoveries = recoveries_begun_]() mutable {
                         if (!refusing_ && recoveries == recoveries_begun_)
                           end_holders(id, std::move(object), std::move(then));
                       }));
      }));
}

kj::Promise<HoldersEnded> Engine::ask_to_end(const std::string& object) {
  if (!object_host(object).empty())
    return worker_of(object, true).run([this, object]() -> HoldersEnded {
      return backend_.end_holders(object);
    });
  if (ender_ == nullptr) return HoldersEnded{};
  return ender_->end_holders(object);
}

void Engine::tell_ended(LeaseId id, const std::vector<std::string>& ended) {
  const LeaseRow* lease = state_->find_lease(id);
  for (const std::string& holder : ended) {
    const std::string text = holder + " was ended, as it agreed, before the memory of lease " +
                             std::to_string(id.value) + " is taken" +
                             (lease == nullptr || lease->reason.empty() ? "" : ": " + lease->reason);
    if (options_.tell_events && lease != nullptr)
      events_.tell(lease_event(EventKind::lease_holder_ended, *lease, *state_, text));
    note("end-holder", "lease " + std::to_string(id.value), text, Actor{});
  }
}

// What was quarantined before this start: a holder may have ended since.
void Engine::ask_for_unended() {
  unended_.clear();
  for (const auto& [id, lease] : state_->leases())
    if (lease.on_fence == OnFence::kill && lease.phase == LeasePhase::quarantined &&
        lease.reason.find(holder_not_ended) != std::string::npos)
      unended_.insert(id);
}

void Engine::look_at_unended() {
  for (auto at = unended_.begin(); at != unended_.end();) {
    const LeaseRow* lease = state_->find_lease(*at);
    const bool taken_back =
        lease != nullptr && (lease->phase == LeasePhase::fencing || lease->phase == LeasePhase::quarantined);
    if (!taken_back) {
      at = unended_.erase(at);
      continue;
    }
    const LeaseId id = *at++;
    if (lease->phase != LeasePhase::quarantined || !looking_at_unended_.insert(id).second) continue;
    const std::vector<ViewRow> views = state_->views_of(id);
    auto asked = kj::heapArrayBuilder<kj::Promise<HoldersEnded>>(1 + views.size());
    asked.add(ask_to_end(lease->object));
    for (const ViewRow& view : views) asked.add(ask_to_end(view.object));
    tasks_.add(kj::joinPromises(asked.finish()).then([this, id](kj::Array<HoldersEnded> answers) {
      looking_at_unended_.erase(id);
      const LeaseRow* now = state_->find_lease(id);
      if (refusing_ || now == nullptr || now->phase != LeasePhase::quarantined) return;
      for (const HoldersEnded& each : answers)
        if (!each.status.ok()) return;
      unended_.erase(id);
      for (const HoldersEnded& each : answers) tell_ended(id, each.ended);
      log::info("lease {}: its holders have ended; it is fenced", id.value);
      apply(Release{id, "", clock_.now_ns()}, nullptr);
    }));
  }
}

// --- pages that somebody holds ---

// What was quarantined before this start: only the backend knows whether it is such memory.
void Engine::ask_for_kept_memory() {
  kept_.clear();
  for (const auto& [id, lease] : state_->leases())
    if (lease.phase == LeasePhase::quarantined) kept_.insert(id);
}

// Busy is other memory, too: a device that is in the way. The backend tells.
void Engine::note_kept_memory(LeaseId lease, const Status& scrubbed) {
  if (!scrubbed.ok() && scrubbed.error().code == ErrorCode::busy) kept_.insert(lease);
}

void Engine::look_at_kept_memory() {
  struct Memory {
    LeaseId lease;
    std::string object;
    std::vector<Extent> extents;
    Kept kept = Kept::no;
  };
  // By who looks: memory of another host is asked for on that host's worker, where an agent that hangs holds up its own only.
  std::map<Worker*, std::vector<Memory>> looked_at;
  for (auto at = kept_.begin(); at != kept_.end();) {
    const LeaseRow* lease = state_->find_lease(*at);
    if (lease == nullptr || lease->phase != LeasePhase::quarantined) {
      at = kept_.erase(at);
      continue;
    }
    Worker& worker = worker_of(lease->object, false);
    if (!looking_at_kept_.contains(&worker)) looked_at[&worker].push_back({*at, lease->object, lease->extents});
    ++at;
  }
  for (auto& [worker, memory] : looked_at) {
    looking_at_kept_.insert(worker);
    tasks_.add(worker
                   ->run([this, memory = std::move(memory)]() mutable -> std::vector<Memory> {
                     for (Memory& one : memory) one.kept = backend_.kept(one.object, one.extents);
                     return std::move(memory);
                   })
                   .then([this, worker = worker](std::vector<Memory> seen) {
                     looking_at_kept_.erase(worker);
                     for (const Memory& one : seen) {
                       if (refusing_ || one.kept == Kept::yes) continue;
                       kept_.erase(one.lease);
                       if (one.kept == Kept::no) continue;  // quarantined for another reason
                       log::info("lease {}: nobody holds a page of its memory any more; it is erased",
                                 one.lease.value);
                       apply(Release{one.lease, "", clock_.now_ns()}, nullptr);
                     }
                   }));
  }
}

}  // namespace terrace::daemon
