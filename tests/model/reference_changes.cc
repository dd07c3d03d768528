// SPDX-License-Identifier: Apache-2.0
// Resizes, transfers and moves in the reference.
#include <algorithm>
#include <utility>

#include "core/base/limits.h"
#include "tests/model/reference.h"

namespace terrace::model {
namespace {

using daemon::LeaseCause;
using daemon::LeaseRow;

Expected refused(ErrorCode code) {
  Expected expected;
  expected.code = code;
  return expected;
}

std::string effect(const char* kind, LeaseId id) {
  return std::string(kind) + " " + std::to_string(id.value);
}

bool usable(const LeaseRow& row) {
  return row.phase == LeasePhase::active || row.phase == LeasePhase::revoking;
}

std::vector<daemon::Extent> granules_of(const std::vector<daemon::Extent>& extents) {
  std::vector<daemon::Extent> single;
  for (const daemon::Extent& extent : extents)
    for (uint64_t i = 0; i < extent.granules; ++i)
      single.push_back({extent.device, extent.first_granule + i, 1});
  return single;
}

}  // namespace

std::optional<LeaseId> Reference::target_of(LeaseId lease) const {
  for (const auto& [target, move] : moves_)
    if (move.lease == lease) return target;
  return std::nullopt;
}

ErrorCode Reference::live(const LeaseRow& row, uint64_t now_ns) const {
  if (row.phase == LeasePhase::transferring) return ErrorCode::busy;
  if (row.phase == LeasePhase::revoking) return ErrorCode::lease_revoked;
  if (row.phase != LeasePhase::active)
    return row.cause == LeaseCause::expired ? ErrorCode::lease_expired : ErrorCode::lease_revoked;
  return row.expiry_ns != 0 && row.expiry_ns <= now_ns ? ErrorCode::lease_expired : ErrorCode::ok;
}

ErrorCode Reference::changeable(LeaseId id, const std::string& tenant, uint64_t now_ns) {
  const LeaseRow* row = lease(id, tenant);
  if (row == nullptr || row->phase == LeasePhase::pending) return ErrorCode::not_found;
  if (const ErrorCode code = live(*row, now_ns); code != ErrorCode::ok) return code;
  const bool busy = growths_.contains(id) || row->target_bytes != 0 || target_of(id).has_value();
  return busy ? ErrorCode::busy : ErrorCode::ok;
}

// --- resize -----------------------------------------------------------------------------------------

Expected Reference::on(const daemon::Resize& c) {
  if (const ErrorCode code = changeable(c.lease, c.tenant, c.now_ns); code != ErrorCode::ok)
    return refused(code);
  if (c.bytes == 0) return refused(ErrorCode::invalid_argument);
  LeaseRow& row = *lease(c.lease, "");
  const std::string& pool = pool_of_lease_.at(row.id);
  const uint64_t granule = granule_bytes(pool);
  const uint64_t bytes = ((c.bytes - 1) / granule + 1) * granule;
  if (bytes == row.bytes) return {};
  Expected expected;
  expected.effects = {effect("resize", row.id)};
  if (bytes < row.bytes) {
    row.target_bytes = bytes;
    return expected;
  }
  const uint64_t more = bytes - row.bytes;
  if (bytes > capacity_bytes(pool)) return refused(ErrorCode::capacity_exhausted);
  if (!in_quota(row.tenant, more, 0)) return refused(ErrorCode::limit_exceeded);
  if (!room(pool, row.tenant, more)) return refused(ErrorCode::capacity_exhausted);
  growths_[row.id] = {{}, bytes};
  return expected;
}

std::string Reference::grown(LeaseId id, const std::vector<daemon::Extent>& extents) {
  const std::vector<daemon::Extent> old = granules_of(lease(id, "")->extents);
  std::vector<daemon::Extent> all = granules_of(extents);
  if (all.size() < old.size() || !std::equal(old.begin(), old.end(), all.begin())) return "not what it had";
  all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(old.size()));
  for (const daemon::Extent& one : all) {
    const daemon::DeviceRow& row = device(one.device);
    if (taken(one.device, one.first_granule)) return "a granule of another lease";
    if (pool_of_device_.at(row.serial) != pool_of_lease_.at(id)) return "a device of another pool";
    if (lost({one}) || row.state != daemon::DeviceState::in_service) return "a device that takes no leases";
  }
  Growth& growth = growths_.at(id);
  if (all.size() * granule_bytes(pool_of_lease_.at(id)) != growth.bytes - lease(id, "")->bytes)
    return "wrong bytes";
  growth.extents = std::move(all);
  return {};
}

