// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/manager/sim_store.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace terrace::sim {
namespace {

template <typename Id, typename Row>
void apply_rows(std::map<Id, Row>& rows, const std::map<Id, std::optional<Row>>& changes) {
  for (const auto& [id, row] : changes) {
    if (row.has_value()) {
      rows[id] = *row;
    } else {
      rows.erase(id);
    }
  }
}

// Keeps each row with even chance: what a store without transactions would leave behind.
template <typename Id, typename Row>
void tear_rows(std::map<Id, std::optional<Row>>& changes, Prng& prng) {
  for (auto at = changes.begin(); at != changes.end();) at = prng.chance(1, 2) ? changes.erase(at) : ++at;
}

template <typename Id, typename Row>
std::vector<Row> values(const std::map<Id, Row>& rows) {
  std::vector<Row> list;
  list.reserve(rows.size());
  for (const auto& [id, row] : rows) list.push_back(row);
  return list;
}

}  // namespace

void SimStore::begin(daemon::Delta batch) {
  TERRACE_CHECK(!in_flight_.has_value(), "one commit at a time");
  in_flight_ = std::move(batch);
}

CommitOutcome SimStore::finish() {
  TERRACE_CHECK(in_flight_.has_value(), "a commit is on its way");
  Prng& prng = environment_.prng();
  if (full() || environment_.chance_percent(environment_.faults().commit_full_percent)) {
    in_flight_.reset();
    return CommitOutcome::full;
  }
  if (environment_.faults().commit_error_per_mille != 0 &&
      prng.chance(environment_.faults().commit_error_per_mille, 1000)) {
    if (prng.chance(1, 2)) land(std::move(*in_flight_));
    in_flight_.reset();
    return CommitOutcome::failed;
  }
  land(std::move(*in_flight_));
  in_flight_.reset();
  return CommitOutcome::done;
}

void SimStore::crash() {
  if (!in_flight_.has_value()) return;
  Prng& prng = environment_.prng();
  if (prng.chance(1, 2)) {
    if (environment_.planted(Plant::torn_commit)) {
      tear_rows(in_flight_->leases, prng);
      if (prng.chance(1, 2)) in_flight_->meta.reset();
    }
    environment_.note("store: the batch in flight survived");
    land(std::move(*in_flight_));
  } else {
    environment_.note("store: the batch in flight is lost");
  }
  in_flight_.reset();
}

// The planted defects of a store that loses parts of rows.
void SimStore::spoil(daemon::Delta& batch) const {
  using daemon::LeasePhase;
  if (environment_.planted(Plant::lose_quota)) batch.quotas.clear();
  if (environment_.planted(Plant::lose_reservation)) batch.reservations.clear();
  if (environment_.planted(Plant::lose_owner)) batch.owners.clear();
  if (environment_.planted(Plant::forget_drain)) {
    for (auto& [id, row] : batch.devices)
      if (row.has_value()) row->state = daemon::DeviceState::in_service;
  }
  if (environment_.planted(Plant::lose_tail))
    std::erase_if(batch.leases, [](const auto& entry) {
      return entry.second.has_value() && entry.second->object.ends_with("-tail");
    });
  for (auto& [id, row] : batch.leases) {
    if (!row.has_value()) continue;
    if (environment_.planted(Plant::lose_keys)) row->request_high = row->request_low = 0;
    if (environment_.planted(Plant::forget_quarantine) && row->phase == LeasePhase::quarantined)
      row->phase = LeasePhase::fencing;
    const auto old = leases_.find(id);
    if (old == leases_.end()) continue;
    if (environment_.planted(Plant::lose_renewals) && row->phase == LeasePhase::active)
      row->ttl_ns = old->second.ttl_ns;
    if (environment_.planted(Plant::lose_releases) && row->phase == LeasePhase::fencing) row = old->second;
    if (environment_.planted(Plant::lose_transfer)) row->tenant = old->second.tenant;
  }
}

void SimStore::land(daemon::Delta batch) {
  spoil(batch);
  apply_rows(devices_, batch.devices);
  apply_rows(pools_, batch.pools);
  apply_rows(leases_, batch.leases);
  apply_rows(quotas_, batch.quotas);
  apply_rows(reservations_, batch.reservations);
  apply_rows(owners_, batch.owners);
  apply_rows(views_, batch.views);
  if (batch.meta.has_value() && !(environment_.planted(Plant::forget_meta) && meta_stored_)) {
    meta_ = *batch.meta;
    meta_stored_ = true;
  }
  ++commits_;
}

daemon::Image SimStore::load() const {
  daemon::Image image;
  image.meta = meta_;
  image.devices = values(devices_);
  image.pools = values(pools_);
  image.leases = values(leases_);
  image.quotas = values(quotas_);
  image.reservations = values(reservations_);
  image.owners = values(owners_);
  image.views = values(views_);
  if (environment_.planted(Plant::reuse_epochs)) {
    image.meta.next_epoch = 1;
    for (const auto& lease : image.leases)
      image.meta.next_epoch = std::max(image.meta.next_epoch, lease.epoch.value + 1);
  }
  return image;
}

const daemon::LeaseRow* SimStore::find_by_object(const std::string& object) const {
  for (const auto& [id, row] : leases_) {
    if (row.object == object) return &row;
  }
  return nullptr;
}

}  // namespace terrace::sim
