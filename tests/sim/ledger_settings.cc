// SPDX-License-Identifier: Apache-2.0
// L7: what an operator was acknowledged against what is in force.
#include <utility>

#include "tests/sim/ledger.h"

namespace terrace::sim {

std::string setting_text(const daemon::QuotaRow& row) {
  return std::to_string(row.bytes_max) + " bytes, " + std::to_string(row.leases_max) + " leases";
}

std::string setting_text(const daemon::ReservationRow& row, const daemon::StateMachine& machine) {
  const daemon::PoolRow* pool = machine.find_pool(row.pool);
  return row.tenant + " " + std::to_string(row.bytes) + " in " + (pool == nullptr ? "?" : pool->name);
}

std::map<std::string, std::string> settings_of(const daemon::StateMachine& machine) {
  static const char* const states[] = {"in service", "draining", "failed"};
  std::map<std::string, std::string> settings;
  for (const auto& [tenant, row] : machine.quotas()) settings["quota of " + tenant] = setting_text(row);
  for (const auto& [id, row] : machine.reservations())
    settings["reservation " + std::to_string(id.value)] = setting_text(row, machine);
  for (const auto& [id, row] : machine.pools()) settings["pool " + row.name] = "there";
  for (const auto& [id, row] : machine.devices()) {
    settings["device " + row.serial] = states[static_cast<size_t>(row.state)];
    const daemon::PoolRow* pool = machine.find_pool(row.pool);
    settings["pool of " + row.serial] = pool == nullptr ? "" : pool->name;
  }
  return settings;
}

std::optional<std::string> Ledger::setting_asked(const std::string& name) {
  return std::exchange(settings_[name], std::nullopt);
}

void Ledger::check_settings(const daemon::StateMachine& machine) {
  const std::map<std::string, std::string> now = settings_of(machine);
  for (const auto& [name, acknowledged] : settings_) {
    if (!acknowledged.has_value()) continue;
    const auto at = now.find(name);
    const std::string value = at == now.end() ? "" : at->second;
    if (value != *acknowledged) {
      environment_.fail("L7: lost acknowledgement: %s is '%s', and '%s' was acknowledged", name.c_str(),
                        value.c_str(), acknowledged->c_str());
    }
  }
}

}  // namespace terrace::sim
