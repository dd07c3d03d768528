// SPDX-License-Identifier: Apache-2.0
#include "daemon/events/commands/command_events.h"

#include <utility>

#include "core/base/units.h"

namespace terrace::daemon {
namespace {

std::string_view cause_word(LeaseCause cause) {
  switch (cause) {
    case LeaseCause::none: break;
    case LeaseCause::released: return "released";
    case LeaseCause::expired: return "expired";
    case LeaseCause::revoked: return "revoked";
    case LeaseCause::object_lost: return "object_lost";
    case LeaseCause::device_lost: return "device_lost";
    case LeaseCause::moved: return "moved";
  }
  return "";
}

std::string lease_name(LeaseId id) {
  return "lease " + std::to_string(id.value);
}

std::string with_reason(std::string text, const std::string& reason) {
  return reason.empty() ? text : std::move(text) + ": " + reason;
}

struct EventWriter {
  const Step& step;
  const StateMachine& state;
  CommandFacts facts;
  std::vector<Event> events;

  Event& add(EventKind kind, std::string message) {
    Event& event = events.emplace_back();
    event.kind = kind;
    event.message = std::move(message);
    event.cause = facts.actor;
    return event;
  }
  Event& add_lease(EventKind kind, const LeaseRow& lease, std::string message) {
    return events.emplace_back(lease_event(kind, lease, state, std::move(message)));
  }
  void add_pool(EventKind kind, const std::string& pool, std::string message) {
    add(kind, std::move(message)).pool = pool;
  }
  Event& add_device(EventKind kind, const std::string& serial, std::string message) {
    Event& event = add(kind, std::move(message));
    event.device = serial;
    if (const DeviceRow* device = state.find_device(serial)) {
      event.bytes = device->capacity_bytes;
      if (const PoolRow* pool = state.find_pool(device->pool)) event.pool = pool->name;
    }
    return event;
  }

  // Leases that the step began to take back.
  void ending() {
    for (const auto& change : step.delta.leases) {
      const std::optional<LeaseRow>& row = change.second;
      if (!row.has_value() || row->phase != LeasePhase::fencing) continue;
      const bool expired = row->cause == LeaseCause::expired;
      Event& event = add_lease(expired ? EventKind::lease_expired : EventKind::lease_revoked, *row,
                               expired ? lease_name(row->id) + " expired"
                                       : with_reason(lease_name(row->id) + " is taken back", row->reason));
      if (row->cause == LeaseCause::device_lost || row->cause == LeaseCause::object_lost)
        event.severity = EventSeverity::critical;
    }
  }

