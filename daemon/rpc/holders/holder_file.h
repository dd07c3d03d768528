// SPDX-License-Identifier: Apache-2.0
// A file beside the store's that says which processes were handed which leases, so that those of processes which end
// while no manager runs go back when one runs again. Text: a line for each hand-over, one for each lease that needs no
// watching any more; the last lines count.
//
// Not durable as the store is: it outlives the manager's process, not the machine's memory, and neither do processes.
// Where it is missing, cut short or cannot be written, leases are left to their TTL.
//
// Threads   The event loop's thread only.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"
#include "daemon/model/rows.h"

namespace terrace::daemon {

// Who had a lease handed over.
struct LeaseHolders {
  std::vector<ProcessId> processes;
  std::string holder;   // the last one, in words
  bool ends = false;    // the lease ends when all of them have
  bool unseen = false;  // one of them cannot be seen to end
};

class HolderFile {
 public:
  using All = std::map<LeaseId, LeaseHolders>;

  // `path`: empty for none.
  explicit HolderFile(std::string path);

  // What an earlier manager wrote, without the leases that `lives` says no to; the file has just those afterwards.
  All take_over(const std::function<bool(LeaseId)>& lives);
  // `all`: those of now, which the file is made of anew when most of its lines are old.
  void handed_over(LeaseId lease, const ProcessId& process, const LeaseHolders& holders, const All& all);
  void forgotten(LeaseId lease, const All& all);

 private:
  void append(const std::string& line, const All& all);
  bool write_anew(const All& all);
  // Nothing is better than something that is not true any more.
  void give_up();

  const std::string path_;
  UniqueFd file_;
  size_t lines_ = 0;
};

}  // namespace terrace::daemon
