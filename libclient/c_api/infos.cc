// SPDX-License-Identifier: Apache-2.0
// What is told of leases and pools for C. Structured bindings name every field of the C++ structs: one that is
// added there does not compile here until it is told.
#include <deque>
#include <utility>
#include <vector>

#include "libclient/c_api/call.h"
#include "libclient/c_api/handles.h"
#include "terrace/session.h"

using namespace terrace;
using namespace terrace::c_api;

namespace {

// Structs that C reads through pointers to them, so that they may grow.
template <typename Value>
class Pointers {
 public:
  void add(Value value) {
    values_.push_back(value);
    pointers_.push_back(&values_.back());
  }
  const Value* const* data() const { return pointers_.data(); }
  size_t size() const { return pointers_.size(); }

 private:
  std::deque<Value> values_;  // which stay where they are
  std::vector<const Value*> pointers_;
};

terrace_tier_figures in_c(const TierFigures& of) {
  const auto& [latency_ns, bandwidth_bytes_per_s, node, distance, persistent, source, isolation] = of;
  return {.size = sizeof(terrace_tier_figures),
          .latency_ns = latency_ns,
          .distance = distance,
          .bandwidth_bytes_per_s = bandwidth_bytes_per_s,
          .node = node,
          .persistent = persistent ? 1 : 0,
          .source = source.c_str(),
          .isolation = isolation.c_str()};
}

// A lease's info with what its struct for C points to.
struct LeaseTold {
  explicit LeaseTold(LeaseInfo of) : info(std::move(of)) { fill(); }
  LeaseTold(const LeaseTold&) = delete;
  LeaseTold& operator=(const LeaseTold&) = delete;
  void fill();

  const LeaseInfo info;
  Pointers<terrace_extent_info> extents_in_c;
  Pointers<terrace_part_owner> owners_in_c;
  terrace_tier_figures figures_in_c{};
  std::vector<const char*> further_hosts_in_c;
  std::string cause_name;
  terrace_lease_info in_c{};
};

void LeaseTold::fill() {
  const auto& [id, epoch, pool, tenant, host, label, object, reason, phase, tier, isolation, bytes, ttl_ns,
               expires_in_ns, granule_bytes, object_bytes, huge_pages, mode, extents, usage, usage_age_ns,
               cause, movable, holders, figures, coherence, owners, offered_to, on_fence, further_hosts] = info;
  const auto& [ddr_bytes, cxl_bytes, live_bytes, holder] = usage;
  for (const auto& [device, offset_bytes, length_bytes] : extents)
    extents_in_c.add({.size = sizeof(terrace_extent_info),
                      .device = device.c_str(),
                      .offset_bytes = offset_bytes,
                      .length_bytes = length_bytes});
  for (const auto& [part, owner_epoch, owned, ended, pid, owner, owner_host] : owners)
    owners_in_c.add({.size = sizeof(terrace_part_owner),
                     .part = part,
                     .pid = pid,
                     .epoch = owner_epoch,
                     .owned = owned ? 1 : 0,
                     .ended = ended ? 1 : 0,
                     .holder = owner.c_str(),
                     .host = owner_host.c_str()});
  for (const std::string& one : further_hosts) further_hosts_in_c.push_back(one.c_str());
  figures_in_c = ::in_c(figures);
  cause_name = lease_cause_name(cause);
  in_c = {.size = sizeof in_c,
          .id = id.value,
          .epoch = epoch.value,
          .pool = pool.c_str(),
          .tenant = tenant.c_str(),
          .host = host.c_str(),
          .label = label.c_str(),
          .object = object.c_str(),
          .reason = reason.c_str(),
          .phase = phase.c_str(),
          .tier = tier.c_str(),
          .isolation = isolation.c_str(),
          .bytes = bytes,
          .ttl_ns = ttl_ns,
          .expires_in_ns = expires_in_ns,
          .granule_bytes = granule_bytes,
          .object_bytes = object_bytes,
          .huge_pages = huge_pages ? 1 : 0,
          .mode = static_cast<int>(mode),
          .extents = extents_in_c.data(),
          .extent_count = extents_in_c.size(),
          .usage_ddr_bytes = ddr_bytes,
          .usage_cxl_bytes = cxl_bytes,
          .usage_live_bytes = live_bytes,
          .usage_age_ns = usage_age_ns,
          .usage_holder = holder.c_str(),
          .cause = cause_name.c_str(),
          .movable = movable ? 1 : 0,
          .holders = holders,
          .figures = &figures_in_c,
          .owners = owners_in_c.data(),
          .owner_count = owners_in_c.size(),
          .coherence = static_cast<int>(coherence),
          .on_fence = static_cast<int>(on_fence),
          .offered_to = offered_to.c_str(),
          .further_hosts = further_hosts_in_c.data(),
          .further_host_count = further_hosts_in_c.size()};
}

struct PoolTold {
  explicit PoolTold(PoolInfo of) : info(std::move(of)) { fill(); }
  PoolTold(const PoolTold&) = delete;
  PoolTold& operator=(const PoolTold&) = delete;
  void fill();

