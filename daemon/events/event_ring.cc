// SPDX-License-Identifier: Apache-2.0
#include "daemon/events/event_ring.h"

#include <algorithm>
#include <utility>

namespace terrace::daemon {
namespace {

using Position = std::deque<Event>::const_iterator;

Position first_after(const std::deque<Event>& events, uint64_t id) {
  return std::upper_bound(events.begin(), events.end(), id,
                          [](uint64_t wanted, const Event& event) { return wanted < event.id; });
}

}  // namespace

uint64_t event_bytes(const Event& event) {
  uint64_t bytes = sizeof(Event);
  for (const std::string* text : {&event.message, &event.tenant, &event.pool, &event.device, &event.host,
                                  &event.code, &event.cause, &event.trace_id}) {
    constexpr size_t in_place = 15;
    if (text->capacity() > in_place) bytes += text->capacity() + 1;
  }
  return bytes;
}

bool EventFilter::matches(const Event& event) const {
  const auto is = [](const std::string& wanted, const std::string& value) {
    return wanted.empty() || wanted == value;
  };
  return event.id > since && event.wall_ns >= since_wall_ns && event.severity >= severity_min &&
         (kinds == 0 || (kinds >> static_cast<unsigned>(event.kind) & 1) != 0) &&
         (lease == 0 || lease == event.lease) && is(tenant, event.tenant) && is(pool, event.pool) &&
         is(device, event.device) && is(host, event.host);
}

const Event& EventRing::push(Event event) {
  event.id = ++last_id_;
  Part& part = parts_[static_cast<size_t>(origin_of(event.kind))];
  part.bytes += event_bytes(event);
  part.events.push_back(std::move(event));
  while (part.events.size() > 1 && (part.events.size() > bound_.entries_max || part.bytes > bound_.bytes_max)) {
    part.bytes -= event_bytes(part.events.front());
    part.events.pop_front();
  }
  return part.events.back();
}

EventPage EventRing::read(const EventFilter& filter, size_t limit, bool newest) const {
  EventPage page;
  page.next = std::max(filter.since, last_id_);
  std::vector<std::pair<Position, Position>> left;  // of each part: what is not looked at yet
  uint64_t kept = 0;
  for (const Part& part : parts_) {
    left.emplace_back(first_after(part.events, filter.since), part.events.end());
    kept += static_cast<uint64_t>(left.back().second - left.back().first);
  }
  for (uint64_t looked = 0; looked < kept; ++looked) {
    std::pair<Position, Position>* chosen = nullptr;
    for (auto& range : left) {
      if (range.first == range.second) continue;
      const bool better =
          chosen == nullptr || (newest ? std::prev(range.second)->id > std::prev(chosen->second)->id
                                       : range.first->id < chosen->first->id);
      if (better) chosen = &range;
    }
    const Event& event = newest ? *--chosen->second : *chosen->first++;
    if (!filter.matches(event)) continue;
    if (page.events.size() == limit) {
      page.more = true;
      if (!newest) page.next = page.events.empty() ? filter.since : page.events.back()->id;
      break;
    }
    page.events.push_back(&event);
  }
  if (newest) std::reverse(page.events.begin(), page.events.end());
  // Up to `next` only: what lies behind it is counted by the answer that reads on.
  page.lost = page.next - filter.since;
  for (const Part& part : parts_)
    page.lost -=
        static_cast<uint64_t>(first_after(part.events, page.next) - first_after(part.events, filter.since));
  return page;
}

size_t EventRing::entries() const {
  size_t all = 0;
  for (const Part& part : parts_) all += part.events.size();
  return all;
}

uint64_t EventRing::bytes() const {
  uint64_t all = 0;
  for (const Part& part : parts_) all += part.bytes;
  return all;
}

}  // namespace terrace::daemon
