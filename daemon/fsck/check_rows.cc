// SPDX-License-Identifier: Apache-2.0
#include "daemon/fsck/check_rows.h"

#include <algorithm>
#include <map>

#include "core/base/units.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {
namespace {

constexpr const char* fix_store =
    "nothing is granted from such a store. Stop terraced, restore a copy of the state's files, or move them "
    "away "
    "to begin anew";

std::string named(const DeviceRow& device) {
  return "device " + device.serial;
}

std::map<DeviceId, const DeviceRow*> devices_by_id(const Image& image) {
  std::map<DeviceId, const DeviceRow*> rows;
  for (const DeviceRow& device : image.devices) rows[device.id] = &device;
  return rows;
}

const SeenDevice* find_seen(const std::vector<SeenDevice>& devices, const std::string& serial) {
  const auto at = std::find_if(devices.begin(), devices.end(),
                               [&serial](const SeenDevice& device) { return device.serial == serial; });
  return at == devices.end() ? nullptr : &*at;
}

// Whether new extents may be placed there.
bool placeable(const DeviceRow& device, const std::vector<SeenDevice>& seen) {
  return device.state == DeviceState::in_service && find_seen(seen, device.serial) != nullptr;
}

struct Piece {
  uint64_t first, end;
  const LeaseRow* lease;
};

void check_extents(const Image& image, std::vector<Finding>& findings) {
  const auto devices = devices_by_id(image);
  std::map<DeviceId, std::vector<Piece>> pieces;
  const auto broken = [&findings](const LeaseRow& lease, std::string what) {
    findings.push_back({Severity::error, subject_of(lease), std::move(what), fix_store});
  };
  for (const LeaseRow& lease : image.leases) {
    for (const Extent& extent : lease.extents) {
      const auto device = devices.find(extent.device);
      if (device == devices.end()) {
        broken(lease,
               "has an extent on device " + std::to_string(extent.device.value) + ", which no row knows");
        continue;
      }
      const uint64_t granules =
          device->second->capacity_bytes / std::max<uint64_t>(device->second->granule_bytes, 1);
      if (extent.granules == 0 || extent.first_granule >= granules ||
          extent.granules > granules - extent.first_granule) {
        broken(lease, "has granules " + std::to_string(extent.first_granule) + "+" +
                          std::to_string(extent.granules) + " of " + named(*device->second) + ", which has " +
                          std::to_string(granules));
        continue;
      }
      pieces[extent.device].push_back({extent.first_granule, extent.end(), &lease});
    }
  }
  for (auto& [id, taken] : pieces) {
    std::sort(taken.begin(), taken.end(), [](const Piece& a, const Piece& b) { return a.first < b.first; });
    const Piece* widest = nullptr;
    for (const Piece& piece : taken) {
      if (widest != nullptr && piece.first < widest->end) {
        broken(*piece.lease, "shares granules " + std::to_string(piece.first) + " to " +
                                 std::to_string(std::min(piece.end, widest->end) - 1) + " of " +
                                 named(*devices.at(id)) + " with " + subject_of(*widest->lease));
      }
      if (widest == nullptr || piece.end > widest->end) widest = &piece;
    }
  }
}

// What each tenant has, as quotas and reservations count it.
bool counts(const LeaseRow& lease) {
  return usable(lease) || lease.phase == LeasePhase::transferring;
}

void check_quotas(const Image& image, std::vector<Finding>& findings) {
  std::map<std::string, std::pair<uint64_t, uint64_t>> use;  // tenant -> bytes, leases
  for (const LeaseRow& lease : image.leases) {
    if (!counts(lease)) continue;
    use[lease.tenant].first += lease.bytes;
    ++use[lease.tenant].second;
  }
  std::map<std::string, const QuotaRow*> quotas;
  for (const QuotaRow& quota : image.quotas) quotas[quota.tenant] = &quota;
  for (const auto& [tenant, has] : use) {
    const auto own = quotas.find(tenant);
    const auto quota = own != quotas.end() ? own : quotas.find("*");
    if (quota == quotas.end()) continue;
    const QuotaRow& bound = *quota->second;
    std::string what;
    if (bound.bytes_max != 0 && has.first > bound.bytes_max)
      what = "has " + format_size(has.first) + " of at most " + format_size(bound.bytes_max);
    if (bound.leases_max != 0 && has.second > bound.leases_max)
      what += (what.empty() ? "has " : ", and ") + std::to_string(has.second) + " leases of at most " +
              std::to_string(bound.leases_max);
    if (what.empty()) continue;
    findings.push_back({Severity::warning, "tenant " + tenant, what + ": the quota was lowered since",
                        "it gets nothing more until it is below; revoke leases, or raise the quota"});
  }
}

void check_reservations(const Image& image, const std::vector<SeenDevice>& seen,
                        std::vector<Finding>& findings) {
  const auto devices = devices_by_id(image);
  for (const PoolRow& pool : image.pools) {
    std::map<std::string, uint64_t> reserved;
    for (const ReservationRow& row : image.reservations)
      if (row.pool == pool.id) reserved[row.tenant] += row.bytes;
    if (reserved.empty()) continue;
    uint64_t room = 0;  // free, or on its way to being free
    for (const DeviceRow& device : image.devices)
      if (device.pool == pool.id && placeable(device, seen)) room += device.capacity_bytes;
    for (const LeaseRow& lease : image.leases) {
      if (lease.pool != pool.id) continue;
      const bool stays = counts(lease) || lease.phase == LeasePhase::quarantined;
      for (const Extent& extent : lease.extents) {
        const auto device = devices.find(extent.device);
        if (!stays || device == devices.end() || !placeable(*device->second, seen)) continue;
        room -= std::min(room, extent.granules * device->second->granule_bytes);
      }
      const auto own = reserved.find(lease.tenant);
      if (counts(lease) && own != reserved.end()) own->second -= std::min(own->second, lease.bytes);
    }
    uint64_t wanted = 0;
    for (const auto& [tenant, bytes] : reserved) wanted += bytes;
    if (wanted <= room) continue;
    findings.push_back({Severity::warning, "pool " + pool.name,
                        "its reservations still need " + format_size(wanted) + ", and " + format_size(room) +
                            " are free or becoming free on devices in service",
                        "add a device, bring one back, or remove or lower reservations"});
  }
  for (const ReservationRow& row : image.reservations) {
    const bool known = std::any_of(image.pools.begin(), image.pools.end(),
                                   [&row](const PoolRow& pool) { return pool.id == row.pool; });
    if (known) continue;
    findings.push_back({Severity::error, "reservation " + std::to_string(row.id.value),
                        "is in pool " + std::to_string(row.pool.value) + ", which no row knows", fix_store});
  }
}

}  // namespace

