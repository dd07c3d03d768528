// SPDX-License-Identifier: Apache-2.0
#include "libclient/session/held_leases.h"

namespace terrace::client {

Held& HeldLeases::add(uint64_t handle, Held held) {
  by_lease_.emplace(held.facts.id.value, handle);
  return by_handle_.insert_or_assign(handle, std::move(held)).first->second;
}

void HeldLeases::erase(uint64_t handle) {
  const auto found = by_handle_.find(handle);
  if (found == by_handle_.end()) return;
  forget_due(handle, found->second);
  by_lease_.erase({found->second.facts.id.value, handle});
  by_handle_.erase(found);
}

Held* HeldLeases::find(uint64_t handle) {
  const auto found = by_handle_.find(handle);
  return found == by_handle_.end() ? nullptr : &found->second;
}

std::vector<uint64_t> HeldLeases::of(LeaseId id) const {
  std::vector<uint64_t> handles;
  for (auto at = by_lease_.lower_bound({id.value, 0}); at != by_lease_.end() && at->first == id.value; ++at)
    handles.push_back(at->second);
  return handles;
}

std::vector<uint64_t> HeldLeases::all() const {
  std::vector<uint64_t> handles;
  handles.reserve(by_handle_.size());
  for (const auto& entry : by_handle_) handles.push_back(entry.first);
  return handles;
}

void HeldLeases::forget_due(uint64_t handle, Held& held) {
  if (held.renew_at.has_value()) due_.erase({*held.renew_at, handle});
  held.renew_at.reset();
}

void HeldLeases::renew_at(uint64_t handle, kj::TimePoint when) {
  Held* held = find(handle);
  if (held == nullptr) return;
  forget_due(handle, *held);
  if (held->facts.ttl_ns == 0 || held->giving_up) return;
  held->renew_at = when;
  due_.emplace(when, handle);
}

void HeldLeases::renew_after_third(uint64_t handle, kj::TimePoint now) {
  if (const Held* held = find(handle); held != nullptr)
    renew_at(handle, now + (held->facts.ttl_ns / 3) * kj::NANOSECONDS);
}

void HeldLeases::give_up(LeaseId id, bool giving_up, kj::TimePoint now) {
  for (const uint64_t handle : of(id)) {
    Held* held = find(handle);
    held->giving_up = giving_up;
    renew_at(handle, now);
  }
}

}  // namespace terrace::client
