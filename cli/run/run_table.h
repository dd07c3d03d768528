// SPDX-License-Identifier: Apache-2.0
// Runs as tables for people: for SIGUSR1, and for `terrace top`.
//
// Place     Between run_report.h and the terminal. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/run/top_scan.h"

namespace terrace::cli {

// One run: a block of its numbers, its leases, processes and size classes.
std::string run_summary(const RunDocument& run);

struct TopShape {
  bool processes = false, classes = false;
  bool users = false;    // more than one user's runs: say whose
  size_t columns = 120;  // of the terminal; 0: as wide as it becomes
  size_t rows = 0;       // 0: as many as there are
};

// The runs, those with the most live bytes first. What does not fit is left out, the least important columns
// first; lines end at the terminal's edge.
std::string top_table(std::vector<RunView> runs, const TopShape& shape);

std::string process_table(const supply::RunReport& report);
std::string class_table(const supply::RunReport& report);

}  // namespace terrace::cli
