// SPDX-License-Identifier: Apache-2.0
#include "daemon/event_loop/audit.h"

#include <utility>

#include "core/base/limits.h"
#include "core/base/units.h"
#include "daemon/state/names.h"

namespace terrace::daemon {
namespace {

// One printable line within its bound, whatever a name or a reason brings in.
std::string line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  if (text.size() > limits::audit_text_bytes_max) text.resize(limits::audit_text_bytes_max);
  while (!valid_utf8(text)) text.pop_back();
  return text;
}

std::string lease_subject(LeaseId id) {
  return "lease " + std::to_string(id.value);
}

struct Writer {
  const Step& step;
  const StateMachine& state;
  std::string actor;
  uint64_t wall_ns;
  std::vector<AuditRow> rows;

  void add(const char* verb, std::string subject, std::string tenant, std::string detail) {
    rows.push_back(AuditRow{.sequence = 0,
                            .wall_ns = wall_ns,
                            .actor = actor,
                            .tenant = std::move(tenant),
                            .verb = verb,
                            .subject = line(std::move(subject)),
                            .detail = line(std::move(detail))});
  }
  void add_lease(const char* verb, const LeaseRow& lease, std::string detail) {
    add(verb, lease_subject(lease.id), lease.tenant, std::move(detail));
  }

  // What the step did to leases beside the one it names, and what it began without being asked by name.
  void fences(const char* verb) {
    for (const auto& change : step.delta.leases) {
      const std::optional<LeaseRow>& row = change.second;
      if (row.has_value() && row->phase == LeasePhase::fencing) add_lease(verb, *row, row->reason);
    }
  }

