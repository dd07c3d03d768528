// SPDX-License-Identifier: Apache-2.0
// Start-up: rows from a store, which nobody trusts yet, against what exists outside.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "core/base/limits.h"
#include "daemon/model/phases.h"
#include "daemon/state/names.h"
#include "daemon/state/refuse.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {
namespace {

// Ids and epochs are counted up by one: no store that is true gets near this, and none wraps after it.
constexpr uint64_t next_id_max = uint64_t{1} << 62;

Error corrupt(const std::string& detail) {
  return Error{.code = ErrorCode::corrupt,
               .where = "StateMachine::recover",
               .detail = "the store contradicts itself: " + detail +
                         "; nothing is served from it. Restore a copy, or move it away to begin anew"};
}

std::string lease_name(const LeaseRow& lease) {
  return daemon::lease_name(lease.id);
}

bool possible_ttl(uint64_t ttl_ns) {
  return ttl_ns == 0 || (ttl_ns >= limits::ttl_ns_min && ttl_ns <= limits::ttl_ns_max);
}

// What can be checked of a lease row without looking at other rows.
Status check_lease_row(const LeaseRow& lease, const MetaRow& meta) {
  const std::string name = lease_name(lease);
  if (!lease.id.valid() || lease.id.value >= meta.next_lease) return corrupt(name + " has an id never given");
  if (!lease.epoch.valid() || lease.epoch.value >= meta.next_epoch)
    return corrupt(name + " has an epoch never given");
  if (!valid_name(lease.tenant) || !valid_name(lease.host) || !valid_name(lease.object) ||
      !valid_text(lease.label, limits::label_bytes_max) || !valid_text(lease.reason, limits::reason_bytes_max))
    return corrupt(name + " has an impossible name or text");
  if (lease.mode > LeaseMode::shared_coherent) return corrupt(name + " has an unknown mode");
  if (lease.phase == LeasePhase::pending || lease.phase > LeasePhase::transferring)
    return corrupt(name + " has an impossible phase");
  if (!possible_ttl(lease.ttl_ns)) return corrupt(name + " has an impossible TTL");
  if (lease.cause > LeaseCause::moved) return corrupt(name + " has an unknown cause");
  if (lease.target_bytes != 0 && (!usable(lease) || lease.target_bytes >= lease.bytes))
    return corrupt(name + " is being cut to an impossible size");
  if (lease.next_object.empty() ? lease.phase == LeasePhase::transferring
                                : !valid_name(lease.next_object) || usable(lease))
    return corrupt(name + " has an impossible second memory object");
  if (usable(lease) != (lease.expiry_ns != 0) && lease.ttl_ns != 0)
    return corrupt(name + " has a wrong expiry");
  if (lease.ttl_ns == 0 && lease.expiry_ns != 0) return corrupt(name + " is persistent and has an expiry");
  if ((lease.phase == LeasePhase::revoking) != (lease.deadline_ns != 0))
    return corrupt(name + " has a wrong revocation deadline");
  if (lease.extents.empty() || lease.extents.size() > limits::lease_extents_max)
    return corrupt(name + " has an impossible number of extents");
  return {};
}

}  // namespace

Status StateMachine::reserve_row_extents(const LeaseRow& lease) {
  uint64_t bytes = 0;
  for (const Extent& extent : lease.extents) {
    const DeviceRow* device = find_device(extent.device);
    if (device == nullptr || device->pool != lease.pool)
      return corrupt(lease_name(lease) + " has an extent on a device outside its pool");
    if (!free_.at(device->id).take_exact({extent.first_granule, extent.granules})) {
      return corrupt(lease_name(lease) + " has granules " + std::to_string(extent.first_granule) + "+" +
                     std::to_string(extent.granules) + " of device " + device->serial +
                     " that another lease has, or that the device does not have");
    }
    bytes += extent.granules * device->granule_bytes;
  }
  if (bytes != lease.bytes) return corrupt(lease_name(lease) + " has extents that do not add up to its bytes");
  return {};
}

