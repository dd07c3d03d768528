// SPDX-License-Identifier: Apache-2.0
#include "daemon/model/waiting_queue.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/base/limits.h"

namespace terrace::daemon {

// --- who waits --------------------------------------------------------------------------------------

uint64_t WaitingQueue::last_served(const std::string& tenant) const {
  const auto at = last_served_.find(tenant);
  return at == last_served_.end() ? 0 : at->second;
}

void WaitingQueue::add(LeaseId id, const std::string& tenant, uint64_t bytes, uint64_t now_ns) {
  Tenant& own = tenants_[tenant];
  TERRACE_CHECK(own.requests.empty() || own.requests.rbegin()->first < id, "W1: ids grow as requests arrive");
  if (own.requests.empty()) order_.emplace(Place{last_served(tenant), id}, tenant);
  own.requests.emplace(id, Request{bytes, now_ns});
  own.sizes.insert(bytes);
  sizes_.insert(bytes);
}

void WaitingQueue::remove(LeaseId id, const std::string& tenant, bool got_room) {
  const auto own = tenants_.find(tenant);
  TERRACE_CHECK(own != tenants_.end(), "W1: a request that leaves has a tenant that waits");
  const auto request = own->second.requests.find(id);
  TERRACE_CHECK(request != own->second.requests.end(), "W1: a request that leaves waits");
  order_.erase(Place{last_served(tenant), own->second.requests.begin()->first});
  sizes_.erase(sizes_.find(request->second.bytes));
  own->second.sizes.erase(own->second.sizes.find(request->second.bytes));
  own->second.requests.erase(request);
  if (got_room || turn_ == id) note_service(tenant);
  if (turn_ == id) {
    turn_ = LeaseId{};
    held_ = false;
    phase_ends_ns_ = 0;
  }
  if (own->second.requests.empty()) {
    tenants_.erase(own);
  } else {
    order_.emplace(Place{last_served(tenant), own->second.requests.begin()->first}, tenant);
  }
}

// A queue that never empties must not remember every tenant for ever.
void WaitingQueue::note_service(const std::string& tenant) {
  last_served_[tenant] = ++services_;
  if (last_served_.size() > 2 * limits::waiting_max)
    std::erase_if(last_served_, [&](const auto& entry) { return !tenants_.contains(entry.first); });
}

bool WaitingQueue::contains(LeaseId id, const std::string& tenant) const {
  const auto own = tenants_.find(tenant);
  return own != tenants_.end() && own->second.requests.contains(id);
}

uint64_t WaitingQueue::since_ns(LeaseId id, const std::string& tenant) const {
  const auto own = tenants_.find(tenant);
  if (own == tenants_.end()) return 0;
  const auto request = own->second.requests.find(id);
  return request == own->second.requests.end() ? 0 : request->second.since_ns;
}

uint64_t WaitingQueue::oldest_since_ns() const {
  uint64_t oldest_ns = 0;
  for (const auto& [tenant, own] : tenants_) {
    const uint64_t since_ns = own.requests.begin()->second.since_ns;
    if (oldest_ns == 0 || since_ns < oldest_ns) oldest_ns = since_ns;
  }
  return oldest_ns;
}

// --- order ------------------------------------------------------------------------------------------

LeaseId WaitingQueue::next() const {
  return order_.empty() ? LeaseId{} : order_.begin()->first.second;
}

// Each service puts its tenant behind all others: one request of each in turn. The tenant whose turn it is has
// its first one before all.
std::vector<LeaseId> WaitingQueue::in_order() const {
  std::vector<std::vector<LeaseId>> of_tenants;
  for (const auto& [place, tenant] : order_) {
    std::vector<LeaseId> ids;
    for (const auto& [id, request] : tenants_.at(tenant).requests)
      if (id != turn_) ids.push_back(id);
    const bool has_turn = turn_.valid() && ids.size() < tenants_.at(tenant).requests.size();
    if (has_turn) ids.insert(ids.begin(), turn_);
    of_tenants.insert(has_turn ? of_tenants.begin() : of_tenants.end(), std::move(ids));
  }
  std::vector<LeaseId> all;
  for (size_t round = 0; all.size() < size(); ++round) {
    for (const std::vector<LeaseId>& ids : of_tenants)
      if (round < ids.size()) all.push_back(ids[round]);
  }
  return all;
}

std::vector<std::string> WaitingQueue::tenants() const {
  std::vector<std::string> names;
  names.reserve(order_.size());
  for (const auto& [place, tenant] : order_) names.push_back(tenant);
  return names;
}

std::vector<LeaseId> WaitingQueue::requests(const std::string& tenant, uint64_t bytes_max) const {
  std::vector<LeaseId> ids;
  const auto own = tenants_.find(tenant);
  if (own == tenants_.end() || *own->second.sizes.begin() > bytes_max) return ids;
  for (const auto& [id, request] : own->second.requests)
    if (request.bytes <= bytes_max) ids.push_back(id);
  return ids;
}

// --- turns ------------------------------------------------------------------------------------------

// A sixth of what it has left: even who waits for a little has two holds, of a sixth and of two.
uint64_t WaitingQueue::first_phase_ns(uint64_t left_ns) {
  return std::clamp(left_ns / 6, limits::queue_phase_ns_min, limits::queue_phase_ns);
}

void WaitingQueue::begin_turn(LeaseId id, uint64_t now_ns, uint64_t left_ns) {
  TERRACE_CHECK(!turn_.valid() && id.valid(), "W2: a turn begins when there is none");
  turn_ = id;
  held_ = false;
  phase_ns_ = first_phase_ns(left_ns);
  phase_ends_ns_ = now_ns + phase_ns_;
}

void WaitingQueue::next_phase(uint64_t now_ns, bool may_fit) {
  if (held_) {
    held_ = false;
    phase_ns_ = std::min(2 * phase_ns_, limits::queue_hold_ns_max);
  } else {
    held_ = may_fit;
  }
  phase_ends_ns_ = now_ns + phase_ns_;
}

// A hold that has begun gets no longer: it is as long as it was open before.
void WaitingQueue::prolong_turn(uint64_t left_ns) {
  const uint64_t more_ns = std::max(phase_ns_, first_phase_ns(left_ns)) - phase_ns_;
  phase_ns_ += more_ns;
  if (!held_) phase_ends_ns_ += more_ns;
}

std::vector<std::string> WaitingQueue::problems() const {
  std::vector<std::string> found;
  const auto require = [&](bool holds, const char* what) {
    if (!holds) found.emplace_back(what);
  };
  std::multiset<uint64_t> sizes;
  bool turn_waits = !turn_.valid();
  for (const auto& [tenant, own] : tenants_) {
    require(!own.requests.empty(), "W1: a tenant without requests waits");
    if (own.requests.empty()) continue;
    std::multiset<uint64_t> own_sizes;
    for (const auto& [id, request] : own.requests) {
      own_sizes.insert(request.bytes);
      sizes.insert(request.bytes);
      turn_waits = turn_waits || id == turn_;
    }
    require(own_sizes == own.sizes, "W1: the sizes of a tenant's requests differ from them");
    const auto place = order_.find(Place{last_served(tenant), own.requests.begin()->first});
    require(place != order_.end() && place->second == tenant,
            "W1: a tenant is not where it belongs in the order");
  }
  require(order_.size() == tenants_.size(), "W1: the order names tenants that do not wait");
  require(sizes == sizes_, "W1: the sizes of all requests differ from them");
  require(turn_waits, "W2: it is the turn of one that does not wait");
  require(turn_.valid() || !held_, "W2: room is kept for nobody");
  require(turn_.valid() == (phase_ends_ns_ != 0),
          "W2: a turn without an end of its phase, or one without a turn");
  return found;
}

}  // namespace terrace::daemon