Expected Reference::on(const daemon::ResizeFinished& c) {
  LeaseRow* row = lease(c.lease, "");
  if (row == nullptr || row->phase == LeasePhase::pending) return refused(ErrorCode::not_found);
  if (!usable(*row))
    return refused(row->cause == LeaseCause::expired ? ErrorCode::lease_expired : ErrorCode::lease_revoked);
  if (const auto growth = growths_.find(c.lease); growth != growths_.end()) {
    if (lost(growth->second.extents)) {
      Expected expected = refused(ErrorCode::lease_revoked);
      fence(*row, LeaseCause::device_lost, expected);
      return expected;
    }
    const Growth ended = growth->second;
    growths_.erase(growth);
    if (!c.status.ok() && ended.extents.empty()) return refused(c.status.error().code);
    if (!c.status.ok()) row->target_bytes = row->bytes;
    row->extents.insert(row->extents.end(), ended.extents.begin(), ended.extents.end());
    row->bytes = ended.bytes;
    if (c.status.ok()) return {};
    Expected expected = refused(c.status.error().code);  // it was longer for a moment, perhaps
    expected.effects = {"scrub the tail"};
    return expected;
  }
  if (row->target_bytes == 0) return refused(ErrorCode::not_found);
  if (!c.status.ok()) {
    row->target_bytes = 0;
    return refused(c.status.error().code);
  }
  Expected expected;
  expected.effects = {"scrub the tail"};
  return expected;
}

std::string Reference::cut_off(LeaseId id, const LeaseRow& tail) {
  LeaseRow& row = *lease(id, "");
  std::vector<daemon::Extent> all = granules_of(row.extents);
  const size_t kept = row.target_bytes / granule_bytes(pool_of_lease_.at(id));
  const std::vector<daemon::Extent> rest(all.begin() + static_cast<std::ptrdiff_t>(kept), all.end());
  if (granules_of(tail.extents) != rest) return "not the end of the lease";
  if (tail.phase != LeasePhase::scrubbing || tail.bytes != row.bytes - row.target_bytes) return "a wrong tail";
  all.resize(kept);
  row.extents = std::move(all);
  row.bytes = std::exchange(row.target_bytes, 0);
  pool_of_lease_[tail.id] = pool_of_lease_.at(id);
  leases_.push_back(tail);
  return {};
}

// --- owners of parts --------------------------------------------------------------------------------

Expected Reference::on(const daemon::ClaimPart& c) {
  const LeaseRow* row = lease(c.lease, c.tenant);
  if (row == nullptr || row->phase == LeasePhase::pending) return refused(ErrorCode::not_found);
  if (const ErrorCode code = live(*row, c.now_ns); code != ErrorCode::ok) return refused(code);
  if (c.part >= 64) return refused(ErrorCode::invalid_argument);
  if (row->mode != daemon::LeaseMode::shared_coherent) return refused(ErrorCode::unsupported);
  if (c.process.pid == 0 || c.request == 0) return refused(ErrorCode::invalid_argument);
  Owner owner;
  if (const auto at = owners_.find({c.lease, c.part}); at != owners_.end()) owner = at->second;
  if (owner.process.pid != 0) {
    if (owner.process == c.process && owner.request == c.request) return {};
    if (owner.epoch != c.dead_epoch) return refused(ErrorCode::busy);
  }
  if (c.last_epoch > owner.epoch && c.last_epoch > uint64_t{1} << 48)
    return refused(ErrorCode::invalid_argument);
  owners_[{c.lease, c.part}] = {std::max(owner.epoch, c.last_epoch) + 1, c.request, c.process};
  return {};
}

