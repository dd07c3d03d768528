// SPDX-License-Identifier: Apache-2.0
// The operator's interface: programs that report what their memory does.
#include "core/base/limits.h"
#include "daemon/rpc/admin/admin.h"

namespace terrace::daemon {
namespace {

void write_counters(rpc::RunCounters::Builder out, const RunCounters& counters) {
  out.setPromotions(counters.promotions);
  out.setDemotions(counters.demotions);
  out.setPromotedBytes(counters.promoted_bytes);
  out.setDemotedBytes(counters.demoted_bytes);
  out.setStalledNs(counters.stalled_ns);
  out.setRefused(counters.refused);
  out.setFallbacks(counters.fallbacks);
}

void write_heat(rpc::RunHeat::Builder out, const RunFigures& figures) {
  const auto count = static_cast<uint32_t>(figures.bands.size());
  out.setBandBytes(figures.band_bytes);
  auto heat = out.initHeat(count), ddr = out.initDdrPercent(count), cxl = out.initCxlPercent(count);
  for (uint32_t i = 0; i < count; ++i) {
    heat.set(i, figures.bands[i].heat);
    ddr.set(i, figures.bands[i].ddr_percent);
    cxl.set(i, figures.bands[i].cxl_percent);
  }
}

void write_figures(rpc::RunFigures::Builder out, const RunFigures& figures) {
  out.setProgram(figures.program);
  out.setProcesses(figures.processes);
  out.setLiveBytes(figures.live_bytes);
  out.setDdrBytes(figures.ddr_bytes);
  out.setCxlBytes(figures.cxl_bytes);
  out.setPlainBytes(figures.plain_bytes);
  out.setDdrBytesMax(figures.ddr_bytes_max);
  out.setLeasedBytes(figures.leased_bytes);
  out.setSampledBytes(figures.sampled_bytes);
  out.setDdrHitPermille(figures.ddr_hit_permille);
  write_counters(out.initCounters(), figures.counters);
  write_counters(out.initToldBefore(), figures.told_before);
  if (!figures.bands.empty()) write_heat(out.initHeat(), figures);
}

void write_run(rpc::RunInfo::Builder out, const Run& run, uint64_t now_ns) {
  out.setHost(run.owner.host);
  out.setAgent(run.owner.agent);
  out.setPid(run.owner.pid);
  out.setUid(run.owner.uid);
  out.setTenant(run.owner.tenant);
  write_figures(out.initFigures(), run.figures);
  out.setPromotionsPerS(run.promotions_per_s);
  out.setDemotionsPerS(run.demotions_per_s);
  out.setCopyBytesPerS(run.copy_bytes_per_s);
  out.setStalledNsPerS(run.stalled_ns_per_s);
  out.setAgeNs(now_ns - std::min(now_ns, run.reported_ns));
}

}  // namespace

// At once, as health: nothing of it is durable.
kj::Promise<void> AdminServer::runs(RunsContext context) {
  KJ_IF_MAYBE (slot, admit(*connection_, context)) {
    const std::vector<const Run*> runs = service().runs().list();
    const size_t shown = std::min<size_t>(runs.size(), limits::leases_per_page_max);
    auto out = context.getResults().initRuns(static_cast<uint32_t>(shown));
    for (uint32_t i = 0; i < shown; ++i) write_run(out[i], *runs[i], now_ns());
    context.getResults().setLeftOut(static_cast<uint32_t>(runs.size() - shown));
  }
  return kj::READY_NOW;
}

}  // namespace terrace::daemon