Status StateMachine::load_rows(Image image) {
  meta_ = image.meta;
  for (const uint64_t next :
       {meta_.next_device, meta_.next_pool, meta_.next_lease, meta_.next_epoch, meta_.next_reservation})
    if (next == 0 || next > next_id_max) return corrupt("a counter of its ids is 0, or about to wrap");
  std::set<std::string> names;
  for (PoolRow& pool : image.pools) {
    if (!pool.id.valid() || pool.id.value >= meta_.next_pool || !valid_name(pool.name) ||
        !names.insert(pool.name).second || !pools_.emplace(pool.id, pool).second)
      return corrupt("pool " + std::to_string(pool.id.value) + " has an impossible or repeated id or name");
    if (pool.placement > Placement::spread ||
        (pool.placement == Placement::striped) != (pool.stripe_bytes != 0) ||
        pool.coherence > PoolCoherence::noncoherent || pool.trust > TenantTrust::mutual)
      return corrupt("pool " + pool.name + " has an impossible placement, stripe, coherence or trust");
  }
  names.clear();
  std::map<PoolId, DeviceRow> kinds;  // a device of each pool
  uint64_t adopted = 0;               // bytes
  for (DeviceRow& device : image.devices) {
    const std::string name = "device " + std::to_string(device.id.value);
    if (!device.id.valid() || device.id.value >= meta_.next_device || !valid_name(device.serial) ||
        !names.insert(device.serial).second || devices_.contains(device.id))
      return corrupt(name + " has an impossible or repeated id or serial");
    if (!is_power_of_two(device.granule_bytes) || device.granule_bytes < limits::granule_bytes ||
        device.granule_bytes > limits::granule_bytes_max || device.capacity_bytes == 0 ||
        device.capacity_bytes % device.granule_bytes != 0 ||
        device.capacity_bytes / device.granule_bytes > device_granules_max ||
        device.capacity_bytes > adopted_bytes_max - adopted)
      return corrupt(name + " has an impossible size or granule");
    adopted += device.capacity_bytes;
    if (device.state > DeviceState::failed) return corrupt(name + " has an unknown state");
    if (device.pool.valid() && !pools_.contains(device.pool)) return corrupt(name + " is in an unknown pool");
    const DeviceRow& kind = kinds.emplace(device.pool, device).first->second;
    if (device.pool.valid() && (device.granule_bytes != kind.granule_bytes || device.backend != kind.backend))
      return corrupt(name + " has another kind or granule than device " + kind.serial + " of its pool");
    if (device.pool.valid() && pools_.at(device.pool).stripe_bytes % device.granule_bytes != 0)
      return corrupt(name + " has another granule than the stripe of its pool is made of");
    free_.emplace(device.id, ExtentMap(device.capacity_bytes / device.granule_bytes));
    account_.add_device(device.id, device.capacity_bytes / device.granule_bytes);
    devices_.emplace(device.id, std::move(device));
  }
  std::set<LeaseEpoch> epochs;
  names.clear();
  for (LeaseRow& lease : image.leases) {
    TERRACE_RETURN_IF_ERROR(check_lease_row(lease, meta_));
    if (!epochs.insert(lease.epoch).second || leases_.contains(lease.id))
      return corrupt(lease_name(lease) + " repeats an id or an epoch");
    if (!pools_.contains(lease.pool)) return corrupt(lease_name(lease) + " is in an unknown pool");
    for (const std::string& object : {lease.object, lease.next_object}) {
      if (!object.empty() && !names.insert(object).second)
        return corrupt(lease_name(lease) + " names the memory object of another lease, " + object);
    }
    TERRACE_RETURN_IF_ERROR(reserve_row_extents(lease));
    if (lease.target_bytes % pool_granule_bytes(lease.pool) != 0)
      return corrupt(lease_name(lease) + " is being cut within a granule");
    if (usable(lease) || lease.phase == LeasePhase::transferring) {
      if (!lease.label.empty() && index_.by_label(lease.tenant, lease.label).valid())
        return corrupt(lease_name(lease) + " repeats the label '" + lease.label + "'");
      const bool keyed = lease.request_high != 0 || lease.request_low != 0;
      if (keyed && index_.by_request(lease.tenant, lease.request_high, lease.request_low).valid())
        return corrupt(lease_name(lease) + " repeats the request key of another lease");
    }
    index_lease(lease);
    put_row(std::move(lease));
  }
  TERRACE_RETURN_IF_ERROR(load_views(image));
  return load_claims(image);
}

