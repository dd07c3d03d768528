// SPDX-License-Identifier: Apache-2.0
// Something that happened in the manager, as fields.
//
// Place     daemon/event_loop, daemon/rpc, daemon/hosts and daemon make them; EventLog keeps them and hands them on. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace terrace::daemon {

// The numbers and words are the schema's (terrace.capnp), which event_text.cc checks when it is compiled.
enum class EventKind : uint8_t {
  lease_granted,
  lease_attached,
  lease_released,
  lease_expired,
  lease_revoked,
  lease_fenced,
  lease_fence_failed,
  lease_erased,
  lease_quarantined,
  lease_resized,
  lease_moved,
  lease_transferred,
  pool_created,
  pool_removed,
  pool_trust_changed,
  pool_coherence_changed,
  device_adopted,
  device_added,
  device_removed,
  device_lost,
  device_returned,
  device_draining,
  device_in_service,
  device_failed,
  host_registered,
  host_away,
  host_returned,
  host_removed,
  call_denied,
  health_raised,
  health_cleared,
  manager_started,
  manager_stopping,
  manager_failed,
  manager_recovered,
  configuration_reloaded,
  configuration_refused,
  backup_taken,
  check_found_problems,
  events_dropped,
  lease_holder_ended,
};
inline constexpr size_t event_kinds = static_cast<size_t>(EventKind::lease_holder_ended) + 1;

enum class EventSeverity : uint8_t { info, warning, critical };

struct Event {
  uint64_t id = 0;       // EventLog gives it
  uint64_t wall_ns = 0;  // CLOCK_REALTIME; likewise, where it is 0
  EventKind kind = EventKind::manager_started;
  EventSeverity severity = EventSeverity::info;
  uint32_t count = 1;
  std::string message = {};  // one printable line
  uint64_t lease = 0;        // 0, or empty: of none
  std::string tenant = {};
  std::string pool = {};
  std::string device = {};  // serial
  std::string host = {};
  std::string code = {};
  std::string cause = {};
  uint64_t bytes = 0;
  uint64_t took_ns = 0;
  std::string trace_id = {};  // of the call that it was done for
};

// Who can make many of them: tenants, whoever is refused, an agent that comes and goes. None may push out the others'.
enum class EventOrigin : uint8_t { leases, denials, hosts, manager };
inline constexpr size_t event_origins = 4;

constexpr EventOrigin origin_of(EventKind kind) {
  if (kind == EventKind::call_denied) return EventOrigin::denials;
  if (kind >= EventKind::host_registered && kind <= EventKind::host_removed) return EventOrigin::hosts;
  const bool failure = kind == EventKind::lease_fence_failed || kind == EventKind::lease_quarantined;
  return kind <= EventKind::lease_transferred && !failure ? EventOrigin::leases : EventOrigin::manager;
}

// Part of every lease's life, thousands a second on a busy pool: the log has them at level debug only.
constexpr bool is_routine(EventKind kind) {
  return origin_of(kind) == EventOrigin::leases && kind != EventKind::lease_revoked;
}

}  // namespace terrace::daemon
