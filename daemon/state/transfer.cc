// SPDX-License-Identifier: Apache-2.0
// Handing a lease, its bytes kept, to another tenant or host.
//
// Crash     The row is the new tenant's from the first step (`transferring`), under a new LeaseEpoch, and names
//           both objects; recovery rebinds again. A rebind that fails leaves the bytes in either object: the
//           lease is fenced under the old object's name, scrubbed, then fenced and scrubbed under the new one's
//           (ScrubFinished), and only then are its extents free.
#include "core/base/limits.h"
#include "daemon/model/phases.h"
#include "daemon/state/names.h"
#include "daemon/state/refuse.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {

Status StateMachine::check_receiver(const LeaseRow& lease, const std::string& to_tenant, bool pins_outlast,
                                    const char* where) const {
  if (to_tenant == lease.tenant) return {};
  TERRACE_RETURN_IF_ERROR(check_trust(*find_pool(lease.pool), pins_outlast, where));
  if (lease.ttl_ns == 0) TERRACE_RETURN_IF_ERROR(check_persistent(where));
  TERRACE_RETURN_IF_ERROR(check_quota(to_tenant, lease.bytes, 1));
  if (!lease.label.empty()) {
    if (const LeaseRow* holder = find_lease_by_label(to_tenant, lease.label)) {
      return refusal(
          ErrorCode::already_exists, where,
          lease_name(holder->id) + " of tenant " + to_tenant + " has the label '" + lease.label + "'");
    }
  }
  // What filled the giver's reservation leaves it open again: that needs room, unless others' is not touched.
  const uint64_t before = unfilled_of_others(lease.pool, to_tenant);
  const uint64_t after = unfilled_of_others(lease.pool, to_tenant, lease.tenant, lease.bytes);
  if (after > before && grantable_bytes(lease.pool) < after) {
    return refusal(ErrorCode::capacity_exhausted, where,
                   lease_name(lease.id) + " fills a reservation of tenant " + lease.tenant + " in pool " +
                       find_pool(lease.pool)->name + ", and what would have to be kept free instead, " +
                       format_size(after) + ", is not free; remove the reservation first");
  }
  return {};
}

Step StateMachine::hand_over(LeaseRow& lease, const std::string& to_tenant, const std::string& to_host,
                             const std::optional<std::string>& to_agent) {
  Step step;
  offers_.erase(lease.id);
  unindex_lease(lease);
  change_phase(lease, LeasePhase::transferring);
  lease.tenant = to_tenant;
  if (!to_host.empty()) lease.host = to_host;
  lease.epoch = LeaseEpoch{meta_.next_epoch++};
  lease.next_object =
      object_name(lease, to_agent.value_or(agent_of(lease)), {}, "-" + std::to_string(lease.epoch.value));
  lease.expiry_ns = 0;
  lease.ttl_ns = within_term(lease.ttl_ns);
  lease.request_high = lease.request_low = 0;  // the key was the giver's
  index_lease(lease);
  step.delta.leases[lease.id] = lease;
  step.delta.meta = meta_;
  step.effects.push_back(
      NotifyHolders{lease.id, "handed to tenant " + lease.tenant, 0, true, LeaseCause::revoked});
  step.effects.push_back(RebindObject{lease.id, lease.object, lease.next_object, lease.bytes, lease.extents});
  step.reply = Reply{ChangePending{lease.id}};
  return step;
}

Step StateMachine::on(const Transfer& command) {
  constexpr const char* where = "Transfer";
  if (Status status = check_changeable(command.lease, command.tenant, where, command.now_ns); !status.ok())
    return refuse(std::move(status).error());
  if (Status status = check_no_views(command.lease, where); !status.ok())
    return refuse(std::move(status).error());
  LeaseRow& lease = leases_.at(command.lease);
  if (!valid_name(command.to_tenant) || !valid_name(command.to_host.empty() ? lease.host : command.to_host))
    return refuse(ErrorCode::invalid_argument, where,
                  "tenant and host need plain names of at most 63 characters");
  if (Status status = check_receiver(lease, command.to_tenant, command.pins_outlast, where); !status.ok())
    return refuse(std::move(status).error());
  return hand_over(lease, command.to_tenant, command.to_host, command.to_agent);
}

