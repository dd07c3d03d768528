// SPDX-License-Identifier: Apache-2.0
// The operator's interface: what happened, now or when it happens.
#include "daemon/rpc/admin/admin.h"
#include "daemon/rpc/admin/event_wire.h"

namespace terrace::daemon {
namespace {

constexpr uint32_t events_per_answer_max = 500;
constexpr uint32_t wait_ms_max = 30'000;

}  // namespace

// At once, as health(): an event is told once it is durable, and those of a store that fails are asked for then.
kj::Promise<void> AdminServer::events(EventsContext context) {
  KJ_IF_MAYBE (slot, admit(*connection_, context)) {
    const auto query = context.getParams().getQuery();
    Result<EventFilter> filter = read_event_query(query);
    if (!filter.ok()) {
      refuse(context, filter.error());
      return kj::READY_NOW;
    }
    const EventLog& events = engine().events();
    // Of another run, whether that is said or shows: ids began anew.
    const std::string run = read_text(query.getRun());
    if ((!run.empty() && run != events.run()) || filter->since > events.ring().newest()) filter->since = 0;
    const uint32_t wait_ms = std::min(query.getWaitMs(), wait_ms_max);
    if (wait_ms == 0 || !events.ring().read(*filter, 1).events.empty()) {
      write_events(context, *filter);
      return kj::READY_NOW;
    }
    Result<kj::Promise<void>> waiting =
        service().event_waiters().wait(*filter, wait_ms, service().key_of(connection_->peer));
    if (!waiting.ok()) {
      refuse(context, waiting.error());
      return kj::READY_NOW;
    }
    context.allowCancellation();  // it ends with its connection
    return kj::mv(*waiting).then(
        [this, context, filter = std::move(*filter)]() mutable { write_events(context, filter); });
  }  // it waits without its slot: not one of the calls
  return kj::READY_NOW;
}

void AdminServer::write_events(EventsContext context, const EventFilter& filter) {
  const auto query = context.getParams().getQuery();
  const uint32_t asked = query.getLimit();
  const uint32_t limit = asked == 0 ? events_per_answer_max : std::min(asked, events_per_answer_max);
  const EventLog& events = engine().events();
  const EventPage page = events.ring().read(filter, limit, query.getNewest());
  auto results = context.getResults();
  auto out = results.initEvents(static_cast<uint32_t>(page.events.size()));
  for (uint32_t i = 0; i < out.size(); ++i) write_event(out[i], *page.events[i], events.run());
  results.setNext(page.next);
  results.setLost(page.lost);
  results.setMore(page.more);
  results.setRun(events.run());
}

}  // namespace terrace::daemon
