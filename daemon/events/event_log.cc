// SPDX-License-Identifier: Apache-2.0
#include "daemon/events/event_log.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "core/base/prng.h"

namespace terrace::daemon {
namespace {

std::string draw_run() {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(secure_random_u64()));
  return text;
}

}  // namespace

EventLog::EventLog(const Clock& clock, EventRingBound bound) : clock_(clock), run_(draw_run()), ring_(bound) {}

void EventLog::tell(Event event) {
  if (event.wall_ns == 0) event.wall_ns = wall_clock_ns();
  if (event.kind != EventKind::call_denied) return push(std::move(event));
  if (auto told = fold_.admit(std::move(event), clock_.now_ns())) push(std::move(*told));
}

void EventLog::flush() {
  for (Event& event : fold_.due(clock_.now_ns())) push(std::move(event));
}

void EventLog::note_dropped(const std::string& sink, uint64_t total) {
  const uint64_t fresh = total - std::exchange(dropped_[sink], total);
  if (fresh == 0) return;
  tell(Event{.kind = EventKind::events_dropped,
             .severity = EventSeverity::warning,
             .count = static_cast<uint32_t>(std::min<uint64_t>(fresh, UINT32_MAX)),
             .message = "the " + sink + " did not take " + std::to_string(fresh) + " events",
             .code = sink});
}

void EventLog::push(Event event) {
  const Event& kept = ring_.push(std::move(event));
  for (const Listener& listener : listeners_) listener(kept);
}

}  // namespace terrace::daemon
