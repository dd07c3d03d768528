// SPDX-License-Identifier: Apache-2.0
// What happened, over the wire: kinds of real acts, waiting calls, and that JSON is the same wherever an event goes.
#include <set>

#include "core/schema/json.h"
#include "core/schema/words.h"
#include "daemon/events/sinks/event_text.h"
#include "daemon/rpc/admin/event_wire.h"
#include "tests/unit/rpc/rpc_fixture.h"

using namespace terrace;
using namespace terrace::test;

namespace {

struct EventsRpc : Rpc {
  using Rpc::Rpc;

  auto ask(terrace::rpc::Admin::Client& operator_, uint64_t since = 0, uint32_t wait_ms = 0) {
    auto request = operator_.eventsRequest();
    request.initQuery().setSince(since);
    request.getQuery().setWaitMs(wait_ms);
    return request.send();
  }
  std::vector<std::string> kinds(terrace::rpc::Admin::Client& operator_) {
    std::vector<std::string> all;
    const auto reply = ask(operator_).wait(io.waitScope);
    REQUIRE(reply.getError().getCode() == 0);
    for (const auto event : reply.getEvents()) all.emplace_back(schema::enum_word(event.getKind()));
    return all;
  }
};

}  // namespace

TEST_CASE("Events: one has the same JSON over the RPC, in a file and for a webhook") {
  daemon::Event event{.id = 3, .wall_ns = 1'764'238'530'123'456'789, .kind = daemon::EventKind::lease_expired};
  event.message = "x \"y\"";
  event.lease = 7;
  event.tenant = "t";
  event.bytes = 5;
  for (const bool full : {false, true}) {
    if (full) {
      event.pool = "p";
      event.device = "d";
      event.host = "h";
      event.code = "c";
      event.cause = "expired";
      event.took_ns = 9;
      event.trace_id = "4bf92f3577b34da6a3ce929d0e0e4736";
      event.count = 2;
      event.severity = daemon::EventSeverity::warning;
    }
    capnp::MallocMessageBuilder message;
    auto wire = message.initRoot<terrace::rpc::Event>();
    daemon::write_event(wire, event, "run");
    CHECK(schema::to_json(wire.asReader()) == nlohmann::json::parse(daemon::event_json(event, "run")));
  }
}

TEST_CASE("Events: the life of a lease, and of what it is on") {
  EventsRpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  auto tenant = t.session(client);
  t.make_pool(operator_);
  {
    const auto granted = t.grant(tenant, 2 * mib);
    const auto first = t.ask(operator_).wait(t.io.waitScope);
    const auto event = first.getEvents()[first.getEvents().size() - 1];
    CHECK(event.getKind() == terrace::rpc::EventKind::LEASE_GRANTED);
    CHECK(event.getLease() == granted.getInfo().getId());
    CHECK(std::string(event.getPool().cStr()) == "p");
    CHECK(event.getBytes() == 2 * mib);
    CHECK(event.getTenant().size() > 0);
    CHECK(t.attach(tenant, granted.getInfo().getId(), terrace::rpc::Access::READ_WRITE).getError().getCode() ==
          0);
    REQUIRE(t.call(granted.getLease().releaseRequest()).getError().getCode() == 0);
  }
  t.engine->drain().wait(t.io.waitScope);
  CHECK(t.with_serial(operator_.drainRequest(), "emu:a").getError().getCode() == 0);
  CHECK(t.with_serial(operator_.undrainRequest(), "emu:a").getError().getCode() == 0);
  const std::vector<std::string> expected{
      "device_adopted", "device_adopted", "pool_created", "lease_granted",   "lease_attached",
      "lease_released", "lease_fenced",   "lease_erased", "device_draining", "device_in_service"};
  std::string told, wanted;
  for (const std::string& kind : t.kinds(operator_)) told += kind + " ";
  for (const std::string& kind : expected) wanted += kind + " ";
  CHECK(told == wanted);
}