  const PoolInfo info;
  std::vector<const char*> devices_in_c;
  Pointers<terrace_free_runs> runs_in_c;
  terrace_tier_figures figures_in_c{};
  terrace_pool_info in_c{};
};

void PoolTold::fill() {
  const auto& [name, devices, capacity_bytes, free_bytes, leased_bytes, scrubbing_bytes, quarantined_bytes,
               largest_free_bytes, granule_bytes, leases, placement, stripe_bytes, free_runs, reserved_bytes,
               grantable_bytes, waiting, waiting_bytes, figures, coherence] = info;
  for (const std::string& device : devices) devices_in_c.push_back(device.c_str());
  for (const auto& [run_bytes_min, runs, bytes] : free_runs)
    runs_in_c.add(
        {.size = sizeof(terrace_free_runs), .run_bytes_min = run_bytes_min, .runs = runs, .bytes = bytes});
  figures_in_c = ::in_c(figures);
  in_c = {.size = sizeof in_c,
          .name = name.c_str(),
          .devices = devices_in_c.data(),
          .device_count = devices_in_c.size(),
          .capacity_bytes = capacity_bytes,
          .free_bytes = free_bytes,
          .leased_bytes = leased_bytes,
          .scrubbing_bytes = scrubbing_bytes,
          .quarantined_bytes = quarantined_bytes,
          .largest_free_bytes = largest_free_bytes,
          .granule_bytes = granule_bytes,
          .stripe_bytes = stripe_bytes,
          .reserved_bytes = reserved_bytes,
          .grantable_bytes = grantable_bytes,
          .waiting_bytes = waiting_bytes,
          .leases = leases,
          .waiting = waiting,
          .placement = static_cast<int>(placement),
          .coherence = static_cast<int>(coherence),
          .free_runs = runs_in_c.data(),
          .free_run_count = runs_in_c.size(),
          .figures = &figures_in_c};
}

template <typename List, typename Info>
void give_list(std::vector<Info> infos, List** into) {
  auto list = std::make_unique<List>();
  for (Info& info : infos) list->told.emplace_back(std::move(info));
  *into = list.release();
}

template <typename List, typename Info>
Status give_one(const List& list, size_t index, Info* into, const char* where) {
  if (index >= list.told.size())
    return invalid(where, std::to_string(index) + " is none of " + std::to_string(list.told.size()));
  return give(into, list.told[index].in_c, where);
}

}  // namespace

struct terrace_lease_infos {
  std::deque<LeaseTold> told;
};

struct terrace_pool_infos {
  std::deque<PoolTold> told;
};

extern "C" {

terrace_code terrace_lease_get_info(terrace_lease* lease, terrace_lease_infos** infos) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_lease_get_info";
    TERRACE_C_NEED(where, lease);
    TERRACE_C_NEED(where, infos);
    TERRACE_ASSIGN_OR_RETURN(LeaseInfo info, lease->lease->info());
    std::vector<LeaseInfo> one;
    one.push_back(std::move(info));
    give_list(std::move(one), infos);
    return {};
  });
}

terrace_code terrace_session_leases(terrace_session* session, terrace_lease_infos** infos) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_session_leases";
    TERRACE_C_NEED(where, session);
    TERRACE_C_NEED(where, infos);
    TERRACE_ASSIGN_OR_RETURN(auto told, session->session->leases());
    give_list(std::move(told), infos);
    return {};
  });
}

size_t terrace_lease_infos_count(const terrace_lease_infos* infos) {
  return infos == nullptr ? 0 : infos->told.size();
}

terrace_code terrace_lease_infos_get(const terrace_lease_infos* infos, size_t index,
                                     struct terrace_lease_info* info) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_lease_infos_get";
    TERRACE_C_NEED(where, infos);
    TERRACE_C_NEED(where, info);
    return give_one(*infos, index, info, where);
  });
}

void terrace_lease_infos_free(terrace_lease_infos* infos) {
  delete infos;
}

terrace_code terrace_session_pools(terrace_session* session, terrace_pool_infos** infos) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_session_pools";
    TERRACE_C_NEED(where, session);
    TERRACE_C_NEED(where, infos);
    TERRACE_ASSIGN_OR_RETURN(auto told, session->session->pools());
    give_list(std::move(told), infos);
    return {};
  });
}

size_t terrace_pool_infos_count(const terrace_pool_infos* infos) {
  return infos == nullptr ? 0 : infos->told.size();
}

terrace_code terrace_pool_infos_get(const terrace_pool_infos* infos, size_t index,
                                    struct terrace_pool_info* info) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_pool_infos_get";
    TERRACE_C_NEED(where, infos);
    TERRACE_C_NEED(where, info);
    return give_one(*infos, index, info, where);
  });
}

void terrace_pool_infos_free(terrace_pool_infos* infos) {
  delete infos;
}

}  // extern "C"
