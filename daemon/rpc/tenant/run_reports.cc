// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/tenant/run_reports.h"

#include "core/base/limits.h"
#include "daemon/state/names.h"

namespace terrace::daemon {
namespace {

RunCounters read_counters(rpc::RunCounters::Reader wire) {
  return {.promotions = wire.getPromotions(),
          .demotions = wire.getDemotions(),
          .promoted_bytes = wire.getPromotedBytes(),
          .demoted_bytes = wire.getDemotedBytes(),
          .stalled_ns = wire.getStalledNs(),
          .refused = wire.getRefused(),
          .fallbacks = wire.getFallbacks()};
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
          .told_before = read_counters(wire.getToldBefore())};
}

}  // namespace

Status take_run_report(ClientSession& session, rpc::RunFigures::Reader report) {
  constexpr const char* where = "reportRun";
  if (session.ended())
    return Error{.code = ErrorCode::cancelled, .where = where, .detail = "this session has ended"};
  RunFigures figures = read_figures(report);
  if (figures.program.empty() || !valid_text(figures.program, limits::label_bytes_max))
    return Error{.code = ErrorCode::invalid_argument,
                 .where = where,
                 .detail = "the program's name must be printable, of 1 to " +
                           std::to_string(limits::label_bytes_max) + " bytes"};
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
