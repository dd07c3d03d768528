// What `terrace run` needs before the program starts: its arguments, the manager's session, whether memory can
// move, the program's environment.
//
// Place     Between cli/run.cc and the Session.
// Threads   One.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/output.h"
#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/base/units.h"
#include "terrace/session.h"

namespace terrace::cli {

struct RunArguments {
  uint64_t ddr_bytes = gib;
  uint64_t cxl_bytes = 0;
  uint64_t min_size = 0;  // the whole heap
  uint64_t ttl_ns = 0;
  std::string pool, label, stats_file, stats_interval;
  std::string policy = "benefit-density";
  uint64_t copy_bytes_per_s = 2 * gib;
  bool fallback = false;
  std::vector<std::string> command;
};

// A line of ours on stderr.
void say(const std::string& text);

// The manager's session, or with --fallback one that grants nothing. `pool`: the one that leases come from, by
// name; empty: none.
// Errors    those of connecting; not_found, invalid_argument   no such pool, or none that could be meant
Result<std::unique_ptr<Session>> connect_for_run(const Context& context, const RunArguments& arguments,
                                                 std::string* pool);

// Why memory of this run stays where it is; empty: it can move. `*device` is for programs that may not make a
// userfaultfd themselves.
std::string why_still(Session& session, const RunArguments& arguments, UniqueFd* device);

// This process's environment with the preload library and what it has to know.
std::vector<std::string> environment_for(const std::string& library, const std::string& socket_path,
                                         uint64_t min_size);

}  // namespace terrace::cli