  void operator()(const AdoptDevice& c) {
    add("device adopt", "device " + c.serial, "",
        c.backend + ", " + format_size(c.capacity_bytes) + " in granules of " + format_size(c.granule_bytes));
  }
  void operator()(const CreatePool& c) {
    std::string devices;
    for (const std::string& serial : c.device_serials) devices += (devices.empty() ? "" : ", ") + serial;
    if (c.trust == TenantTrust::mutual) devices += "; tenants who trust each other";
    add("pool create", "pool " + c.name, "", devices);
  }
  void operator()(const SetPoolCoherence& c) {
    add("pool set", "pool " + c.pool, "", std::string("coherence ") + coherence_name(c.coherence));
  }
  void operator()(const SetPoolTrust& c) {
    add("pool set", "pool " + c.pool, "", std::string("trust ") + trust_name(c.trust));
  }
  void operator()(const DeletePool& c) { add("pool delete", "pool " + c.name, "", ""); }
  void operator()(const AddDevice& c) { add("pool add-device", "pool " + c.pool, "", c.serial); }
  void operator()(const DrainDevice& c) { add("device drain", "device " + c.serial, "", ""); }
  void operator()(const UndrainDevice& c) { add("device undrain", "device " + c.serial, "", ""); }
  void operator()(const FailDevice& c) {
    add("device fail", "device " + c.serial, "", "");
    fences("fence");
  }
  void operator()(const DeviceLost& c) {
    add("device lost", "device " + c.serial, "", "");
    fences("fence");
  }
  void operator()(const DeviceBack& c) { add("device back", "device " + c.serial, "", ""); }
  void operator()(const RemoveDevice& c) { add("device remove", "device " + c.serial, "", ""); }
  void operator()(const SetQuota& c) {
    const bool removed = c.quota.bytes_max == 0 && c.quota.leases_max == 0;
    add(removed ? "quota remove" : "quota set", "tenant " + c.quota.tenant, c.quota.tenant,
        removed ? "" : format_size(c.quota.bytes_max) + ", " + std::to_string(c.quota.leases_max) + " leases");
  }
  void operator()(const CreateReservation& c) {
    add("reserve", "pool " + c.pool, c.tenant, format_size(c.bytes));
  }
  void operator()(const RemoveReservation& c) {
    add("unreserve", "reservation " + std::to_string(c.reservation.value), "", "");
  }
  void operator()(const CompactPool& c) {
    add(c.run_bytes == 0 ? "pool compact end" : "pool compact", "pool " + c.pool, "",
        c.run_bytes == 0 ? "" : "for a free run of " + format_size(c.run_bytes));
  }
  void operator()(const CarveFinished& c) {
    const LeaseRow* lease = state.find_lease(c.lease);
    if (lease == nullptr || lease->phase != LeasePhase::active) return;
    const PoolRow* pool = state.find_pool(lease->pool);
    std::string detail = format_size(lease->bytes);
    if (pool != nullptr) detail += " of pool " + pool->name;
    if (!lease->label.empty()) detail += ", '" + lease->label + "'";
    add_lease("grant", *lease, std::move(detail));
  }
  void operator()(const Release& c) {
    if (const LeaseRow* lease = state.find_lease(c.lease)) add_lease("release", *lease, lease->reason);
  }
  void operator()(const Revoke& c) {
    const LeaseRow* lease = state.find_lease(c.lease);
    if (lease != nullptr) add_lease("revoke", *lease, lease->reason + ", grace " + format_duration(c.grace_ns));
  }
  void operator()(const ResizeFinished& c) {
    if (const LeaseRow* lease = state.find_lease(c.lease))
      add_lease("resize", *lease, "now " + format_size(lease->bytes));
  }
  void operator()(const Transfer& c) {
    const LeaseRow* lease = state.find_lease(c.lease);
    if (lease == nullptr) return;
    add_lease("transfer", *lease,
              (c.tenant.empty() ? "" : "from tenant " + c.tenant + " ") + "to tenant " + lease->tenant +
                  " on host " + lease->host);
  }
  void operator()(const OfferLease& c) {
    const LeaseRow* lease = state.find_lease(c.lease);
    if (lease == nullptr) return;
    if (c.to_tenant.empty()) return add_lease("withdraw", *lease, "its offer");
    add_lease("offer", *lease, "to tenant " + c.to_tenant);
  }
  void operator()(const AcceptOffer& c) {
    if (const LeaseRow* lease = state.find_lease(c.lease))
      add_lease("accept", *lease, "as an offer to tenant " + lease->tenant + " on host " + lease->host);
  }
  void operator()(const CancelWaiting& c) {
    const auto* cancelled = std::get_if<LeaseReply>(&*step.reply);
    if (cancelled == nullptr) return;
    const LeaseRow& row = cancelled->lease;
    const PoolRow* pool = state.find_pool(row.pool);
    std::string detail = format_size(row.bytes) + " of pool " + (pool == nullptr ? "" : pool->name);
    if (!c.reason.empty()) detail += ": " + c.reason;
    add_lease("queue cancel", row, std::move(detail));
  }
  void operator()(const FinishMove& c) {
    const LeaseRow* lease = state.find_lease(c.lease);
    if (c.commit && lease != nullptr) add_lease("move", *lease, format_size(lease->bytes));
  }
  void operator()(const Tick&) {
    for (const auto& change : step.delta.leases) {
      const std::optional<LeaseRow>& row = change.second;
      if (!row.has_value() || row->phase != LeasePhase::fencing) continue;
      add_lease(row->cause == LeaseCause::expired ? "expire" : "fence", *row, row->reason);
    }
  }
  void operator()(const FenceFinished& c) { quarantined(c.lease); }
  void operator()(const ScrubFinished& c) { quarantined(c.lease); }
  void operator()(const RebindFinished& c) { quarantined(c.lease); }
  void quarantined(LeaseId id) {
    const LeaseRow* lease = state.find_lease(id);
    if (lease != nullptr && lease->phase == LeasePhase::quarantined)
      add_lease("quarantine", *lease, lease->reason);
  }
  void operator()(const OpenView& c) {
    const LeaseRow* lease = state.find_lease(c.lease);
    if (lease != nullptr && !step.delta.views.empty())
      add_lease("attach on host", *lease, c.agent.empty() ? "the manager's own" : c.agent);
  }
  void operator()(const ViewClosed& c) {
    if (const LeaseRow* lease = state.find_lease(lease_of(c.view));
        lease != nullptr && !step.delta.views.empty())
      add_lease("detach from host", *lease, c.object);
  }
  void operator()(const LoseObject& c) {
    const LeaseRow* lease = state.find_lease(c.lease);
    if (lease != nullptr && !step.delta.empty()) add_lease("lose object", *lease, c.object + ": " + c.reason);
  }
  // No line: steps whose end has one, and calls that holders make all the time. A new command must be named here
  // or above.
  void operator()(const Grant&) {}  // CarveFinished
  void operator()(const CancelGrant&) {}
  void operator()(const Renew&) {}
  void operator()(const RenewMany&) {}
  void operator()(const Resize&) {}     // ResizeFinished
  void operator()(const BeginMove&) {}  // FinishMove
  void operator()(const ScrubAdvanced&) {}
  void operator()(const ClaimPart&) {}
  void operator()(const ReleasePart&) {}
  void operator()(const ResumeAfterGap&) {}
  void operator()(const ViewOpened&) {}
};

std::string actor_text(const Actor& actor) {
  if (actor.text.empty()) return "manager";
  return line((actor.administrator ? "admin " : "") + actor.text);
}

// What a tenant was refused: whose right or quota it is about, and why.
struct Denial {
  const Error& error;
  AuditRow row;