std::string subject_of(const LeaseRow& lease) {
  std::string text = "lease " + std::to_string(lease.id.value) + " (tenant " + lease.tenant;
  if (!lease.label.empty()) text += ", label " + lease.label;
  return text + ")";
}

void check_invariants(const Image& image, std::vector<Finding>& findings) {
  const size_t before = findings.size();
  check_extents(image, findings);
  // With everything outside as the rows have it: only what the rows themselves break is an error then.
  Observation as_stored;
  for (const DeviceRow& device : image.devices) as_stored.device_serials.push_back(device.serial);
  for (const LeaseRow& lease : image.leases) as_stored.objects.emplace_back(lease.object, lease.bytes);
  StateMachine machine;
  const auto recovered = machine.recover(image, as_stored, image.meta.boot_id, 0);
  if (!recovered.ok() && findings.size() == before)
    findings.push_back({Severity::error, "store", recovered.error().detail, fix_store});
  if (!recovered.ok()) return;
  for (const std::string& problem : machine.check_all())
    findings.push_back({Severity::error, "store", problem, fix_store});
}

void check_devices(const Image& image, const std::vector<SeenDevice>& devices, std::vector<Finding>& findings) {
  std::map<DeviceId, uint64_t> leases;
  for (const LeaseRow& lease : image.leases) {
    std::set<DeviceId> below;
    for (const Extent& extent : lease.extents) below.insert(extent.device);
    if (counts(lease))
      for (const DeviceId id : below) ++leases[id];
  }
  for (const DeviceRow& device : image.devices) {
    const uint64_t on_it = leases[device.id];
    const std::string live = on_it == 0 ? "" : "; " + std::to_string(on_it) + " live leases are on it";
    const SeenDevice* seen = find_seen(devices, device.serial);
    if (seen == nullptr) {
      findings.push_back({on_it == 0 ? Severity::warning : Severity::error, named(device),
                          "is adopted and not there" + live,
                          "bring it back, or start terraced with the configuration that has it; a serving one "
                          "fences its leases. If it is gone for good: terrace device remove"});
    } else if (seen->capacity_bytes != device.capacity_bytes || seen->granule_bytes != device.granule_bytes ||
               seen->backend != device.backend) {
      findings.push_back({Severity::error, named(device),
                          "was adopted as " + device.backend + " memory of " +
                              format_size(device.capacity_bytes) + " in granules of " +
                              format_size(device.granule_bytes) + ", and is " + seen->backend + " memory of " +
                              format_size(seen->capacity_bytes) + " in granules of " +
                              format_size(seen->granule_bytes) + live,
                          "give it its old size back, or drain, remove and adopt it anew"});
    }
    if (device.state == DeviceState::failed) {
      findings.push_back({on_it == 0 ? Severity::note : Severity::warning, named(device),
                          "was given up as failed" + live,
                          "put it back into service with terrace device undrain, or remove it"});
    } else if (device.state == DeviceState::draining) {
      findings.push_back({Severity::note, named(device), "is being drained" + live,
                          "remove it once nothing is left on it, or end the drain"});
    }
  }
}

void check_bounds(const Image& image, const std::vector<SeenDevice>& devices, std::vector<Finding>& findings) {
  check_quotas(image, findings);
  check_reservations(image, devices, findings);
}

}  // namespace terrace::daemon
