// SPDX-License-Identifier: Apache-2.0
// Gives leases back whose holders have ended: every process of this machine that had the lease handed over, and
// asked for that (LeaseRequest::detached says not), and no other process has its memory mapped or open. They go at
// once instead of when their TTL is over, whether the last process exited or was killed.
//
// A manager that starts goes on with the holders that the one before wrote down (HolderFile): those that have ended
// meanwhile are seen to have. What it does not see leaves a lease to its TTL: a process of another host or pid
// namespace, a descriptor that is under way in a socket. The look at other processes is a courtesy:
// without a holder nobody renews, so what it overlooks would have lost the lease at its expiry.
//
// A lease that is being taken back and that no session has may be had by a path (Lease.openPath), of which nobody tells.
// The end of its grace is shown on its file for such programs, and it is over early when no process has the memory any more.
//
// Place     Service owns one.
// Threads   The event loop's thread; /proc is read on a worker of its own.
#pragma once

#include <kj/async.h>
#include <kj/timer.h>

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/event_loop/file_users.h"
#include "daemon/event_loop/worker.h"
#include "daemon/model/rows.h"
#include "daemon/rpc/holders/holder_file.h"

namespace terrace::daemon {

class Service;

class EndedHolders final : private kj::TaskSet::ErrorHandler {
 public:
  // `file`: of HolderFile.
  EndedHolders(Service& service, kj::Timer& timer, std::string file);

  // A session has the lease now. A `process` with pid 0 cannot be seen to end: the lease is left to its TTL.
  void handed_over(LeaseId lease, const ProcessId& process, const std::string& holder, bool ends_with_holders);
  // A session that held these has ended; its process perhaps, too.
  void let_go(const std::set<LeaseId>& leases);
  void forget(LeaseId lease);
  // It is being taken back, and its grace has begun or was shortened.
  void revoking(LeaseId lease);
  // Resolves when the lease is given back, where all its processes have ended: within half a second, or not.
  kj::Promise<void> settle(LeaseId lease, int tries = 50);
  // Those of `leases` of which it is sure that no session and no process has them: not shared ones, nor those whose
  // memory does not open here (of another host, say), and none where this manager may not look into every process.
  kj::Promise<std::set<LeaseId>> nobody_has(const std::set<LeaseId>& leases);

 private:
  struct Ended {
    LeaseId lease;
    LeaseEpoch epoch;
    FileId memory;
  };

  // Shows the end of the grace on the lease's memory; false: there is none of this machine, or no grace.
  bool show_grace(LeaseId lease);
  kj::Promise<void> watch_graces();
  void end_grace(LeaseId lease);
  kj::Promise<void> watch();
  kj::Promise<void> look();
  std::vector<Ended> without_holders();
  // Its processes have ended; others may have its memory all the same.
  bool may_end(LeaseId lease);
  bool has_ended(const ProcessId& process);
  std::optional<Ended> ended(LeaseId lease);
  std::optional<FileId> memory_of(const LeaseRow& lease);
  bool no_known_holder(LeaseId lease);
  void give_back(const std::vector<Ended>& ended, const std::set<FileId>& used);
  void taskFailed(kj::Exception&& exception) override;

  Service& service_;
  kj::Timer& timer_;
  HolderFile file_;
  HolderFile::All watched_;
  std::set<LeaseId> unheld_;   // those of watched_ that may have no session any more
  std::set<LeaseId> revoked_;  // within their grace
  bool watching_graces_ = false;
  LeaseId last_looked_at_{};
  std::vector<std::pair<ProcessId, bool>> known_;  // whether it has ended, in this look
  std::optional<Worker> worker_;
  kj::Own<kj::PromiseFulfiller<void>> wake_;
  int64_t pause_ms_ = 0;
  kj::TaskSet tasks_;
};

}  // namespace terrace::daemon
