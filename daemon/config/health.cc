// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/health.h"

namespace terrace::daemon {

void read_health(Section& top, DaemonConfig& config) {
  const toml::table* table = top.table("health");
  if (table == nullptr) return;
  Section section = top.inner(*table, "health");
  HealthLimits& limits = config.health;
  section.duration("interval", limits.interval_ns);
  section.duration("draining_after", limits.draining_after_ns);
  section.duration("queue_after", limits.queue_after_ns);
  section.duration("scrub_after", limits.scrub_after_ns);
  section.duration("fence_after", limits.fence_after_ns);
  section.duration("away_after", limits.away_after_ns);
  section.duration("window", limits.window_ns);
  section.duration("commit_max", limits.commit_max_ns);
  section.number("denied_calls_min", limits.denied_calls_min);
  section.number("thrash_turns_min", limits.thrash_turns_min);
  section.size("state_free_min", limits.state_free_bytes_min);
  section.number("pool_grantable_percent_min", limits.pool_grantable_percent_min);
  section.number("pool_largest_run_percent_min", limits.pool_largest_run_percent_min);
  section.finish();
}

void check_health(const DaemonConfig& config, std::vector<ConfigProblem>& problems) {
  constexpr uint64_t duration_ns_max = 30 * 86'400 * ns_per_s;
  const auto duration = [&problems](const char* key, uint64_t value_ns, uint64_t least_ns) {
    if (value_ns >= least_ns && value_ns <= duration_ns_max) return;
    problems.push_back({{"health", key},
                        std::string(key) + " of " + format_duration(value_ns) + " is outside " +
                            format_duration(least_ns) + " to " + format_duration(duration_ns_max)});
  };
  const HealthLimits& limits = config.health;
  duration("interval", limits.interval_ns, 100 * ns_per_ms);
  duration("draining_after", limits.draining_after_ns, 0);
  duration("queue_after", limits.queue_after_ns, 0);
  duration("scrub_after", limits.scrub_after_ns, 1 * ns_per_s);
  duration("fence_after", limits.fence_after_ns, 0);
  duration("away_after", limits.away_after_ns, 0);
  duration("window", limits.window_ns, 1 * ns_per_s);
  duration("commit_max", limits.commit_max_ns, 1 * ns_per_ms);
  if (limits.denied_calls_min == 0)
    problems.push_back({{"health", "denied_calls_min"}, "denied_calls_min must be 1 at least"});
  const auto percent = [&problems](const char* key, uint32_t value) {
    if (value > 100) problems.push_back({{"health", key}, std::string(key) + " must be 0 to 100"});
  };
  percent("pool_grantable_percent_min", limits.pool_grantable_percent_min);
  percent("pool_largest_run_percent_min", limits.pool_largest_run_percent_min);
}

}  // namespace terrace::daemon
