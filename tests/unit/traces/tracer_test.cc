// SPDX-License-Identifier: Apache-2.0
// Which calls have spans, what these say, and what the engine adds to them.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "daemon/traces/tracer.h"
#include "tests/unit/event_loop/engine_fixture.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

const TraceContext client{0x11, 0x22, 0x33, true};
constexpr std::string_view method = "TenantSession.grant";

struct Traced {
  explicit Traced(double sample = 1) {
    tracer->set_export([this](Span&& span) { spans.push_back(std::move(span)); }, sample);
  }
  const Span* find(std::string_view name) const {
    const auto at = std::find_if(spans.begin(), spans.end(), [&](const Span& one) { return one.name == name; });
    return at == spans.end() ? nullptr : &*at;
  }

  SystemClock clock;
  std::vector<Span> spans;
  std::shared_ptr<Tracer> tracer = std::make_shared<Tracer>(clock, 7);
};

}  // namespace

TEST_CASE(
    "Tracer: a call that changed nothing has no span, and one that did has one when its last holder lets go") {
  Traced t;
  t.tracer->begin(method, client).reset();
  CHECK(t.spans.empty());
  auto call = t.tracer->begin(method, client);
  const auto second_holder = std::make_unique<std::shared_ptr<CallTrace>>(call);
  call->changed();
  call->about(7, "t", "p");
  call->failed("capacity_exhausted");
  call.reset();
  CHECK(t.spans.empty());
  second_holder->reset();
  REQUIRE(t.spans.size() == 1);
  const Span& span = t.spans[0];
  CHECK(span.trace_high == client.trace_high);
  CHECK(span.trace_low == client.trace_low);
  CHECK(span.parent == client.span);
  CHECK(span.id != 0);
  CHECK(span.id != client.span);
  CHECK(span.name == method);
  CHECK(span.is_call);
  CHECK(span.lease == 7);
  CHECK(span.tenant == "t");
  CHECK(span.pool == "p");
  CHECK(span.code == "capacity_exhausted");
  CHECK(span.end_wall_ns >= span.begin_wall_ns);
  const uint64_t now_ns = wall_clock_ns();
  CHECK(span.end_wall_ns <= now_ns + ns_per_s);
  CHECK(span.begin_wall_ns + 60 * ns_per_s > now_ns);
}

TEST_CASE("Tracer: a client's flag decides for its trace, and the ratio for those that begin here") {
  for (const double sample : {0.0, 1.0}) {
    Traced t(sample);
    TraceContext unsampled = client;
    unsampled.sampled = false;
    for (const TraceContext& context : {client, unsampled}) {
      t.spans.clear();
      auto call = t.tracer->begin(method, context);
      REQUIRE(call != nullptr);  // events have its trace all the same
      CHECK(call->trace_id() == "00000000000000110000000000000022");
      call->changed();
      call->child("commit", 1, 2);
      call.reset();
      CHECK(t.spans.size() == (context.sampled ? 2 : 0));
    }
    CHECK((t.tracer->begin(method, {}) != nullptr) == (sample == 1.0));
  }
  Traced half(0.5);
  int traced = 0;
  for (int i = 0; i < 1000; ++i) traced += half.tracer->begin(method, {}) != nullptr ? 1 : 0;
  CHECK(traced > 400);
  CHECK(traced < 600);
}

TEST_CASE(
    "Tracer: without an endpoint a client's trace has its id and no spans, and other calls have nothing") {
  Traced t;
  t.tracer->set_export({}, 0);
  CHECK(t.tracer->begin(method, {}) == nullptr);
  auto call = t.tracer->begin(method, client);
  REQUIRE(call != nullptr);
  call->changed();
  call->child("commit", 1, 2);
  call.reset();
  CHECK(t.spans.empty());
  CHECK(t.tracer->spans() == 0);
}

TEST_CASE("Tracer: traces that begin here have ids of their own") {
  Traced t;
  for (int i = 0; i < 100; ++i) t.tracer->begin(method, {})->changed();
  REQUIRE(t.spans.size() == 100);
  std::set<uint64_t> ids, traces;
  for (const Span& span : t.spans) {
    CHECK(span.parent == 0);
    ids.insert(span.id);
    traces.insert(span.trace_low);
  }
  CHECK(ids.size() == 100);
  CHECK(traces.size() == 100);
}

