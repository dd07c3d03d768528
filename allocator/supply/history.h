// SPDX-License-Identifier: Apache-2.0
// The history of a run: processes that ended, their names, and the size classes at the run's peak.
// Numbers of the present are in the control page.
//
// Place     The Broker owns one.
// Threads   The caller's lock.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "allocator/supply/report.h"

namespace terrace::supply {

class RunHistory {
 public:
  // Ended processes that are kept by themselves: those with the highest peaks.
  static constexpr size_t ended_max = 256;

  // A running process, looked at: its name, and its page for when a later look finds it half written.
  void note_running(pid_t pid, const std::string& name, const ProcessStatistics& page);
  // It ended, or is another program now; these are its last numbers.
  void note_ended(const Slot& slot, const ProcessStatistics& page, uint64_t leased_bytes, uint64_t now_ns);
  // Processes that are not among `running` are forgotten, but for what note_ended() kept.
  void keep_only(const std::vector<pid_t>& running);
  // The run's classes at a time at which so many bytes were live.
  void note_live(uint64_t live_bytes, const std::vector<SizeClassReport>& classes);

  // As was seen, else as `page` says; printable.
  std::string name_of(pid_t pid, const ProcessStatistics& page) const;
  const ProcessStatistics* small_of(pid_t pid) const;  // whose small classes are whole; or nullptr

  const std::vector<ProcessReport>& ended() const { return ended_; }
  uint64_t left_out() const { return left_out_; }
  const MemoryReport& ended_counters() const { return counters_; }
  const std::vector<SizeClassReport>& ended_classes() const { return classes_; }  // allocations only
  const std::vector<SizeClassReport>& peak_classes() const { return peak_classes_; }
  uint64_t peak_bytes() const { return peak_bytes_; }

 private:
  struct Known {
    std::string name;
    ProcessStatistics small = {};
    bool small_whole = false;
  };
  std::map<pid_t, Known> known_;
  std::vector<ProcessReport> ended_;  // by falling peak
  uint64_t left_out_ = 0;
  MemoryReport counters_;
  std::vector<SizeClassReport> classes_, peak_classes_;
  uint64_t peak_bytes_ = 0;
};

}  // namespace terrace::supply
