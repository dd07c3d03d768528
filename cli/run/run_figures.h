// SPDX-License-Identifier: Apache-2.0
// What a run tells its manager: its document as RunFigures of the session, with what the engines of its processes say
// in their tier pages.
//
// Place     run_reporter.h calls it each second; Session::report_run() takes what it makes.
// Threads   One at a time.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>

#include "cli/run/run_report.h"
#include "cli/tier/tier_pages.h"
#include "core/base/units.h"
#include "terrace/session.h"

namespace terrace::cli {

// A run is told so often, and at once when it got its first lease or ended.
inline constexpr uint64_t run_told_each_ns = 5 * ns_per_s;

// The range of a process's heap, as its engine shows it; nullopt: it shows none.
std::optional<TierRangeView> heap_range_of(pid_t pid);

// The same without what the engines say: pure.
RunFigures figures_of(const RunDocument& run);

class RunTeller {
 public:
  explicit RunTeller(Session& session) : session_(session) {}
  // Returns at once. `last`: the run has ended; waits until the manager has it, if there is one.
  void tell(const RunDocument& run, bool last);

 private:
  void add_engines(const RunDocument& run, RunFigures* figures);

  Session& session_;
  bool had_leases_ = false;
  uint64_t told_ns_ = 0;
  std::map<pid_t, uint64_t> stalled_;  // of running processes, as last seen
  uint64_t stalled_before_ = 0;        // of those that have ended
};

}  // namespace terrace::cli