  void operator()(const AdoptDevice& c) {
    add_device(EventKind::device_adopted, c.serial,
               "device " + c.serial + " is adopted: " + format_size(c.capacity_bytes) + ", " + c.backend);
  }
  void operator()(const CreatePool& c) {
    add_pool(EventKind::pool_created, c.name,
             "pool " + c.name + " of " + std::to_string(c.device_serials.size()) +
                 (c.device_serials.size() == 1 ? " device" : " devices"));
  }
  void operator()(const DeletePool& c) {
    add_pool(EventKind::pool_removed, c.name, "pool " + c.name + " is removed");
  }
  void operator()(const SetPoolCoherence& c) {
    add_pool(EventKind::pool_coherence_changed, c.pool,
             "pool " + c.pool + ": coherence " + coherence_name(c.coherence));
  }
  void operator()(const SetPoolTrust& c) {
    add_pool(EventKind::pool_trust_changed, c.pool,
             "pool " + c.pool + ": trust of tenants " + trust_name(c.trust));
  }
  void operator()(const AddDevice& c) {
    add_device(EventKind::device_added, c.serial, "device " + c.serial + " is in pool " + c.pool);
  }
  void operator()(const DrainDevice& c) {
    add_device(EventKind::device_draining, c.serial,
               "device " + c.serial + " is drained: nothing new is placed there");
  }
  void operator()(const UndrainDevice& c) {
    add_device(EventKind::device_in_service, c.serial, "device " + c.serial + " is in service");
  }
  void operator()(const FailDevice& c) {
    add_device(EventKind::device_failed, c.serial,
               "device " + c.serial + " is given up by an operator; its leases are fenced")
        .severity = EventSeverity::critical;
    ending();
  }
  void operator()(const DeviceLost& c) {
    add_device(EventKind::device_lost, c.serial, "device " + c.serial + " vanished; its leases are fenced")
        .severity = EventSeverity::critical;
    ending();
  }
  void operator()(const DeviceBack& c) {
    add_device(EventKind::device_returned, c.serial, "device " + c.serial + " is back").severity =
        EventSeverity::warning;
    ending();
  }
  void operator()(const RemoveDevice& c) {
    add_device(EventKind::device_removed, c.serial, "device " + c.serial + " is forgotten");
    ending();
  }
  void operator()(const CarveFinished& c) {
    const LeaseRow* lease = state.find_lease(c.lease);
    if (lease == nullptr || lease->phase != LeasePhase::active) return;
    std::string message = lease_name(c.lease) + " of " + format_size(lease->bytes);
    if (!lease->label.empty()) message += ", '" + lease->label + "'";
    add_lease(EventKind::lease_granted, *lease, std::move(message));
  }
  void operator()(const Release& c) {
    if (const LeaseRow* lease = state.find_lease(c.lease))
      add_lease(EventKind::lease_released, *lease, lease_name(c.lease) + " is released");
  }
  void operator()(const Revoke& c) {
    const LeaseRow* lease = state.find_lease(c.lease);
    if (lease == nullptr) return;
    std::string message = lease_name(c.lease) + " is revoked";
    if (c.grace_ns != 0) message += " in " + format_duration(c.grace_ns);
    add_lease(EventKind::lease_revoked, *lease, with_reason(std::move(message), lease->reason));
  }
  void operator()(const ResizeFinished& c) {
    const LeaseRow* lease = state.find_lease(c.lease);
    if (c.status.ok() && lease != nullptr)
      add_lease(EventKind::lease_resized, *lease, lease_name(c.lease) + " has " + format_size(lease->bytes));
  }
  void operator()(const FinishMove& c) {
    const LeaseRow* lease = state.find_lease(c.lease);
    if (c.commit && lease != nullptr)
      add_lease(EventKind::lease_moved, *lease, lease_name(c.lease) + " has moved to other memory");
  }
  void handed_over(LeaseId id) {
    if (const LeaseRow* lease = state.find_lease(id))
      add_lease(EventKind::lease_transferred, *lease,
                lease_name(id) + " is tenant " + lease->tenant + "'s on host " + lease->host);
  }
  void operator()(const Transfer& c) { handed_over(c.lease); }
  void operator()(const AcceptOffer& c) { handed_over(c.lease); }
  void operator()(const Tick&) { ending(); }
  void operator()(const FenceFinished& c) {
    const LeaseRow* lease = state.find_lease(c.lease);
    if (lease == nullptr) return;
    const EventKind kind = c.status.ok() ? EventKind::lease_fenced : EventKind::lease_fence_failed;
    Event& event = add_lease(
        kind, *lease,
        c.status.ok() ? lease_name(c.lease) + " is fenced"
                      : lease_name(c.lease) + " could not be fenced: " + c.status.error().to_string());
    event.took_ns = facts.took_ns;
    if (!c.status.ok()) {
      event.severity = EventSeverity::critical;
      event.code = error_code_name(c.status.error().code);
    }
    quarantined(c.lease);
  }
  void operator()(const ScrubFinished& c) {
    if (c.status.ok() && facts.subject.has_value()) events.push_back(std::move(*facts.subject));
    quarantined(c.lease);
  }
  void operator()(const RebindFinished& c) { quarantined(c.lease); }
  void quarantined(LeaseId id) {
    const LeaseRow* lease = state.find_lease(id);
    if (lease == nullptr || lease->phase != LeasePhase::quarantined) return;
    add_lease(EventKind::lease_quarantined, *lease,
              with_reason(lease_name(id) + "'s memory is kept from everybody", lease->reason))
        .severity = EventSeverity::critical;
  }
  // No event: steps whose end has one, calls that holders make all the time, and what only the audit log tells. A new
  // command must be named here or above.
  void operator()(const Grant&) {}
  void operator()(const CancelGrant&) {}
  void operator()(const CancelWaiting&) {}
  void operator()(const Renew&) {}
  void operator()(const RenewMany&) {}
  void operator()(const Resize&) {}
  void operator()(const BeginMove&) {}
  void operator()(const ScrubAdvanced&) {}
  void operator()(const ClaimPart&) {}
  void operator()(const ReleasePart&) {}
  void operator()(const ResumeAfterGap&) {}
  void operator()(const OpenView&) {}
  void operator()(const ViewOpened&) {}
  void operator()(const ViewClosed&) {}
  void operator()(const LoseObject&) { ending(); }
  void operator()(const OfferLease&) {}
  void operator()(const SetQuota&) {}
  void operator()(const CreateReservation&) {}
  void operator()(const RemoveReservation&) {}
  void operator()(const CompactPool&) {}
};

}  // namespace

Event lease_event(EventKind kind, const LeaseRow& lease, const StateMachine& state, std::string message) {
  Event event;
  event.kind = kind;
  event.message = std::move(message);
  event.lease = lease.id.value;
  event.tenant = lease.tenant;
  event.host = lease.host;
  event.cause = cause_word(lease.cause);
  event.bytes = lease.bytes;
  if (const PoolRow* pool = state.find_pool(lease.pool)) event.pool = pool->name;
  return event;
}

// A lease's row is gone once it is erased.
std::optional<Event> subject_before(const Command& command, const StateMachine& state) {
  const auto* erased = std::get_if<ScrubFinished>(&command);
  const LeaseRow* lease = erased == nullptr ? nullptr : state.find_lease(erased->lease);
  if (lease == nullptr) return std::nullopt;
  return lease_event(EventKind::lease_erased, *lease, state, lease_name(lease->id) + " is erased and free");
}

std::vector<Event> command_events(const Command& command, const Step& step, const StateMachine& state,
                                  CommandFacts facts) {
  // What a device does, and a fence that held, are worth an event when no row changed, too; elsewhere no change means a
  // repetition.
  const bool rowless = std::holds_alternative<DeviceLost>(command) ||
                       std::holds_alternative<DeviceBack>(command) ||
                       std::holds_alternative<FenceFinished>(command);
  if (!step.reply.ok() || (step.delta.empty() && !rowless)) return {};
  EventWriter writer{step, state, std::move(facts), {}};
  std::visit([&writer](const auto& c) { writer(c); }, command);
  return std::move(writer.events);
}

Event denial_event(const AuditRow& row, std::string_view code) {
  Event event;
  event.kind = EventKind::call_denied;
  event.severity = EventSeverity::warning;
  event.wall_ns = row.wall_ns;
  event.tenant = row.tenant;
  event.code = code;
  event.cause = row.actor;
  event.message = row.verb + (row.subject.empty() ? "" : " of " + row.subject) + ": " + row.detail;
  return event;
}

}  // namespace terrace::daemon
