// SPDX-License-Identifier: Apache-2.0
#include "daemon/state/preview/preview.h"

#include <algorithm>
#include <utility>

#include "core/base/limits.h"
#include "daemon/state/preview/words.h"

namespace terrace::daemon {
namespace {

Status status_of(const Step& step) {
  return step.reply.ok() ? Status() : Status(step.reply.error());
}

PreviewedTenant tenant_now(const StateMachine& state, const std::string& tenant) {
  const TenantUse use = state.tenant_use(tenant);
  const QuotaRow quota = state.quota_of(tenant);
  PreviewedTenant one{tenant, use.bytes, use.leases, quota.bytes_max, quota.leases_max, false};
  one.over = (quota.bytes_max != 0 && use.bytes > quota.bytes_max) ||
             (quota.leases_max != 0 && use.leases > quota.leases_max);
  return one;
}

// --- grant ----------------------------------------------------------------------------------------

void tell_granted(const StateMachine& state, const LeaseRow& row, const Grant& command, Preview& preview) {
  PreviewedLease one = lease_of_row(row);
  one.lease = {};
  one.to_extents = placed_extents(state, row.extents);
  one.to = places_of(one.to_extents);
  one.state = "granted at once";
  preview.leases = 1;
  preview.bytes = row.bytes;
  preview.to = one.to;
  preview.summary = "grants " + format_size(row.bytes) + " to " + row.tenant + ", from " + places_text(one.to);
  if (row.bytes != command.bytes)
    preview.notes.push_back("rounded up from " + format_size(command.bytes) + " to whole granules");
  preview.notes.push_back("pool " + state.find_pool(row.pool)->name + " has " +
                          format_size(state.pool_use(row.pool).grantable_bytes) + " to grant afterwards");
  preview.all.push_back(std::move(one));
}

// Without room: what would be before it in the queue.
void tell_waiting(StateMachine state, Grant command, Preview& preview) {
  if (command.wait_ns == 0) command.wait_ns = limits::ttl_ns_default;
  const Step queued = state.apply(command);
  if (!queued.reply.ok()) {
    preview.notes.push_back("nor can it wait: " + queued.reply.error().detail);
    return;
  }
  const auto* pending = std::get_if<GrantPending>(&*queued.reply);
  const LeaseRow* row = pending == nullptr ? nullptr : state.find_lease(pending->lease);
  if (row == nullptr || row->phase != LeasePhase::waiting) return;
  preview.would_wait = true;
  uint64_t bytes = 0;
  std::map<std::string, uint64_t> whose;
  for (const LeaseId id : state.queue_of(row->pool)->in_order()) {
    if (id == row->id) break;
    const LeaseRow* before = state.find_lease(id);
    ++preview.waiting_before;
    bytes += before->bytes;
    ++whose[before->tenant];
  }
  std::string text = "with a time to wait it would be the first in the queue";
  if (preview.waiting_before != 0) {
    text = "with a time to wait it would be in the queue behind " +
           count_of(preview.waiting_before, "request") + ", " + format_size(bytes) + ", of ";
    std::string names;
    for (const auto& [tenant, count] : whose) names += (names.empty() ? "" : ", ") + tenant;
    text += names;
  }
  preview.notes.push_back(std::move(text));
}

// --- revoke and release ---------------------------------------------------------------------------

// Fences and erases what was taken, for whom that makes room.
void tell_room(StateMachine& state, LeaseId lease, uint64_t now_ns, Preview& preview) {
  if (state.find_lease(lease)->phase == LeasePhase::revoking) state.apply(Revoke{lease, "", 0, now_ns});
  Served served;
  add_served(state.apply(FenceFinished{lease, {}, now_ns}), served);
  add_served(state.apply(ScrubFinished{lease, {}, now_ns}), served);
  if (served.granted != 0)
    preview.notes.push_back(count_of(served.granted, "request") + " that waits, " +
                            format_size(served.granted_bytes) + ", gets room by that");
}

Preview preview_end(StateMachine& state, LeaseId lease, const Step& step, size_t holders, uint64_t grace_ns,
                    uint64_t now_ns) {
  Preview preview;
  preview.outcome = status_of(step);
  if (!preview.outcome.ok()) return preview;
  const LeaseRow* row = state.find_lease(lease);
  PreviewedLease one = lease_of_row(*row);
  const bool later = row->phase == LeasePhase::revoking;
  const uint64_t left_ns = row->deadline_ns > now_ns ? row->deadline_ns - now_ns : 0;
  one.state =
      later ? "fenced in " + format_duration(left_ns) + ", sooner if its holder lets go" : "fenced at once";
  preview.leases = 1;
  preview.bytes = row->bytes;
  const std::string name = "lease " + std::to_string(lease.value) +
                           (row->label.empty() ? "" : " (" + row->label + ")") + " of " + row->tenant;
  preview.summary = "takes " + name + ", " + format_size(row->bytes) + ", from " + row->host;
  preview.notes.push_back(holders == 0
                              ? "no session has it now"
                              : count_of(holders, "session") + (holders == 1 ? " has it" : " have it"));
  if (later && left_ns < grace_ns)
    preview.notes.push_back("it is being revoked already: a grace is never made longer");
  preview.notes.push_back(later ? "whoever has it is told, and has " + format_duration(left_ns) +
                                      " to let go; after that its loads and stores end with SIGBUS"
                                : "loads and stores of whoever has it end with SIGBUS");
  preview.notes.push_back("its contents are erased");
  preview.all.push_back(std::move(one));
  preview.tenants.push_back(tenant_now(state, row->tenant));
  tell_room(state, lease, now_ns, preview);
  return preview;
}

// --- quota ----------------------------------------------------------------------------------------

// Those whom the row bounds: its tenant, or with "*" all without one of their own who have or want something.
std::vector<std::string> bounded_by(const StateMachine& state, const std::string& tenant) {
  if (tenant != "*") return {tenant};
  std::vector<std::string> names;
  for (const auto& [name, use] : state.tenant_uses())
    if (!state.quotas().contains(name)) names.push_back(name);
  return names;
}

// Requests that wait now, and that their tenant's new bound forbids when their turn comes.
uint64_t refused_in_turn(const StateMachine& state, const PreviewedTenant& tenant, uint64_t& bytes) {
  uint64_t refused = 0;
  uint64_t room =
      tenant.bytes_max == 0 ? UINT64_MAX : tenant.bytes_max - std::min(tenant.bytes_max, tenant.bytes);
  uint64_t leases =
      tenant.leases_max == 0 ? UINT64_MAX : tenant.leases_max - std::min(tenant.leases_max, tenant.leases);
  for (const auto& [pool, row] : state.pools()) {
    const WaitingQueue* queue = state.queue_of(pool);
    if (queue == nullptr) continue;
    for (const LeaseId id : queue->requests(tenant.tenant, UINT64_MAX)) {
      const uint64_t wanted = state.find_lease(id)->bytes;
      if (wanted <= room && leases > 0) {
        room -= wanted;
        --leases;
        continue;
      }
      ++refused;
      bytes += wanted;
    }
  }
  return refused;
}

std::string bounds_text(const PreviewedTenant& tenant) {
  const std::string bytes = tenant.bytes_max == 0 ? "any size" : format_size(tenant.bytes_max);
  const std::string leases =
      tenant.leases_max == 0 ? "any number of leases" : count_of(tenant.leases_max, "lease");
  return bytes + " in " + leases;
}

void tell_one_tenant(const PreviewedTenant& tenant, Preview& preview) {
  preview.summary = "lets " + tenant.tenant + " have " + bounds_text(tenant) + "; it has " +
                    format_size(tenant.bytes) + " in " + count_of(tenant.leases, "lease");
  if (tenant.over) return;
  const std::string more = tenant.bytes_max == 0 ? "" : format_size(tenant.bytes_max - tenant.bytes);
  const std::string leases = tenant.leases_max == 0 ? "" : count_of(tenant.leases_max - tenant.leases, "lease");
  if (more.empty() && leases.empty()) return;
  preview.notes.push_back("a request for more than " + more + (more.empty() || leases.empty() ? "" : " or ") +
                          leases + " further is refused");
}

}  // namespace

Preview preview_grant(StateMachine copy, Grant command) {
  const uint64_t wait_ns = std::exchange(command.wait_ns, 0);
  Preview preview;
  const size_t leases_before = copy.leases().size();
  const Step step = copy.apply(command);
  preview.outcome = status_of(step);
  if (!step.reply.ok()) {  // it has changed nothing
    preview.summary = "grants nothing";
    if (step.reply.error().code == ErrorCode::capacity_exhausted) {
      command.wait_ns = wait_ns;
      tell_waiting(std::move(copy), std::move(command), preview);
    }
    return preview;
  }
  if (const auto* known = std::get_if<LeaseReply>(&*step.reply)) {
    preview.summary = "grants nothing more: the request with this key has lease " +
                      std::to_string(known->lease.id.value) + " already";
    preview.all.push_back(lease_of_row(known->lease));
    preview.all.back().state = "granted before";
  } else if (const auto* pending = std::get_if<GrantPending>(&*step.reply)) {
    if (copy.leases().size() != leases_before)
      tell_granted(copy, *copy.find_lease(pending->lease), command, preview);
    else
      preview.summary = "grants nothing more: the request with this key is being granted";
  }
  preview.tenants.push_back(tenant_now(copy, command.tenant));
  return preview;
}

Preview preview_revoke(StateMachine copy, const Revoke& command, size_t holders) {
  const Step step = copy.apply(command);
  return preview_end(copy, command.lease, step, holders, command.grace_ns, command.now_ns);
}

Preview preview_release(StateMachine copy, const Release& command, size_t holders) {
  const LeaseRow* before = copy.find_lease(command.lease);
  const bool ended =
      before != nullptr && (before->phase == LeasePhase::fencing || before->phase == LeasePhase::scrubbing);
  const Step step = copy.apply(command);
  if (!ended || !step.reply.ok()) return preview_end(copy, command.lease, step, holders, 0, command.now_ns);
  Preview preview;
  preview.summary = "does nothing: lease " + std::to_string(command.lease.value) + " is being erased already";
  return preview;
}

Preview preview_quota(StateMachine copy, const SetQuota& command) {
  Preview preview;
  const Step step = copy.apply(command);
  preview.outcome = status_of(step);
  if (!preview.outcome.ok()) return preview;
  uint64_t over = 0, refused = 0, refused_bytes = 0;
  for (const std::string& name : bounded_by(copy, command.quota.tenant)) {
    PreviewedTenant tenant = tenant_now(copy, name);
    over += tenant.over ? 1 : 0;
    refused += refused_in_turn(copy, tenant, refused_bytes);
    preview.tenants.push_back(std::move(tenant));
  }
  std::stable_sort(preview.tenants.begin(), preview.tenants.end(),
                   [](const PreviewedTenant& a, const PreviewedTenant& b) { return a.over && !b.over; });
  const bool removed = command.quota.bytes_max == 0 && command.quota.leases_max == 0;
  if (command.quota.tenant == "*") {
    preview.summary =
        (removed ? "lets " : "bounds ") + count_of(preview.tenants.size(), "tenant") +
        " without a quota of their own" +
        (removed ? " have what they like"
                 : ", by " + bounds_text({"", 0, 0, command.quota.bytes_max, command.quota.leases_max, false}));
  } else {
    tell_one_tenant(preview.tenants.front(), preview);
  }
  if (removed && command.quota.tenant != "*")
    preview.notes.push_back("it has no quota of its own then: that of * bounds it, where there is one");
  if (over != 0)
    preview.notes.push_back(
        (command.quota.tenant == "*" ? count_of(over, "tenant") + (over == 1 ? " has" : " have") : "it has") +
        " more than that: nothing is taken away, and nothing more is granted until it is less");
  Served served;
  add_served(step, served);
  refused += served.refused;
  if (refused != 0)
    preview.notes.push_back(count_of(refused, "request") +
                            " that waits is refused by that, now or in its turn");
  if (served.granted != 0)
    preview.notes.push_back(count_of(served.granted, "request") + " that waits is granted at once");
  return preview;
}

}  // namespace terrace::daemon
