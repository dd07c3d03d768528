// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/metrics_check.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/web/metrics/engine_metrics.h"
#include "daemon/web/metrics/state_metrics.h"

namespace terrace::sim {
namespace {

using daemon::LeasePhase;
using daemon::LeaseRow;
using Figures = std::map<std::string, uint64_t, std::less<>>;

// --- what is said -----------------------------------------------------------------------------------

// Of each series of the text: "terrace_pool_leases{pool="p"}" and its value. Histograms' buckets are left out, and what
// is no whole number.
std::vector<std::pair<std::string_view, uint64_t>> series_of(const std::string& text) {
  std::vector<std::pair<std::string_view, uint64_t>> series;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size() - 1);
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    const size_t blank = line.rfind(' ');
    if (line.empty() || line[0] == '#' || blank == std::string_view::npos) continue;
    uint64_t value = 0;
    const auto [stopped, failed] = std::from_chars(line.data() + blank + 1, line.data() + line.size(), value);
    if (failed == std::errc{} && stopped == line.data() + line.size())
      series.emplace_back(line.substr(0, blank), value);
  }
  return series;
}

std::string labelled(const char* name, const char* label, const std::string& value) {
  return std::string(name) + "{" + label + "=\"" + value + "\"}";
}

std::string labelled(const char* name, const char* one, const std::string& value, const char* other,
                     const std::string& other_value) {
  return std::string(name) + "{" + one + "=\"" + value + "\"," + other + "=\"" + other_value + "\"}";
}

// --- what is so -------------------------------------------------------------------------------------

struct PoolSums {
  uint64_t leased = 0, scrubbing = 0, quarantined = 0, leases = 0, waiting = 0, waiting_bytes = 0;
  uint64_t capacity = 0, free = 0, absent = 0, grantable = 0, longest = 0;
  bool growing = false;                       // extents of a growth are in no row yet
  std::map<std::string, uint64_t> by_tenant;  // what counts against its reservations
};

struct TenantSums {
  uint64_t bytes = 0, leases = 0;
};

struct Sums {
  std::map<PoolId, PoolSums> pools;
  std::map<std::string, TenantSums> tenants;
  std::map<DeviceId, std::vector<daemon::GranuleRun>> runs;
};

void add_lease(Sums& sums, const LeaseRow& lease, const daemon::StateMachine& machine, const Claims& claims) {
  PoolSums& pool = sums.pools[lease.pool];
  if (lease.phase == LeasePhase::waiting) {
    ++pool.waiting;
    pool.waiting_bytes += lease.bytes;
    return;
  }
  ++pool.leases;
  uint64_t bytes = 0;
  for (const daemon::Extent& extent : lease.extents) {
    bytes += extent.granules * machine.find_device(extent.device)->granule_bytes;
    sums.runs[extent.device].push_back({extent.first_granule, extent.granules});
  }
  if (lease.phase == LeasePhase::fencing || lease.phase == LeasePhase::scrubbing) {
    pool.scrubbing += bytes;
    return;
  }
  if (lease.phase == LeasePhase::quarantined) {
    pool.quarantined += bytes;
    return;
  }
  if (const auto growth = claims.growths().find(lease.id); growth != claims.growths().end()) {
    bytes = growth->second;
    pool.growing = true;
  }
  pool.leased += bytes;
  if (claims.targets().contains(lease.id)) return;
  TenantSums& tenant = sums.tenants[lease.tenant];
  tenant.bytes += bytes;
  ++tenant.leases;
  pool.by_tenant[lease.tenant] += bytes;
}

// Returns   bytes on the device that no lease has, and the longest run of them
std::pair<uint64_t, uint64_t> unused(const daemon::DeviceRow& device, std::vector<daemon::GranuleRun> runs) {
  std::sort(runs.begin(), runs.end(),
            [](const auto& left, const auto& right) { return left.first < right.first; });
  uint64_t at = 0, free = 0, longest = 0;
  const auto gap = [&](uint64_t until) {
    free += until - at;
    longest = std::max(longest, until - at);
  };
  for (const daemon::GranuleRun& run : runs) {
    gap(run.first);
    at = run.first + run.count;
  }
  gap(device.capacity_bytes / device.granule_bytes);
  return {free * device.granule_bytes, longest * device.granule_bytes};
}