TEST_CASE(
    "Events: a call that waits is answered by what it asks for, holds no slot and ends with its connection") {
  EventsRpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  {
    FixtureClient waiting(t, 0, 2);
    auto other = t.admin(waiting);
    auto request = other.eventsRequest();
    request.initQuery().setKind("pool_");
    request.getQuery().setWaitMs(30'000);
    auto answer = request.send();
    for (int i = 0; i < 100 && t.service->event_waiters().size() == 0; ++i) t.call(operator_.statusRequest());
    REQUIRE(t.service->event_waiters().size() == 1);
    t.make_pool(operator_);  // adopted devices do not end the wait
    const auto reply = answer.wait(t.io.waitScope);
    REQUIRE(reply.getEvents().size() == 1);
    CHECK(reply.getEvents()[0].getKind() == terrace::rpc::EventKind::POOL_CREATED);
    CHECK(reply.getNext() == 3);
    auto forever = t.ask(other, 3, 30'000);
    for (int i = 0; i < 100 && t.service->event_waiters().size() == 0; ++i) t.call(operator_.statusRequest());
    REQUIRE(t.service->event_waiters().size() == 1);
    auto dropped = kj::mv(forever);
  }
  for (int i = 0; i < 1000 && t.service->event_waiters().size() != 0; ++i) t.call(operator_.statusRequest());
  CHECK(t.service->event_waiters().size() == 0);
  const auto late = t.ask(operator_, 3, 1).wait(t.io.waitScope);
  CHECK(late.getError().getCode() == 0);
  CHECK(late.getEvents().size() == 0);
  CHECK(late.getNext() == 3);
}

TEST_CASE("Events: those who wait are few") {
  EventsRpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  std::vector<decltype(t.ask(operator_))> waiting;
  for (size_t i = 0; i < daemon::EventWaiters::waiting_per_peer_max; ++i)
    waiting.push_back(t.ask(operator_, 0, 30'000));
  const auto refused = t.ask(operator_, 0, 30'000).wait(t.io.waitScope);
  CHECK(refused.getError().getCode() == code(ErrorCode::limit_exceeded));
  CHECK(t.ask(operator_).wait(t.io.waitScope).getError().getCode() == 0);  // who does not wait is answered
}

TEST_CASE("Events: ids of another run are none of this one's; a wrong kind is said") {
  EventsRpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  auto request = operator_.eventsRequest();
  request.initQuery().setSince(2);
  request.getQuery().setRun("0123456789abcdef");
  CHECK(t.call(request).getEvents().size() == 3);
  CHECK(t.ask(operator_, 1'000'000).wait(t.io.waitScope).getEvents().size() == 3);
  auto same = operator_.eventsRequest();
  same.initQuery().setSince(2);
  same.getQuery().setRun(t.engine->events().run());
  CHECK(t.call(same).getEvents().size() == 1);
  auto wrong = operator_.eventsRequest();
  wrong.initQuery().setKind("lost");
  const auto reply = t.call(wrong);
  CHECK(reply.getError().getCode() == code(ErrorCode::invalid_argument));
  CHECK(std::string(reply.getError().getDetail().cStr()).find("device_lost") != std::string::npos);
}

TEST_CASE("Events: a device that vanishes and a store that fails are told; what a failed commit undid is not") {
  EventsRpc t(Rpc::Later{});
  t.engine_options.housekeeping_ns = 0;
  t.engine_options.lost_after_ns = 0;
  t.start();
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  t.backend.unplug("emu:b");
  for (int i = 0; i < 2; ++i) t.engine->look_at_devices().wait(t.io.waitScope);
  t.backend.plug("emu:b");
  for (int i = 0; i < 2; ++i) t.engine->look_at_devices().wait(t.io.waitScope);
  t.engine->drain().wait(t.io.waitScope);  // what nobody waits for is durable a moment later
  const std::vector<std::string> kinds = t.kinds(operator_);
  const std::set<std::string> seen(kinds.begin(), kinds.end());
  CHECK(seen.contains("device_lost"));
  CHECK(seen.contains("device_returned"));
  auto tenant = t.session(client);
  t.store.fail_commit = true;
  CHECK(t.grant(tenant, 2 * mib).getError().getCode() == code(ErrorCode::unavailable));
  CHECK(t.kinds(operator_).back() == "manager_failed");  // answered while the store fails
  t.store.fail_commit = false;
  for (int i = 0; i < 6000 && !t.engine->serving(); ++i)
    t.io.provider->getTimer().afterDelay(10 * kj::MILLISECONDS).wait(t.io.waitScope);
  const std::vector<std::string> after = t.kinds(operator_);
  CHECK(after.back() == "manager_recovered");
  CHECK(std::count(after.begin(), after.end(), "lease_granted") == 0);
}

TEST_CASE("Events: refused calls are told once, and take nothing from others") {
  EventsRpc t;
  FixtureClient client(t, 0, 1), stranger(t, 1000, 2);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  t.hello(stranger);
  for (int i = 0; i < 200; ++i)
    CHECK(t.call(stranger.gateway.openAdminRequest()).getError().getCode() ==
          code(ErrorCode::permission_denied));
  const std::vector<std::string> kinds = t.kinds(operator_);
  CHECK(std::count(kinds.begin(), kinds.end(), "call_denied") == 1);
  CHECK(kinds.front() == "device_adopted");
}
