// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/tenant/run_reports.h"

#include <algorithm>
#include <utility>

#include "core/base/limits.h"
#include "daemon/state/names.h"

namespace terrace::daemon {
namespace {

constexpr const char* report_where = "reportRun";

RunCounters read_counters(rpc::RunCounters::Reader wire) {
  return {.promotions = wire.getPromotions(),
          .demotions = wire.getDemotions(),
          .promoted_bytes = wire.getPromotedBytes(),
          .demoted_bytes = wire.getDemotedBytes(),
          .stalled_ns = wire.getStalledNs(),
          .refused = wire.getRefused(),
          .fallbacks = wire.getFallbacks()};
}

// Lists of different lengths are what no band can be made of; the table refuses too many bands.
Result<std::vector<RunBand>> read_bands(rpc::RunHeat::Reader wire) {
  const auto heat = wire.getHeat(), ddr = wire.getDdrPercent(), cxl = wire.getCxlPercent();
  if (heat.size() != ddr.size() || heat.size() != cxl.size())
    return Error{.code = ErrorCode::invalid_argument,
                 .where = report_where,
                 .detail = "heat: lists of " + std::to_string(heat.size()) + ", " + std::to_string(ddr.size()) +
                           " and " + std::to_string(cxl.size()) + " bands; they must be as long as each other"};
  std::vector<RunBand> bands(std::min<size_t>(heat.size(), run_bands_max + 1));
  for (uint32_t i = 0; i < bands.size(); ++i)
    bands[i] = {.heat = heat[i], .ddr_percent = ddr[i], .cxl_percent = cxl[i]};
  return bands;
}

RunFigures read_figures(rpc::RunFigures::Reader wire) {
  return {.program = read_text(wire.getProgram()),
          .processes = wire.getProcesses(),
          .live_bytes = wire.getLiveBytes(),
          .ddr_bytes = wire.getDdrBytes(),
          .cxl_bytes = wire.getCxlBytes(),
          .plain_bytes = wire.getPlainBytes(),
          .ddr_bytes_max = wire.getDdrBytesMax(),
          .leased_bytes = wire.getLeasedBytes(),
          .sampled_bytes = wire.getSampledBytes(),
          .ddr_hit_permille = wire.getDdrHitPermille(),
          .counters = read_counters(wire.getCounters()),
          .told_before = read_counters(wire.getToldBefore()),
          .bands = {},
          .band_bytes = wire.getHeat().getBandBytes()};
}

}  // namespace

Status take_run_report(ClientSession& session, rpc::RunFigures::Reader report) {
  if (session.ended())
    return Error{.code = ErrorCode::cancelled, .where = report_where, .detail = "this session has ended"};
  RunFigures figures = read_figures(report);
  if (figures.program.empty() || !valid_text(figures.program, limits::label_bytes_max))
    return Error{.code = ErrorCode::invalid_argument,
                 .where = report_where,
                 .detail = "the program's name must be printable, of 1 to " +
                           std::to_string(limits::label_bytes_max) + " bytes"};
  auto bands = read_bands(report.getHeat());
  if (!bands.ok()) return bands.error();
  figures.bands = std::move(*bands);
  const Connection& connection = session.connection();
  const bool local = connection.agent.empty();
  RunOwner owner{.tenant = session.tenant(),
                 .host = session.host(),
                 .agent = connection.agent,
                 .pid = local && connection.peer.pid > 0 ? static_cast<uint32_t>(connection.peer.pid) : 0,
                 .uid = local ? connection.peer.uid : 0};
  return session.service().runs().report(&connection, &session, std::move(owner), std::move(figures),
                                         session.service().now_ns());
}

}  // namespace terrace::daemon
