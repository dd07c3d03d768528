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
  keys_[key] = lease.id;
  const auto [epoch, fresh] = epochs_.emplace(lease.epoch, lease.id);
  if (epoch->second != lease.id) {
    environment_.fail("L4: leases %llu and %llu were both granted with epoch %llu", number(epoch->second),
                      number(lease.id), static_cast<unsigned long long>(lease.epoch.value));
  }
  if (fresh) {
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
  Promise& promise = promises_[lease.id];
  promise.lease = lease;
  promise.expiry_ns = std::max(promise.expiry_ns, lease.expiry_ns);
  if (lease.phase != LeasePhase::active) ending_.insert(lease.id);
}

void Ledger::renewal_asked(LeaseId id, uint64_t ttl_ns) {
  const auto at = promises_.find(id);
  if (at == promises_.end() || ttl_ns == 0 || at->second.expiry_ns == 0) return;
  at->second.expiry_ns = std::min(at->second.expiry_ns, environment_.now_ns() + ttl_ns);
}

void Ledger::renewal_acknowledged(const LeaseRow& lease) {
  const auto at = promises_.find(lease.id);
  if (at != promises_.end()) at->second.expiry_ns = std::max(at->second.expiry_ns, lease.expiry_ns);
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
  if (revocations_[id] != 1 || release_asked_.contains(id) || lease == nullptr ||
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
  if (at == promises_.end() || ending_.contains(id)) return false;
  return at->second.expiry_ns == 0 || environment_.now_ns() < at->second.expiry_ns;
}

void Ledger::check_promise(LeaseId id, const Promise& promise, const daemon::StateMachine& machine) {
  const LeaseRow* lease = machine.find_lease(id);
  if (lease == nullptr) {
    environment_.fail("L1: acknowledged lease %llu is gone", number(id));
    return;
  }
  if (lease->phase != LeasePhase::active) {
    environment_.fail("L1: acknowledged lease %llu is no longer active: %s", number(id), lease->reason.c_str());
  }
  if (lease->epoch != promise.lease.epoch || lease->extents != promise.lease.extents) {
    environment_.fail("L1: acknowledged lease %llu changed its epoch or extents", number(id));
  }
  if (lease->expiry_ns < promise.expiry_ns) {
    environment_.fail("L1: lease %llu ends %.6f s before the expiry that was acknowledged", number(id),
                      static_cast<double>(promise.expiry_ns - lease->expiry_ns) / 1e9);
  }
}

void Ledger::check(const daemon::StateMachine& machine) {
  for (const auto& problem : machine.check_all()) environment_.fail("check_all: %s", problem.c_str());
  for (auto at = promises_.begin(); at != promises_.end();) {
    if (!promised(at->first)) {
      at = promises_.erase(at);
      continue;
    }
    check_promise(at->first, at->second, machine);
    ++at;
  }
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