// --- offers -----------------------------------------------------------------------------------------

// What the receiver has, and may have, is not the giver's to learn: it is looked at when the receiver accepts.
Step StateMachine::on(const OfferLease& command) {
  constexpr const char* where = "OfferLease";
  const LeaseRow* lease = mutable_lease(command.lease, command.tenant);
  if (lease == nullptr || ungranted(*lease)) return no_such_lease(where, command.lease);
  Step step;
  if (command.to_tenant.empty()) {
    offers_.erase(command.lease);
    step.reply = Reply{LeaseReply{*lease}};
    return step;
  }
  if (Status status = check_changeable(command.lease, command.tenant, where, command.now_ns); !status.ok())
    return refuse(std::move(status).error());
  if (Status status = check_no_views(command.lease, where); !status.ok())
    return refuse(std::move(status).error());
  if (!valid_name(command.to_tenant) || !valid_name(command.to_host.empty() ? lease->host : command.to_host))
    return refuse(ErrorCode::invalid_argument, where,
                  "tenant and host need plain names of at most 63 characters");
  if (command.to_tenant == lease->tenant)
    return refuse(ErrorCode::invalid_argument, where,
                  lease_name(lease->id) + " is tenant " + lease->tenant + "'s");
  if (lease->ttl_ns == 0) {
    if (Status status = check_persistent(where); !status.ok()) return refuse(std::move(status).error());
  }
  offers_[command.lease] = Offer{command.to_tenant, command.to_host};
  step.reply = Reply{LeaseReply{*lease}};
  return step;
}

Step StateMachine::on(const AcceptOffer& command) {
  constexpr const char* where = "AcceptOffer";
  const auto at = offers_.find(command.lease);
  if (at == offers_.end() || at->second.to_tenant != command.tenant) {
    return refuse(ErrorCode::not_found, where,
                  lease_name(command.lease) + " is not offered to tenant " + command.tenant +
                      "; it may have been withdrawn, or have ended");
  }
  if (Status status = check_changeable(command.lease, "", where, command.now_ns); !status.ok())
    return refuse(std::move(status).error());
  if (Status status = check_no_views(command.lease, where); !status.ok())
    return refuse(std::move(status).error());
  LeaseRow& lease = leases_.at(command.lease);
  if (Status status = check_receiver(lease, command.tenant, command.pins_outlast, where); !status.ok())
    return refuse(std::move(status).error());
  const Offer offer = at->second;
  return hand_over(lease, offer.to_tenant, offer.to_host, command.to_agent);
}

Step StateMachine::on(const RebindFinished& command) {
  constexpr const char* where = "RebindFinished";
  const auto at = leases_.find(command.lease);
  if (at == leases_.end() || ungranted(at->second)) return no_such_lease(where, command.lease);
  LeaseRow& lease = at->second;
  if (lease.phase != LeasePhase::transferring)
    return refuse(ErrorCode::not_found, where, lease_name(lease.id) + " is not being handed over");
  Step step;
  if (!command.status.ok()) {
    std::string reason = "could not be handed over";
    append_reason(reason, ": " + command.status.error().to_string());
    begin_fence(lease, LeaseCause::object_lost, std::move(reason), step);
    step.reply = command.status.error();
    return step;
  }
  // Not before every holder is shut out: until then its owners may store. What they stored stays in their hosts' caches, but in
  // those of the host that handed it to another one.
  const std::string from = agent_of(lease);
  vacate_parts(lease.id, std::nullopt, false, step.delta);
  if (from != host_of(lease.next_object) && !command.lines_may_remain)
    vacate_parts(lease.id, from, true, step.delta);
  unindex_lease(lease);
  change_phase(lease, LeasePhase::active);
  lease.object = std::move(lease.next_object);
  lease.next_object.clear();
  if (lease.ttl_ns != 0) lease.expiry_ns = command.now_ns + lease.ttl_ns;
  index_lease(lease);
  step.delta.leases[lease.id] = lease;
  step.reply = Reply{LeaseReply{lease}};
  return step;
}

}  // namespace terrace::daemon