uint64_t reserved(const daemon::StateMachine& machine, PoolId pool, const PoolSums& sums) {
  std::map<std::string, uint64_t> kept;
  for (const auto& [id, row] : machine.reservations())
    if (row.pool == pool) kept[row.tenant] += row.bytes;
  uint64_t unfilled = 0;
  for (const auto& [tenant, bytes] : kept) {
    const auto has = sums.by_tenant.find(tenant);
    unfilled += bytes - std::min(bytes, has == sums.by_tenant.end() ? 0 : has->second);
  }
  return std::min(unfilled, sums.grantable);
}

class Recount {
 public:
  Recount(const daemon::StateMachine& machine, const Claims& claims) : machine_(machine) {
    for (const auto& [id, pool] : machine.pools()) sums_.pools[id];
    for (const auto& [id, lease] : machine.leases()) add_lease(sums_, lease, machine, claims);
    devices();
    pools();
    tenants();
  }

  const Figures& figures() const { return figures_; }
  // Series that rows alone do not give.
  bool unknown(std::string_view series) const { return unknown_.contains(series); }

 private:
  void devices() {
    for (const auto& [id, device] : machine_.devices()) {
      const daemon::PoolRow* pool = machine_.find_pool(device.pool);
      const std::string name = pool == nullptr ? "" : pool->name;
      const auto figure = [&](const char* series, uint64_t value) {
        figures_[labelled(series, "device", device.serial, "pool", name)] = value;
      };
      const auto [free, longest] = unused(device, sums_.runs[id]);
      const bool present = !machine_.absent(id);
      figure("terrace_device_capacity_bytes", device.capacity_bytes);
      figure("terrace_device_used_bytes", device.capacity_bytes - free);
      figure("terrace_device_present", present);
      figure("terrace_device_draining", device.state == daemon::DeviceState::draining);
      figure("terrace_device_failed", device.state == daemon::DeviceState::failed);
      if (pool == nullptr) continue;
      PoolSums& sums = sums_.pools[pool->id];
      if (sums.growing)
        unknown_.insert(labelled("terrace_device_used_bytes", "device", device.serial, "pool", name));
      sums.capacity += device.capacity_bytes;
      (present ? sums.free : sums.absent) += free;
      if (present && device.state == daemon::DeviceState::in_service) sums.grantable += free;
      if (present) sums.longest = std::max(sums.longest, longest);
    }
  }

  void pools() {
    uint64_t leases = 0;
    for (const auto& [id, pool] : machine_.pools()) {
      const PoolSums& sums = sums_.pools.at(id);
      leases += sums.leases;
      const auto figure = [&](const char* series, uint64_t value, bool of_free_room = false) {
        const std::string name = labelled(series, "pool", pool.name);
        figures_[name] = value;
        if (of_free_room && sums.growing) unknown_.insert(name);
      };
      const auto state = [&](const char* word, uint64_t value) {
        figures_[labelled("terrace_pool_bytes", "pool", pool.name, "state", word)] = value;
      };
      state("leased", sums.leased);
      state("scrubbing", sums.scrubbing);
      state("quarantined", sums.quarantined);
      state("free", sums.free);
      if (sums.growing) unknown_.insert(labelled("terrace_pool_bytes", "pool", pool.name, "state", "free"));
      figure("terrace_pool_capacity_bytes", sums.capacity);
      figure("terrace_pool_absent_bytes", sums.absent, true);
      figure("terrace_pool_grantable_bytes", sums.grantable, true);
      figure("terrace_pool_reserved_bytes", reserved(machine_, id, sums), true);
      figure("terrace_pool_largest_free_run_bytes", sums.longest, true);
      figure("terrace_pool_leases", sums.leases);
      figure("terrace_pool_waiting_grants", sums.waiting);
      figure("terrace_pool_waiting_bytes", sums.waiting_bytes);
    }
    figures_["terrace_leases"] = leases;
  }

