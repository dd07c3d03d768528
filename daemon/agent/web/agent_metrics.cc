// SPDX-License-Identifier: Apache-2.0
#include "daemon/agent/web/agent_metrics.h"

#include "daemon/web/metrics/shared_metrics.h"

namespace terrace::daemon {
namespace {

using Kind = MetricsText::Kind;

uint64_t one_if(bool is_so) {
  return is_so ? 1 : 0;
}

void add_manager_link(MetricsText& out, LocalService& service) {
  const Uplink& uplink = service.uplink();
  const AgentHealth& health = service.health();
  out.gauge("terrace_agent_ready",
            "Whether the agent is registered with its manager, so that its host can be granted to.",
            one_if(uplink.connected()));
  out.gauge("terrace_agent_manager_connected", "Whether the agent has a connection to its manager.",
            one_if(uplink.connected()));
  if (uplink.heard_ns() != 0)
    out.gauge("terrace_agent_manager_silent_seconds", "How long the manager has not been heard.",
              seconds(service.now_ns() - uplink.heard_ns()));
  out.counter("terrace_agent_manager_losses_total", "Times that a connection to the manager was lost.",
              uplink.losses());
  out.gauge("terrace_agent_host_lease_seconds", "How long a host lease is; 0: never registered.",
            seconds(uplink.host_lease_ns()));
  out.gauge("terrace_agent_host_lease_left_seconds",
            "How long what is leased on this host stays without another word from the manager.",
            seconds(health.host_lease_left_ns()));
}

void add_memory(MetricsText& out, LocalService& service) {
  const FenceEstimate there = service.orders().fencing().estimate(service.now_ns());
  const Fencing::Done done = service.orders().fencing().done();
  out.gauge("terrace_agent_objects", "Memory objects of leases on this host.", uint64_t{there.load.objects});
  out.gauge("terrace_agent_object_bytes", "What of them can be mapped.", there.load.bytes);
  out.gauge("terrace_agent_sessions", "Sessions of programs on this host.", uint64_t{service.session_count()});
  out.gauge("terrace_agent_attached_leases", "Leases that these sessions have.",
            uint64_t{service.lease_count()});
  out.gauge("terrace_agent_fence_estimate_seconds", "How long it would take to fence all of this host.",
            seconds(there.fence_ns));
  out.family("terrace_agent_fence_seconds", Kind::histogram,
             "How long fences took that the manager ordered, object by object.");
  out.sample(done.times);
  out.counter("terrace_agent_fences_failed_total", "Fences that the manager ordered and that failed.",
              done.failed);
  out.counter("terrace_agent_host_fences_total",
              "Times that all memory of this host was fenced, as its host lease had ended.",
              service.uplink().host_fences());
  out.counter("terrace_agent_run_reports_total", "Reports of programs that the manager was passed.",
              service.runs_passed_on());
}

void add_certificates(MetricsText& out, const AgentHealth& health) {
  out.family("terrace_agent_certificate_left_seconds", Kind::gauge,
             "How long the agent's certificate, its CA or its list of revoked ones is good, in whole days.");
  for (const CertificateEnd& end : health.certificate_ends())
    out.sample(static_cast<double>(end.days_left) * 86400, {{"what", end.what}});
}

}  // namespace

std::string metrics_of_agent(LocalService& service) {
  MetricsText out;
  AgentHealth& health = service.health();
  add_build_info(out);
  out.gauge("terrace_uptime_seconds", "Since the agent began to serve.",
            seconds(service.now_ns() - health.started_ns()));
  add_manager_link(out, service);
  add_memory(out, service);
  out.gauge("terrace_agent_guard_up", "Whether the guard runs, which fences when the agent does not.",
            one_if(health.guarded()));
  add_certificates(out, health);
  add_calls(out, service);
  add_health(out, health.look());
  out.gauge("terrace_connections", "Connections to the agent's sockets.", uint64_t{service.connections()});
  out.gauge("terrace_connections_max", "As many may be open at once.", uint64_t{service.connections_allowed()});
  add_process(out, "the agent");
  return out.text();
}

}  // namespace terrace::daemon
