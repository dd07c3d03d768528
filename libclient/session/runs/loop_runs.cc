// SPDX-License-Identifier: Apache-2.0
// Loop: reports of what the program's memory does (Session::report_run).
#include <algorithm>

#include "libclient/session/loop.h"
#include "libclient/session/loop_templates.h"
#include "libclient/session/runs/run_report.h"
#include "libclient/session/wire.h"

namespace terrace::client {
namespace {

RunCounters at_least(const RunCounters& now, const RunCounters& before) {
  return {.promotions = std::max(now.promotions, before.promotions),
          .demotions = std::max(now.demotions, before.demotions),
          .promoted_bytes = std::max(now.promoted_bytes, before.promoted_bytes),
          .demoted_bytes = std::max(now.demoted_bytes, before.demoted_bytes),
          .stalled_ns = std::max(now.stalled_ns, before.stalled_ns),
          .refused = std::max(now.refused, before.refused),
          .fallbacks = std::max(now.fallbacks, before.fallbacks)};
}

}  // namespace

void RunHistory::begin(RunFigures* figures, uint64_t generation, bool holds_leases, uint64_t now_ns) {
  // What a broken connection left unanswered may have been counted or not: it counts on the next one.
  if (generation != generation_) told_before_ = told_;
  generation_ = generation;
  sent_ns_ = now_ns;
  sending_ = true;
  last_had_leases_ = holds_leases;
  figures->counters = sent_ = at_least(figures->counters, sent_);
}

void RunHistory::end(uint64_t generation, bool accepted, bool unknown) {
  sending_ = false;
  if (accepted) told_ = sent_;
  if (unknown) refused_by_ = generation;
}

void Loop::report_run(RunBox& box) {
  std::optional<RunFigures> figures = box.take();
  const uint64_t now_ns = static_cast<uint64_t>((timer_.now() - kj::origin<kj::TimePoint>()) / kj::NANOSECONDS);
  const bool holds = !held_.all().empty();
  if (!figures.has_value() || !ready_ || !runs_.is_due(*figures, generation_, holds, now_ns)) return;
  constexpr const char* where = "Session::report_run";
  runs_.begin(&*figures, generation_, holds, now_ns);
  auto call = connection_->session.reportRunRequest();
  run_to_wire(*figures, runs_.told_before(), call.initFigures());
  auto sent = call.send().then([](capnp::Response<rpc::TenantSession::ReportRunResults>&& reply) {
    return status_from_wire(reply.getError(), where);
  });
  // Bounded, and not sent again: the next figures are newer.
  tasks_.add(bounded<void>(where, options_.call_timeout_ns, kj::mv(sent))
                 .then([this, generation = generation_](Status status) {
                   const bool unknown = !status.ok() && status.error().code == ErrorCode::version_mismatch;
                   runs_.end(generation, status.ok(), unknown);
                 }));
}

}  // namespace terrace::client
