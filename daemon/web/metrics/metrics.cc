// SPDX-License-Identifier: Apache-2.0
#include "daemon/web/metrics/metrics.h"

#include <algorithm>
#include <map>

#include "core/schema/terrace.capnp.h"
#include "core/schema/words.h"
#include "daemon/rpc/wire.h"
#include "daemon/traces/tracer.h"
#include "daemon/web/metrics/metrics_text.h"
#include "daemon/web/metrics/run_metrics.h"
#include "daemon/web/metrics/shared_metrics.h"

namespace terrace::daemon {
namespace {

using Kind = MetricsText::Kind;

void add_manager(MetricsText& out, Service& service) {
  const Engine& engine = service.engine();
  const EngineCounters& counters = engine.counters();
  add_build_info(out);
  out.gauge("terrace_ready", "Whether the manager takes requests: its store is open and it has recovered.",
            uint64_t{engine.serving() ? 1u : 0u});
  out.gauge("terrace_uptime_seconds", "Since the manager began to serve.",
            seconds(service.now_ns() - service.started_ns()));
  out.counter("terrace_commands_total", "Changes that were applied: grants, releases, adoptions and so on.",
              counters.commands);
  out.counter("terrace_store_commits_total", "Durable commits of the store.", counters.commits);
  const JournalRoom journal = engine.journal_room();
  out.gauge("terrace_store_journal_bytes", "Room for commits that the database does not have yet.",
            journal.bytes);
  out.gauge("terrace_store_journal_used_bytes",
            "Of the journal, in use; it goes on filling while the disk is full.", journal.used_bytes);
  out.counter("terrace_recoveries_total", "Times that the manager read its store again after a failed commit.",
              counters.recoveries);
  out.counter("terrace_moves_total", "Leases that the manager itself moved to another place.", counters.moves);
  const ScrubCounters scrub = engine.scrub_counters();
  out.counter("terrace_scrubbed_bytes_total", "Bytes erased before they were free again.",
              scrub.scrubbed_bytes);
  out.gauge("terrace_scrub_queued_bytes", "Bytes that wait to be erased.", scrub.queued_bytes);
  out.gauge("terrace_connections", "Connections to the manager's sockets.", uint64_t{service.connections()});
  out.gauge("terrace_connections_max", "As many may be open at once.", uint64_t{service.connections_allowed()});
  out.gauge("terrace_leases", "Leases of all pools, waiting grants not among them.",
            uint64_t{engine.state().leases().size()});
}

void add_times(MetricsText& out, const EngineTimes& times) {
  out.family("terrace_grant_seconds", Kind::histogram,
             "From a grant's request to its answer; waited: for room.");
  out.sample(times.grants, {{"waited", "no"}});
  out.sample(times.waits, {{"waited", "yes"}});
  out.family("terrace_grant_refusals_total", Kind::counter, "Grants that were refused, by the error's code.");
  for (const auto& [code, count] : times.grants_refused) out.sample(count, {{"reason", error_code_name(code)}});
  out.family("terrace_fence_seconds", Kind::histogram,
             "From when a fence may begin until nobody reaches the memory.");
  out.sample(times.fences);
  out.family("terrace_scrub_seconds", Kind::histogram,
             "From a fence's end until the memory is erased, what waited before it included.");
  out.sample(times.scrubs);
  out.family("terrace_leases_ended_total", Kind::counter, "Leases that were fenced, by why.");
  for (const auto& [cause, count] : times.leases_ended)
    out.sample(count, {{"cause", schema::enum_word(static_cast<rpc::LeaseCause>(cause))}});
  out.counter("terrace_renewals_total", "Leases that were renewed, once for each time.", times.renewals);
  out.family("terrace_store_commit_seconds", Kind::histogram, "How long commits of the store took.");
  out.sample(times.commits);
}

void add_pools(MetricsText& out, const StateMachine& state) {
  std::vector<std::pair<std::string_view, PoolUse>> pools;
  for (const auto& [id, pool] : state.pools()) pools.emplace_back(pool.name, state.pool_use(id));
  const auto of_pools = [&](const char* name, const char* help, uint64_t PoolUse::*value) {
    out.family(name, Kind::gauge, help);
    for (const auto& [pool, use] : pools) out.sample(use.*value, {{"pool", pool}});
  };
  of_pools("terrace_pool_capacity_bytes", "All memory of a pool's devices.", &PoolUse::capacity_bytes);
  out.family("terrace_pool_bytes", Kind::gauge,
             "A pool's memory by what it is: free, leased, being scrubbed, or quarantined.");
  for (const auto& [pool, use] : pools) {
    out.sample(use.free_bytes, {{"pool", pool}, {"state", "free"}});
    out.sample(use.leased_bytes, {{"pool", pool}, {"state", "leased"}});
    out.sample(use.scrubbing_bytes, {{"pool", pool}, {"state", "scrubbing"}});
    out.sample(use.quarantined_bytes, {{"pool", pool}, {"state", "quarantined"}});
  }
  of_pools("terrace_pool_absent_bytes", "Nobody's, on devices that are not there; not among the free ones.",
           &PoolUse::absent_bytes);
  of_pools("terrace_pool_grantable_bytes", "Free on devices that are present and in service.",
           &PoolUse::grantable_bytes);
  of_pools("terrace_pool_reserved_bytes", "Of the free bytes, kept for tenants with reservations.",
           &PoolUse::reserved_bytes);
  of_pools("terrace_pool_largest_free_run_bytes", "The longest free run of a pool.",
           &PoolUse::largest_free_bytes);
  of_pools("terrace_pool_leases", "Leases of a pool, whatever their phase.", &PoolUse::leases);
  of_pools("terrace_pool_waiting_grants", "Grants in a pool's queue.", &PoolUse::waiting);
  of_pools("terrace_pool_waiting_bytes", "What the grants in a pool's queue ask for.", &PoolUse::waiting_bytes);
}

void add_devices(MetricsText& out, const StateMachine& state) {
  const auto of_devices = [&](const char* name, const char* help, auto value) {
    out.family(name, Kind::gauge, help);
    for (const auto& [id, device] : state.devices()) {
      const PoolRow* pool = state.find_pool(device.pool);
      out.sample(uint64_t{value(id, device)},
                 {{"device", device.serial}, {"pool", pool == nullptr ? std::string_view() : pool->name}});
    }
  };
  of_devices("terrace_device_capacity_bytes", "All memory of an adopted device.",
             [](DeviceId, const DeviceRow& device) { return device.capacity_bytes; });
  of_devices("terrace_device_used_bytes", "What leases have of a device, whatever their phases.",
             [&](DeviceId id, const DeviceRow& device) {
               return device.capacity_bytes - state.device_free_bytes(id);
             });
  of_devices("terrace_device_present", "Whether an adopted device is there.",
             [&](DeviceId id, const DeviceRow&) { return state.absent(id) ? 0u : 1u; });
  of_devices("terrace_device_draining", "Whether a device is being emptied.",
             [](DeviceId, const DeviceRow& device) { return device.state == DeviceState::draining ? 1u : 0u; });
  of_devices("terrace_device_failed", "Whether a device was given up.",
             [](DeviceId, const DeviceRow& device) { return device.state == DeviceState::failed ? 1u : 0u; });
}

void add_tenants(MetricsText& out, const StateMachine& state) {
  struct Tenant {
    std::string_view name;
    TenantUse use;
  };
  std::vector<Tenant> tenants;
  for (const auto& [name, use] : state.tenant_uses()) tenants.push_back({name, use});
  std::sort(tenants.begin(), tenants.end(), [](const Tenant& left, const Tenant& right) {
    return left.use.bytes != right.use.bytes ? left.use.bytes > right.use.bytes : left.name < right.name;
  });
  const auto of_tenants = [&](const char* name, const char* help, uint64_t TenantUse::*value) {
    out.family(name, Kind::gauge, help);
    uint64_t others = 0;
    for (size_t i = 0; i < tenants.size(); ++i) {
      if (i < metrics_tenants_max)
        out.sample(tenants[i].use.*value, {{"tenant", tenants[i].name}});
      else
        others += tenants[i].use.*value;
    }
    if (tenants.size() > metrics_tenants_max) out.sample(others, {{"tenant", ""}});
  };
  out.gauge("terrace_tenants", "Tenants that have leases or wait for some.", uint64_t{tenants.size()});
  of_tenants("terrace_tenant_bytes", "What a tenant has of all pools together; tenant \"\": all further ones.",
             &TenantUse::bytes);
  of_tenants("terrace_tenant_leases", "Leases of a tenant in all pools; tenant \"\": of all further ones.",
             &TenantUse::leases);
  out.family("terrace_quota_bytes", Kind::gauge,
             "The most that a tenant may have; \"*\": one without its own quota.");
  for (const auto& [name, quota] : state.quotas())
    if (quota.bytes_max != 0) out.sample(quota.bytes_max, {{"tenant", name}});
  out.family("terrace_quota_leases", Kind::gauge,
             "The most leases of a tenant; \"*\": of one without its own quota.");
  for (const auto& [name, quota] : state.quotas())
    if (quota.leases_max != 0) out.sample(quota.leases_max, {{"tenant", name}});
}

void add_hosts(MetricsText& out, const HostDirectory* directory) {
  if (directory == nullptr) return;
  // What each has is counted over all leases: not where there is no further host.
  const std::vector<HostStatus> hosts =
      directory->states().empty() ? std::vector<HostStatus>() : directory->list();
  out.family("terrace_host_connected", Kind::gauge, "Whether the agent of a further host is connected.");
  for (const HostStatus& host : hosts)
    out.sample(uint64_t{host.state == "connected" ? 1u : 0u}, {{"host", host.name}});
  out.family("terrace_host_silent_seconds", Kind::gauge, "How long a host's agent has said nothing.");
  for (const HostStatus& host : hosts) out.sample(seconds(host.silent_ns), {{"host", host.name}});
  out.family("terrace_host_leased_bytes", Kind::gauge, "What leases have on a host.");
  for (const HostStatus& host : hosts) out.sample(host.bytes, {{"host", host.name}});
  out.family("terrace_host_leases", Kind::gauge, "Leases on a host.");
  for (const HostStatus& host : hosts) out.sample(host.leases, {{"host", host.name}});
  out.family("terrace_certificate_left_days", Kind::gauge,
             "How long the manager's certificate, its CA or its list of revoked ones is good.");
  for (const CertificateEnd& end : directory->certificate_ends())
    out.sample(static_cast<double>(end.days_left), {{"what", end.what}});
}

void add_traces(MetricsText& out, const Tracer* tracer) {
  out.counter("terrace_trace_spans_total", "Spans of calls and their parts, sent or to be sent.",
              tracer == nullptr ? 0 : tracer->spans());
  out.counter("terrace_trace_spans_dropped_total",
              "Of them, those that the endpoint of [traces] did not take in time, or refused.",
              tracer == nullptr ? 0 : tracer->dropped());
}

void add_events(MetricsText& out, const EventLog& events) {
  out.counter("terrace_events_total", "What happened since the manager's start, as `terrace events` tells it.",
              events.ring().newest());
  out.family("terrace_events_dropped_total", Kind::counter, "Events that a sink of [events] did not take.");
  for (const auto& [sink, count] : events.dropped()) out.sample(count, {{"sink", sink}});
}

}  // namespace

std::string metrics_of(Service& service) {
  MetricsText out;
  const StateMachine& state = service.engine().state();
  add_manager(out, service);
  add_times(out, service.engine().times());
  add_calls(out, service);
  add_pools(out, state);
  add_devices(out, state);
  add_tenants(out, state);
  add_hosts(out, service.hosts());
  add_runs(out, service.runs(), service.now_ns());
  add_health(out, service.health().look());
  add_events(out, service.engine().events());
  add_traces(out, service.tracer().get());
  add_process(out, "the manager");
  return out.text();
}

}  // namespace terrace::daemon