Expected Reference::on(const daemon::ReleasePart& c) {
  const LeaseRow* row = lease(c.lease, c.tenant);
  if (row == nullptr || row->phase == LeasePhase::pending) return refused(ErrorCode::not_found);
  if (c.part >= 64) return refused(ErrorCode::invalid_argument);
  if (row->mode != daemon::LeaseMode::shared_coherent) return refused(ErrorCode::unsupported);
  const auto at = owners_.find({c.lease, c.part});
  if (at == owners_.end() || c.epoch == 0 || c.epoch > at->second.epoch)
    return refused(ErrorCode::invalid_argument);
  Owner& owner = at->second;
  if (c.epoch < owner.epoch || owner.process.pid == 0) return {};
  if (owner.process != c.process) return refused(ErrorCode::permission_denied);
  owner = {owner.epoch, 0, {}};
  return {};
}

Expected Reference::on(const daemon::SetPoolCoherence& c) {
  if (!has_pool(c.pool)) return refused(ErrorCode::not_found);
  return c.coherence > daemon::PoolCoherence::noncoherent ? refused(ErrorCode::invalid_argument) : Expected{};
}

Expected Reference::on(const daemon::SetPoolTrust& c) {
  if (!has_pool(c.pool)) return refused(ErrorCode::not_found);
  if (c.trust > daemon::TenantTrust::mutual) return refused(ErrorCode::invalid_argument);
  if (c.trust == daemon::TenantTrust::mutual)
    trusting_.insert(c.pool);
  else
    trusting_.erase(c.pool);
  return {};
}

// --- transfer ---------------------------------------------------------------------------------------

Expected Reference::hand_over(LeaseRow& row, const std::string& to_tenant, bool pins_outlast) {
  const std::string& pool = pool_of_lease_.at(row.id);
  if (to_tenant != row.tenant) {
    if (pins_outlast && !trusting_.contains(pool)) return refused(ErrorCode::permission_denied);
    if (!in_quota(to_tenant, row.bytes, 1)) return refused(ErrorCode::limit_exceeded);
    for (const LeaseRow& other : leases_) {
      const bool named =
          usable(other) || other.phase == LeasePhase::pending || other.phase == LeasePhase::transferring;
      if (!row.label.empty() && named && other.tenant == to_tenant && other.label == row.label)
        return refused(ErrorCode::already_exists);
    }
    const uint64_t after = kept_for_others(pool, to_tenant, row.tenant, row.bytes);
    if (after > kept_for_others(pool, to_tenant) && grantable_bytes(pool) < after)
      return refused(ErrorCode::capacity_exhausted);
  }
  offers_.erase(row.id);
  row.tenant = to_tenant;
  row.phase = LeasePhase::transferring;
  row.expiry_ns = 0;
  row.request_high = row.request_low = 0;
  Expected expected;
  expected.effects = {effect("fenced", row.id), effect("rebind", row.id)};
  return expected;
}

Expected Reference::on(const daemon::Transfer& c) {
  if (const ErrorCode code = changeable(c.lease, c.tenant, c.now_ns); code != ErrorCode::ok)
    return refused(code);
  return hand_over(*lease(c.lease, ""), c.to_tenant, c.pins_outlast);
}

Expected Reference::on(const daemon::OfferLease& c) {
  const LeaseRow* row = lease(c.lease, c.tenant);
  if (row == nullptr || row->phase == LeasePhase::pending) return refused(ErrorCode::not_found);
  if (c.to_tenant.empty()) {
    offers_.erase(c.lease);
    return {};
  }
  if (const ErrorCode code = changeable(c.lease, c.tenant, c.now_ns); code != ErrorCode::ok)
    return refused(code);
  if (c.to_tenant == row->tenant) return refused(ErrorCode::invalid_argument);
  offers_[c.lease] = c.to_tenant;
  return {};
}

Expected Reference::on(const daemon::AcceptOffer& c) {
  const auto offer = offers_.find(c.lease);
  if (offer == offers_.end() || offer->second != c.tenant) return refused(ErrorCode::not_found);
  if (const ErrorCode code = changeable(c.lease, "", c.now_ns); code != ErrorCode::ok) return refused(code);
  return hand_over(*lease(c.lease, ""), c.tenant, c.pins_outlast);
}