  void tenants() {
    figures_["terrace_tenants"] = sums_.tenants.size();
    for (const auto& [tenant, use] : sums_.tenants) {
      figures_[labelled("terrace_tenant_bytes", "tenant", tenant)] = use.bytes;
      figures_[labelled("terrace_tenant_leases", "tenant", tenant)] = use.leases;
    }
    for (const auto& [tenant, quota] : machine_.quotas()) {
      if (quota.bytes_max != 0) figures_[labelled("terrace_quota_bytes", "tenant", tenant)] = quota.bytes_max;
      if (quota.leases_max != 0)
        figures_[labelled("terrace_quota_leases", "tenant", tenant)] = quota.leases_max;
    }
  }

  const daemon::StateMachine& machine_;
  Sums sums_;
  Figures figures_;
  std::set<std::string, std::less<>> unknown_;
};

unsigned long long shown(uint64_t value) {
  return value;
}

}  // namespace

// --- comparing --------------------------------------------------------------------------------------

void MetricsCheck::check_state(const daemon::StateMachine& machine, const Claims& claims) {
  daemon::MetricsText out;
  daemon::add_state(out, machine);
  const Recount recount(machine, claims);
  const auto said = series_of(out.text());
  for (const auto& [series, value] : said) {
    const auto is = recount.figures().find(series);
    const std::string name(series);
    if (is == recount.figures().end())
      environment_.fail("metrics: %s is said, and there is no such thing", name.c_str());
    else if (is->second != value && !recount.unknown(series))
      environment_.fail("metrics: %s is said to be %llu, and is %llu", name.c_str(), shown(value),
                        shown(is->second));
  }
  if (said.size() != recount.figures().size())
    environment_.fail("metrics: %zu series of the state are said, of %zu", said.size(),
                      recount.figures().size());
}

void MetricsCheck::applied(const daemon::Command& command, const daemon::Step& step) {
  ++asked_.commands;
  if (!step.reply.ok()) return;
  if (std::holds_alternative<daemon::Renew>(command)) ++asked_.renewals;
  if (const auto* many = std::get_if<daemon::RenewMany>(&command))
    asked_.renewals += many->leases.size() - std::get<daemon::RenewalsReply>(*step.reply).failed.size();
}

void MetricsCheck::grant_answered(const Result<daemon::Reply>& answer) {
  if (answer.ok())
    ++asked_.granted;
  else
    ++asked_.refused[answer.error().code];
}

void MetricsCheck::check_engine(const daemon::Engine& engine) {
  daemon::MetricsText out;
  daemon::add_engine(out, engine);
  const auto said = series_of(out.text());
  const auto value = [&](std::string_view name) {
    const auto at = std::find_if(said.begin(), said.end(), [&](const auto& one) { return one.first == name; });
    if (at == said.end()) environment_.fail("metrics: %s is not said", std::string(name).c_str());
    return at == said.end() ? 0 : at->second;
  };
  const auto compare = [&](const std::string& name, uint64_t is_said, uint64_t is) {
    if (is_said != is)
      environment_.fail("metrics: %s is said to be %llu, and is %llu", name.c_str(), shown(is_said), shown(is));
  };
  compare("terrace_commands_total", value("terrace_commands_total"), asked_.commands);
  compare("terrace_renewals_total", value("terrace_renewals_total"), asked_.renewals);
  compare("terrace_grant_seconds_count",
          value("terrace_grant_seconds_count{waited=\"no\"}") +
              value("terrace_grant_seconds_count{waited=\"yes\"}"),
          asked_.granted);
  constexpr std::string_view refusals = "terrace_grant_refusals_total{";
  size_t reasons = 0;
  for (const auto& [series, count] : said) reasons += series.substr(0, refusals.size()) == refusals ? 1 : 0;
  compare("the number of reasons in terrace_grant_refusals_total", reasons, asked_.refused.size());
  for (const auto& [code, count] : asked_.refused) {
    const std::string name =
        labelled("terrace_grant_refusals_total", "reason", std::string(error_code_name(code)));
    compare(name, value(name), count);
  }
  // A recovery commits what it changed by itself, and counts as a recovery.
  const uint64_t commits = value("terrace_store_commits_total"), recoveries = value("terrace_recoveries_total");
  const bool settled = engine.is_settled() && engine.serving();
  if (commits > asked_.commits || (settled && asked_.commits - commits > recoveries))
    environment_.fail("metrics: terrace_store_commits_total is said to be %llu, of %llu with %llu recoveries",
                      shown(commits), shown(asked_.commits), shown(recoveries));
}

}  // namespace terrace::sim
