// SPDX-License-Identifier: Apache-2.0
// Quarantined leases whose memory is only kept for pages that somebody still holds without a mapping: once a second
// the backend is asked whether they have ended, and then the lease leaves quarantine by itself.
#include "daemon/event_loop/engine.h"
#include "daemon/log/log.h"

namespace terrace::daemon {

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
