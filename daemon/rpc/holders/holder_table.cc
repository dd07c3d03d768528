// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/holders/holder_table.h"

namespace terrace::daemon {

Status Holders::may_hold(const LeaseRow& lease, ObjectAccess access, const HolderListener& listener) const {
  if (lease.mode == LeaseMode::shared_coherent) return {};
  const auto [begin, end] = by_lease_.equal_range(lease.id);
  for (auto at = begin; at != end; ++at) {
    const Holder& other = at->second;
    if (other.listener == &listener || (other.listener->pid() == listener.pid() && listener.pid() != 0))
      continue;  // 0: of another pid namespace
    const bool both_write = access == ObjectAccess::read_write && other.access == ObjectAccess::read_write;
    if (lease.mode == LeaseMode::shared_read_only && !both_write) continue;
    return Error{.code = ErrorCode::busy,
                 .where = "attach",
                 .detail = "lease " + std::to_string(lease.id.value) + " is held by process " +
                           std::to_string(other.listener->pid()) +
                           (lease.mode == LeaseMode::exclusive
                                ? " and exclusive; grant it in a shared mode to hold it more than once"
                                : ", which writes it; attach it read-only")};
  }
  return {};
}

void Holders::add(const LeaseRow& lease, ObjectAccess access, HolderListener& listener) {
  const auto [begin, end] = by_lease_.equal_range(lease.id);
  for (auto at = begin; at != end; ++at) {
    Holder& holder = at->second;
    if (holder.listener != &listener) continue;
    if (access == ObjectAccess::read_write) holder.access = access;
    if (holder.epoch != lease.epoch) holder.asked = false;  // it moved
    holder.epoch = lease.epoch;
    return;
  }
  by_lease_.emplace(lease.id, Holder{&listener, access, lease.epoch});
  by_listener_[&listener].insert(lease.id);
}

void Holders::forget(LeaseId lease, HolderListener* listener) {
  const auto at = by_listener_.find(listener);
  if (at == by_listener_.end()) return;
  at->second.erase(lease);
  if (at->second.empty()) by_listener_.erase(at);
}

// Costs what this listener holds, not what all hold: closing connections must not be an attack.
std::set<LeaseId> Holders::remove(HolderListener& listener) {
  auto held = by_listener_.extract(&listener);
  if (held.empty()) return {};
  for (const LeaseId lease : held.mapped()) {
    auto [at, end] = by_lease_.equal_range(lease);
    while (at != end) at = at->second.listener == &listener ? by_lease_.erase(at) : std::next(at);
  }
  return std::move(held.mapped());
}

std::optional<ObjectAccess> Holders::leave(LeaseId lease, HolderListener& listener) {
  auto [at, end] = by_lease_.equal_range(lease);
  while (at != end && at->second.listener != &listener) ++at;
  if (at == end) return std::nullopt;
  const ObjectAccess access = at->second.access;
  by_lease_.erase(at);
  forget(lease, &listener);
  return access;
}

std::vector<HolderListener*> Holders::take_all(LeaseId lease) {
  std::vector<HolderListener*> taken = of(lease);
  by_lease_.erase(lease);
  for (HolderListener* listener : taken) forget(lease, listener);
  return taken;
}

std::vector<HolderListener*> Holders::take_outdated(const LeaseRow& lease, HolderListener* keeper) {
  std::vector<HolderListener*> taken;
  auto [at, end] = by_lease_.equal_range(lease.id);
  while (at != end) {
    HolderListener* listener = at->second.listener;
    if (listener == keeper || at->second.epoch >= lease.epoch) {
      ++at;
      continue;
    }
    taken.push_back(listener);
    at = by_lease_.erase(at);
    forget(lease.id, listener);
  }
  return taken;
}

std::vector<HolderListener*> Holders::of(LeaseId lease) const {
  std::vector<HolderListener*> listeners;
  const auto [begin, end] = by_lease_.equal_range(lease);
  for (auto at = begin; at != end; ++at) listeners.push_back(at->second.listener);
  return listeners;
}

size_t Holders::count(LeaseId lease) const {
  return by_lease_.count(lease);
}

bool Holders::ask_to_move(LeaseId lease, const std::string& reason) {
  const auto [begin, end] = by_lease_.equal_range(lease);
  if (begin == end || std::next(begin) != end) return false;
  begin->second.asked = true;
  begin->second.listener->move_requested(lease, reason);
  return true;
}

std::string Holders::asked_to_move(LeaseId lease) const {
  const auto [begin, end] = by_lease_.equal_range(lease);
  for (auto at = begin; at != end; ++at)
    if (at->second.asked) return at->second.listener->describe();
  return "";
}

}  // namespace terrace::daemon
