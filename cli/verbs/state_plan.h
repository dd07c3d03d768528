// SPDX-License-Identifier: Apache-2.0
// The configuration of a manager as one readable file, and what has to be done to make a manager be so.
//
// Place     Below state_config.cc, which asks the manager. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/client/admin_client.h"

namespace terrace::cli {

struct ManagerConfig {
  std::vector<std::string> devices;  // adopted ones, by serial
  std::vector<PoolOptions> pools;
  struct Quota {
    std::string tenant;
    uint64_t bytes_max = 0, leases_max = 0;
    bool operator==(const Quota&) const = default;
  };
  std::vector<Quota> quotas;
  std::vector<ReservationOptions> reservations;
};

// What the manager has now.
ManagerConfig config_of(const std::vector<DeviceStatus>& devices, const std::vector<PoolStatus>& pools,
                        const std::vector<QuotaStatus>& quotas,
                        const std::vector<ReservationStatus>& reservations);

// The file: JSON, a line for each device, pool, quota and reservation.
std::string config_text(const ManagerConfig& config);

// Errors    invalid_argument   not such a file: says where ("FILE: pools[1].placement") and what may stand there
Result<ManagerConfig> parse_config(const std::string& text, const std::string& file);

struct PlanStep {
  enum class Kind { adopt, create_pool, add_device, set_coherence, set_trust, set_quota, reserve };
  Kind kind;
  std::string words;                   // "create pool p"
  std::string serial = {}, pool = {};  // of adopt and add_device
  PoolOptions new_pool = {};
  ManagerConfig::Quota quota = {};
  ReservationOptions reservation = {};
};

struct ConfigPlan {
  std::vector<PlanStep> steps;         // in the order in which they can be done
  std::vector<std::string> left;       // there, and not in the file
  std::vector<std::string> conflicts;  // cannot be made as the file has it; each says what to do
};

// `seen`: the devices of the manager, adopted or not. Nothing in a plan takes anything away.
ConfigPlan plan_config(const ManagerConfig& wanted, const ManagerConfig& present,
                       const std::vector<DeviceStatus>& seen);

}  // namespace terrace::cli
