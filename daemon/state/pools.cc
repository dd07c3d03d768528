// SPDX-License-Identifier: Apache-2.0
// Pools: made of adopted devices under one placement, and deleted when empty.
#include <algorithm>

#include "core/base/limits.h"
#include "daemon/state/names.h"
#include "daemon/state/refuse.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {
namespace {

// One of the things that an operator says of a pool.
template <typename Word>
Step say_of_pool(PoolRow& pool, Word PoolRow::*word, Word said) {
  Step step;
  if (pool.*word != said) {
    pool.*word = said;
    step.delta.pools[pool.id] = pool;
  }
  step.reply = Reply{PoolReply{pool}};
  return step;
}

}  // namespace

Step StateMachine::on(const CreatePool& command) {
  constexpr const char* where = "CreatePool";
  if (!valid_name(command.name)) {
    return refuse(ErrorCode::invalid_argument, where,
                  "'" + command.name + "' is no pool name; use letters, digits and -_.:@, at most 63");
  }
  if (find_pool(command.name) != nullptr)
    return refuse(ErrorCode::already_exists, where, "pool " + command.name + " exists already");
  if (pools_.size() >= limits::pools_max)
    return refuse(ErrorCode::limit_exceeded, where, "no more than 1024 pools can be made");
  if (command.device_serials.empty())
    return refuse(ErrorCode::invalid_argument, where, "a pool needs at least one device");

  if (command.placement > Placement::spread || command.coherence > PoolCoherence::noncoherent ||
      command.trust > TenantTrust::mutual)
    return refuse(ErrorCode::invalid_argument, where,
                  "a pool of an unknown placement, coherence or trust cannot be made");

  std::vector<DeviceId> members;
  for (const std::string& serial : command.device_serials) {
    const DeviceRow* device = find_device(serial);
    if (device == nullptr) {
      return refuse(ErrorCode::not_found, where,
                    "device '" + serial +
                        "' is not adopted; see `terrace device list`, then `terrace device adopt " + serial +
                        "`");
    }
    if (device->pool.valid()) {
      return refuse(ErrorCode::busy, where,
                    "device " + serial + " belongs to pool " + find_pool(device->pool)->name);
    }
    const DeviceRow& first = *find_device(command.device_serials.front());
    if (device->granule_bytes != first.granule_bytes || device->backend != first.backend) {
      return refuse(ErrorCode::invalid_argument, where,
                    "devices of one pool need the same kind and granule; " + serial + " is " + device->backend +
                        " with " + format_size(device->granule_bytes) + ", " + first.serial + " is " +
                        first.backend + " with " + format_size(first.granule_bytes));
    }
    if (std::find(members.begin(), members.end(), device->id) != members.end())
      return refuse(ErrorCode::invalid_argument, where, "device " + serial + " is named twice");
    members.push_back(device->id);
  }

  const uint64_t granule_bytes = devices_.at(members.front()).granule_bytes;
  uint64_t stripe_bytes = command.stripe_bytes;
  if (command.placement == Placement::striped && stripe_bytes == 0) stripe_bytes = granule_bytes;
  if (command.placement != Placement::striped && stripe_bytes != 0)
    return refuse(ErrorCode::invalid_argument, where, "only a striped pool has a stripe; leave it out");
  if (stripe_bytes % granule_bytes != 0) {
    return refuse(ErrorCode::invalid_argument, where,
                  "a stripe of " + format_size(stripe_bytes) + " is no multiple of the devices' granule, " +
                      format_size(granule_bytes));
  }

  PoolRow row{.id = PoolId{meta_.next_pool++},
              .name = command.name,
              .placement = command.placement,
              .stripe_bytes = stripe_bytes,
              .coherence = command.coherence,
              .trust = command.trust};
  pools_.emplace(row.id, row);
  Step step;
  for (const DeviceId id : members) {
    devices_[id].pool = row.id;
    step.delta.devices[id] = devices_[id];
  }
  step.delta.pools[row.id] = row;
  step.delta.meta = meta_;
  step.reply = Reply{PoolReply{std::move(row)}};
  return step;
}