TEST_CASE("Engine: a traced grant has its parts as children, and its events and audit rows name the trace") {
  Traced t;
  test::EngineFixture f;
  std::vector<AuditRow> rows;
  EngineOptions options{.housekeeping_ns = 0};
  options.audit_sink = [&rows](const std::vector<AuditRow>& more) {
    rows.insert(rows.end(), more.begin(), more.end());
  };
  f.start(options);
  f.engine->set_tracer(t.tracer);
  f.compose();
  rows.clear();
  auto call = t.tracer->begin(method, client);
  const std::string id = call->trace_id();
  const auto granted =
      f.engine->submit(f.grant_of(2 * mib), Actor{.text = "x", .trace = call}).wait(f.io.waitScope);
  REQUIRE(granted.ok());
  call.reset();
  REQUIRE(f.eventually([&] { return t.find(method) != nullptr; }));
  const Span* whole = t.find(method);
  CHECK(whole->lease == granted->lease.id.value);
  CHECK(whole->tenant == "t");
  CHECK(whole->pool == "p");
  CHECK(whole->code.empty());
  for (const char* part : {"carve", "commit"}) {
    CAPTURE(part);
    REQUIRE(t.find(part) != nullptr);
    CHECK(t.find(part)->parent == whole->id);
    CHECK(t.find(part)->trace_low == client.trace_low);
    CHECK(!t.find(part)->is_call);
  }
  CHECK(t.find("queue") == nullptr);
  const auto page = f.engine->events().ring().read({}, 100, true);
  REQUIRE(!page.events.empty());
  CHECK(page.events.back()->kind == EventKind::lease_granted);
  CHECK(page.events.back()->trace_id == id);
  CHECK(page.events.front()->trace_id.empty());  // the adoption, of another call
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].detail.find("trace_id=" + id) != std::string::npos);

  // What follows a release when its call has been answered is of its trace, too.
  auto release = t.tracer->begin("Lease.release", client);
  const auto released =
      f.engine->submit(Release{granted->lease.id, "t", f.clock.now_ns()}, Actor{.text = "x", .trace = release})
          .wait(f.io.waitScope);
  REQUIRE(released.ok());
  release.reset();
  REQUIRE(f.eventually([&] { return t.find("scrub") != nullptr && f.engine->state().leases().empty(); }));
  REQUIRE(t.find("fence") != nullptr);
  CHECK(t.find("fence")->parent == t.find("Lease.release")->id);
  CHECK(t.find("scrub")->lease == granted->lease.id.value);
  f.eventually([&] { return f.engine->idle(); });
  const auto after = f.engine->events().ring().read({}, 100, true);
  CHECK(after.events.back()->kind == EventKind::lease_erased);
  CHECK(after.events.back()->trace_id == id);
}

TEST_CASE("Engine: a grant that waited has that as a part, and one that was refused says why") {
  Traced t;
  test::EngineFixture f;
  f.start();
  f.engine->set_tracer(t.tracer);
  f.compose();
  const auto whole = f.grant(f.grant_of(f.free_bytes()));
  auto refused = t.tracer->begin(method, client);
  CHECK(!f.engine->submit(f.grant_of(2 * mib), Actor{.text = "x", .trace = refused}).wait(f.io.waitScope).ok());
  refused.reset();
  REQUIRE(t.find(method) != nullptr);
  CHECK(t.find(method)->code == "capacity_exhausted");
  t.spans.clear();

  Grant patient = f.grant_of(2 * mib);
  patient.wait_ns = 60 * ns_per_s;
  patient.request_low = 9;
  auto call = t.tracer->begin(method, client);
  auto waiting = f.engine->submit(std::move(patient), Actor{.text = "x", .trace = call});
  call.reset();
  REQUIRE(f.submit(Release{whole.id, "t", f.clock.now_ns()}).ok());
  REQUIRE(waiting.wait(f.io.waitScope).ok());
  REQUIRE(f.eventually([&] { return t.find(method) != nullptr; }));
  REQUIRE(t.find("queue") != nullptr);
  CHECK(t.find("queue")->parent == t.find(method)->id);
  CHECK(t.find("queue")->end_wall_ns > t.find("queue")->begin_wall_ns);
  CHECK(t.find("queue")->begin_wall_ns >= t.find(method)->begin_wall_ns);
}
