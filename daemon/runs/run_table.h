// SPDX-License-Identifier: Apache-2.0
// What programs say of their memory: the last report of each connection, and sums by tenant.
//
// Place     Pure. daemon/rpc gives it reports (TenantSession.reportRun) and ends of connections; daemon/web and the
//           operator's interface read it.
// Trust     A report is what a program says of itself. It is refused where it cannot be true, and its sums saturate:
//           a program can spoil its own tenant's figures and nobody else's. Nothing is decided by any of them.
// Bounds    One report a connection; sums of `run_tenants_max` tenants, all further ones together under "".
// Threads   The event loop's thread only.
// Invariant RT1  No counter of a tenant's sums ever falls, whatever programs report and however they end.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/result.h"
#include "core/base/units.h"

namespace terrace::daemon {

// As many tenants have sums of their own, in the order in which they first reported.
inline constexpr size_t run_tenants_max = 500;
// Whoever has reported nothing for so long (it is stopped, or hangs) counts in no sum of what is now.
inline constexpr uint64_t run_silent_ns = 60 * ns_per_s;
// A report with a greater number is refused: 4 PiB, and four million billions of anything that is counted.
inline constexpr uint64_t run_bytes_max = uint64_t{1} << 52;
inline constexpr uint64_t run_count_max = uint64_t{1} << 62;
inline constexpr size_t run_bands_max = 64;
inline constexpr uint32_t run_processes_max = 1u << 22;  // the kernel's own bound

struct RunCounters {
  uint64_t promotions = 0, demotions = 0;
  uint64_t promoted_bytes = 0, demoted_bytes = 0;
  uint64_t stalled_ns = 0;
  uint64_t refused = 0, fallbacks = 0;
};

// A part of a program's heap (RunHeat of the schema).
struct RunBand {
  uint8_t heat = 0, ddr_percent = 0, cxl_percent = 0;

  bool operator==(const RunBand&) const = default;
};

struct RunFigures {
  std::string program;
  uint32_t processes = 0;
  uint64_t live_bytes = 0, ddr_bytes = 0, cxl_bytes = 0, plain_bytes = 0;
  uint64_t ddr_bytes_max = 0, leased_bytes = 0;
  uint64_t sampled_bytes = 0;
  uint32_t ddr_hit_permille = 0;
  RunCounters counters;     // since the run's start
  RunCounters told_before;  // of these, over an earlier connection
  std::vector<RunBand> bands;
  uint64_t band_bytes = 0;
};

// Who reports, as the manager knows it.
struct RunOwner {
  std::string tenant, host, agent;
  uint32_t pid = 0, uid = 0;
};

struct Run {
  RunOwner owner;
  RunFigures figures;
  uint64_t reported_ns = 0;
  // Between the last two reports.
  uint64_t promotions_per_s = 0, demotions_per_s = 0, copy_bytes_per_s = 0, stalled_ns_per_s = 0;
};

// Of one tenant: what its runs have now, and what they did since the manager's start.
struct RunSums {
  uint64_t runs = 0;
  uint64_t processes = 0;
  uint64_t live_bytes = 0, ddr_bytes = 0, cxl_bytes = 0, plain_bytes = 0, leased_bytes = 0;
  uint64_t sampled_bytes = 0;
  double ddr_hits = 0;  // of all accesses to the sampled memory, 0 to 1
  RunCounters counters;
  uint64_t reports = 0;
};

class RunTable {
 public:
  // The report of `reporter`, a session of `connection`, whose earlier one it takes the place of.
  // Errors    invalid_argument   a number that cannot be, or a counter that fell; says which
  Status report(const void* connection, const void* reporter, RunOwner owner, RunFigures figures,
                uint64_t now_ns);
  // The session or its connection is over: its counters stay in the sums of its tenant.
  void end(const void* connection, const void* reporter);

  size_t size() const { return runs_.size(); }
  uint64_t refused() const { return refused_; }  // reports
  // By tenant and pid.
  std::vector<const Run*> list() const;
  // By tenant; "": all that have none of their own.
  std::map<std::string, RunSums> sums(uint64_t now_ns) const;

 private:
  struct Entry {
    Run run;
    const void* reporter = nullptr;
    std::string sums_of;  // the tenant, or ""
  };
  struct Ended {
    RunCounters counters;
    uint64_t reports = 0;
  };
  Ended& ended_of(const std::string& tenant, std::string* sums_of);
  void fold(const Entry& entry);

  std::unordered_map<const void*, Entry> runs_;  // by connection
  std::map<std::string, Ended> tenants_;         // what ended runs did, and how often was reported
  uint64_t refused_ = 0;
};

}  // namespace terrace::daemon
