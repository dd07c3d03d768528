// SPDX-License-Identifier: Apache-2.0
// Grants that wait for room, and carves that fail.
#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "tests/unit/event_loop/stepped_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using terrace::test::SteppedFixture;

namespace {

struct WaitingFixture : SteppedFixture {
  WaitingFixture() {
    start();
    compose();
    filling = grant(grant_of(backend.device_bytes));
  }
  Grant waiting() const {
    Grant request = grant_of(backend.device_bytes);
    request.wait_ns = 600 * ns_per_s;
    return request;
  }
  LeaseRow filling;
};

}  // namespace

TEST_CASE("Engine: a grant whose client is gone is not carved when its turn comes") {
  WaitingFixture fixture;
  {
    auto gone = fixture.engine->submit(fixture.waiting(), {"tester"});
    REQUIRE(!fixture.answered(gone));
  }
  REQUIRE(fixture.submit(Release{fixture.filling.id, "t", fixture.clock.now_ns()}).ok());
  fixture.turn();
  CHECK(fixture.memory.calls["carve"] == 1);
  CHECK(fixture.engine->state().leases().empty());
}

TEST_CASE("Engine: a carve that fails lets the next grant in the queue try") {
  WaitingFixture fixture;
  auto first = fixture.engine->submit(fixture.waiting(), {"tester"});
  auto second = fixture.engine->submit(fixture.waiting(), {"tester"});
  REQUIRE(!fixture.answered(first));
  fixture.memory.meets = [&](std::string_view call) -> Status {
    if (call != "carve" || fixture.memory.calls["carve"] > 2) return {};
    return os_error(EIO, "carve", "planted");
  };
  REQUIRE(fixture.submit(Release{fixture.filling.id, "t", fixture.clock.now_ns()}).ok());
  REQUIRE(fixture.answered(first));
  CHECK(!first.wait(fixture.scope).ok());
  REQUIRE(fixture.answered(second));
  CHECK(second.wait(fixture.scope).ok());
}

// Nested, as many as may wait would take megabytes of the stack.
TEST_CASE("Engine: however many carves fail one after the other, none is done within another") {
  WaitingFixture fixture;
  fixture.backend.quick_bytes = 1 * gib;
  std::vector<kj::Promise<Result<LeaseReply>>> asked;
  for (int i = 0; i < 200; ++i) asked.push_back(fixture.engine->submit(fixture.waiting(), {"tester"}));
  fixture.turn();
  std::vector<uintptr_t> frames;
  fixture.memory.meets = [&](std::string_view call) -> Status {
    if (call != "carve") return {};
    frames.push_back(reinterpret_cast<uintptr_t>(__builtin_frame_address(0)));
    return os_error(EIO, "carve", "planted");
  };
  REQUIRE(fixture.submit(Release{fixture.filling.id, "t", fixture.clock.now_ns()}).ok());
  fixture.turn();
  REQUIRE(frames.size() == 200);
  const auto [lowest, highest] = std::minmax_element(frames.begin(), frames.end());
  CHECK(*highest - *lowest < 16 * kib);
}
