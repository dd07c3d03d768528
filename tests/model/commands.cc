// SPDX-License-Identifier: Apache-2.0
#include "tests/model/commands.h"

#include <cstddef>
#include <iterator>

#include "core/base/limits.h"

namespace terrace::model {
namespace {

std::string pick(Prng& prng, const char* prefix, uint64_t count) {
  return prefix + std::to_string(prng.below(count));
}

// One that exists, in `phase` when some lease is, or one that does not.
LeaseId pick_lease(Prng& prng, const Reference& reference, std::optional<LeasePhase> phase = std::nullopt) {
  const auto& leases = reference.leases();
  if (leases.empty() || prng.chance(1, 30)) return LeaseId{prng.below(1000)};
  for (int i = 0; i < 8; ++i) {
    const auto& lease = leases[prng.below(leases.size())];
    if (!phase.has_value() || lease.phase == *phase) return lease.id;
  }
  return leases[prng.below(leases.size())].id;
}

std::string pick_tenant(Prng& prng, const Reference& reference, LeaseId id) {
  if (prng.chance(1, 10)) return "";
  for (const auto& lease : reference.leases()) {
    if (lease.id == id && !prng.chance(1, 10)) return lease.tenant;
  }
  return pick(prng, "tenant-", 3);
}

uint64_t pick_ttl_ns(Prng& prng) {
  if (prng.chance(1, 30)) return prng.chance(1, 2) ? limits::ttl_ns_min - 1 : limits::ttl_ns_max + 1;
  return prng.chance(1, 4) ? 0 : prng.between(1, 60) * ns_per_s;
}

Status pick_status(Prng& prng, uint64_t one_in) {
  if (!prng.chance(1, one_in)) return {};
  return Error{.code = ErrorCode::io_error, .os_errno = 5, .where = "model", .detail = "as the dice fell"};
}

daemon::AdoptDevice random_device(Prng& prng) {
  // Each serial has one shape, except for one adoption in ten.
  const uint64_t number = prng.below(6);
  const uint64_t shape = prng.chance(1, 10) ? prng.below(6) : number;
  const uint64_t granule_bytes = (shape % 3 == 2 ? 2 : 1) * limits::granule_bytes;
  return {"dev-" + std::to_string(number), shape == 5 ? "devdax" : "emulated", (8 + 7 * shape) * granule_bytes,
          granule_bytes};
}

daemon::CreatePool random_pool(Prng& prng) {
  daemon::CreatePool create;
  create.name = pick(prng, "pool-", 3);
  const uint64_t count = prng.chance(1, 20) ? 0 : prng.between(1, 3);
  for (uint64_t i = 0; i < count; ++i) create.device_serials.push_back(pick(prng, "dev-", 7));
  create.placement = prng.chance(1, 2) ? daemon::Placement::linear : daemon::Placement::spread;
  return create;
}

daemon::Grant random_grant(Prng& prng, uint64_t now_ns) {
  daemon::Grant grant;
  grant.pool = pick(prng, "pool-", 3);
  grant.tenant = pick(prng, "tenant-", 3);
  grant.host = "host";
  if (prng.chance(1, 3)) grant.label = pick(prng, "label-", 6);
  grant.bytes = prng.chance(1, 30) ? 0 : prng.between(1, 12 * limits::granule_bytes);
  if (prng.chance(1, 50)) grant.bytes = prng.next();
  grant.mode = static_cast<daemon::LeaseMode>(prng.below(3));
  grant.persistent = prng.chance(1, 6);
  grant.ttl_ns = grant.persistent && !prng.chance(1, 10) ? 0 : pick_ttl_ns(prng);
  if (prng.chance(1, 2)) grant.request_low = prng.below(12);
  grant.now_ns = now_ns;
  grant.pins_outlast = prng.chance(1, 10);
  if (prng.chance(1, 6)) grant.on_fence = daemon::OnFence::kill;
  // Of what moves only what is refused: no compaction is planned here.
  grant.movable = grant.on_fence == daemon::OnFence::kill && prng.chance(1, 6);
  return grant;
}

// Commands on devices, and claims on the pools' room.
daemon::Command random_composition(Prng& prng, uint64_t now_ns) {
  const std::string serial = pick(prng, "dev-", 7);
  switch (prng.below(16)) {
    case 0:
    case 1:
    case 2: return random_device(prng);
    case 3:
    case 4: return random_pool(prng);
    case 5: return daemon::DeletePool{pick(prng, "pool-", 3)};
    case 6: return daemon::AddDevice{pick(prng, "pool-", 3), serial};
    case 7: return daemon::DrainDevice{serial};
    case 8:
    case 9: return daemon::UndrainDevice{serial, now_ns};
    case 10:
      if (prng.chance(1, 3)) return daemon::FailDevice{serial, now_ns};
      return daemon::UndrainDevice{serial, now_ns};
    case 11: return daemon::DeviceLost{serial, now_ns};
    case 12:
    case 13: return daemon::DeviceBack{serial, now_ns};
    case 14: return daemon::RemoveDevice{serial, prng.chance(1, 2)};
    default: return daemon::CompactPool{pick(prng, "pool-", 4), 0, 0, now_ns};
  }
}

daemon::Command random_claim(Prng& prng, uint64_t now_ns) {
  const uint64_t dice = prng.below(4);
  if (dice == 0) {
    daemon::QuotaRow row;
    row.tenant = prng.chance(1, 4) ? "*" : pick(prng, "tenant-", 3);
    if (prng.chance(1, 2)) row.bytes_max = prng.between(1, 60) * limits::granule_bytes;
    if (prng.chance(1, 2)) row.leases_max = prng.between(1, 20);
    return daemon::SetQuota{row};
  }
  if (dice < 3) {
    daemon::CreateReservation create;
    create.pool = pick(prng, "pool-", 3);
    create.tenant = pick(prng, "tenant-", 3);
    create.bytes = prng.chance(1, 30) ? 0 : prng.between(1, 20 * limits::granule_bytes);
    create.ttl_ns = pick_ttl_ns(prng);
    create.now_ns = now_ns;
    return create;
  }
  return daemon::RemoveReservation{ReservationId{prng.below(60)}, now_ns};
}

// Few parts and processes, so that they meet. Now and then an owner is said to have ended.
daemon::Command random_owner(Prng& prng, const Reference& reference, uint64_t now_ns) {
  if (prng.chance(1, 20))
    return daemon::SetPoolTrust{pick(prng, "pool-", 4), static_cast<daemon::TenantTrust>(prng.below(3))};
  if (prng.chance(1, 20))
    return daemon::SetPoolCoherence{pick(prng, "pool-", 4), static_cast<daemon::PoolCoherence>(prng.below(4))};
  LeaseId id = pick_lease(prng, reference, LeasePhase::active);
  for (const auto& row : reference.leases())
    if (row.mode == daemon::LeaseMode::shared_coherent && prng.chance(1, 3)) id = row.id;
  const uint64_t part = prng.chance(1, 30) ? prng.below(100) : prng.below(2);
  const uint64_t epoch = reference.owner_epoch(id, part);
  const daemon::ProcessId process{prng.below(20) == 0 ? 0 : prng.between(1, 3), prng.below(2), 7};
  const std::string tenant = pick_tenant(prng, reference, id);
  if (prng.chance(1, 3))
    return daemon::ReleasePart{id, tenant, part, prng.chance(1, 4) ? prng.below(5) : epoch, process};
  daemon::ClaimPart claim{.lease = id, .tenant = tenant, .part = part};
  if (prng.chance(1, 8)) claim.last_epoch = prng.chance(1, 6) ? UINT64_MAX : prng.below(50);
  claim.request = prng.below(4);
  claim.process = process;
  claim.holder = "p";
  claim.dead_epoch = prng.chance(1, 3) ? epoch : prng.below(3);
  claim.now_ns = now_ns;
  return claim;
}

// What is offered, before it ends; at times by somebody else, or of a lease that is not offered.
daemon::Command random_acceptance(Prng& prng, const Reference& reference, LeaseId id, uint64_t now_ns) {
  const auto& offers = reference.offers();
  const auto at = std::next(offers.begin(), static_cast<std::ptrdiff_t>(prng.below(offers.size())));
  daemon::AcceptOffer accept{.lease = at->first, .tenant = at->second, .now_ns = now_ns};
  if (prng.chance(1, 8)) accept.lease = id;
  if (prng.chance(1, 8)) accept.tenant = pick(prng, "tenant-", 3);
  return accept;
}

// A lease that is growing, shrinking or moving is picked more often than chance would.
daemon::Command random_change(Prng& prng, const Reference& reference, uint64_t now_ns) {
  const LeaseId id = pick_lease(prng, reference, LeasePhase::active);
  const std::string tenant = pick_tenant(prng, reference, id);
  if (!reference.offers().empty() && prng.chance(1, 10)) return random_acceptance(prng, reference, id, now_ns);
  switch (prng.below(8)) {
    case 0:
    case 1: {
      const uint64_t bytes = prng.chance(1, 30) ? 0 : prng.between(1, 14 * limits::granule_bytes);
      return daemon::Resize{id, tenant, bytes, now_ns};
    }
    case 2:
    case 3: {
      LeaseId resized = id;
      for (const auto& row : reference.leases())
        if ((row.target_bytes != 0 || reference.growing(row.id)) && prng.chance(1, 2)) resized = row.id;
      return daemon::ResizeFinished{resized, pick_status(prng, 8), now_ns};
    }
    case 4:
      if (prng.chance(1, 2)) {
        const std::string to = prng.chance(1, 4) ? "" : pick(prng, "tenant-", 3);
        return daemon::OfferLease{id, tenant, to, "", now_ns};
      }
      return daemon::Transfer{id, tenant, pick(prng, "tenant-", 3), "", now_ns, {}, prng.chance(1, 10)};
    case 5:
      return daemon::RebindFinished{pick_lease(prng, reference, LeasePhase::transferring), pick_status(prng, 8),
                                    now_ns};
    case 6: return daemon::BeginMove{id, tenant, now_ns};
    default: {
      for (const auto& row : reference.leases()) {
        const auto target = reference.target_of(row.id);
        if (target.has_value() && prng.chance(1, 2))
          return daemon::FinishMove{row.id, *target, "", prng.chance(3, 4), now_ns};
      }
      return daemon::FinishMove{id, pick_lease(prng, reference), tenant, prng.chance(3, 4), now_ns};
    }
  }
}

}  // namespace

daemon::Command random_command(Prng& prng, const Reference& reference, uint64_t now_ns) {
  const uint64_t dice = prng.below(100);
  if (dice < 9) return random_composition(prng, now_ns);
  if (dice < 13) return random_claim(prng, now_ns);
  if (dice < 30) return random_grant(prng, now_ns);
  if (dice < 31) {
    const LeaseId id = pick_lease(prng, reference);
    if (id.value % 2 == 0) return daemon::CancelWaiting{id, "because", "an operator", now_ns};
    return daemon::CancelGrant{id, now_ns};
  }
  if (dice < 45)
    return daemon::CarveFinished{pick_lease(prng, reference, LeasePhase::pending), pick_status(prng, 8),
                                 now_ns};
  if (dice < 60) return random_change(prng, reference, now_ns);
  if (dice < 64) return random_owner(prng, reference, now_ns);
  if (dice < 70) {
    const LeaseId id = pick_lease(prng, reference, LeasePhase::active);
    const std::string tenant = pick_tenant(prng, reference, id);
    if (prng.chance(1, 2)) return daemon::Renew{id, tenant, pick_ttl_ns(prng), now_ns};
    daemon::RenewMany renew{{id}, tenant, prng.chance(1, 2) ? 0 : pick_ttl_ns(prng), now_ns};
    while (prng.chance(3, 4)) renew.leases.push_back(pick_lease(prng, reference, LeasePhase::active));
    return renew;
  }
  if (dice < 74) {
    const LeaseId id =
        pick_lease(prng, reference, prng.chance(1, 3) ? LeasePhase::quarantined : LeasePhase::active);
    return daemon::Release{id, pick_tenant(prng, reference, id), now_ns};
  }
  if (dice < 77) {
    const uint64_t grace_ns = prng.chance(1, 20) ? limits::grace_ns_max + 1 : prng.below(20 * ns_per_s);
    return daemon::Revoke{pick_lease(prng, reference), "because", prng.chance(1, 3) ? 0 : grace_ns, now_ns};
  }
  if (dice < 80) return daemon::Tick{now_ns};
  if (dice < 81) return daemon::ResumeAfterGap{prng.below(20 * ns_per_s), now_ns};
  if (dice < 90)
    return daemon::FenceFinished{pick_lease(prng, reference, LeasePhase::fencing), pick_status(prng, 100),
                                 now_ns};
  if (dice < 92)
    return daemon::ScrubAdvanced{pick_lease(prng, reference, LeasePhase::scrubbing), prng.between(1, 5),
                                 now_ns};
  return daemon::ScrubFinished{pick_lease(prng, reference, LeasePhase::scrubbing), pick_status(prng, 100),
                               now_ns};
}

const char* command_name(const daemon::Command& command) {
  static const char* const names[] = {"AdoptDevice",       "CreatePool",    "DeletePool",
                                      "AddDevice",         "DrainDevice",   "UndrainDevice",
                                      "FailDevice",        "DeviceLost",    "DeviceBack",
                                      "RemoveDevice",      "SetQuota",      "CreateReservation",
                                      "RemoveReservation", "CompactPool",   "Grant",
                                      "CancelGrant",       "CarveFinished", "Renew",
                                      "Release",           "Revoke",        "Resize",
                                      "ResizeFinished",    "Transfer",      "RebindFinished",
                                      "BeginMove",         "FinishMove",    "Tick",
                                      "FenceFinished",     "ScrubFinished", "ScrubAdvanced",
                                      "SetPoolCoherence",  "ClaimPart",     "ReleasePart",
                                      "ResumeAfterGap",    "OfferLease",    "AcceptOffer",
                                      "CancelWaiting",     "SetPoolTrust",  "RenewMany",
                                      "OpenView",          "ViewOpened",    "ViewClosed",
                                      "LoseObject"};
  static_assert(std::size(names) == std::variant_size_v<daemon::Command>);
  return names[command.index()];
}

}  // namespace terrace::model
