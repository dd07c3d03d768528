// SPDX-License-Identifier: Apache-2.0
// A program's figures on their way to the manager: the newest ones, what was told so far, and when the next report is
// due.
//
// Place     libclient/session; any thread leaves figures in a RunBox, Loop (loop_runs.cc) sends what lies there.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "core/base/sync/mutex.h"
#include "core/base/units.h"
#include "terrace/session.h"

namespace terrace::client {

// A manager gets no report sooner after the one before, but for the last one.
inline constexpr uint64_t run_report_interval_ns = 4 * ns_per_s;

// Where figures wait for the Session's thread: one place, so that a thread that is busy elsewhere costs no memory.
//
// Threads   Any.
class RunBox {
 public:
  // Returns   whether the Session's thread has to be told: it has taken what lay here.
  bool put(RunFigures figures) {
    const MutexLock lock(mutex_);
    return !std::exchange(figures_, std::move(figures)).has_value();
  }
  std::optional<RunFigures> take() {
    const MutexLock lock(mutex_);
    return std::exchange(figures_, std::nullopt);
  }

 private:
  Mutex mutex_;
  std::optional<RunFigures> figures_ TERRACE_GUARDED_BY(mutex_);
};

// What was told, over which connections. Counters of a report are those since the run's start; of these, what a
// manager was told over an earlier connection is named, so that it counts nothing twice.
//
// Threads   The Session's.
class RunHistory {
 public:
  // Whether a report should be sent now over connection number `generation`. The last one of a run, when no process
  // of it is left, is: what it did since the one before counts, too.
  bool is_due(const RunFigures& figures, uint64_t generation, bool holds_leases, uint64_t now_ns) const {
    if (sending_ || generation == refused_by_) return false;
    const bool ended = figures.processes == 0 && generation_ != 0 && figures.counters != sent_;
    if (ended) return true;
    if (!holds_leases) return last_had_leases_;
    return generation != generation_ || now_ns - sent_ns_ >= run_report_interval_ns;
  }
  // Notes it as sent. No counter of `figures` is smaller than it was afterwards.
  void begin(RunFigures* figures, uint64_t generation, bool holds_leases, uint64_t now_ns);
  const RunCounters& told_before() const { return told_before_; }
  // How it went; `unknown`: the manager does not know the call.
  void end(uint64_t generation, bool accepted, bool unknown);

 private:
  RunCounters sent_, told_, told_before_;
  uint64_t generation_ = 0, refused_by_ = 0;
  uint64_t sent_ns_ = 0;
  bool sending_ = false, last_had_leases_ = false;
};

}  // namespace terrace::client
