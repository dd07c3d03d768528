// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/ledger.h"

#include <algorithm>

namespace terrace::sim {
namespace {

using daemon::LeasePhase;
using daemon::LeaseRow;

unsigned long long number(LeaseId id) {
  return id.value;
}

bool usable(const LeaseRow& lease) {
  return lease.phase == LeasePhase::active || lease.phase == LeasePhase::revoking;
}

}  // namespace

void Ledger::grant_acknowledged(const LeaseRow& lease) {
  ++grants_;
  const auto key = std::make_tuple(lease.tenant, lease.request_high, lease.request_low);
  const bool keyed = lease.request_high != 0 || lease.request_low != 0;
  if (const auto known = keys_.find(key);
      keyed && known != keys_.end() && known->second != lease.id && promised(known->second)) {
    environment_.fail("L3: key of lease %llu was answered with a second lease, %llu", number(known->second),
                      number(lease.id));
  }
  if (keyed) keys_[key] = lease.id;
  epochs_given(lease);
  Promise& promise = promises_[lease.id];
  promise.lease = lease;
  promise.expiry_ns = std::max(promise.expiry_ns, lease.expiry_ns);
  promise.changing = moving_.contains(lease.id);
  if (lease.phase != LeasePhase::active || hit_lately(lease)) ending_.insert(lease.id);
}

void Ledger::epochs_given(const LeaseRow& lease) {
  const auto [epoch, fresh] = epochs_.emplace(lease.epoch, lease.id);
  if (epoch->second != lease.id) {
    environment_.fail("L4: leases %llu and %llu were both granted with epoch %llu", number(epoch->second),
                      number(lease.id), static_cast<unsigned long long>(lease.epoch.value));
  }
  if (!fresh) return;
  for (const daemon::Extent& extent : lease.extents) {
    for (uint64_t i = extent.first_granule; i < extent.end(); ++i) {
      LeaseEpoch& last = granule_epochs_[{extent.device, i}];
      if (last >= lease.epoch) {
        environment_.fail("L4: lease %llu got a granule under epoch %llu that epoch %llu had before",
                          number(lease.id), static_cast<unsigned long long>(lease.epoch.value),
                          static_cast<unsigned long long>(last.value));
      }
      last = lease.epoch;
    }
  }
}

void Ledger::renewal_asked(LeaseId id, uint64_t ttl_ns) {
  const auto at = promises_.find(id);
  if (at == promises_.end() || ttl_ns == 0 || at->second.expiry_ns == 0) return;
  at->second.expiry_ns = std::min(at->second.expiry_ns, environment_.now_ns() + ttl_ns);
}

void Ledger::quarantines_may_end(const daemon::StateMachine& machine, const daemon::Command& command) {
  if (const auto* remove = std::get_if<daemon::RemoveDevice>(&command); remove != nullptr) {
    const daemon::DeviceRow* device = machine.find_device(remove->serial);
    for (const auto& [id, lease] : machine.leases()) {
      for (const daemon::Extent& extent : lease.extents)
        if (device != nullptr && extent.device == device->id) quarantined_.erase(id);
    }
  } else if (const auto* release = std::get_if<daemon::Release>(&command); release && release->tenant.empty()) {
    quarantined_.erase(release->lease);
  }
}

void Ledger::change_asked(LeaseId id) {
  if (const auto at = promises_.find(id); at != promises_.end()) at->second.changing = true;
}

void Ledger::move_begins(LeaseId id) {
  moving_.insert(id);
  change_asked(id);
}

void Ledger::transfer_asked(LeaseId id) {
  std::erase_if(keys_, [id](const auto& key) { return key.second == id; });  // the key was the giver's
  if (const auto at = promises_.find(id); at != promises_.end()) at->second.changing = at->second.handed = true;
}

void Ledger::transfer_refused(LeaseId id) {
  if (const auto at = promises_.find(id); at != promises_.end()) at->second.handed = false;
}

void Ledger::renewal_acknowledged(const LeaseRow& lease) {
  const auto at = promises_.find(lease.id);
  if (at == promises_.end()) return;
  at->second.expiry_ns = std::max(at->second.expiry_ns, lease.expiry_ns);
  at->second.lease.ttl_ns = lease.ttl_ns;
}

void Ledger::row_acknowledged(const LeaseRow& lease) {
  epochs_given(lease);
  const auto at = promises_.find(lease.id);
  if (at == promises_.end()) return;
  Promise& promise = at->second;
  const bool same_times = !promise.handed && lease.ttl_ns == promise.lease.ttl_ns;
  promise.lease = lease;
  promise.expiry_ns = same_times ? std::max(promise.expiry_ns, lease.expiry_ns) : lease.expiry_ns;
  promise.changing = moving_.contains(lease.id);
  promise.handed = false;
  if (lease.phase != LeasePhase::active || hit_lately(lease)) ending_.insert(lease.id);
}

bool Ledger::hit_lately(const LeaseRow& lease) const {
  return std::any_of(lease.extents.begin(), lease.extents.end(), [this](const daemon::Extent& extent) {
    const auto at = hits_.find(extent.device);
    return at != hits_.end() && environment_.steady_ns() - at->second < 15 * ns_per_s;
  });
}

bool Ledger::anything_hit_lately() const {
  return std::any_of(hits_.begin(), hits_.end(),
                     [this](const auto& hit) { return environment_.steady_ns() - hit.second < 15 * ns_per_s; });
}

void Ledger::device_hit(const daemon::StateMachine& machine, const std::string& serial) {
  graces_.clear();
  const daemon::DeviceRow* device = machine.find_device(serial);
  for (const auto& [id, row] : machine.devices()) {
    if (row.serial == serial) hits_[id] = environment_.steady_ns();
  }
  if (device == nullptr) {  // the daemon is away: it may be any of those it knows
    for (auto& [id, promise] : promises_) ending_.insert(id);
    for (auto& [id, when] : hits_) when = environment_.steady_ns();
    return;
  }
  for (const auto& [id, promise] : promises_) {
    if (promise.changing || hit_lately(promise.lease)) ending_.insert(id);
  }
}

void Ledger::quarantine_durable(const LeaseRow& lease) {
  if (lease.cause != daemon::LeaseCause::device_lost) quarantined_.insert(lease.id);
}

void Ledger::release_asked(LeaseId id) {
  ending_.insert(id);
  release_asked_.insert(id);
  graces_.erase(id);
}

void Ledger::revocation_asked(LeaseId id) {
  ending_.insert(id);
  graces_.erase(id);  // a second one may be sooner
  ++revocations_[id];
}

void Ledger::grace_announced(const daemon::StateMachine& machine, LeaseId id, uint64_t grace_ns) {
  const LeaseRow* lease = machine.find_lease(id);
  if (anything_hit_lately() || revocations_[id] != 1 || release_asked_.contains(id) || lease == nullptr ||
      lease->phase != LeasePhase::revoking)
    return;
  // The grace counts from the decision; the notice leaves when that is durable.
  graces_[id] = std::min(environment_.now_ns() + grace_ns, lease->deadline_ns);
}

void Ledger::rebooted() {
  promises_.clear();
  graces_.clear();
}

bool Ledger::promised(LeaseId id) const {
  const auto at = promises_.find(id);
  if (at == promises_.end() || ending_.contains(id) || at->second.handed) return false;
  return at->second.expiry_ns == 0 || environment_.now_ns() < at->second.expiry_ns;
}

void Ledger::check_promise(LeaseId id, const Promise& promise, const daemon::StateMachine& machine) {
  const LeaseRow* lease = machine.find_lease(id);
  // What it was growing onto may be lost: then it is taken back as a whole.
  if (promise.changing && anything_hit_lately() && (lease == nullptr || !usable(*lease))) return;
  if (lease == nullptr) {
    environment_.fail("L1: acknowledged lease %llu is gone", number(id));
    return;
  }
  if (lease->phase != LeasePhase::active) {
    environment_.fail("L1: acknowledged lease %llu is no longer active: %s", number(id), lease->reason.c_str());
  }
  if (!promise.changing && (lease->epoch != promise.lease.epoch || lease->extents != promise.lease.extents)) {
    environment_.fail("L1: acknowledged lease %llu changed its epoch or extents", number(id));
  }
  if (lease->tenant != promise.lease.tenant || lease->host != promise.lease.host) {
    environment_.fail("L1: acknowledged lease %llu changed its tenant from %s to %s", number(id),
                      promise.lease.tenant.c_str(), lease->tenant.c_str());
  }
  if (lease->expiry_ns < promise.expiry_ns) {
    environment_.fail("L1: lease %llu ends %.6f s before the expiry that was acknowledged", number(id),
                      static_cast<double>(promise.expiry_ns - lease->expiry_ns) / 1e9);
  }
}

void Ledger::check(const daemon::StateMachine& machine) {
  for (const auto& problem : machine.check_all()) environment_.fail("check_all: %s", problem.c_str());
  for (auto at = promises_.begin(); at != promises_.end();) {
    const Promise& promise = at->second;
    if (promise.handed && !ending_.contains(at->first)) {
      ++at;
      continue;
    }
    if (!promised(at->first)) {
      at = promises_.erase(at);
      continue;
    }
    check_promise(at->first, at->second, machine);
    ++at;
  }
  check_ended(machine);
}

void Ledger::check_ended(const daemon::StateMachine& machine) {
  for (const auto& [id, lease] : machine.leases()) {
    if (usable(lease) && released_.contains(id)) {
      environment_.fail("L2: lease %llu is usable after its release was acknowledged", number(id));
    }
    if (lease.phase == LeasePhase::active && revoked_.contains(id)) {
      environment_.fail("L2: lease %llu is active after its revocation was acknowledged", number(id));
    }
  }
  for (auto at = graces_.begin(); at != graces_.end();) {
    if (environment_.now_ns() >= at->second) {
      at = graces_.erase(at);
      continue;
    }
    const LeaseRow* lease = machine.find_lease(at->first);
    if (lease == nullptr || lease->phase != LeasePhase::revoking) {
      environment_.fail("L6: lease %llu is taken %.6f s before the end of its grace", number(at->first),
                        static_cast<double>(at->second - environment_.now_ns()) / 1e9);
    }
    ++at;
  }
  for (const LeaseId id : quarantined_) {
    const LeaseRow* lease = machine.find_lease(id);
    if (lease == nullptr || lease->phase != LeasePhase::quarantined) {
      environment_.fail("L5: lease %llu left its quarantine", number(id));
    }
  }
}

}  // namespace terrace::sim
