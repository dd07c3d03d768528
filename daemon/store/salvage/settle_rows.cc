// SPDX-License-Identifier: Apache-2.0
#include "daemon/store/salvage/settle_rows.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace terrace::daemon {
namespace {

using Lost = std::vector<std::string>;

std::string named(const LeaseRow& lease) {
  return "lease " + std::to_string(lease.id.value) + " of tenant " + lease.tenant;
}

template <typename Row, typename Why>
void drop_rows(std::vector<Row>& rows, Why why, Lost& lost) {
  std::erase_if(rows, [&](const Row& row) {
    const std::string reason = why(row);
    if (!reason.empty()) lost.push_back(reason);
    return !reason.empty();
  });
}

// A device that was removed and adopted again has another id: the older row's removal is missing.
void settle_devices(Image& image, Lost& lost) {
  std::map<std::string, DeviceId> newest;
  for (const DeviceRow& device : image.devices)
    newest[device.serial] = std::max(newest[device.serial], device.id);
  drop_rows(
      image.devices,
      [&](const DeviceRow& device) {
        if (newest[device.serial] == device.id) return std::string();
        return "device row " + std::to_string(device.id.value) + ": " + device.serial +
               " was adopted again since";
      },
      lost);
}

void settle_pools(Image& image, Lost& lost) {
  std::set<PoolId> known;
  std::map<std::string, PoolId> newest;
  for (const PoolRow& pool : image.pools) {
    known.insert(pool.id);
    newest[pool.name] = std::max(newest[pool.name], pool.id);
  }
  for (PoolRow& pool : image.pools) {
    if (newest[pool.name] == pool.id) continue;
    lost.push_back("the name of pool " + pool.name + " (" + std::to_string(pool.id.value) +
                   "): a newer one has it");
    pool.name = "salvaged-" + std::to_string(pool.id.value);
  }
  for (const DeviceRow& device : image.devices) {
    if (!device.pool.valid() || !known.insert(device.pool).second) continue;
    image.pools.push_back({.id = device.pool, .name = "salvaged-" + std::to_string(device.pool.value)});
    lost.push_back("name, placement and coherence of pool " + std::to_string(device.pool.value) +
                   " with device " + device.serial + ": it is called " + image.pools.back().name + " now");
  }
  std::sort(image.pools.begin(), image.pools.end(),
            [](const PoolRow& a, const PoolRow& b) { return a.id < b.id; });
}

// Goes through leases from the newest one on; each takes its place, its label and its key.
class LeaseSettler {
 public:
  LeaseSettler(const Image& image, Lost& lost) : lost_(lost) {
    for (const DeviceRow& device : image.devices) devices_[device.id] = &device;
  }

  // Why the lease cannot stay; empty: it stays.
  std::string take(LeaseRow& lease) {
    for (const Extent& extent : lease.extents) {
      const auto device = devices_.find(extent.device);
      if (device == devices_.end() || device->second->pool != lease.pool)
        return named(lease) + ": it lies on a device of which nothing is left";
      if (extent.granules == 0 || extent.end() > device->second->capacity_bytes / device->second->granule_bytes)
        return named(lease) + ": it lies outside of its device";
    }
    for (const Extent& extent : lease.extents)
      if (overlaps(extent)) return named(lease) + ": a newer lease has its place";
    if (!epochs_.insert(lease.epoch).second) return named(lease) + ": another lease has its LeaseEpoch";
    for (const Extent& extent : lease.extents) taken_[extent.device][extent.first_granule] = extent.end();
    take_names(lease);
    return {};
  }

 private:
  bool overlaps(const Extent& extent) {
    const auto& taken = taken_[extent.device];
    const auto next = taken.lower_bound(extent.end());
    return next != taken.begin() && std::prev(next)->second > extent.first_granule;
  }

  void take_names(LeaseRow& lease) {
    const bool ends = lease.phase == LeasePhase::fencing || lease.phase == LeasePhase::scrubbing ||
                      lease.phase == LeasePhase::quarantined;
    if (ends) return;
    if (!lease.label.empty() && !labels_.insert({lease.tenant, lease.label}).second) {
      lost_.push_back("label " + lease.label + " of " + named(lease) + ": a newer lease has it");
      lease.label.clear();
    }
    const std::tuple key(lease.tenant, lease.request_high, lease.request_low);
    if ((lease.request_high != 0 || lease.request_low != 0) && !keys_.insert(key).second)
      lease.request_high = lease.request_low = 0;
  }

  Lost& lost_;
  std::map<DeviceId, const DeviceRow*> devices_;
  std::map<DeviceId, std::map<uint64_t, uint64_t>> taken_;  // first granule -> end
  std::set<LeaseEpoch> epochs_;
  std::set<std::pair<std::string, std::string>> labels_;
  std::set<std::tuple<std::string, uint64_t, uint64_t>> keys_;
};

void settle_leases(Image& image, Lost& lost) {
  std::vector<LeaseRow*> newest_first;
  for (LeaseRow& lease : image.leases) newest_first.push_back(&lease);
  std::sort(newest_first.begin(), newest_first.end(), [](const LeaseRow* a, const LeaseRow* b) {
    return std::pair(a->epoch, a->id) > std::pair(b->epoch, b->id);
  });
  LeaseSettler settler(image, lost);
  std::map<LeaseId, std::string> refused;
  for (LeaseRow* lease : newest_first)
    if (std::string why = settler.take(*lease); !why.empty()) refused[lease->id] = std::move(why);
  drop_rows(
      image.leases,
      [&](const LeaseRow& lease) {
        const auto at = refused.find(lease.id);
        return at == refused.end() ? std::string() : at->second;
      },
      lost);
}

void settle_what_refers(Image& image, Lost& lost) {
  std::set<PoolId> pools;
  for (const PoolRow& pool : image.pools) pools.insert(pool.id);
  drop_rows(
      image.reservations,
      [&](const ReservationRow& row) {
        if (pools.contains(row.pool)) return std::string();
        return "reservation " + std::to_string(row.id.value) + " of tenant " + row.tenant +
               ": its pool is gone";
      },
      lost);
  std::set<LeaseId> shared;
  for (const LeaseRow& lease : image.leases)
    if (lease.mode == LeaseMode::shared_coherent) shared.insert(lease.id);
  std::erase_if(image.owners, [&](const OwnerRow& row) { return !shared.contains(lease_of(row.id)); });
  std::set<LeaseId> leases;
  for (const LeaseRow& lease : image.leases) leases.insert(lease.id);
  std::erase_if(image.views, [&](const ViewRow& row) { return !leases.contains(lease_of(row.id)); });
}

void count_on(Image& image) {
  const auto beyond = [](uint64_t& next, const auto& rows, auto number) {
    for (const auto& row : rows) next = std::max(next, number(row) + 1);
  };
  const auto id = [](const auto& row) { return row.id.value; };
  beyond(image.meta.next_device, image.devices, id);
  beyond(image.meta.next_pool, image.pools, id);
  beyond(image.meta.next_lease, image.leases, id);
  beyond(image.meta.next_reservation, image.reservations, id);
  beyond(image.meta.next_epoch, image.leases, [](const LeaseRow& row) { return row.epoch.value; });
}

}  // namespace

void settle_rows(Image& image, std::vector<std::string>& lost) {
  count_on(image);  // with what is left out below: its numbers were given
  settle_devices(image, lost);
  settle_pools(image, lost);
  settle_leases(image, lost);
  settle_what_refers(image, lost);
}

}  // namespace terrace::daemon
