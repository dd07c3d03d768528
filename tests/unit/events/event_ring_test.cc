// SPDX-License-Identifier: Apache-2.0
// What is kept of what happened: bounds, places of readers, filters.
#include <doctest/doctest.h>

#include "core/base/prng.h"
#include "daemon/events/event_ring.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

Event event(EventKind kind, uint64_t lease = 0) {
  Event one{.kind = kind};
  one.lease = lease;
  return one;
}

std::vector<uint64_t> ids(const EventPage& page) {
  std::vector<uint64_t> all;
  for (const Event* one : page.events) all.push_back(one->id);
  return all;
}

using Ids = std::vector<uint64_t>;

}  // namespace

TEST_CASE("EventRing: ids ascend from 1, and a reader goes on behind what it has read") {
  EventRing ring;
  CHECK(ring.read({}, 10).next == 0);
  for (uint64_t lease = 1; lease <= 5; ++lease) ring.push(event(EventKind::lease_granted, lease));
  const EventPage first = ring.read({}, 2);
  CHECK(ids(first) == Ids{1, 2});
  CHECK(first.more);
  CHECK(first.next == 2);
  const EventPage second = ring.read({.since = first.next}, 10);
  CHECK(ids(second) == Ids{3, 4, 5});
  CHECK_FALSE(second.more);
  CHECK(second.next == 5);
  CHECK(second.lost == 0);
  CHECK(ids(ring.read({.since = 5}, 10)).empty());
  CHECK(ring.read({.since = 5}, 10).next == 5);
}

TEST_CASE("EventRing: the newest are by ascending ids, too") {
  EventRing ring;
  for (int i = 0; i < 3; ++i) {
    ring.push(event(EventKind::lease_granted));
    ring.push(event(EventKind::device_lost));
    ring.push(event(EventKind::call_denied));
  }
  const EventPage page = ring.read({}, 4, true);
  CHECK(ids(page) == Ids{6, 7, 8, 9});
  CHECK(page.more);
  CHECK(page.next == 9);
  CHECK(ids(ring.read({}, 100, true)) == Ids{1, 2, 3, 4, 5, 6, 7, 8, 9});
}

TEST_CASE("EventRing: a flood of one origin leaves the others; what is lost is counted exactly") {
  EventRing ring({.entries_max = 10, .bytes_max = 1 << 20});
  ring.push(event(EventKind::device_lost));  // 1
  for (int i = 0; i < 100; ++i) ring.push(event(EventKind::call_denied));
  for (uint64_t lease = 1; lease <= 1000; ++lease) ring.push(event(EventKind::lease_granted, lease));
  ring.push(event(EventKind::lease_fence_failed));  // of the manager's: no tenant makes many of these
  CHECK(ring.entries() == 22);
  const EventPage all = ring.read({}, 100);
  CHECK(all.events.front()->kind == EventKind::device_lost);
  CHECK(all.events.back()->kind == EventKind::lease_fence_failed);
  CHECK(all.lost == 1102 - 22);
  CHECK(ring.read({.since = 1}, 100).lost == 1080);
  CHECK(ring.read({.since = 1101 - 10}, 100).lost == 0);
  CHECK(ring.read({.since = 1101 - 15}, 100).lost == 5);
}

TEST_CASE("EventRing: its memory has a bound") {
  EventRing ring({.entries_max = 100'000, .bytes_max = 64 << 10});
  Event one = event(EventKind::pool_created);
  for (int i = 0; i < 5000; ++i) {
    one.message.assign(static_cast<size_t>(i % 700), 'x');
    ring.push(one);
    CHECK(ring.bytes() <= (64 << 10));
  }
  CHECK(ring.entries() > 50);
  one.message.assign(1 << 20, 'x');  // one that is larger than all is kept until the next
  ring.push(one);
  CHECK(ring.entries() == 1);
  ring.push(event(EventKind::pool_created));
  CHECK(ring.entries() == 1);
  CHECK(ring.bytes() < 1024);
}

TEST_CASE("EventRing: filters") {
  EventRing ring;
  Event one = event(EventKind::lease_granted, 7);
  one.tenant = "a";
  one.pool = "p";
  one.host = "h";
  one.wall_ns = 100;
  ring.push(one);
  one = event(EventKind::device_lost);
  one.device = "emu:a";
  one.severity = EventSeverity::critical;
  one.wall_ns = 200;
  ring.push(one);
  const auto found = [&ring](EventFilter filter) { return ids(ring.read(filter, 10)); };
  CHECK(found({.kinds = 1ull << static_cast<unsigned>(EventKind::device_lost)}) == Ids{2});
  CHECK(found({.severity_min = EventSeverity::warning}) == Ids{2});
  CHECK(found({.lease = 7}) == Ids{1});
  CHECK(found({.tenant = "a"}) == Ids{1});
  CHECK(found({.tenant = "b"}).empty());
  CHECK(found({.pool = "p"}) == Ids{1});
  CHECK(found({.device = "emu:a"}) == Ids{2});
  CHECK(found({.host = "h"}) == Ids{1});
  CHECK(found({.since_wall_ns = 150}) == Ids{2});
  CHECK(ring.read({.tenant = "b"}, 10).next == 2);  // what does not match is behind the reader, too
}

TEST_CASE("EventRing: a reader that asks again and again sees each event that is kept once, in order") {
  Prng prng(11);
  EventRing ring({.entries_max = 50, .bytes_max = 1 << 20});
  const EventKind kinds[] = {EventKind::lease_granted, EventKind::call_denied, EventKind::device_lost};
  uint64_t told = 0, seen = 0, lost = 0, since = 0;
  for (int round = 0; round < 500; ++round) {
    for (uint64_t i = prng.below(600); i > 0; --i) {
      ring.push(event(kinds[prng.below(3)]));
      ++told;
    }
    for (bool more = true; more;) {
      const EventPage page = ring.read({.since = since}, 1 + prng.below(40));
      lost += page.lost;
      for (const Event* one : page.events) {
        REQUIRE(one->id > since);
        since = one->id;
        ++seen;
      }
      more = page.more;
      REQUIRE(page.next >= since);
      since = page.next;
    }
    REQUIRE(seen + lost == told);
  }
  CHECK(lost > 0);
}
