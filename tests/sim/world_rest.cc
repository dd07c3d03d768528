// SPDX-License-Identifier: Apache-2.0
// Liveness: once faults have stopped nothing stays under way, what should move moves, and everything that
// nobody holds becomes free.
#include <algorithm>

#include "core/base/limits.h"
#include "tests/sim/world.h"

namespace terrace::sim {
namespace {

using daemon::LeasePhase;
using daemon::LeaseRow;

// Longer than any TTL or grace of the run, with room for the slowest fence and scrub of everything.
constexpr uint64_t rest_ns = 60 * ns_per_s;
constexpr uint64_t settle_ns = 32 * ns_per_s;
constexpr uint64_t under_way_ns_max = 20 * ns_per_s;
constexpr uint64_t loss_unnoticed_ns_max = 8 * ns_per_s;

unsigned long long number(LeaseId id) {
  return id.value;
}

// What a lease is in the middle of; "" when it may stay as it is.
std::string under_way(const LeaseRow& lease, bool growing, bool waits_too_long) {
  if (growing || lease.target_bytes != 0) return "being resized";
  switch (lease.phase) {
    case LeasePhase::pending: return lease.deadline_ns != 0 ? "" : "being carved";
    case LeasePhase::fencing:
    case LeasePhase::scrubbing: return "being taken back";
    case LeasePhase::transferring: return "being handed over";
    case LeasePhase::waiting: return waits_too_long ? "waiting past its deadline" : "";
    default: return "";
  }
}

}  // namespace

// A process that was there when the device went has taken its leases back.
void World::check_lost_devices() {
  if (!daemon_.serving()) return;
  for (const auto& [serial, since_ns] : backend_.lost()) {
    if (daemon_.serving_since_ns() > since_ns || environment_.steady_ns() - since_ns < loss_unnoticed_ns_max)
      continue;
    for (const auto& [id, lease] : daemon_.machine().leases()) {
      if (lease.phase != LeasePhase::active && lease.phase != LeasePhase::revoking) continue;
      for (const daemon::Extent& extent : lease.extents) {
        const daemon::DeviceRow* device = daemon_.machine().find_device(extent.device);
        if (device->serial == serial)
          environment_.fail("device: lease %llu goes on, and device %s is gone", number(id), serial.c_str());
      }
    }
  }
}

void World::check_progress() {
  if (!calm_ || !daemon_.serving()) {
    under_way_.clear();
    return;
  }
  std::map<LeaseId, std::string> now;
  for (const auto& [id, lease] : daemon_.machine().leases()) {
    const bool late = lease.phase == LeasePhase::waiting && lease.deadline_ns < environment_.now_ns();
    now[id] = under_way(lease, daemon_.claims().growing(id), late);
  }
  for (const daemon::WantedMove& move : daemon_.machine().moves_wanted()) {
    if (should_move(move)) now[move.lease] = "movable and still on a device that is drained";
  }
  const uint64_t now_ns = environment_.steady_ns();
  std::map<LeaseId, std::pair<std::string, uint64_t>> still;
  for (const auto& [id, what] : now) {
    if (what.empty()) continue;
    const auto known = under_way_.find(id);
    const bool same = known != under_way_.end() && known->second.first == what;
    still[id] = {what, same ? known->second.second : now_ns};
    if (now_ns - still[id].second > under_way_ns_max)
      environment_.fail("liveness: lease %llu is %s, %.0f s after the last fault", number(id), what.c_str(),
                        static_cast<double>(now_ns - calm_since_ns_) / 1e9);
  }
  under_way_ = std::move(still);
}

// A lease that agreed to it leaves a device that is drained, where there is room for it.
bool World::should_move(const daemon::WantedMove& move) const {
  const LeaseRow* lease = daemon_.machine().find_lease(move.lease);
  if (silent_ || !move.movable || !move.for_drain || move.target.valid() || lease == nullptr) return false;
  const std::vector<daemon::OwnerRow> owners = daemon_.machine().owners_of(move.lease);
  const bool owned =
      std::any_of(owners.begin(), owners.end(), [](const auto& row) { return row.process.pid != 0; });
  if (owned && !daemon_.moves_owned()) return false;
  const daemon::PoolUse use = daemon_.machine().pool_use(lease->pool);
  return use.grantable_bytes >= use.reserved_bytes + lease->bytes &&
         daemon_.machine().compaction_of(lease->pool) == nullptr;
}

// Faults stop and clients fall silent; within bounded time everything they had must be free again.
void World::drain() {
  if (environment_.failed()) return;
  environment_.note("world: calm");
  calm_ = true;
  calm_since_ns_ = environment_.steady_ns();
  environment_.calm();
  operator_.fall_silent();
  owners_.settle();
  for (auto& client : clients_) client->settle();
  for (int i = 0; i < SimOperator::devices; ++i) backend_.return_device("emu:" + std::to_string(i));
  run_for(settle_ns);
  if (environment_.failed()) return;
  if (!daemon_.serving()) {
    environment_.fail("liveness: the daemon does not serve %.0f s after the last fault",
                      static_cast<double>(settle_ns) / 1e9);
    return;
  }
  silent_ = true;
  for (auto& client : clients_) client->fall_silent();
  operator_.tidy_up();
  run_for(5 * ns_per_s);
  std::vector<LeaseId> persistent;
  for (const auto& [id, lease] : daemon_.machine().leases()) {
    if (lease.phase == LeasePhase::active && lease.ttl_ns == 0) persistent.push_back(id);
  }
  for (const LeaseId id : persistent) {
    ledger_.revocation_asked(id);
    daemon_.submit(daemon::Revoke{id, "the end", 0, environment_.now_ns()},
                   [](const Result<daemon::Reply>&) {});
  }
  run_for(rest_ns);
  if (environment_.failed()) return;
  check_rest();
  check_objects();
  if (!environment_.failed()) check_fitting_grant();
}

void World::check_rest() {
  for (const auto& [id, lease] : daemon_.machine().leases()) {
    if (lease.phase != LeasePhase::quarantined) {
      environment_.fail("liveness: lease %llu is still in phase %u, %.0f s after the last fault", number(id),
                        static_cast<unsigned>(lease.phase), static_cast<double>(rest_ns) / 1e9);
    } else if (lease.reason.empty()) {
      environment_.fail("liveness: lease %llu is quarantined for no reason", number(id));
    }
  }
  if (!daemon_.idle()) environment_.fail("liveness: something is still under way in the daemon");
  for (const auto& [id, pool] : daemon_.machine().pools()) {
    const daemon::PoolUse use = daemon_.machine().pool_use(id);
    if (use.free_bytes + use.absent_bytes + use.quarantined_bytes != use.capacity_bytes ||
        use.leased_bytes + use.scrubbing_bytes != 0) {
      environment_.fail("accounting: pool %s at rest: free and quarantined are not its capacity",
                        pool.name.c_str());
    }
  }
}

// Whatever still has granules of a device belongs to a lease in quarantine.
void World::check_objects() {
  for (const auto& [name, incarnation] : backend_.objects()) {
    const auto& leases = daemon_.machine().leases();
    const bool known = std::any_of(leases.begin(), leases.end(), [&name = name](const auto& entry) {
      return entry.second.object == name || entry.second.next_object == name;
    });
    if (!known && backend_.on_known_devices(incarnation, daemon_.machine()))
      environment_.fail("leak: no lease has object %s", name.c_str());
  }
}

// A grant of everything that is free must succeed and read as zeros.
void World::check_fitting_grant() {
  std::vector<std::pair<daemon::PoolRow, uint64_t>> free;
  for (const auto& [id, pool] : daemon_.machine().pools())
    free.emplace_back(pool, daemon_.machine().pool_use(id).grantable_bytes);
  for (const auto& [pool, bytes] : free) {
    if (bytes != 0 && !environment_.failed()) grant_all_of(pool, bytes);
  }
}

void World::grant_all_of(const daemon::PoolRow& pool, uint64_t bytes) {
  bool answered = false;
  daemon::Grant grant;
  grant.pool = pool.name;
  grant.tenant = "last";
  grant.host = "host";
  grant.bytes = bytes;
  grant.now_ns = environment_.now_ns();
  daemon_.submit(grant, [&](const Result<daemon::Reply>& result) {
    answered = true;
    if (!result.ok()) {
      environment_.fail("liveness: a grant that fits was refused: %s", result.error().to_string().c_str());
      return;
    }
    const LeaseRow& lease = std::get<daemon::LeaseReply>(*result).lease;
    ledger_.grant_acknowledged(lease);
    const auto mapping = backend_.open(lease.object);
    if (!mapping.has_value()) {
      environment_.fail("the last grant has no memory");
      return;
    }
    for (uint64_t i = 0; i < backend_.granules_of(*mapping); ++i) {
      uint64_t stamp = 0;
      if (backend_.read(*mapping, i, &stamp) == Access::sigbus || stamp != 0) {
        environment_.fail("stale bytes: the last grant reads what lease %llu wrote",
                          static_cast<unsigned long long>(stamp >> 32));
      }
    }
  });
  run_for(5 * ns_per_s);
  if (!answered) environment_.fail("liveness: a grant was not answered within 5 s");
}

}  // namespace terrace::sim
