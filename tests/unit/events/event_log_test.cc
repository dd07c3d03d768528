// SPDX-License-Identifier: Apache-2.0
// What is told, folded and dropped on the way to those who listen.
#include <doctest/doctest.h>

#include "daemon/events/event_log.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

Event denied(const std::string& tenant, const std::string& code = "permission_denied") {
  Event one{.kind = EventKind::call_denied};
  one.tenant = tenant;
  one.code = code;
  return one;
}

struct Log {
  ManualClock clock;
  EventLog log{clock};
  std::vector<Event> heard;
  Log() {
    log.listen([this](const Event& one) { heard.push_back(one); });
  }
};

}  // namespace

TEST_CASE("EventLog: each gets an id and a time, and all who listen hear of it") {
  Log t;
  t.log.tell(Event{.kind = EventKind::pool_created});
  t.log.tell(Event{.wall_ns = 5, .kind = EventKind::pool_removed});
  REQUIRE(t.heard.size() == 2);
  CHECK(t.heard[0].id == 1);
  CHECK(t.heard[0].wall_ns > 0);
  CHECK(t.heard[1].wall_ns == 5);
  CHECK(t.log.run().size() == 16);
  CHECK(t.log.run() != EventLog(t.clock).run());
}

TEST_CASE("EventLog: refused calls that repeat are one event with a count") {
  Log t;
  for (int i = 0; i < 1000; ++i) t.log.tell(denied("a"));
  t.log.tell(denied("a", "limit_exceeded"));
  t.log.tell(denied("b"));
  REQUIRE(t.heard.size() == 3);  // the first of each
  CHECK(t.heard[0].count == 1);
  t.log.flush();
  CHECK(t.heard.size() == 3);
  t.clock.advance_ns(EventFold::window_ns);
  t.log.flush();
  REQUIRE(t.heard.size() == 4);
  CHECK(t.heard[3].tenant == "a");
  CHECK(t.heard[3].count == 999);
  t.clock.advance_ns(EventFold::window_ns);
  t.log.flush();
  CHECK(t.heard.size() == 4);
  t.log.tell(denied("a"));  // after a quiet while it is news again
  CHECK(t.heard.size() == 5);
}

TEST_CASE("EventLog: one call after the other, a window apart: none is lost from the count") {
  Log t;
  uint64_t counted = 0;
  for (int i = 0; i < 100; ++i) {
    t.log.tell(denied("a"));
    t.clock.advance_ns(EventFold::window_ns / 3);
    if (i % 7 == 0) t.log.flush();
  }
  t.clock.advance_ns(EventFold::window_ns);
  t.log.flush();
  for (const Event& one : t.heard) counted += one.count;
  CHECK(counted == 100);
  CHECK(t.heard.size() < 60);
}

TEST_CASE("EventLog: who is many tenants is told as few") {
  Log t;
  for (int i = 0; i < 10'000; ++i) t.log.tell(denied("uid-" + std::to_string(i)));
  CHECK(t.heard.size() <= EventFold::keys_max + 1);
  CHECK(t.heard.back().tenant == "(others)");
  t.clock.advance_ns(EventFold::window_ns);
  t.log.flush();
  CHECK(t.heard.back().count == 10'000 - EventFold::keys_max - 1);
}

TEST_CASE("EventLog: what a sink left out is told once") {
  Log t;
  t.log.note_dropped("webhook", 0);
  CHECK(t.heard.empty());
  t.log.note_dropped("webhook", 5);
  t.log.note_dropped("webhook", 5);
  t.log.note_dropped("webhook", 7);
  REQUIRE(t.heard.size() == 2);
  CHECK(t.heard[0].kind == EventKind::events_dropped);
  CHECK(t.heard[0].count == 5);
  CHECK(t.heard[0].code == "webhook");
  CHECK(t.heard[1].count == 2);
}