std::string Reference::handed(const LeaseRow& changed) {
  LeaseRow& row = *lease(changed.id, "");
  for (const LeaseRow& other : leases_)
    if (other.epoch >= changed.epoch) return "an old epoch";
  if (changed.next_object.empty() || changed.next_object == row.object) return "no new object";
  row.epoch = changed.epoch;
  row.next_object = changed.next_object;
  return {};
}

Expected Reference::on(const daemon::RebindFinished& c) {
  LeaseRow* row = lease(c.lease, "");
  if (row == nullptr || row->phase != LeasePhase::transferring) return refused(ErrorCode::not_found);
  if (!c.status.ok()) {
    Expected expected = refused(c.status.error().code);
    fence(*row, LeaseCause::object_lost, expected);
    return expected;
  }
  for (auto& [part, owner] : owners_)
    if (part.first == row->id) owner = {owner.epoch, 0, {}};
  row->phase = LeasePhase::active;
  row->object = std::exchange(row->next_object, "");
  if (row->ttl_ns != 0) row->expiry_ns = c.now_ns + row->ttl_ns;
  return {};
}

// --- move -------------------------------------------------------------------------------------------

Expected Reference::on(const daemon::BeginMove& c) {
  if (const ErrorCode code = changeable(c.lease, c.tenant, c.now_ns); code != ErrorCode::ok)
    return refused(code);
  const LeaseRow& row = *lease(c.lease, "");
  own_accord_ = !c.tenant.empty();  // nothing is compacted here
  for (const daemon::Extent& extent : row.extents)
    if (device(extent.device).state == daemon::DeviceState::draining) own_accord_ = false;
  if (own_accord_ && !in_quota(row.tenant, row.bytes, 0)) return refused(ErrorCode::limit_exceeded);
  if (!room(pool_of_lease_.at(row.id), row.tenant, row.bytes)) return refused(ErrorCode::capacity_exhausted);
  return {};
}

std::string Reference::placed_target(LeaseId id, const LeaseRow& target) {
  const LeaseRow& row = *lease(id, "");
  daemon::Grant like;
  like.pool = pool_of_lease_.at(id);
  like.tenant = row.tenant;
  like.bytes = row.bytes;
  like.mode = row.mode;
  like.ttl_ns = row.ttl_ns;
  like.persistent = row.ttl_ns == 0;
  moves_[target.id] = {id, false, own_accord_};
  return placed(like, target);
}

void Reference::give_up_move(LeaseId target, Expected& expected) {
  Move& move = moves_.at(target);
  LeaseRow& row = *lease(target, "");
  move.lease = LeaseId{};
  row.deadline_ns = 0;
  if (move.carved) fence(row, LeaseCause::released, expected);
}

Expected Reference::on(const daemon::FinishMove& c) {
  LeaseRow* row = lease(c.lease, c.tenant);
  if (row == nullptr || row->phase == LeasePhase::pending) return refused(ErrorCode::not_found);
  const auto move = moves_.find(c.target);
  if (move == moves_.end() || move->second.lease != c.lease) {
    const bool done = c.commit && usable(*row) && c.target != c.lease &&
                      row->object == "lease-" + std::to_string(c.target.value);
    return done ? Expected{} : refused(ErrorCode::not_found);
  }
  Expected expected;
  if (!c.commit) {
    give_up_move(c.target, expected);
    return expected;
  }
  if (!move->second.carved) return refused(ErrorCode::busy);
  if (const ErrorCode code = live(*row, c.now_ns); code != ErrorCode::ok) return refused(code);
  LeaseRow& target = *lease(c.target, "");
  if (lost(target.extents)) return refused(ErrorCode::unavailable);
  std::swap(row->object, target.object);
  std::swap(row->extents, target.extents);
  std::swap(row->epoch, target.epoch);
  moves_.erase(c.target);
  fence(target, LeaseCause::moved, expected);
  return expected;
}

}  // namespace terrace::model
