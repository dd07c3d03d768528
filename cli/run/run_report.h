// SPDX-License-Identifier: Apache-2.0
// A run of `terrace run` as one JSON document: written by --stats, shown to `terrace top`, and printed by that
// with --json. Keys: docs/operations/top.md.
//
// Place     Between allocator/supply's report and the files. Pure.
// Trust     from_json() reads files that any process of a user may have written: it checks types, sizes, texts.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "allocator/supply/report.h"
#include "core/base/result.h"

namespace terrace::cli {

struct RunDocument {
  int pid = 0;  // of the supervisor
  uint32_t uid = 0;
  uint64_t start_ticks = 0;  // field 22 of /proc/PID/stat
  std::string program;       // as it was called
  std::string command;       // with its arguments, cut short
  std::string pool;          // empty: none
  std::string policy, obstacle;
  uint64_t ddr_budget_bytes = 0, cxl_budget_bytes = 0;
  std::string ddr_budget_from, cxl_budget_from;  // "given", "machine", "pool", "none"; empty: not told
  bool fallback = false;                         // plain memory when both are used up
  bool running = true;
  int exit_code = 0;         // when it is over
  uint64_t elapsed_ns = 0;   // since the program started
  uint64_t written_ns = 0;   // CLOCK_BOOTTIME
  uint64_t interval_ns = 0;  // between two documents, over which rates are taken; 0: no rates yet
  supply::RunReport report;

  // What is running and has memory of the run.
  uint64_t running_processes() const;
};

nlohmann::json to_json(const RunDocument& run);
// Errors    corrupt   it is no such document; says why
Result<RunDocument> run_from_json(const std::string& text);

// Held over live bytes; nullopt-like 0: nothing is live.
double held_over_live(const supply::MemoryReport& memory);
// 0 to 1: the part of the free room that is not in its longest piece; negative: there is none, or it is not
// known.
double external_fragmentation(const supply::MemoryReport& memory);

// Rates of `now` over `before`, which is so many nanoseconds older; 0 where it does not know a process.
void set_rates(const RunDocument& before, RunDocument* now);

}  // namespace terrace::cli
