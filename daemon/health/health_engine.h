// SPDX-License-Identifier: Apache-2.0
// Judges what the manager knows of itself: a HealthView in, the findings out, each with the moment since when it
// holds. No clock, socket, disk or thread, as daemon/state.
//
//   HealthView, now -> conditions.cc: what holds -> here: for how long already, what is new, what is over
//
// A value at its limit does not flap: a finding about a value ends only once that is better than the limit by a fifth,
// and one about events once there were none for HealthLimits::window_ns.
//
// Place     daemon/rpc/health_watch.h owns the one instance.
// Threads   One.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "daemon/health/findings.h"
#include "daemon/health/health_limits.h"
#include "daemon/health/health_view.h"
#include "daemon/health/recent.h"

namespace terrace::daemon {

// What changed by one look.
struct HealthChanges {
  std::vector<HealthFinding> raised;   // new, or more or less severe than before
  std::vector<HealthFinding> cleared;  // as they were last

  bool empty() const { return raised.empty() && cleared.empty(); }
};

class HealthEngine {
 public:
  explicit HealthEngine(const HealthLimits& limits);

  // `now_ns` never falls from one call to the next.
  HealthChanges look(const HealthView& view, uint64_t now_ns);

  // The worst first, then by how long they hold.
  const std::vector<HealthFinding>& findings() const { return findings_; }
  HealthSeverity worst() const;

 private:
  using Key = std::tuple<HealthCode, std::string, std::string>;
  struct Condition {
    HealthFinding finding;
    uint64_t after_ns = 0;  // how long it has to hold before it is a finding
  };
  struct Held {
    uint64_t since_ns = 0;
    bool raised = false;
    HealthFinding finding;  // as it was last
  };
  struct Quarantine {
    uint64_t bytes = 0;
    uint64_t grew_ns = 0;  // 0: it did not since the first look
  };

  // conditions.cc
  void look_at_store(const HealthView& view, uint64_t now_ns);
  void look_at_devices(const HealthView& view);
  void look_at_pools(const HealthView& view, uint64_t now_ns);
  void look_at_quarantine(const HealthView::Pool& pool, uint64_t now_ns);
  void look_at_erasing(const HealthView& view, uint64_t now_ns);
  void look_at_hosts(const HealthView& view);
  void look_at_certificates(const HealthView& view);
  void look_at_agent(const HealthView::Agent& agent);
  void look_at_room(const HealthView& view);
  // conditions_of_use.cc
  void look_at_denials(const HealthView& view, uint64_t now_ns);
  void look_at_programs(const HealthView& view, uint64_t now_ns);
  void look_at_kernel(const HealthView& view);

  void holds(HealthFinding finding, uint64_t after_ns = 0);
  bool is_raised(HealthCode code, const std::string& kind, const std::string& name) const;
  // The limit under which `value` must be to count: as it is, and a fifth higher for what is a finding already.
  uint64_t with_slack(uint64_t limit, HealthCode code, const std::string& kind, const std::string& name) const;

  const HealthLimits limits_;
  std::vector<Condition> conditions_;  // of the look under way
  std::map<Key, Held> held_;
  std::vector<HealthFinding> findings_;
  Recent commits_, slow_commits_, failed_fences_;
  Backlog erasing_;
  bool looked_at_pools_ = false;
  std::map<std::string, Quarantine> quarantines_;  // by pool
  std::map<std::string, Recent> denials_;          // by tenant
  std::map<std::string, Recent> exchanges_;        // by tenant
};

}  // namespace terrace::daemon
