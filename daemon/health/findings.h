// SPDX-License-Identifier: Apache-2.0
// What is wrong with a manager, and what to do about it. `terrace health` shows them; the words of the codes are
// core/schema's, and each is a section of docs/operations/health.md.
//
// Place     daemon/health makes them; daemon/rpc tells them. Pure.
#pragma once

#include <cstdint>
#include <string>

namespace terrace::daemon {

// The numbers are the schema's (terrace.capnp), which daemon/rpc checks when it is compiled.
enum class HealthCode : uint8_t {
  store_failing,
  store_slow,
  state_disk_filling,
  device_absent,
  device_draining,
  device_unhealthy,
  pool_nearly_full,
  pool_fragmented,
  queue_stuck,
  quarantine_growing,
  scrub_behind,
  fence_failed,
  fence_slow,
  host_away,
  host_lease_running_out,
  host_version_differs,
  certificate_ending,
  calls_denied,
  manager_away,
  guard_missing,
  tier_thrash,
  kernel_lacks,
};

// `healthy` is no finding's: it is the worst of none.
enum class HealthSeverity : uint8_t { healthy, warning, critical };

struct HealthFinding {
  HealthCode code = HealthCode::store_failing;
  HealthSeverity severity = HealthSeverity::warning;
  std::string kind = {};    // of what it is about: "device", "pool", "host", "tenant", "manager", ...
  std::string name = {};    // which of these; empty where there is one only
  uint64_t since_ns = 0;    // when the manager first saw it so, this time
  std::string text = {};    // what is wrong, with figures
  std::string advice = {};  // what to do
};

}  // namespace terrace::daemon
