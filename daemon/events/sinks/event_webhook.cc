// SPDX-License-Identifier: Apache-2.0
#include "daemon/events/sinks/event_webhook.h"

#include <utility>

#include "daemon/events/sinks/event_text.h"

namespace terrace::daemon {

EventWebhook::EventWebhook(const EventWebhookOptions& options, std::string run, kj::Network& network,
                           kj::Timer& timer)
    : run_(std::move(run)),
      post_(JsonPostOptions{.who = "webhook",
                            .what = "events",
                            .url = options.url,
                            .head = "{\"run\": \"" + run_ + "\", \"events\": [",
                            .tail = "]}\n",
                            .full = JsonPostOptions::Full::refuse_new,
                            .waiting_bytes_max = options.waiting_bytes_max,
                            .batch_max = options.batch_events_max,
                            .answer_max = options.answer_max,
                            .pause_min = options.pause_min,
                            .pause_max = options.pause_max,
                            .gather = options.gather},
            network, timer) {}

void EventWebhook::append(const Event& event) {
  // What tells of events that were left out must not be one more, for ever.
  if (!post_.append(event_json(event, run_)) && event.kind != EventKind::events_dropped) post_.count_left_out();
}

}  // namespace terrace::daemon
