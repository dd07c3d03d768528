// SPDX-License-Identifier: Apache-2.0
#include "cli/verbs/state_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/units.h"
#include "core/schema/words.h"

namespace terrace::cli {
namespace {

using nlohmann::json;

constexpr const char* version_key = "terrace_configuration";
constexpr uint64_t config_version = 1;

// Exact, and what parse_size reads: "64GiB", "1000".
std::string size_words(uint64_t bytes) {
  const char* const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (unit < 4 && bytes != 0 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return std::to_string(bytes) + units[unit];
}

std::string duration_words(uint64_t ns) {
  return ns % ns_per_s == 0 ? std::to_string(ns / ns_per_s) + "s" : std::to_string(ns / ns_per_ms) + "ms";
}

// A list with a line for each entry: people read it, and compare two of them line by line.
std::string list_text(const char* name, const std::vector<json>& entries) {
  std::string text = std::string("  \"") + name + "\": [";
  for (size_t i = 0; i < entries.size(); ++i) text += (i == 0 ? "\n    " : ",\n    ") + entries[i].dump();
  return text + (entries.empty() ? "]" : "\n  ]");
}

// Reads one object of the file. The first thing that is wrong is kept; what follows reads as nothing.
class EntryReader {
 public:
  EntryReader(const json& entry, std::string place, std::string& problem)
      : entry_(entry), place_(std::move(place)), problem_(problem) {
    if (!entry.is_object()) fail("", "is no object: {\"...\": ...}");
  }
  ~EntryReader() {
    if (!entry_.is_object()) return;
    for (const auto& [key, value] : entry_.items())
      if (std::find(known_.begin(), known_.end(), key) == known_.end())
        fail("." + key, "is nothing that this program knows; known are " + join(known_, ", "));
  }
  EntryReader(const EntryReader&) = delete;
  EntryReader& operator=(const EntryReader&) = delete;

  void text(const char* key, std::string& value) {
    const json* found = find(key);
    if (found != nullptr && found->is_string() && !found->get<std::string>().empty())
      value = found->get<std::string>();
    else
      fail(std::string(".") + key, "must be a text that is not empty");
  }
  void texts(const char* key, std::vector<std::string>& values) {
    const json* found = find(key);
    const bool list =
        found != nullptr && found->is_array() &&
        std::all_of(found->begin(), found->end(), [](const json& one) { return one.is_string(); });
    if (list)
      values = found->get<std::vector<std::string>>();
    else
      fail(std::string(".") + key, "must be a list of texts");
  }
  // Absent or null: 0.
  void size(const char* key, uint64_t& value) { quantity(key, value, parse_size, "a size, as \"64MiB\""); }
  void duration(const char* key, uint64_t& value) {
    quantity(key, value, parse_duration, "a time, as \"3600s\"");
  }
  void count(const char* key, uint64_t& value) {
    const json* found = find(key);
    if (found == nullptr || found->is_null()) return;
    if (found->is_number_unsigned())
      value = found->get<uint64_t>();
    else
      fail(std::string(".") + key, "must be a number");
  }
  template <typename Enum>
  void word(const char* key, Enum& value) {
    const json* found = find(key);
    if (found == nullptr) return;
    const auto known =
        found->is_string() ? schema::enum_of_word<Enum>(found->get<std::string>()) : std::nullopt;
    if (known.has_value())
      value = *known;
    else
      fail(std::string(".") + key, "must be one of " + join(schema::enum_words<Enum>(), ", "));
  }

 private:
  const json* find(const char* key) {
    known_.push_back(key);
    const auto at = entry_.is_object() ? entry_.find(key) : entry_.end();
    return entry_.is_object() && at != entry_.end() ? &*at : nullptr;
  }
  void quantity(const char* key, uint64_t& value, Result<uint64_t> (*parse)(std::string_view),
                const char* what) {
    const json* found = find(key);
    if (found == nullptr || found->is_null()) return;
    std::optional<uint64_t> parsed;
    if (found->is_string())
      if (const auto read = parse(found->get<std::string>()); read.ok()) parsed = *read;
    if (parsed.has_value())
      value = *parsed;
    else
      fail(std::string(".") + key, std::string("must be ") + what);
  }
  void fail(const std::string& key, const std::string& what) {
    if (problem_.empty()) problem_ = place_ + key + " " + what;
  }

  const json& entry_;
  const std::string place_;
  std::string& problem_;
  std::vector<std::string> known_;
};

template <typename Read>
void read_list(const json& document, const char* name, std::string& problem, Read read) {
  const auto list = document.find(name);
  if (list == document.end()) return;
  if (!list->is_array()) {
    if (problem.empty()) problem = std::string(name) + " must be a list";
    return;
  }
  for (size_t i = 0; i < list->size(); ++i) {
    EntryReader entry((*list)[i], std::string(name) + "[" + std::to_string(i) + "]", problem);
    read(entry);
  }
}

template <typename List, typename Value>
bool has(const List& list, const Value& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

const PoolOptions* pool_named(const std::vector<PoolOptions>& pools, const std::string& name) {
  for (const PoolOptions& pool : pools)
    if (pool.name == name) return &pool;
  return nullptr;
}

std::string pool_of(const std::vector<PoolOptions>& pools, const std::string& serial) {
  for (const PoolOptions& pool : pools)
    if (has(pool.devices, serial)) return pool.name;
  return "";
}

std::string reservation_words(const ReservationOptions& one) {
  return format_size(one.bytes) + " of pool " + one.pool + " for tenant " + one.tenant;
}

bool same_reservation(const ReservationOptions& a, const ReservationOptions& b) {
  return a.pool == b.pool && a.tenant == b.tenant && a.bytes == b.bytes && a.ttl_ns == b.ttl_ns;
}

class Planner {
 public:
  Planner(const ManagerConfig& wanted, const ManagerConfig& present, const std::vector<DeviceStatus>& seen)
      : wanted_(wanted), present_(present), seen_(seen) {}

  ConfigPlan plan() {
    std::vector<std::string> devices = wanted_.devices;
    for (const PoolOptions& pool : wanted_.pools)
      for (const std::string& serial : pool.devices)
        if (!has(devices, serial)) devices.push_back(serial);
    for (const std::string& serial : devices) adopt(serial);
    for (const PoolOptions& pool : wanted_.pools) compose(pool);
    for (const ManagerConfig::Quota& quota : wanted_.quotas)
      if (!has(present_.quotas, quota))
        add({.kind = PlanStep::Kind::set_quota,
             .words = "set the quota of tenant " + quota.tenant,
             .quota = quota});
    reserve();
    for (const std::string& serial : present_.devices)
      if (!has(devices, serial)) plan_.left.push_back("device " + serial);
    for (const PoolOptions& pool : present_.pools)
      if (pool_named(wanted_.pools, pool.name) == nullptr) plan_.left.push_back("pool " + pool.name);
    for (const ManagerConfig::Quota& quota : present_.quotas) {
      const bool named = std::any_of(wanted_.quotas.begin(), wanted_.quotas.end(),
                                     [&](const auto& one) { return one.tenant == quota.tenant; });
      if (!named) plan_.left.push_back("the quota of tenant " + quota.tenant);
    }
    return std::move(plan_);
  }

 private:
  void add(PlanStep step) { plan_.steps.push_back(std::move(step)); }

  void adopt(const std::string& serial) {
    if (has(present_.devices, serial)) return;
    for (const DeviceStatus& device : seen_) {
      if (str(device->getSerial()) != serial) continue;
      if (device->getContents().size() != 0) {
        unusable_.push_back(serial);
        plan_.conflicts.push_back("device " + serial + " is not adopted, which would destroy " +
                                  str(device->getContents()) + "; if that may go: terrace device adopt " +
                                  serial);
        return;
      }
      add({.kind = PlanStep::Kind::adopt, .words = "adopt device " + serial, .serial = serial});
      return;
    }
    unusable_.push_back(serial);
    plan_.conflicts.push_back("device " + serial +
                              " is not there; plug it in, or give terraced the configuration that has it");
  }

  void compose(const PoolOptions& wanted) {
    const PoolOptions* present = pool_named(present_.pools, wanted.name);
    std::vector<std::string> devices;
    for (const std::string& serial : wanted.devices) {
      const std::string elsewhere = pool_of(present_.pools, serial);
      if (!elsewhere.empty() && elsewhere != wanted.name) {
        plan_.conflicts.push_back("device " + serial + " is in pool " + elsewhere + ", not in " + wanted.name +
                                  "; drain and remove it there first");
      } else if (elsewhere.empty() && !has(unusable_, serial)) {
        devices.push_back(serial);
      }
    }
    if (present == nullptr) {
      if (devices.empty()) {
        plan_.conflicts.push_back("pool " + wanted.name + " would have no device");
        return;
      }
      PlanStep step{.kind = PlanStep::Kind::create_pool,
                    .words = "create pool " + wanted.name + " of " + join(devices, ", ")};
      step.new_pool = wanted;
      step.new_pool.devices = devices;
      add(std::move(step));
      return;
    }
    if (present->placement != wanted.placement || present->stripe_bytes != wanted.stripe_bytes)
      plan_.conflicts.push_back("pool " + wanted.name + " has placement " +
                                std::string(schema::enum_word(present->placement)) +
                                (present->stripe_bytes == 0 ? "" : " of " + size_words(present->stripe_bytes)) +
                                ", which stays as long as the pool: make a new pool, or change the file");
    if (present->coherence != wanted.coherence) {
      PlanStep step{.kind = PlanStep::Kind::set_coherence,
                    .words = "set pool " + wanted.name + " to coherence " +
                             std::string(schema::enum_word(wanted.coherence))};
      step.new_pool = wanted;
      add(std::move(step));
    }
    if (wanted.trust == rpc::Trust::MUTUAL && present->trust != wanted.trust) {
      PlanStep step{.kind = PlanStep::Kind::set_trust,
                    .words = "say of pool " + wanted.name + " that its tenants trust each other"};
      step.new_pool = wanted;
      add(std::move(step));
    }
    if (wanted.trust == rpc::Trust::NONE && present->trust != wanted.trust)
      plan_.left.push_back("the word that the tenants of pool " + wanted.name + " trust each other");
    for (const std::string& serial : devices)
      add({.kind = PlanStep::Kind::add_device,
           .words = "add device " + serial + " to pool " + wanted.name,
           .serial = serial,
           .pool = wanted.name});
    for (const std::string& serial : present->devices)
      if (!has(wanted.devices, serial)) plan_.left.push_back("device " + serial + " of pool " + wanted.name);
  }

  // The same reservation may be there more than once.
  void reserve() {
    std::vector<ReservationOptions> there = present_.reservations;
    for (const ReservationOptions& wanted : wanted_.reservations) {
      const auto at = std::find_if(there.begin(), there.end(),
                                   [&](const auto& one) { return same_reservation(one, wanted); });
      if (at != there.end()) {
        there.erase(at);
        continue;
      }
      PlanStep step{.kind = PlanStep::Kind::reserve, .words = "reserve " + reservation_words(wanted)};
      step.reservation = wanted;
      add(std::move(step));
    }
    for (const ReservationOptions& one : there)
      plan_.left.push_back("the reservation of " + reservation_words(one));
  }

  const ManagerConfig& wanted_;
  const ManagerConfig& present_;
  const std::vector<DeviceStatus>& seen_;
  std::vector<std::string> unusable_;
  ConfigPlan plan_;
};

}  // namespace

ManagerConfig config_of(const std::vector<DeviceStatus>& devices, const std::vector<PoolStatus>& pools,
                        const std::vector<QuotaStatus>& quotas,
                        const std::vector<ReservationStatus>& reservations) {
  ManagerConfig config;
  for (const DeviceStatus& device : devices)
    if (device->getAdopted()) config.devices.push_back(str(device->getSerial()));
  for (const PoolStatus& pool : pools)
    config.pools.push_back({.name = str(pool->getName()),
                            .devices = strings(pool->getDevices()),
                            .placement = pool->getPlacement(),
                            .stripe_bytes = pool->getStripeBytes(),
                            .coherence = pool->getCoherence(),
                            .trust = pool->getTrust()});
  for (const QuotaStatus& quota : quotas)
    config.quotas.push_back({str(quota->getTenant()), quota->getBytesMax(), quota->getLeasesMax()});
  for (const ReservationStatus& one : reservations)
    config.reservations.push_back(
        {str(one->getPool()), str(one->getTenant()), one->getBytes(), one->getTtlNs()});
  return config;
}

std::string config_text(const ManagerConfig& config) {
  std::vector<json> devices, pools, quotas, reservations;
  for (const std::string& serial : config.devices) devices.push_back({{"serial", serial}});
  for (const PoolOptions& pool : config.pools) {
    json entry{{"name", pool.name},
               {"devices", pool.devices},
               {"placement", schema::enum_word(pool.placement)},
               {"coherence", schema::enum_word(pool.coherence)}};
    if (pool.stripe_bytes != 0) entry["stripe"] = size_words(pool.stripe_bytes);
    if (pool.trust != rpc::Trust::NONE) entry["trust"] = schema::enum_word(pool.trust);
    pools.push_back(std::move(entry));
  }
  for (const ManagerConfig::Quota& quota : config.quotas) {
    json entry{{"tenant", quota.tenant}};
    if (quota.bytes_max != 0) entry["bytes_max"] = size_words(quota.bytes_max);
    if (quota.leases_max != 0) entry["leases_max"] = quota.leases_max;
    quotas.push_back(std::move(entry));
  }
  for (const ReservationOptions& one : config.reservations) {
    json entry{{"pool", one.pool}, {"tenant", one.tenant}, {"bytes", size_words(one.bytes)}};
    if (one.ttl_ns != 0) entry["ttl"] = duration_words(one.ttl_ns);
    reservations.push_back(std::move(entry));
  }
  return std::string("{\n  \"") + version_key + "\": " + std::to_string(config_version) + ",\n" +
         list_text("devices", devices) + ",\n" + list_text("pools", pools) + ",\n" +
         list_text("quotas", quotas) + ",\n" + list_text("reservations", reservations) + "\n}\n";
}

Result<ManagerConfig> parse_config(const std::string& text, const std::string& file) {
  const auto refused = [&file](const std::string& what) {
    return Error{.code = ErrorCode::invalid_argument, .where = "state apply", .detail = file + ": " + what};
  };
  json document;
  try {
    document = json::parse(text);
  } catch (const json::parse_error& error) {
    return refused(std::string("not JSON: ") + error.what());
  }
  if (!document.is_object() || !document.contains(version_key))
    return refused("not a file of `terrace state export`: it has no \"" + std::string(version_key) + "\"");
  if (document[version_key] != config_version)
    return refused(std::string(version_key) + " is " + document[version_key].dump() + ", this program knows " +
                   std::to_string(config_version));
  std::string problem;
  for (const auto& [key, value] : document.items())
    if (!has(std::vector<std::string>{version_key, "devices", "pools", "quotas", "reservations"}, key))
      problem = key + " is nothing that this program knows";
  ManagerConfig config;
  read_list(document, "devices", problem,
            [&](EntryReader& entry) { entry.text("serial", config.devices.emplace_back()); });
  read_list(document, "pools", problem, [&](EntryReader& entry) {
    PoolOptions& pool = config.pools.emplace_back();
    entry.text("name", pool.name);
    entry.texts("devices", pool.devices);
    entry.word("placement", pool.placement);
    entry.size("stripe", pool.stripe_bytes);
    entry.word("coherence", pool.coherence);
    entry.word("trust", pool.trust);
  });
  read_list(document, "quotas", problem, [&](EntryReader& entry) {
    ManagerConfig::Quota& quota = config.quotas.emplace_back();
    entry.text("tenant", quota.tenant);
    entry.size("bytes_max", quota.bytes_max);
    entry.count("leases_max", quota.leases_max);
  });
  read_list(document, "reservations", problem, [&](EntryReader& entry) {
    ReservationOptions& one = config.reservations.emplace_back();
    entry.text("pool", one.pool);
    entry.text("tenant", one.tenant);
    entry.size("bytes", one.bytes);
    entry.duration("ttl", one.ttl_ns);
  });
  if (!problem.empty()) return refused(problem);
  return config;
}

ConfigPlan plan_config(const ManagerConfig& wanted, const ManagerConfig& present,
                       const std::vector<DeviceStatus>& seen) {
  return Planner(wanted, present, seen).plan();
}

}  // namespace terrace::cli
