// SPDX-License-Identifier: Apache-2.0
// check_all: every invariant again, from the rows alone, by other means than the code that keeps them.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "daemon/state/state_machine.h"

namespace terrace::daemon {
namespace {

std::string name_of(const LeaseRow& lease) {
  return "lease " + std::to_string(lease.id.value);
}

bool reachable(const LeaseRow& lease) {
  return lease.phase == LeasePhase::pending || lease.phase == LeasePhase::waiting ||
         lease.phase == LeasePhase::active || lease.phase == LeasePhase::revoking ||
         lease.phase == LeasePhase::transferring;
}

}  // namespace

std::vector<std::string> StateMachine::check_all() const {
  std::vector<std::string> problems;
  const auto require = [&](bool holds, const std::string& what) {
    if (!holds) problems.push_back(what);
  };

  struct Piece {
    uint64_t first, end;
    LeaseId lease;
  };
  std::map<DeviceId, std::vector<Piece>> pieces;
  std::set<LeaseEpoch> epochs;
  std::set<std::pair<std::string, std::string>> labels;
  std::set<LeaseIndex::Due> due;
  size_t keyed = 0;

  for (const auto& [id, lease] : leases_) {
    const std::string name = name_of(lease);
    require(find_lease(id) == &lease, "I5: " + name + " is not found by its id");
    require(id == lease.id && id.value < meta_.next_lease, "I5: " + name + " has a wrong id");
    require(epochs.insert(lease.epoch).second && lease.epoch.value < meta_.next_epoch,
            "I5: " + name + " has an epoch that is repeated or was never given");
    uint64_t bytes = 0;
    for (const Extent& extent : lease.extents) {
      const DeviceRow* device = find_device(extent.device);
      if (device == nullptr || device->pool != lease.pool) {
        problems.push_back("I1: " + name + " has an extent outside its pool");
        continue;
      }
      require(extent.granules > 0 && extent.end() <= device->capacity_bytes / device->granule_bytes,
              "I1: " + name + " has an extent outside its device");
      bytes += extent.granules * device->granule_bytes;
      pieces[extent.device].push_back({extent.first_granule, extent.end(), id});
    }
    require(bytes == lease.bytes || lease.phase == LeasePhase::waiting,
            "I4: " + name + " has extents that do not add up to its bytes");
    const bool usable = lease.phase == LeasePhase::active || lease.phase == LeasePhase::revoking;
    require((lease.expiry_ns != 0) == (usable && lease.ttl_ns != 0), "I7: " + name + " has a wrong expiry");
    const auto move = moves_.find(id);
    const bool target = move != moves_.end() && move->second.lease.valid();
    require((lease.deadline_ns != 0) ==
                (lease.phase == LeasePhase::revoking || lease.phase == LeasePhase::waiting || target),
            "I7: " + name + " has a wrong deadline");
    if (lease.expiry_ns != 0) due.insert({lease.expiry_ns, id});
    if (lease.deadline_ns != 0) due.insert({lease.deadline_ns, id});
    if (!reachable(lease)) continue;
    if (!lease.label.empty()) {
      require(labels.insert({lease.tenant, lease.label}).second, "I6: " + name + " repeats a label");
      require(index_.by_label(lease.tenant, lease.label) == id, "I6: " + name + " is not found by its label");
    }
    if (lease.request_high != 0 || lease.request_low != 0) {
      ++keyed;
      require(index_.by_request(lease.tenant, lease.request_high, lease.request_low) == id,
              "I6: " + name + " is not found by its key");
    }
  }
  for (const auto& [id, growth] : growths_) {
    const LeaseRow* lease = find_lease(id);
    if (lease == nullptr || (lease->phase != LeasePhase::active && lease->phase != LeasePhase::revoking)) {
      problems.push_back("I4: lease " + std::to_string(id.value) + " cannot be growing");
      continue;
    }
    uint64_t bytes = lease->bytes;
    for (const Extent& extent : growth.extents) {
      const DeviceRow* device = find_device(extent.device);
      if (device == nullptr || device->pool != lease->pool) {
        problems.push_back("I1: " + name_of(*lease) + " grows outside its pool");
        continue;
      }
      bytes += extent.granules * device->granule_bytes;
      pieces[extent.device].push_back({extent.first_granule, extent.end(), id});
    }
    require(bytes == growth.bytes, "I4: " + name_of(*lease) + " grows by other than its new extents");
  }
  require(due == index_.due(), "I7: the due index differs from the leases' expiries and deadlines");
  require(row_of_.size() == leases_.size(), "I5: an id is found that no lease has");
  require(labels.size() == index_.labels(), "I6: the label index names leases that have no label");
  require(keyed == index_.requests(), "I6: the key index names leases that have no key");

  for (const auto& [id, device] : devices_) {
    require(!device.pool.valid() || pools_.contains(device.pool),
            "I8: device " + device.serial + " is in a pool that does not exist");
    std::vector<Piece>& taken = pieces[id];
    std::sort(taken.begin(), taken.end(), [](const Piece& a, const Piece& b) { return a.first < b.first; });
    std::map<uint64_t, uint64_t> gaps;  // first -> count
    uint64_t at = 0;
    uint64_t taken_granules = 0;
    for (const Piece& piece : taken) {
      require(piece.first >= at, "I2: " + std::to_string(piece.lease.value) + " shares a granule of device " +
                                     device.serial + " with another lease");
      if (piece.first > at) gaps[at] = piece.first - at;
      at = std::max(at, piece.end);
      taken_granules += piece.end - piece.first;
    }
    const uint64_t total = device.capacity_bytes / device.granule_bytes;
    if (at < total) gaps[at] = total - at;
    const ExtentMap& free = free_.at(id);
    require(gaps == free.runs() && free.consistent(),
            "I9: the free index of device " + device.serial + " is not the complement of its leases");
    require(free.free_granules() + taken_granules == total,
            "I3: free and taken granules of device " + device.serial + " do not add up to its capacity");
    require(account_.used(id) == taken_granules,
            "I3: the account of device " + device.serial + " differs from its leases");
  }
  require(free_.size() == devices_.size(), "I9: there are free indexes without a device");
  for (std::string& problem : check_use()) problems.push_back(std::move(problem));
  check_claims(problems);
  check_views(problems);
  return problems;
}

}  // namespace terrace::daemon
