// SPDX-License-Identifier: Apache-2.0
#include "daemon/traces/otlp/otlp_exporter.h"

#include <utility>

#include "daemon/traces/otlp/otlp_json.h"

namespace terrace::daemon {

void OtlpExporter::set(OtlpOptions options) {
  if (options.endpoint != endpoint_) {
    if (post_.get() != nullptr) dropped_ += post_->left_out() + post_->waiting();
    post_ = nullptr;
    endpoint_ = options.endpoint;
    if (!endpoint_.empty()) {
      OtlpFrame frame = otlp_frame(options.version, options.host, options.instance);
      post_ = kj::heap<JsonPost>(JsonPostOptions{.who = "traces: the endpoint",
                                                 .what = "spans",
                                                 .url = endpoint_,
                                                 .head = std::move(frame.head),
                                                 .tail = std::move(frame.tail),
                                                 .full = JsonPostOptions::Full::drop_oldest,
                                                 .waiting_bytes_max = options.waiting_bytes_max,
                                                 .batch_max = 500,
                                                 .answer_max = options.answer_max,
                                                 .pause_min = options.pause_min,
                                                 .gather = 500 * kj::MILLISECONDS},
                                 network_, timer_);
    }
  }
  if (post_.get() == nullptr) {
    tracer_.set_export({}, 0);
    return;
  }
  tracer_.set_export([this](Span&& span) { post_->append(otlp_span(span)); }, options.sample);
}

}  // namespace terrace::daemon
