// SPDX-License-Identifier: Apache-2.0
// The runs of this machine, as they show themselves (run_reporter.h): files that any process of their user can
// have filled with anything.
//
// Place     Below `terrace top`; needs no daemon, and never waits for a run.
// Threads   One.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/run/run_report.h"
#include "cli/run/run_reporter.h"

namespace terrace::cli {

enum class RunState : uint8_t {
  runs,
  stopped,   // its supervisor is, by a signal or a debugger: what it says is old
  silent,    // it has said nothing for some seconds
  reported,  // it cannot be seen from here: this is what it reported to the manager
};

struct RunView {
  RunDocument run;
  RunState state = RunState::runs;
  uint64_t age_ns = 0;  // since it was written
};

struct RunPlaces {
  std::string prefix = run_directory_prefix;  // and the uid
  std::string proc = "/proc";
  std::optional<uint32_t> uid;  // of this user only; none: of all
  static RunPlaces own();       // of all users for root, else of this one
};

struct RunScan {
  std::vector<RunView> runs;          // by uid and pid
  std::vector<std::string> problems;  // files and directories that are not what they should be, in words
  uint32_t swept = 0;                 // files of supervisors that are gone, removed
};

RunScan scan_runs(const RunPlaces& places);

// Field 22 of the process's stat; 0: there is no such process, or it cannot be read.
uint64_t start_ticks_of(const std::string& proc, int pid);

const char* run_state_name(RunState state);

// What a run reported to the manager, as far as it goes.
RunView view_of(const ReportedRun& run);

}  // namespace terrace::cli