Step StateMachine::on(const SetPoolCoherence& command) {
  constexpr const char* where = "SetPoolCoherence";
  const PoolRow* found = find_pool(command.pool);
  if (found == nullptr) return refuse(ErrorCode::not_found, where, "there is no pool '" + command.pool + "'");
  if (command.coherence > PoolCoherence::noncoherent)
    return refuse(ErrorCode::invalid_argument, where, "a pool's memory is coherent, noncoherent, or not known");
  return say_of_pool(pools_.at(found->id), &PoolRow::coherence, command.coherence);
}

Step StateMachine::on(const SetPoolTrust& command) {
  constexpr const char* where = "SetPoolTrust";
  const PoolRow* found = find_pool(command.pool);
  if (found == nullptr) return refuse(ErrorCode::not_found, where, "there is no pool '" + command.pool + "'");
  if (command.trust > TenantTrust::mutual)
    return refuse(ErrorCode::invalid_argument, where, "the tenants of a pool trust each other, or they do not");
  return say_of_pool(pools_.at(found->id), &PoolRow::trust, command.trust);
}

Status StateMachine::check_trust(const PoolRow& pool, bool pins_outlast, const char* where) {
  if (!pins_outlast || pool.trust == TenantTrust::mutual) return {};
  return refusal(
      ErrorCode::permission_denied, where,
      "pages that a holder has pinned in the memory of pool " + pool.name +
          " may stay within its reach when the memory is another tenant's (`terrace device list` says "
          "why), and no operator has said that the pool's tenants trust each other: `terrace pool set " +
          pool.name + " --trust mutual` says so");
}

Step StateMachine::on(const AddDevice& command) {
  constexpr const char* where = "AddDevice";
  const PoolRow* pool = find_pool(command.pool);
  if (pool == nullptr) return refuse(ErrorCode::not_found, where, "there is no pool '" + command.pool + "'");
  DeviceRow* device = mutable_device(command.serial);
  if (device == nullptr) {
    return refuse(ErrorCode::not_found, where,
                  "device '" + command.serial + "' is not adopted; see `terrace device list`, then " +
                      "`terrace device adopt " + command.serial + "`");
  }
  Step step;
  step.reply = Reply{PoolReply{*pool}};
  if (device->pool == pool->id) return step;
  if (device->pool.valid()) {
    return refuse(ErrorCode::busy, where,
                  "device " + command.serial + " belongs to pool " + find_pool(device->pool)->name);
  }
  for (const auto& [id, member] : devices_) {
    if (member.pool != pool->id) continue;
    if (member.granule_bytes == device->granule_bytes && member.backend == device->backend) continue;
    return refuse(ErrorCode::invalid_argument, where,
                  "devices of one pool need the same kind and granule; " + command.serial + " is " +
                      device->backend + " with " + format_size(device->granule_bytes) + ", " + member.serial +
                      " is " + member.backend + " with " + format_size(member.granule_bytes));
  }
  if (pool->stripe_bytes % device->granule_bytes != 0) {  // a pool whose devices were all removed
    return refuse(ErrorCode::invalid_argument, where,
                  "the stripe of pool " + pool->name + ", " + format_size(pool->stripe_bytes) +
                      ", is no multiple of the granule of " + command.serial + ", " +
                      format_size(device->granule_bytes));
  }
  device->pool = pool->id;
  step.delta.devices[device->id] = *device;
  serve_waiting(pool->id, step);
  return step;
}

Step StateMachine::on(const DeletePool& command) {
  constexpr const char* where = "DeletePool";
  const PoolRow* pool = find_pool(command.name);
  if (pool == nullptr) return refuse(ErrorCode::not_found, where, "there is no pool '" + command.name + "'");
  const uint64_t count = pool_use(pool->id).leases;
  if (count > 0) {
    return refuse(ErrorCode::busy, where,
                  "pool " + command.name + " still has " + std::to_string(count) +
                      (count == 1 ? " lease" : " leases") +
                      "; release or revoke them first (`terrace lease list --pool " + command.name + "`)");
  }
  if (Status status = check_unclaimed(*pool); !status.ok()) {
    Step refused;
    refused.reply = std::move(status).error();
    return refused;
  }
  const PoolId id = pool->id;
  Step step;
  for (auto& [device_id, device] : devices_) {
    if (device.pool != id) continue;
    device.pool = PoolId{};
    step.delta.devices[device_id] = device;
  }
  pools_.erase(id);
  pool_counters_.erase(id);
  step.delta.pools[id] = std::nullopt;
  return step;
}

}  // namespace terrace::daemon