Status StateMachine::load_claims(Image& image) {
  for (QuotaRow& row : image.quotas) {
    const std::string name = "the quota of tenant '" + row.tenant + "'";
    if (row.tenant != "*" && !valid_name(row.tenant)) return corrupt(name + " has an impossible name");
    if (row.bytes_max == 0 && row.leases_max == 0) return corrupt(name + " bounds nothing");
    if (!quotas_.emplace(row.tenant, row).second) return corrupt(name + " is there twice");
  }
  uint64_t reserved = 0;  // bytes
  for (ReservationRow& row : image.reservations) {
    const std::string name = "reservation " + std::to_string(row.id.value);
    if (!row.id.valid() || row.id.value >= meta_.next_reservation || reservations_.contains(row.id))
      return corrupt(name + " has an id never given, or repeated");
    if (!pools_.contains(row.pool)) return corrupt(name + " is in an unknown pool");
    if (!valid_name(row.tenant)) return corrupt(name + " has an impossible tenant");
    if (row.bytes == 0 || row.bytes > adopted_bytes_max) return corrupt(name + " has an impossible size");
    if (!possible_ttl(row.ttl_ns) || (row.ttl_ns == 0) != (row.expiry_ns == 0))
      return corrupt(name + " has an impossible TTL or expiry");
    if (row.bytes > adopted_bytes_max - reserved)
      return corrupt(name + " reserves, with the others, more than can be adopted");
    reserved += row.bytes;
    index_reservation(row, true);
    reservations_.emplace(row.id, row);
  }
  return load_owners(image);
}

void StateMachine::recover_times(LeaseRow& lease, bool same_boot, uint64_t now_ns, Recovery& recovery) {
  unindex_lease(lease);
  if (!same_boot) {  // times of another boot mean nothing: a full TTL from now
    lease.ttl_ns = within_term(lease.ttl_ns);
    if (lease.ttl_ns != 0) lease.expiry_ns = now_ns + lease.ttl_ns;
    if (lease.phase == LeasePhase::revoking) lease.deadline_ns = now_ns;
    recovery.delta.leases[lease.id] = lease;
  } else if (lease.phase == LeasePhase::active && lease.ttl_ns != 0) {
    // Renewals are not in the store, and nobody could renew while the manager was away: no renewal promised more than
    // this. It is not in the store either; the next start does the same.
    lease.expiry_ns = std::max(lease.expiry_ns, now_ns + lease.ttl_ns);
  }
  index_lease(lease);
}

// A lease that is its holder's and whose object is whole: what its times mean now, and what was under way.
void StateMachine::recover_usable(LeaseRow& lease, uint64_t object_bytes, bool same_boot, uint64_t now_ns,
                                  Recovery& recovery) {
  if (const DeviceRow* absent = absent_device_of(lease.extents)) {
    recovery.findings.push_back(lease_name(lease) + " (" + lease.tenant +
                                ") goes on, as its object is there: " + "device " + absent->serial +
                                " below it is not seen");
  }
  recover_times(lease, same_boot, now_ns, recovery);
  if (lease.phase == LeasePhase::revoking) {
    const uint64_t left_ns = lease.deadline_ns > now_ns ? lease.deadline_ns - now_ns : 0;
    recovery.effects.push_back(NotifyHolders{lease.id, lease.reason, left_ns, false, lease.cause});
  }
  if (lease.target_bytes != 0) {
    std::vector<Extent> kept = lease.extents;
    cut(kept, lease.target_bytes / pool_granule_bytes(lease.pool));
    recovery.effects.push_back(
        ResizeObject{lease.id, lease.object, object_bytes, lease.target_bytes, std::move(kept)});
    recovery.findings.push_back(lease_name(lease) + " was being resized; it becomes " +
                                format_size(lease.target_bytes) + ", the rest is erased");
  } else if (object_bytes > lease.bytes) {  // its holder's doing
    begin_growth(lease.id, {}, lease.bytes);
    recovery.effects.push_back(ResizeObject{lease.id, lease.object, object_bytes, lease.bytes, lease.extents});
    recovery.findings.push_back("the object of " + lease_name(lease) + " has " + format_size(object_bytes) +
                                " instead of " + format_size(lease.bytes) + "; cut back");
  }
}

