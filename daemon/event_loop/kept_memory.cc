// Quarantined leases whose memory is only kept for pages that somebody still holds without a mapping: once a second
// the backend is asked whether they have ended, and then the lease leaves quarantine by itself.
#include "daemon/event_loop/engine.h"
#include "daemon/log/log.h"

namespace terrace::daemon {

// What was quarantined before this start: only the backend knows whether it is such memory.
void Engine::ask_for_kept_memory() {
  kept_.clear();
  for (const auto& [id, lease] : state_->leases())
    if (lease.phase == LeasePhase::quarantined) kept_[id] = false;
}

void Engine::note_kept_memory(LeaseId lease, const Status& scrubbed) {
  if (!scrubbed.ok() && scrubbed.error().code == ErrorCode::busy) kept_[lease] = true;
}

kj::Promise<void> Engine::look_at_kept_memory() {
  struct Memory {
    LeaseId lease;
    std::string object;
    std::vector<Extent> extents;
    bool sure = false;  // it was such memory
    Kept kept = Kept::no;
  };
  std::vector<Memory> looked_at;
  for (auto at = kept_.begin(); at != kept_.end();) {
    const LeaseRow* lease = state_->find_lease(at->first);
    if (lease == nullptr || lease->phase != LeasePhase::quarantined) {
      at = kept_.erase(at);
      continue;
    }
    looked_at.push_back({at->first, lease->object, lease->extents, at->second});
    ++at;
  }
  if (looked_at.empty()) return kj::READY_NOW;
  return bulk_worker_
      .run([this, looked_at = std::move(looked_at)]() mutable -> std::vector<Memory> {
        for (Memory& one : looked_at) one.kept = backend_.kept(one.object, one.extents);
        return std::move(looked_at);
      })
      .then([this](std::vector<Memory> seen) {
        for (const Memory& one : seen) {
          const auto at = kept_.find(one.lease);
          if (refusing_ || at == kept_.end()) continue;
          at->second = at->second || one.kept == Kept::yes;
          if (one.kept == Kept::yes) continue;
          kept_.erase(at);
          if (one.kept == Kept::no && !one.sure) continue;  // quarantined for another reason
          log::info("lease {}: nobody holds a page of its memory any more; it is erased", one.lease.value);
          apply(Release{one.lease, "", clock_.now_ns()}, nullptr);
        }
      });
}

}  // namespace terrace::daemon
