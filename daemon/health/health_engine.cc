// SPDX-License-Identifier: Apache-2.0
#include "daemon/health/health_engine.h"

#include <algorithm>
#include <set>
#include <utility>

namespace terrace::daemon {

HealthEngine::HealthEngine(const HealthLimits& limits)
    : limits_(limits),
      commits_(limits.window_ns),
      slow_commits_(limits.window_ns),
      failed_fences_(limits.window_ns),
      erasing_(limits.scrub_after_ns) {}

void HealthEngine::holds(HealthFinding finding, uint64_t after_ns) {
  conditions_.push_back({std::move(finding), after_ns});
}

bool HealthEngine::is_raised(HealthCode code, const std::string& kind, const std::string& name) const {
  const auto at = held_.find({code, kind, name});
  return at != held_.end() && at->second.raised;
}

uint64_t HealthEngine::with_slack(uint64_t limit, HealthCode code, const std::string& kind,
                                  const std::string& name) const {
  return is_raised(code, kind, name) ? limit + limit / 5 : limit;
}

HealthChanges HealthEngine::look(const HealthView& view, uint64_t now_ns) {
  conditions_.clear();
  look_at_store(view, now_ns);
  // While the store fails nothing is known of the rest, which stays as it was.
  if (!view.store.serving) {
    for (const auto& [key, held] : held_) {
      const HealthCode code = std::get<HealthCode>(key);
      const bool of_store = code == HealthCode::store_failing || code == HealthCode::store_slow ||
                            code == HealthCode::state_disk_filling;
      if (!of_store) holds(held.finding, held.raised ? 0 : UINT64_MAX);
    }
  } else {
    look_at_devices(view);
    look_at_pools(view, now_ns);
    look_at_erasing(view, now_ns);
    look_at_hosts(view);
    look_at_certificates(view);
    if (view.agent.has_value()) look_at_agent(*view.agent);
    look_at_denials(view, now_ns);
    look_at_programs(view, now_ns);
    look_at_kernel(view);
  }

  HealthChanges changes;
  std::set<Key> still;
  findings_.clear();
  for (Condition& condition : conditions_) {
    HealthFinding& finding = condition.finding;
    Key key{finding.code, finding.kind, finding.name};
    Held& held = held_.try_emplace(key, Held{now_ns, false, {}}).first->second;
    still.insert(std::move(key));
    finding.since_ns = held.since_ns;
    const HealthSeverity before = held.raised ? held.finding.severity : HealthSeverity::healthy;
    // Once raised it is a finding for as long as it holds.
    held.raised = held.raised || now_ns - held.since_ns >= condition.after_ns;
    held.finding = finding;
    if (!held.raised) continue;
    if (finding.severity != before) changes.raised.push_back(finding);
    findings_.push_back(std::move(finding));
  }
  for (auto at = held_.begin(); at != held_.end();) {
    if (still.contains(at->first)) {
      ++at;
      continue;
    }
    if (at->second.raised) changes.cleared.push_back(std::move(at->second.finding));
    at = held_.erase(at);
  }
  std::stable_sort(
      findings_.begin(), findings_.end(), [](const HealthFinding& left, const HealthFinding& right) {
        return std::make_pair(right.severity, left.since_ns) < std::make_pair(left.severity, right.since_ns);
      });
  return changes;
}

HealthSeverity HealthEngine::worst() const {
  return findings_.empty() ? HealthSeverity::healthy : findings_.front().severity;
}

}  // namespace terrace::daemon
