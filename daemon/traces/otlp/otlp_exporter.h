// SPDX-License-Identifier: Apache-2.0
// Spans on their way to a collector: OTLP over HTTP (POST, JSON), in batches, off the path of any call.
//
// A bounded number of bytes waits; beyond it the oldest spans are dropped and counted. A collector that is slow, away or
// answers with anything but 2xx costs spans, never a grant; the log says once that it fails, and once that it is over.
//
// Place     daemon/role_manager.cc makes one; the Tracer hands it spans.
// Threads   The event loop's thread only.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/post/json_post.h"
#include "daemon/traces/tracer.h"

namespace terrace::daemon {

struct OtlpOptions {
  std::string endpoint;  // http:// or https://, with its path; empty: off
  double sample = 1;
  // Of this process, as resources have it.
  std::string version, host, instance;
  uint64_t waiting_bytes_max = 4ull << 20;
  kj::Duration answer_max = 10 * kj::SECONDS;
  kj::Duration pause_min = 1 * kj::SECONDS;
};

class OtlpExporter {
 public:
  OtlpExporter(Tracer& tracer, kj::Network& network, kj::Timer& timer)
      : tracer_(tracer), network_(network), timer_(timer) {
    tracer_.count_dropped_by([this] { return dropped(); });
  }
  ~OtlpExporter() {
    tracer_.set_export({}, 0);
    tracer_.count_dropped_by({});
  }
  OtlpExporter(const OtlpExporter&) = delete;
  OtlpExporter& operator=(const OtlpExporter&) = delete;

  // From now on; what waits for an endpoint that is another one now is dropped.
  void set(OtlpOptions options);
  uint64_t dropped() const { return dropped_ + (post_.get() == nullptr ? 0 : post_->left_out()); }
  // Whether all that ended so far was sent.
  bool idle() const { return post_.get() == nullptr || post_->idle(); }

 private:
  Tracer& tracer_;
  kj::Network& network_;
  kj::Timer& timer_;
  std::string endpoint_;
  kj::Own<JsonPost> post_;
  uint64_t dropped_ = 0;  // of endpoints before
};

}  // namespace terrace::daemon
