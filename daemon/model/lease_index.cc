// SPDX-License-Identifier: Apache-2.0
#include "daemon/model/lease_index.h"

#include "core/base/check.h"
#include "daemon/model/phases.h"

namespace terrace::daemon {
namespace {

bool has_label(const LeaseRow& lease) {
  return is_named(lease.phase) && !lease.label.empty();
}

bool has_request(const LeaseRow& lease) {
  return is_named(lease.phase) && (lease.request_high != 0 || lease.request_low != 0);
}

template <typename Map, typename Key>
void remove_own(Map& map, const Key& key, LeaseId lease) {
  const auto at = map.find(key);
  TERRACE_CHECK(at != map.end() && at->second == lease, "I6: a lease that is taken out was not in its index");
  map.erase(at);
}

template <typename Map, typename Key>
LeaseId found(const Map& map, const Key& key) {
  const auto at = map.find(key);
  return at == map.end() ? LeaseId{} : at->second;
}

}  // namespace

void LeaseIndex::insert_due(uint64_t at_ns, LeaseId lease) {
  const bool inserted = due_.insert({at_ns, lease}).second;
  TERRACE_CHECK(inserted, "I7: a lease that is taken in was due already");
}

void LeaseIndex::remove_due(uint64_t at_ns, LeaseId lease) {
  const bool removed = due_.erase({at_ns, lease}) == 1;
  TERRACE_CHECK(removed, "I7: a lease that is taken out was not due");
}

void LeaseIndex::insert(const LeaseRow& lease) {
  if (lease.expiry_ns != 0) insert_due(lease.expiry_ns, lease.id);
  if (lease.deadline_ns != 0 && lease.deadline_ns != lease.expiry_ns) insert_due(lease.deadline_ns, lease.id);
  if (has_label(lease)) {
    const bool inserted = by_label_.try_emplace({lease.tenant, lease.label}, lease.id).second;
    TERRACE_CHECK(inserted, "I6: a lease that is taken in has the label of another");
  }
  if (has_request(lease)) {
    const bool inserted =
        by_request_.try_emplace({lease.tenant, lease.request_high, lease.request_low}, lease.id).second;
    TERRACE_CHECK(inserted, "I6: a lease that is taken in has the request key of another");
  }
}

void LeaseIndex::remove(const LeaseRow& lease) {
  if (lease.expiry_ns != 0) remove_due(lease.expiry_ns, lease.id);
  if (lease.deadline_ns != 0 && lease.deadline_ns != lease.expiry_ns) remove_due(lease.deadline_ns, lease.id);
  if (has_label(lease)) remove_own(by_label_, std::pair{lease.tenant, lease.label}, lease.id);
  if (has_request(lease)) {
    remove_own(by_request_, std::tuple{lease.tenant, lease.request_high, lease.request_low}, lease.id);
  }
}

void LeaseIndex::set_expiry(LeaseRow& lease, uint64_t expiry_ns) {
  TERRACE_CHECK(lease.deadline_ns == 0 && expiry_ns != 0, "I7: a lease with a deadline is not renewed");
  auto due = due_.extract({lease.expiry_ns, lease.id});  // its memory is used again
  TERRACE_CHECK(!due.empty(), "I7: a lease that is renewed was not due");
  lease.expiry_ns = expiry_ns;
  due.value().at_ns = expiry_ns;
  // A renewed lease's expiry is most often the last of all.
  const size_t before = due_.size();
  due_.insert(due_.end(), std::move(due));
  TERRACE_CHECK(due_.size() == before + 1, "I7: a lease that is renewed was due already");
}

LeaseId LeaseIndex::by_label(const std::string& tenant, const std::string& label) const {
  return found(by_label_, std::pair{tenant, label});
}

LeaseId LeaseIndex::by_request(const std::string& tenant, uint64_t high, uint64_t low) const {
  return found(by_request_, std::tuple{tenant, high, low});
}

}  // namespace terrace::daemon
