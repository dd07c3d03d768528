// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/ended_holders.h"

#include <unistd.h>

#include <algorithm>

#include "daemon/event_loop/processes.h"
#include "daemon/log/log.h"
#include "daemon/memory/path_access.h"
#include "daemon/rpc/service.h"

namespace terrace::daemon {
namespace {

// A connection ends a moment before its process does; a process that lives on is looked at more and more rarely.
constexpr int64_t pause_ms_min = 2;
constexpr int64_t pause_ms_max = 1000;
// In one look: each one's memory is opened on the event loop.
constexpr size_t leases_per_look_max = 256;
constexpr int64_t grace_look_ms = 1000;

}  // namespace

EndedHolders::EndedHolders(Service& service, kj::Timer& timer, std::string file)
    : service_(service), timer_(timer), file_(std::move(file)), tasks_(*this) {
  watched_ =
      file_.take_over([this](LeaseId lease) { return service_.engine().state().find_lease(lease) != nullptr; });
  std::set<LeaseId> before;
  for (const auto& [lease, holders] : watched_) before.insert(lease);
  let_go(before);  // who lives connects again, which takes the lease out of these
  for (const auto& [lease, row] : service_.engine().state().leases())
    if (row.phase == LeasePhase::revoking) revoking(lease);  // since before this start
  tasks_.add(watch());
}

void EndedHolders::taskFailed(kj::Exception&& exception) {
  log::error("leases of ended processes are left to their TTL: {}", exception.getDescription().cStr());
}

void EndedHolders::handed_over(LeaseId lease, const ProcessId& process, const std::string& holder,
                               bool ends_with_holders) {
  LeaseHolders& watched = watched_[lease];
  watched.ends |= ends_with_holders;
  watched.unseen |= process.pid == 0;
  watched.holder = holder;
  auto& processes = watched.processes;
  if (std::find(processes.begin(), processes.end(), process) != processes.end()) return;
  if (processes.size() % 16 == 15) std::erase_if(processes, process_has_ended);
  processes.push_back(process);
  file_.handed_over(lease, process, watched, watched_);
}

void EndedHolders::let_go(const std::set<LeaseId>& leases) {
  for (const LeaseId lease : leases)
    if (const auto at = watched_.find(lease); at != watched_.end() && at->second.ends && !at->second.unseen)
      unheld_.insert(lease);
  if (unheld_.empty()) return;
  pause_ms_ = pause_ms_min;
  if (wake_.get() != nullptr) wake_->fulfill();
}

void EndedHolders::forget(LeaseId lease) {
  if (watched_.erase(lease) == 0) return;
  unheld_.erase(lease);
  file_.forgotten(lease, watched_);
}

kj::Promise<void> EndedHolders::watch() {
  auto woken = kj::newPromiseAndFulfiller<void>();
  wake_ = kj::mv(woken.fulfiller);
  kj::Promise<void> wait = kj::mv(woken.promise);
  if (!unheld_.empty()) wait = wait.exclusiveJoin(timer_.afterDelay(pause_ms_ * kj::MILLISECONDS));
  return wait
      .then([this] {
        pause_ms_ = std::min(pause_ms_ * 2, pause_ms_max);
        return look();
      })
      .then([this] { return watch(); });
}

kj::Promise<void> EndedHolders::look() {
  std::vector<Ended> ended = without_holders();
  if (ended.empty()) return kj::READY_NOW;
  std::set<FileId> files;
  for (const Ended& one : ended) files.insert(one.memory);
  if (!worker_.has_value()) worker_.emplace();
  return worker_->run([files = std::move(files)] { return files_in_use(files); })
      .then([this, ended = std::move(ended)](Result<std::set<FileId>> used) {
        if (used.ok())
          give_back(ended, *used);
        else
          log::warn("leases of ended processes wait: {}", used.error().to_string());
      });
}

// From where the last look stopped: leases that somebody else still has must not keep those behind them.
std::vector<EndedHolders::Ended> EndedHolders::without_holders() {
  std::vector<Ended> found;
  known_.clear();
  std::vector<LeaseId> in_turn(unheld_.upper_bound(last_looked_at_), unheld_.end());
  in_turn.insert(in_turn.end(), unheld_.begin(), unheld_.upper_bound(last_looked_at_));
  for (const LeaseId id : in_turn) {
    if (found.size() == leases_per_look_max) {
      pause_ms_ = pause_ms_min;
      break;
    }
    last_looked_at_ = id;
    const LeaseRow* lease = service_.engine().state().find_lease(id);
    if (lease == nullptr || service_.holders().count(id) > 0)
      unheld_.erase(id);
    else if (const auto one = ended(id))
      found.push_back(*one);
  }
  return found;
}

// One answer a process and look: it may have had thousands of leases.
bool EndedHolders::has_ended(const ProcessId& process) {
  for (const auto& [known, ended] : known_)
    if (known == process) return ended;
  return known_.emplace_back(process, process_has_ended(process)).second;
}

bool EndedHolders::may_end(LeaseId id) {
  const LeaseRow* lease = service_.engine().state().find_lease(id);
  const auto at = watched_.find(id);
  if (lease == nullptr || at == watched_.end()) return false;
  if (lease->phase != LeasePhase::active && lease->phase != LeasePhase::revoking) return false;
  const LeaseHolders& watched = at->second;
  return watched.ends && !watched.unseen &&
         std::all_of(watched.processes.begin(), watched.processes.end(),
                     [this](const ProcessId& process) { return has_ended(process); });
}

kj::Promise<void> EndedHolders::settle(LeaseId lease, int tries) {
  known_.clear();
  if (tries == 0 || !may_end(lease)) return kj::READY_NOW;
  let_go({lease});
  return timer_.afterDelay(10 * kj::MILLISECONDS).then([this, lease, tries] {
    return settle(lease, tries - 1);
  });
}

// nullopt: it does not open now (a device that is late, say).
std::optional<FileId> EndedHolders::memory_of(const LeaseRow& lease) {
  const Result<SharedFd> memory = service_.open_memory(lease.object, ObjectAccess::read_only);
  if (!memory.ok()) return std::nullopt;
  const Result<FileId> file = file_id((*memory)->get());
  return file.ok() ? std::optional<FileId>(*file) : std::nullopt;
}

std::optional<EndedHolders::Ended> EndedHolders::ended(LeaseId id) {
  if (service_.holders().count(id) > 0 || !may_end(id)) return std::nullopt;
  const LeaseRow* lease = service_.engine().state().find_lease(id);
  const std::optional<FileId> memory = memory_of(*lease);
  if (!memory.has_value()) return std::nullopt;  // the TTL goes on
  return Ended{id, lease->epoch, *memory};
}

// No session has it, and every process that was given it and has not let go is seen to have ended.
bool EndedHolders::no_known_holder(LeaseId id) {
  if (service_.holders().count(id) > 0) return false;
  const auto at = watched_.find(id);
  if (at == watched_.end()) return true;
  known_.clear();
  return !at->second.unseen && std::all_of(at->second.processes.begin(), at->second.processes.end(),
                                           [this](const ProcessId& process) { return has_ended(process); });
}

kj::Promise<std::set<LeaseId>> EndedHolders::nobody_has(const std::set<LeaseId>& leases) {
  std::vector<Ended> maybe;
  std::set<FileId> files;
  for (const LeaseId id : leases) {
    const LeaseRow* lease = service_.engine().state().find_lease(id);
    if (::geteuid() != 0 || lease == nullptr) continue;
    if (lease->phase != LeasePhase::active && lease->phase != LeasePhase::revoking) continue;
    if (lease->mode != LeaseMode::exclusive || !no_known_holder(id)) continue;
    const std::optional<FileId> memory = memory_of(*lease);
    if (!memory.has_value()) continue;
    maybe.push_back({id, lease->epoch, *memory});
    files.insert(*memory);
  }
  if (maybe.empty()) return std::set<LeaseId>{};
  if (!worker_.has_value()) worker_.emplace();
  return worker_->run([files = std::move(files)] { return files_in_use(files); })
      .then([this, maybe = std::move(maybe)](Result<std::set<FileId>> used) {
        std::set<LeaseId> nobodys;
        if (!used.ok()) return nobodys;
        for (const Ended& one : maybe) {
          const LeaseRow* now = service_.engine().state().find_lease(one.lease);
          if (!used->contains(one.memory) && now != nullptr && now->epoch == one.epoch &&
              no_known_holder(one.lease))
            nobodys.insert(one.lease);
        }
        return nobodys;
      });
}

bool EndedHolders::show_grace(LeaseId id) {
  const LeaseRow* lease = service_.engine().state().find_lease(id);
  const uint64_t now_ns = service_.engine().now_ns();
  if (lease == nullptr || lease->phase != LeasePhase::revoking || lease->deadline_ns <= now_ns) return false;
  const Result<SharedFd> memory = service_.open_object(
      service_.engine().state().object_on(*lease, "").value_or(lease->object), ObjectAccess::read_only);
  if (!memory.ok())
    return false;  // another host's, whose agent does this for whoever has it there; or it is away now
  if (const Status shown = show_end_of_grace((*memory)->get(), lease->deadline_ns - now_ns); !shown.ok())
    log::warn("programs that have lease {} by a path do not see that it is taken back: {}", id.value,
              shown.error().to_string());
  return true;
}

void EndedHolders::revoking(LeaseId lease) {
  if (!show_grace(lease)) return;
  revoked_.insert(lease);
  if (std::exchange(watching_graces_, true)) return;
  tasks_.add(watch_graces());
}

kj::Promise<void> EndedHolders::watch_graces() {
  return timer_.afterDelay(grace_look_ms * kj::MILLISECONDS)
      .then([this] {
        std::set<LeaseId> unheld;
        std::erase_if(revoked_, [this](LeaseId lease) { return !show_grace(lease); });
        for (const LeaseId lease : revoked_)
          if (service_.holders().count(lease) == 0 && unheld.size() < leases_per_look_max) unheld.insert(lease);
        return nobody_has(unheld);
      })
      .then([this](const std::set<LeaseId>& nobodys) -> kj::Promise<void> {
        for (const LeaseId lease : nobodys) end_grace(lease);
        if (!revoked_.empty()) return watch_graces();
        watching_graces_ = false;
        return kj::READY_NOW;
      });
}

void EndedHolders::end_grace(LeaseId id) {
  const LeaseRow* lease = service_.engine().state().find_lease(id);
  if (lease == nullptr || lease->phase != LeasePhase::revoking) return;
  log::info("lease {}: nobody has its memory any more, its grace is over", id.value);
  service_.submit_unasked(Revoke{id, lease->reason, 0, service_.engine().now_ns()},
                          Actor{"manager, since nobody has its memory"});
}

// Of those that nobody got meanwhile.
void EndedHolders::give_back(const std::vector<Ended>& all, const std::set<FileId>& used) {
  known_.clear();
  for (const Ended& one : all) {
    const LeaseRow* lease = service_.engine().state().find_lease(one.lease);
    if (used.contains(one.memory) || lease == nullptr || lease->epoch != one.epoch ||
        service_.holders().count(one.lease) > 0 || !may_end(one.lease))
      continue;
    const std::string holder = watched_.at(one.lease).holder;
    log::info("lease {} goes back: {} has ended, and nobody else has its memory", one.lease.value, holder);
    service_.submit_unasked(Release{one.lease, lease->tenant, service_.engine().now_ns()},
                            Actor{"manager, since " + holder + " has ended"});
  }
}

}  // namespace terrace::daemon
