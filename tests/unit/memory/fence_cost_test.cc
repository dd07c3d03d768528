// SPDX-License-Identifier: Apache-2.0
// What fencing is taken to cost: from floors, measurements and hiccups, with a made-up clock.
#include "daemon/model/fence_cost.h"

#include <doctest/doctest.h>

#include "core/base/units.h"
#include "daemon/model/host_lease.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

constexpr FenceCost::Parts least{1 * ns_per_ms, 100 * ns_per_ms};
constexpr FenceCost cheap(least, least);
constexpr uint64_t start_ns = 5000 * ns_per_s;

}  // namespace

TEST_CASE("FenceCost: objects and bytes both count, and nothing is less than the floor") {
  FenceCost cost = cheap;
  CHECK(cost.of({10, 2 * gib}, start_ns) == 210 * ns_per_ms);
  for (int i = 0; i < 100; ++i) cost.observe(2 * mib, 10'000, start_ns);
  CHECK(cost.of({10, 2 * gib}, start_ns) == 210 * ns_per_ms);
  CHECK(cost.of({0, 0}, start_ns) == 0);
  CHECK(cost.of({UINT32_MAX, UINT64_MAX}, start_ns) > 0);
}

TEST_CASE("FenceCost: it follows what is measured, of objects by small ones and of bytes by large ones") {
  FenceCost cost = cheap;
  for (int i = 0; i < 60; ++i) cost.observe(2 * mib, 20 * ns_per_ms, start_ns);
  const uint64_t hundred = cost.of({100, 0}, start_ns);
  CHECK(hundred > 1900 * ns_per_ms);
  CHECK(hundred <= 2000 * ns_per_ms);
  for (int i = 0; i < 60; ++i) cost.observe(4 * gib, 4'020 * ns_per_ms, start_ns);
  const uint64_t large = cost.of({0, 10 * gib}, start_ns);
  CHECK(large > 9'500 * ns_per_ms);
  CHECK(large < 10'100 * ns_per_ms);
}

TEST_CASE("FenceCost: one hiccup counts once, not for each object, and wears off") {
  FenceCost cost = cheap;
  for (int i = 0; i < 40; ++i) cost.observe(2 * mib, 1 * ns_per_ms, start_ns);
  cost.observe(2 * mib, 400 * ns_per_ms, start_ns);
  CHECK(cost.hiccup_ns() > 390 * ns_per_ms);
  CHECK(cost.of({100, 0}, start_ns) < 100 * 60 * ns_per_ms);
  for (int i = 0; i < 40; ++i) cost.observe(2 * mib, 1 * ns_per_ms, start_ns);
  CHECK(cost.hiccup_ns() < 2 * ns_per_ms);
}

// Else a host that may lease nothing would measure nothing, and never lease again.
TEST_CASE("FenceCost: without measurements it returns to what was believed") {
  FenceCost cost = cheap;
  cost.observe(2 * mib, 60 * ns_per_s, start_ns);
  const uint64_t then = cost.of({1, 0}, start_ns);
  CHECK(then > 7 * ns_per_s);
  CHECK(cost.of({1, 0}, start_ns + FenceCost::half_life_ns) < then / 2 + 1 * ns_per_ms);
  CHECK(cost.of({1, 0}, start_ns + 40 * FenceCost::half_life_ns) == 1 * ns_per_ms);
  CHECK(cost.hiccup_ns() == 0);
  CHECK(cost.of({1, 0}, start_ns) == 1 * ns_per_ms);  // also by a clock that is read earlier
}

TEST_CASE("FenceCost: quick ones count while they are new, then what was believed at first does again") {
  FenceCost cost({1 * ns_per_ms, 800 * ns_per_ms}, least);
  CHECK(cost.of({0, 1 * gib}, start_ns) == 800 * ns_per_ms);
  for (int i = 0; i < 200; ++i) cost.observe(1 * gib, 2 * ns_per_ms, start_ns);
  CHECK(cost.of({0, 1 * gib}, start_ns) == 100 * ns_per_ms);
  CHECK(cost.of({0, 1 * gib}, start_ns + FenceCost::half_life_ns) == 450 * ns_per_ms);
  CHECK(cost.of({0, 1 * gib}, start_ns + 40 * FenceCost::half_life_ns) == 800 * ns_per_ms);
}

TEST_CASE("FenceCost: all of them: twice what they take side by side, and the hiccup once") {
  CHECK(fence_ns_of(1000, 7, 4) == 507);
  CHECK(fence_ns_of(1000, 7, 0) == 2007);
  CHECK(fence_ns_of(UINT64_MAX, 0, 1) >= 1'000'000'000'000'000'000);
}

TEST_CASE(
    "HostLeaseTerms: the margin is a fifth, or twice what fencing takes; a renewal fits into what is left") {
  const HostLeaseTerms terms{10 * ns_per_s};
  CHECK(terms.agent_margin_ns_for(0) == 2 * ns_per_s);
  CHECK(terms.agent_margin_ns_for(1 * ns_per_s) == 2 * ns_per_s);
  CHECK(terms.agent_margin_ns_for(1'500 * ns_per_ms) == 3 * ns_per_s);
  CHECK(terms.agent_margin_ns_for(2'500 * ns_per_ms) == terms.agent_margin_ns_max());
  CHECK(terms.agent_margin_ns_for(2'501 * ns_per_ms) > terms.agent_margin_ns_max());
  CHECK(terms.agent_margin_ns_for(UINT64_MAX) > terms.agent_margin_ns_max());
  for (const uint64_t length_ns : {10 * ns_per_s, 30 * ns_per_s, 600 * ns_per_s}) {
    const HostLeaseTerms any{length_ns};
    CHECK(any.heartbeat_ns(any.agent_margin_ns()) == length_ns / 3);
    CHECK(any.answer_ns_max(any.agent_margin_ns()) == length_ns / 4);
    for (const uint64_t margin_ns : {any.agent_margin_ns(), length_ns / 3, any.agent_margin_ns_max()}) {
      CHECK(HostLeaseTerms::fence_ns_max(margin_ns) == margin_ns / 2);
      // Sent in time after an answer that came at once, and waited for to the last.
      CHECK(any.heartbeat_ns(margin_ns) + any.answer_ns_max(margin_ns) + margin_ns < length_ns);
      CHECK(any.heartbeat_ns(margin_ns) + any.answer_ns_max(margin_ns) <= any.silence_ns_max());
    }
  }
}
