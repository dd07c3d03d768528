// SPDX-License-Identifier: Apache-2.0
#include "daemon/state/state_machine.h"

#include <algorithm>
#include <type_traits>

#include "core/base/limits.h"
#include "daemon/model/kinds.h"

namespace terrace::daemon {

Step StateMachine::apply(const Command& command) {
  Step step = std::visit(
      [this](const auto& c) {
        if constexpr (requires { c.now_ns; }) now_ns_ = std::max(now_ns_, c.now_ns);
        return on(c);
      },
      command);
  if (!growths_.empty()) {
    for (auto& [id, row] : step.delta.leases)
      if (row.has_value()) row = durable_row(*row);
  }
  settle_account();
  if (!compactions_.empty()) {
    const Tick* tick = std::get_if<Tick>(&command);
    end_compactions(tick == nullptr ? 0 : tick->now_ns);
  }
  return step;
}

// --- queries ----------------------------------------------------------------------------------------

StateMachine StateMachine::copy() const {
  StateMachine made(*this);
  made.row_of_.clear();
  for (auto& [id, row] : made.leases_) made.row_of_.emplace(id, &row);
  return made;
}

const LeaseRow* StateMachine::find_lease(LeaseId id) const {
  const auto at = row_of_.find(id);
  return at == row_of_.end() ? nullptr : at->second;
}

const LeaseRow* StateMachine::find_lease_by_label(const std::string& tenant, const std::string& label) const {
  return find_lease(index_.by_label(tenant, label));
}

const PoolRow* StateMachine::find_pool(const std::string& name) const {
  for (const auto& [id, pool] : pools_)
    if (pool.name == name) return &pool;
  return nullptr;
}

const PoolRow* StateMachine::find_pool(PoolId id) const {
  const auto at = pools_.find(id);
  return at == pools_.end() ? nullptr : &at->second;
}

const DeviceRow* StateMachine::find_device(DeviceId id) const {
  const auto at = devices_.find(id);
  return at == devices_.end() ? nullptr : &at->second;
}

const DeviceRow* StateMachine::find_device(const std::string& serial) const {
  for (const auto& [id, device] : devices_)
    if (device.serial == serial) return &device;
  return nullptr;
}

uint64_t StateMachine::device_free_bytes(DeviceId id) const {
  const DeviceRow* device = find_device(id);
  return device == nullptr ? 0 : free_.at(id).free_granules() * device->granule_bytes;
}

uint64_t StateMachine::pool_granule_bytes(PoolId id) const {
  for (const auto& [device_id, device] : devices_)
    if (device.pool == id) return device.granule_bytes;
  return limits::granule_bytes;
}

std::optional<uint64_t> StateMachine::next_due_ns() const {
  std::optional<uint64_t> next_ns;
  if (!index_.due().empty()) next_ns = index_.due().begin()->at_ns;
  if (!due_reservations_.empty()) {
    const uint64_t reservation_ns = due_reservations_.begin()->first;
    next_ns = std::min(next_ns.value_or(reservation_ns), reservation_ns);
  }
  for (const auto& [pool, plan] : compactions_)
    next_ns = std::min(next_ns.value_or(plan.deadline_ns), plan.deadline_ns);
  for (const auto& [pool, queue] : queues_)
    next_ns = std::min(next_ns.value_or(queue.phase_ends_ns()), queue.phase_ends_ns());
  return next_ns;
}

Image StateMachine::image() const {
  Image image;
  image.meta = meta_;
  for (const auto& [id, row] : devices_) image.devices.push_back(row);
  for (const auto& [id, row] : pools_) image.pools.push_back(row);
  for (const auto& [id, row] : leases_)
    if (row.phase != LeasePhase::pending && row.phase != LeasePhase::waiting)
      image.leases.push_back(durable_row(row));
  for (const auto& [tenant, row] : quotas_) image.quotas.push_back(row);
  for (const auto& [id, row] : reservations_) image.reservations.push_back(row);
  for (const auto& [id, row] : owners_) image.owners.push_back(row);
  for (const auto& [id, row] : views_) image.views.push_back(row);
  return image;
}

// --- names of memory objects: what finds the backend, and the machine, that one belongs to ----------------

const std::string& StateMachine::pool_backend(PoolId id) const {
  static const std::string none;
  for (const auto& [device_id, device] : devices_)
    if (device.pool == id) return device.backend;
  return none;
}

std::string StateMachine::object_name(const LeaseRow& lease, const std::string& agent, LeaseId id,
                                      const std::string& tail) const {
  const std::string& kind = pool_backend(lease.pool);
  const LeaseId named = id.valid() ? id : lease.id;
  std::string name = prefix_of_kind(kind) + "lease-" + std::to_string(named.value) + tail;
  if (!agent.empty()) name += "@" + agent;
  return name;
}

std::string StateMachine::host_of(const std::string& object) {
  const size_t at = object.find('@');
  return at == std::string::npos ? std::string() : object.substr(at + 1);
}

}  // namespace terrace::daemon
