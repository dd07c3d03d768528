// SPDX-License-Identifier: Apache-2.0
// The start of `terrace run`, before the program: its arguments, the manager's session, a check that memory can
// move, the program's environment.
//
// Place     Between cli/run/run.cc and the Session.
// Threads   One.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "allocator/supply/protocol.h"
#include "cli/terminal/output.h"
#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/base/units.h"
#include "terrace/session.h"

namespace terrace::cli {

struct RunArguments {
  uint64_t ddr_bytes = 0, cxl_bytes = 0;
  bool ddr_given = false, cxl_given = false;       // on the command line; else choose_budgets() sets them
  uint64_t min_size = 0;                           // the whole heap
  uint64_t mmap_from = supply::mmap_from_default;  // 0: no mappings
  uint64_t ttl_ns = 0;
  std::string pool, label, stats_file, stats_interval;
  std::string policy = "benefit-density";
  uint64_t copy_bytes_per_s = 2 * gib;
  bool access_events = false;
  bool fallback = false;  // asked for; also set where the run's sizes are not the user's
  std::vector<std::string> command;
};

// Where a size of a run comes from.
inline constexpr char size_given[] = "given", size_of_machine[] = "machine", size_of_pool[] = "pool",
                      size_none[] = "none";

// A line of ours on stderr.
void say(const std::string& text);

// The manager's session, and the sizes and the pool that `arguments` left open: half of the available memory,
// and what the pool may grant. Without --ddr plain memory serves what does not fit (`fallback` is set). A
// session that grants nothing stands for a manager that cannot be reached or a pool without room, with a line
// that says so; with --cxl or
// --pool, and no --fallback, those are errors.
// Errors    those of connecting; not_found, invalid_argument   no such pool, or none that could be meant
//           capacity_exhausted   no size was given for CXL, there is none to be had, and --ddr is 0
Result<std::unique_ptr<Session>> connect_for_run(const Context& context, RunArguments* arguments);

// Why memory of this run stays where it is; empty: it can move. `*device` is for programs that may not make a
// userfaultfd themselves.
std::string why_still(Session& session, const RunArguments& arguments, UniqueFd* device);

// This process's environment with the preload library and what it has to know.
std::vector<std::string> environment_for(const std::string& library, const std::string& socket_path,
                                         uint64_t min_size, uint64_t mmap_from);

}  // namespace terrace::cli
