// SPDX-License-Identifier: Apache-2.0
// The life of a lease in the reference: renewed, released, revoked, expired, fenced, erased.
#include <algorithm>
#include <utility>

#include "core/base/limits.h"
#include "tests/model/reference.h"

namespace terrace::model {
namespace {

using daemon::LeaseRow;

Expected refused(ErrorCode code) {
  Expected expected;
  expected.code = code;
  return expected;
}

std::string effect(const char* kind, LeaseId id) {
  return std::string(kind) + " " + std::to_string(id.value);
}

bool usable(const LeaseRow& lease) {
  return lease.phase == LeasePhase::active || lease.phase == LeasePhase::revoking;
}

bool wrong_ttl(uint64_t ttl_ns) {
  return ttl_ns != 0 && (ttl_ns < limits::ttl_ns_min || ttl_ns > limits::ttl_ns_max);
}

}  // namespace

Expected Reference::on(const daemon::Renew& c) {
  LeaseRow* row = lease(c.lease, c.tenant);
  if (row == nullptr || row->phase == LeasePhase::pending) return refused(ErrorCode::not_found);
  if (const ErrorCode code = live(*row, c.now_ns); code != ErrorCode::ok) return refused(code);
  if (row->ttl_ns == 0) return c.ttl_ns == 0 ? Expected{} : refused(ErrorCode::invalid_argument);
  if (wrong_ttl(c.ttl_ns)) return refused(ErrorCode::invalid_argument);
  if (c.ttl_ns != 0) row->ttl_ns = c.ttl_ns;
  row->expiry_ns = c.now_ns + row->ttl_ns;
  return {};
}

// Which of them failed, and why, is RenewMany's answer.
Expected Reference::on(const daemon::RenewMany& c) {
  Expected expected;
  for (const LeaseId id : c.leases) {
    const Expected one = on(daemon::Renew{id, c.tenant, c.ttl_ns, c.now_ns});
    if (one.code != ErrorCode::ok) expected.failed_renewals.emplace_back(id, one.code);
  }
  return expected;
}

// A move under way is given up, a growth under way ends with the lease.
void Reference::fence(LeaseRow& lease, daemon::LeaseCause cause, Expected& expected) {
  if (const auto target = target_of(lease.id)) give_up_move(*target, expected);
  moves_.erase(lease.id);
  offers_.erase(lease.id);
  if (const auto growth = growths_.find(lease.id); growth != growths_.end()) {
    lease.extents.insert(lease.extents.end(), growth->second.extents.begin(), growth->second.extents.end());
    lease.bytes = growth->second.bytes;
    growths_.erase(growth);
  }
  std::erase_if(owners_, [&](const auto& owner) { return owner.first.first == lease.id; });
  lease.phase = LeasePhase::fencing;
  lease.cause = cause;
  lease.expiry_ns = lease.deadline_ns = lease.target_bytes = 0;
  expected.effects.insert(effect("fence", lease.id));
}

void Reference::quarantine(LeaseRow& lease) {
  lease.phase = LeasePhase::quarantined;
  if (lost(lease.extents)) lease.cause = daemon::LeaseCause::device_lost;
}

Expected Reference::on(const daemon::Release& c) {
  LeaseRow* row = lease(c.lease, c.tenant);
  if (row == nullptr || row->phase == LeasePhase::pending) return refused(ErrorCode::not_found);
  if (row->phase == LeasePhase::transferring) return refused(ErrorCode::busy);
  Expected expected;
  const bool from_quarantine = row->phase == LeasePhase::quarantined && c.tenant.empty();
  if (usable(*row) || from_quarantine) fence(*row, daemon::LeaseCause::released, expected);
  return expected;
}

Expected Reference::on(const daemon::Revoke& c) {
  LeaseRow* row = lease(c.lease, "");
  if (row == nullptr || row->phase == LeasePhase::pending) return refused(ErrorCode::not_found);
  if (row->phase == LeasePhase::transferring) return refused(ErrorCode::busy);
  if (!usable(*row)) return refused(ErrorCode::lease_revoked);
  if (c.grace_ns > limits::grace_ns_max) return refused(ErrorCode::invalid_argument);
  Expected expected;
  if (row->expiry_ns != 0 && row->expiry_ns <= c.now_ns) {  // a Tick is late: no grace revives it
    const bool over = row->deadline_ns != 0 && row->deadline_ns <= c.now_ns;
    fence(*row, over ? row->cause : daemon::LeaseCause::expired, expected);
    return expected;
  }
  if (c.grace_ns == 0) {
    fence(*row, daemon::LeaseCause::revoked, expected);
    return expected;
  }
  const uint64_t deadline_ns = c.now_ns + c.grace_ns;
  row->deadline_ns = row->phase == LeasePhase::revoking ? std::min(row->deadline_ns, deadline_ns) : deadline_ns;
  if (row->ttl_ns != 0) row->expiry_ns = std::max(row->expiry_ns, row->deadline_ns);
  row->phase = LeasePhase::revoking;
  row->cause = daemon::LeaseCause::revoked;
  expected.effects.insert(effect("notice", row->id));
  return expected;
}

Expected Reference::on(const daemon::Tick& c) {
  Expected expected;
  for (LeaseRow& row : leases_) {
    const bool lapsed = row.expiry_ns != 0 && row.expiry_ns <= c.now_ns;
    const bool over = row.deadline_ns != 0 && row.deadline_ns <= c.now_ns;
    if (!lapsed && !over) continue;
    if (moves_.contains(row.id)) {
      give_up_move(row.id, expected);
    } else {
      fence(row, over ? row.cause : daemon::LeaseCause::expired, expected);
    }
  }
  std::erase_if(reservations_,
                [&](const Reservation& row) { return row.expiry_ns != 0 && row.expiry_ns <= c.now_ns; });
  return expected;
}

Expected Reference::on(const daemon::ResumeAfterGap& c) {
  for (LeaseRow& row : leases_) {
    if (row.phase != LeasePhase::active || row.ttl_ns == 0) continue;
    if (row.expiry_ns >= c.now_ns + row.ttl_ns / 2) continue;
    row.expiry_ns = std::min(row.expiry_ns + c.gap_ns, c.now_ns + row.ttl_ns);
  }
  return {};
}

Expected Reference::on(const daemon::FenceFinished& c) {
  LeaseRow* row = lease(c.lease, "");
  if (row == nullptr || row->phase != LeasePhase::fencing) return refused(ErrorCode::not_found);
  Expected expected;
  if (c.status.ok()) expected.effects = {effect("fenced", c.lease)};
  if (!c.status.ok() || absent(*row)) {
    quarantine(*row);
  } else {
    row->phase = LeasePhase::scrubbing;
    expected.effects.insert(effect("scrub", c.lease));
  }
  return expected;
}

Expected Reference::on(const daemon::ScrubFinished& c) {
  LeaseRow* row = lease(c.lease, "");
  if (row == nullptr || row->phase != LeasePhase::scrubbing) return refused(ErrorCode::not_found);
  Expected expected;
  if (!c.status.ok()) {
    quarantine(*row);
  } else if (!row->next_object.empty()) {  // a hand-over that failed: the bytes may be in the other object
    row->object = std::exchange(row->next_object, "");
    row->phase = LeasePhase::fencing;
    expected.effects.insert(effect("fence", c.lease));
  } else {
    std::erase_if(leases_, [&](const LeaseRow& other) { return other.id == c.lease; });
  }
  return expected;
}

Expected Reference::on(const daemon::ScrubAdvanced& c) {
  LeaseRow* row = lease(c.lease, "");
  if (row == nullptr || row->phase != LeasePhase::scrubbing) return refused(ErrorCode::not_found);
  if (!row->next_object.empty()) return {};
  const uint64_t granule = granule_bytes(pool_of_lease_.at(row->id));
  for (uint64_t i = 0; i < c.granules && row->bytes > granule; ++i) {
    row->bytes -= granule;
    if (--row->extents.back().granules == 0) row->extents.pop_back();
  }
  return {};
}

}  // namespace terrace::model
