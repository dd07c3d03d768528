// SPDX-License-Identifier: Apache-2.0
// Events as JSON, POSTed to an HTTP server in batches: {"run": "...", "events": [...]}. `run` and `id` name an event.
//
// Place     EventSinks makes one where the configuration says so ([events] webhook).
// Threads   The event loop's thread only. append() never waits (daemon/post/json_post.h).
#pragma once

#include <cstdint>
#include <string>

#include "daemon/events/event.h"
#include "daemon/post/json_post.h"

namespace terrace::daemon {

struct EventWebhookOptions {
  std::string url;  // http:// or https://
  uint64_t waiting_bytes_max = 4ull << 20;
  size_t batch_events_max = 200;
  kj::Duration answer_max = 10 * kj::SECONDS;
  kj::Duration pause_min = 1 * kj::SECONDS;
  kj::Duration pause_max = 60 * kj::SECONDS;
  kj::Duration gather = 50 * kj::MILLISECONDS;  // what comes within it goes in one batch
};

class EventWebhook final {
 public:
  EventWebhook(const EventWebhookOptions& options, std::string run, kj::Network& network, kj::Timer& timer);

  void append(const Event& event);
  uint64_t left_out() const { return post_.left_out(); }
  bool idle() const { return post_.idle(); }

 private:
  const std::string run_;
  JsonPost post_;
};

}  // namespace terrace::daemon