  bool of_tenant(const char* verb, const std::string& tenant, std::string subject) {
    if (tenant.empty()) return false;
    row.verb = verb;
    row.tenant = line(tenant);
    row.subject = line(std::move(subject));
    row.detail = line(error.detail);
    return error.code == ErrorCode::permission_denied || error.code == ErrorCode::limit_exceeded;
  }
  bool operator()(const Grant& c) { return of_tenant("denied grant", c.tenant, "pool " + c.pool); }
  bool operator()(const Resize& c) { return of_tenant("denied resize", c.tenant, lease_subject(c.lease)); }
  bool operator()(const BeginMove& c) { return of_tenant("denied move", c.tenant, lease_subject(c.lease)); }
  bool operator()(const Transfer& c) { return of_tenant("denied transfer", c.tenant, lease_subject(c.lease)); }
  bool operator()(const ReleasePart& c) {
    return of_tenant("denied release", c.tenant, lease_subject(c.lease));
  }
  bool operator()(const AcceptOffer& c) {  // of what is another's, too
    return of_tenant("denied accept", c.tenant, lease_subject(c.lease)) || error.code == ErrorCode::not_found;
  }
  template <typename Other>
  bool operator()(const Other&) {
    return false;
  }
};

}  // namespace

AuditRow denial_row(const char* what, const std::string& tenant, const std::string& detail, const Actor& actor,
                    uint64_t wall_ns) {
  return AuditRow{.sequence = 0,
                  .wall_ns = wall_ns,
                  .actor = actor_text(actor),
                  .tenant = line(tenant),
                  .verb = std::string("denied ") + what,
                  .subject = "",
                  .detail = line(detail)};
}

AuditRow note_row(const char* verb, const std::string& subject, const std::string& detail, const Actor& actor,
                  uint64_t wall_ns) {
  return AuditRow{.sequence = 0,
                  .wall_ns = wall_ns,
                  .actor = actor_text(actor),
                  .tenant = "",
                  .verb = verb,
                  .subject = line(subject),
                  .detail = line(detail)};
}

bool DenialLimit::admit(AuditRow& row, uint64_t now_ns) {
  if (tenants_.size() >= tenants_max) tenants_.clear();
  Told& told = tenants_[row.tenant];
  if (now_ns - told.second_began_ns >= ns_per_s) {
    told.second_began_ns = now_ns;
    told.rows = 0;
  }
  if (++told.rows > rows_per_s) {
    ++told.left_out;
    return false;
  }
  if (const uint64_t left_out = std::exchange(told.left_out, 0); left_out != 0)
    row.detail = line("(" + std::to_string(left_out) + " more before it) " + row.detail);
  return true;
}

void DenialCounts::add(const std::string& tenant, const std::string& detail) {
  const bool counts_alone = tenants_.size() < tenants_max || tenants_.contains(tenant);
  Count& count = tenants_[counts_alone ? tenant : "(others)"];
  ++count.calls;
  count.last = line(detail);
}

std::vector<AuditRow> audit_rows(const Command& command, const Step& step, const StateMachine& state,
                                 const Actor& actor, uint64_t wall_ns) {
  // DeviceLost, DeviceBack, an offer and a request taken out of a queue are worth a line even when no row
  // changed; elsewhere no change means a repetition.
  const bool rowless =
      std::holds_alternative<OfferLease>(command) || std::holds_alternative<DeviceLost>(command) ||
      std::holds_alternative<DeviceBack>(command) || std::holds_alternative<CompactPool>(command) ||
      std::holds_alternative<CancelWaiting>(command);
  const auto traced = [&actor](AuditRow& row) {
    if (actor.trace == nullptr) return;
    row.detail += (row.detail.empty() ? "trace_id=" : "; trace_id=") + actor.trace->trace_id();
  };
  if (!step.reply.ok()) {
    Denial denial{step.reply.error(), AuditRow{0, wall_ns, actor_text(actor), "", "", "", ""}};
    if (!std::visit(denial, command)) return {};
    traced(denial.row);
    return {std::move(denial.row)};
  }
  if (step.delta.empty() && !rowless) return {};
  Writer writer{step, state, actor_text(actor), wall_ns, {}};
  std::visit([&writer](const auto& c) { writer(c); }, command);
  for (AuditRow& row : writer.rows) traced(row);
  return std::move(writer.rows);
}

}  // namespace terrace::daemon
