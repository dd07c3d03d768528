#include "tests/model/commands.h"

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
  return grant;
}

}  // namespace

daemon::Command random_command(Prng& prng, const Reference& reference, uint64_t now_ns) {
  const uint64_t dice = prng.below(100);
  if (dice < 3) return random_device(prng);
  if (dice < 6) return random_pool(prng);
  if (dice < 7) return daemon::DeletePool{pick(prng, "pool-", 3)};
  if (dice < 32) return random_grant(prng, now_ns);
  if (dice < 52)
    return daemon::CarveFinished{pick_lease(prng, reference, LeasePhase::pending), pick_status(prng, 8),
                                 now_ns};
  if (dice < 62) {
    const LeaseId id = pick_lease(prng, reference, LeasePhase::active);
    return daemon::Renew{id, pick_tenant(prng, reference, id), pick_ttl_ns(prng), now_ns};
  }
  if (dice < 67) {
    const LeaseId id = pick_lease(prng, reference, LeasePhase::active);
    return daemon::Release{id, pick_tenant(prng, reference, id), now_ns};
  }
  if (dice < 72) {
    const uint64_t grace_ns = prng.chance(1, 20) ? limits::grace_ns_max + 1 : prng.below(20 * ns_per_s);
    return daemon::Revoke{pick_lease(prng, reference), "because", prng.chance(1, 3) ? 0 : grace_ns, now_ns};
  }
  if (dice < 78) return daemon::Tick{now_ns};
  if (dice < 89)
    return daemon::FenceFinished{pick_lease(prng, reference, LeasePhase::fencing), pick_status(prng, 100),
                                 now_ns};
  return daemon::ScrubFinished{pick_lease(prng, reference, LeasePhase::scrubbing), pick_status(prng, 100),
                               now_ns};
}

const char* command_name(const daemon::Command& command) {
  static const char* const names[] = {
      "AdoptDevice",       "CreatePool",  "DeletePool", "AddDevice",      "DrainDevice",   "UndrainDevice",
      "FailDevice",        "DeviceLost",  "DeviceBack", "RemoveDevice",   "SetQuota",      "CreateReservation",
      "RemoveReservation", "CompactPool", "Grant",      "CancelGrant",    "CarveFinished", "Renew",
      "Release",           "Revoke",      "Resize",     "ResizeFinished", "Transfer",      "RebindFinished",
      "BeginMove",         "FinishMove",  "Tick",       "FenceFinished",  "ScrubFinished", "ScrubAdvanced"};
  static_assert(std::size(names) == std::variant_size_v<daemon::Command>);
  return names[command.index()];
}

}  // namespace terrace::model