// The kernel may still be finding the device: a lease whose memory outlasts that is not lost before it was
// looked at. It lapses, can be released and revoked as any other; what would need its object is refused.
bool StateMachine::await(const LeaseRow& lease, const std::set<std::string>& lasting, Recovery& recovery) {
  const DeviceRow* absent = absent_device_of(lease.extents);
  if (absent == nullptr || !lasting.contains(absent->backend)) return false;
  awaited_.insert(lease.id);
  recovery.findings.push_back(lease_name(lease) + " (" + lease.tenant + ") waits for device " + absent->serial +
                              ", which is not seen yet");
  return true;
}

void StateMachine::recover_lease(LeaseRow& lease, const Start& start, Recovery& recovery) {
  const std::set<std::string>& lasting = start.observed.lasting_backends;
  const auto object = start.objects.find(lease.object);
  const bool exists = object != start.objects.end();
  const auto fence = [&](LeaseCause cause, std::string reason, const char* what) {
    Step step;
    begin_fence(lease, cause, std::move(reason), step);
    recovery.findings.push_back(lease_name(lease) + what + lease.reason);
    recovery.delta.merge(std::move(step.delta));
    recovery.effects.insert(recovery.effects.end(), step.effects.begin(), step.effects.end());
  };
  const auto gone = [&] {
    if (const DeviceRow* absent = absent_device_of(lease.extents)) {
      fence(LeaseCause::device_lost, "device " + absent->serial + " vanished while the manager was down",
            " is lost: ");
    } else {
      fence(LeaseCause::object_lost,
            start.older_copy ? "its memory is gone: it ended, moved or changed hands after the backup"
                             : "its memory object was gone when the manager started",
            " is lost: ");
    }
  };
  const bool here = exists && object->second != 0 && lease.object.find('@') == std::string::npos;
  if (start.older_copy && here && recover_copied(lease, object->second, recovery)) return;
  switch (lease.phase) {
    case LeasePhase::active:
    case LeasePhase::revoking:
      // Without bytes it is one whose driver is not there yet: a fence of ours would be on record.
      if ((!exists || object->second == 0) && await(lease, lasting, recovery)) {
        recover_times(lease, start.same_boot, start.now_ns, recovery);
      } else if (!exists && !start.older_copy && replace_lost(lease, recovery)) {
        recover_times(lease, start.same_boot, start.now_ns, recovery);
      } else if (!exists) {
        gone();
      } else if (object->second < lease.bytes &&
                 (lease.target_bytes == 0 || object->second != lease.target_bytes)) {
        fence(LeaseCause::object_lost, "its memory object changed its size while the manager was down",
              " is lost: ");
      } else {
        recover_usable(lease, object->second, start.same_boot, start.now_ns, recovery);
      }
      return;
    case LeasePhase::fencing:
    case LeasePhase::scrubbing:
      if (lease.phase == LeasePhase::scrubbing) change_phase(lease, LeasePhase::fencing);  // no index differs
      recovery.effects.push_back(fence_of(lease));
      recovery.findings.push_back(lease_name(lease) + " was being taken back (" + lease.reason + "); goes on");
      return;
    case LeasePhase::quarantined:
      if (lease.cause == LeaseCause::device_lost && lost_device_of(lease.extents) == nullptr) {
        fence(LeaseCause::device_lost, "its devices were lost, and are back", " leaves quarantine: ");
        return;
      }
      recovery.findings.push_back(lease_name(lease) + " stays quarantined: " + lease.reason);
      return;
    case LeasePhase::transferring:
      if (!exists && !start.objects.contains(lease.next_object)) {
        if (!await(lease, lasting, recovery)) gone();
        return;
      }
      recovery.effects.push_back(
          RebindObject{lease.id, lease.object, lease.next_object, lease.bytes, lease.extents});
      recovery.findings.push_back(lease_name(lease) + " was being handed to tenant " + lease.tenant +
                                  "; goes on");
      return;
    case LeasePhase::pending:
    case LeasePhase::waiting: return;
  }
}

