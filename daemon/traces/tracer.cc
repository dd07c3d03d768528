// SPDX-License-Identifier: Apache-2.0
#include "daemon/traces/tracer.h"

#include <algorithm>
#include <utility>

namespace terrace::daemon {
namespace {

constexpr uint64_t sample_whole = 1ull << 32;

}  // namespace

Tracer::Tracer(const Clock& clock, uint64_t seed) : clock_(clock), random_(seed) {}

void Tracer::set_export(Export out, double sample) {
  export_ = std::move(out);
  sample_below_ = static_cast<uint64_t>(std::clamp(sample, 0.0, 1.0) * static_cast<double>(sample_whole));
}

uint64_t Tracer::draw() {
  uint64_t drawn = 0;
  while (drawn == 0) drawn = random_.next();
  return drawn;
}

// The clock that lasts are taken by does not say what time it is.
uint64_t Tracer::wall_ns(uint64_t at_ns) const {
  return wall_clock_ns() - (clock_.now_ns() - at_ns);
}

std::shared_ptr<CallTrace> Tracer::begin(std::string_view method, const std::optional<TraceContext>& client) {
  if (client.has_value())
    return std::make_shared<CallTrace>(
        shared_from_this(), method,
        TraceContext{client->trace_high, client->trace_low, draw(), client->sampled && exporting()},
        client->span);
  if (!exporting() || random_.below(sample_whole) >= sample_below_) return nullptr;
  return std::make_shared<CallTrace>(shared_from_this(), method, TraceContext{draw(), draw(), draw(), true}, 0);
}

void Tracer::child(const TraceContext& parent, std::string_view name, uint64_t begin_ns, uint64_t end_ns,
                   uint64_t lease) {
  if (!parent.sampled || !exporting()) return;
  Span span;
  span.trace_high = parent.trace_high;
  span.trace_low = parent.trace_low;
  span.id = draw();
  span.parent = parent.span;
  span.name = name;
  span.begin_wall_ns = wall_ns(begin_ns);
  span.end_wall_ns = span.begin_wall_ns + (end_ns - std::min(begin_ns, end_ns));
  span.lease = lease;
  end(std::move(span));
}

void Tracer::end(Span&& span) {
  if (!exporting()) return;
  ++spans_;
  export_(std::move(span));
}

CallTrace::CallTrace(std::shared_ptr<Tracer> tracer, std::string_view method, const TraceContext& own,
                     uint64_t parent)
    : tracer_(std::move(tracer)),
      method_(method),
      own_(own),
      parent_(parent),
      trace_id_(trace_id_text(own.trace_high, own.trace_low)),
      began_ns_(tracer_->clock_.now_ns()) {}

void CallTrace::about(uint64_t lease, std::string_view tenant, std::string_view pool) {
  if (lease != 0) lease_ = lease;
  if (!tenant.empty()) tenant_ = tenant;
  if (!pool.empty()) pool_ = pool;
}

CallTrace::~CallTrace() {
  if (!changed_ || !own_.sampled || !tracer_->exporting()) return;
  const uint64_t now_ns = tracer_->clock_.now_ns();
  Span span;
  span.trace_high = own_.trace_high;
  span.trace_low = own_.trace_low;
  span.id = own_.span;
  span.parent = parent_;
  span.name = method_;
  span.is_call = true;
  span.begin_wall_ns = tracer_->wall_ns(began_ns_);
  span.end_wall_ns = span.begin_wall_ns + (now_ns - began_ns_);
  span.lease = lease_;
  span.tenant = std::move(tenant_);
  span.pool = std::move(pool_);
  span.code = std::move(code_);
  tracer_->end(std::move(span));
}

}  // namespace terrace::daemon
