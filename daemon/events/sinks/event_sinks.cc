// SPDX-License-Identifier: Apache-2.0
#include "daemon/events/sinks/event_sinks.h"

#include "daemon/events/sinks/event_text.h"
#include "daemon/log/log.h"

namespace terrace::daemon {

EventSinks::EventSinks(const EventSinksOptions& options, EventLog& events, kj::Network& network,
                       kj::Timer& timer)
    : events_(events), timer_(timer), log_(options.log) {
  if (!options.file.empty())
    file_ = std::make_unique<LineFile>(LineFileOptions{.path = options.file,
                                                       .what = "the file of events",
                                                       .lines = "events",
                                                       .rotate_bytes = options.rotate_bytes});
  if (options.journal) journal_ = std::make_unique<EventJournal>(options.journal_socket, events.run());
  if (!options.webhook.empty())
    webhook_ =
        kj::heap<EventWebhook>(EventWebhookOptions{.url = options.webhook}, events.run(), network, timer);
  events.listen([this](const Event& event) { take(event); });
}

void EventSinks::take(const Event& event) {
  if (const log::Level level = event_level(event); log_ && log::enabled(level))
    log::write_line(level, event.message, event_fields(event));
  // Not counted, where it tells of those that were left out: it would be one more, for ever.
  if (file_ != nullptr)
    file_->append(event_json(event, events_.run()) + "\n", event.kind == EventKind::events_dropped ? 0 : 1);
  if (journal_ != nullptr) journal_->append(event);
  if (webhook_.get() != nullptr) webhook_->append(event);
}

void EventSinks::tell_left_out() {
  if (file_ != nullptr) events_.note_dropped("file", file_->left_out());
  if (journal_ != nullptr) events_.note_dropped("journal", journal_->left_out());
  if (webhook_.get() != nullptr) events_.note_dropped("webhook", webhook_->left_out());
}

kj::Promise<void> EventSinks::look_again() {
  constexpr unsigned looks_between_tellings = 5;
  return timer_.afterDelay(1 * kj::SECONDS).then([this] {
    events_.flush();
    if (++looks_ % looks_between_tellings == 0) tell_left_out();
    return look_again();
  });
}

kj::Promise<void> EventSinks::drain() {
  if (webhook_.get() == nullptr || webhook_->idle()) return kj::READY_NOW;
  return timer_.afterDelay(10 * kj::MILLISECONDS).then([this] { return drain(); });
}

}  // namespace terrace::daemon