Result<Recovery> StateMachine::recover(Image image, const Observation& observed, const std::string& boot_id,
                                       uint64_t now_ns) {
  Recovery recovery;
  TERRACE_RETURN_IF_ERROR(load_rows(std::move(image)));
  const bool same_boot = !boot_id.empty() && meta_.boot_id == boot_id;  // an unreadable id proves nothing
  const bool other_boot = !boot_id.empty() && !meta_.boot_id.empty() && meta_.boot_id != boot_id;
  if (!same_boot) {
    if (!meta_.boot_id.empty()) recovery.findings.push_back("the machine was restarted since the last run");
    meta_.boot_id = boot_id;
    recovery.delta.meta = meta_;
  }
  for (const auto& [id, device] : devices_) {
    const auto& seen = observed.device_serials;
    if (std::find(seen.begin(), seen.end(), device.serial) != seen.end()) continue;
    absent_.insert(id);
    recovery.findings.push_back("device " + device.serial +
                                " is adopted but not seen; nothing is granted on it until it is back");
  }
  const bool older_copy = meta_.restored || observed.older_copy;
  if (older_copy && !skip_given_ids(observed, recovery))
    return corrupt("a counter of its ids is about to wrap, and a restored store has to jump ahead");
  const Start start{.observed = observed,
                    .objects = {observed.objects.begin(), observed.objects.end()},
                    .same_boot = same_boot,
                    .older_copy = older_copy,
                    .now_ns = now_ns};
  std::set<std::string> known;
  for (auto& [id, lease] : leases_) {
    known.insert(lease.object);
    known.insert(lease.next_object);
    for (const ViewRow& view : views_of(id)) known.insert(view.object);
    recover_lease(lease, start, recovery);
    recover_views(lease, start.objects, recovery);
  }
  // No process of another boot lives on this machine. Where either id is not known it may be the same boot: owners stay,
  // and are looked at when somebody asks.
  if (other_boot) {
    for (const auto& [id, lease] : leases_) vacate_parts(id, "", true, recovery.delta);
  }
  if (!same_boot) {  // a full TTL again, as for leases
    for (auto& [id, row] : reservations_) {
      if (row.ttl_ns == 0) continue;
      index_reservation(row, false);
      row.expiry_ns = now_ns + row.ttl_ns;
      index_reservation(row, true);
      recovery.delta.reservations[id] = row;
    }
  }
  for (const auto& [name, bytes] : observed.objects) {
    if (known.contains(name)) continue;
    // One that cannot be destroyed keeps its name: no lease may be given it.
    const size_t colon = name.find(':');
    const std::string own = colon == std::string::npos ? name : name.substr(colon + 1);
    if (own.starts_with("lease-")) {
      const uint64_t id = std::strtoull(own.c_str() + 6, nullptr, 10);
      if (id >= meta_.next_lease && id < next_id_max) {  // beyond: no lease ever gets it
        meta_.next_lease = id + 1;
        recovery.delta.meta = meta_;
      }
    }
    if (const auto kept = observed.kept.find(name); kept != observed.kept.end()) {
      if (older_copy && quarantine_unknown(name, bytes, observed, recovery)) continue;
      recovery.findings.push_back("object " + name + " (" + format_size(bytes) +
                                  ") belongs to no lease that this store knows, and stays: " + kept->second +
                                  ". If the store is an older copy, give the newest; or start once with "
                                  "--destroy-orphans");
      continue;
    }
    recovery.orphans.push_back(name);
    recovery.findings.push_back("object " + name + " (" + format_size(bytes) +
                                ") belongs to no lease that this store knows; destroyed");
  }
  if (const auto problems = check_all(); !problems.empty()) return corrupt(problems.front());
  settle_account();
  return recovery;
}

}  // namespace terrace::daemon
