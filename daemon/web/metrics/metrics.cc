// SPDX-License-Identifier: Apache-2.0
#include "daemon/web/metrics/metrics.h"

#include "daemon/traces/tracer.h"
#include "daemon/web/metrics/engine_metrics.h"
#include "daemon/web/metrics/metrics_text.h"
#include "daemon/web/metrics/run_metrics.h"
#include "daemon/web/metrics/shared_metrics.h"
#include "daemon/web/metrics/state_metrics.h"

namespace terrace::daemon {
namespace {

using Kind = MetricsText::Kind;

void add_manager(MetricsText& out, Service& service) {
  const Engine& engine = service.engine();
  add_build_info(out);
  out.gauge("terrace_ready", "Whether the manager takes requests: its store is open and it has recovered.",
            uint64_t{engine.serving() ? 1u : 0u});
  out.gauge("terrace_uptime_seconds", "Since the manager began to serve.",
            seconds(service.now_ns() - service.started_ns()));
  out.gauge("terrace_connections", "Connections to the manager's sockets.", uint64_t{service.connections()});
  out.gauge("terrace_connections_max", "As many may be open at once.", uint64_t{service.connections_allowed()});
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
  add_manager(out, service);
  add_engine(out, service.engine());
  add_calls(out, service);
  add_state(out, service.engine().state());
  add_hosts(out, service.hosts());
  add_runs(out, service.runs(), service.now_ns());
  add_health(out, service.health().look());
  add_events(out, service.engine().events());
  add_traces(out, service.tracer().get());
  add_process(out, "the manager");
  return out.text();
}

}  // namespace terrace::daemon
