// SPDX-License-Identifier: Apache-2.0
// The queue of a pool by itself: order, turns and their phases.
#include "daemon/model/waiting_queue.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "core/base/limits.h"
#include "core/base/prng.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

constexpr uint64_t second = ns_per_s;

std::vector<uint64_t> order_of(const WaitingQueue& queue) {
  std::vector<uint64_t> ids;
  for (const LeaseId id : queue.in_order()) ids.push_back(id.value);
  return ids;
}

}  // namespace

TEST_CASE("WaitingQueue: one request of each tenant in turn, those never served in the order of arrival") {
  WaitingQueue queue;
  queue.add(LeaseId{1}, "flood", 1, 0);
  queue.add(LeaseId{2}, "flood", 1, 0);
  queue.add(LeaseId{3}, "flood", 1, 0);
  queue.add(LeaseId{4}, "late", 1, 0);
  queue.add(LeaseId{5}, "later", 1, 0);
  queue.add(LeaseId{6}, "late", 1, 0);
  CHECK(order_of(queue) == std::vector<uint64_t>{1, 4, 5, 2, 6, 3});
  queue.remove(LeaseId{1}, "flood", true);
  CHECK(order_of(queue) == std::vector<uint64_t>{4, 5, 2, 6, 3});
  queue.begin_turn(LeaseId{3}, 0, second);  // whoever has the turn is the first
  CHECK(order_of(queue) == std::vector<uint64_t>{3, 4, 5, 2, 6});
  queue.remove(LeaseId{4}, "late", false);  // given up: no service
  CHECK(order_of(queue) == std::vector<uint64_t>{3, 5, 6, 2});
  queue.remove(LeaseId{3}, "flood", false);  // a turn that passes unused is one
  CHECK(order_of(queue) == std::vector<uint64_t>{5, 6, 2});
  CHECK(queue.problems().empty());
}

TEST_CASE("WaitingQueue: a turn is open as long as it keeps room, in pairs that double up to a bound") {
  WaitingQueue queue;
  queue.add(LeaseId{1}, "a", 1, 0);
  queue.begin_turn(LeaseId{1}, 0, 3600 * second);
  uint64_t open_ns = 0, held_ns = 0, longest_ns = 0, now_ns = 0, first_long_ns = 0;
  while (now_ns < 3600 * second) {
    const uint64_t phase_ns = queue.phase_ends_ns() - now_ns;
    (queue.held() ? held_ns : open_ns) += phase_ns;
    if (queue.held()) longest_ns = std::max(longest_ns, phase_ns);
    if (queue.held() && phase_ns >= 120 * second && first_long_ns == 0) first_long_ns = now_ns;
    CHECK(held_ns <= open_ns);
    now_ns = queue.phase_ends_ns();
    queue.next_phase(now_ns, true);
  }
  CHECK(longest_ns == limits::queue_hold_ns_max);
  CHECK(first_long_ns < 6 * 120 * second);
  CHECK(held_ns > 1500 * second);
}

TEST_CASE("WaitingQueue: who waits for a little has two holds, and what cannot fit has none") {
  WaitingQueue queue;
  queue.add(LeaseId{1}, "a", 1, 0);
  queue.begin_turn(LeaseId{1}, 0, 6 * second);
  CHECK(queue.phase_ends_ns() == second);
  queue.next_phase(second, true);
  CHECK(queue.held());
  CHECK(queue.phase_ends_ns() == 2 * second);
  queue.next_phase(2 * second, true);
  CHECK_FALSE(queue.held());
  CHECK(queue.phase_ends_ns() == 4 * second);
  queue.next_phase(4 * second, false);
  CHECK_FALSE(queue.held());
  queue.next_phase(6 * second, true);
  CHECK(queue.held());
}

TEST_CASE("WaitingQueue: a turn that may last longer is open for longer before it keeps room for longer") {
  WaitingQueue queue;
  queue.add(LeaseId{1}, "a", 1, 0);
  queue.begin_turn(LeaseId{1}, 0, 6 * second);
  queue.prolong_turn(60 * second);
  CHECK(queue.phase_ends_ns() == 10 * second);
  queue.next_phase(10 * second, true);
  queue.prolong_turn(120 * second);
  CHECK(queue.phase_ends_ns() == 20 * second);  // the hold is as long as was promised to the others
  queue.next_phase(20 * second, true);
  CHECK(queue.phase_ends_ns() == 60 * second);
  queue.prolong_turn(second);  // never shorter
  CHECK(queue.phase_ends_ns() == 60 * second);
}

TEST_CASE("WaitingQueue: requests by size, oldest first") {
  WaitingQueue queue;
  for (uint64_t i = 1; i <= 4; ++i) queue.add(LeaseId{i}, "a", 5 - i, 7);
  CHECK(queue.smallest_bytes() == 1);
  CHECK(queue.requests("a", 2) == std::vector<LeaseId>{LeaseId{3}, LeaseId{4}});
  CHECK(queue.requests("a", 0).empty());
  CHECK(queue.requests("b", 9).empty());
  CHECK(queue.since_ns(LeaseId{2}, "a") == 7);
  CHECK(queue.since_ns(LeaseId{9}, "a") == 0);
}

TEST_CASE("WaitingQueue: as the dice fall it stays what its requests say") {
  Prng prng(11);
  WaitingQueue queue;
  std::vector<std::pair<LeaseId, std::string>> in;
  for (uint64_t i = 1; i < 4000; ++i) {
    if (in.empty() || prng.chance(1, 2)) {
      in.emplace_back(LeaseId{i}, "t-" + std::to_string(prng.below(7)));
      queue.add(in.back().first, in.back().second, prng.between(1, 9), i);
    } else {
      const size_t at = prng.below(in.size());
      queue.remove(in[at].first, in[at].second, prng.chance(1, 2));
      in.erase(in.begin() + static_cast<std::ptrdiff_t>(at));
    }
    if (!queue.empty() && !queue.turn().valid()) queue.begin_turn(queue.next(), i, second);
    if (!queue.empty() && prng.chance(1, 5)) queue.next_phase(i, prng.chance(1, 2));
    REQUIRE(queue.problems().empty());
    REQUIRE(queue.size() == in.size());
    REQUIRE(queue.in_order().size() == in.size());
    if (!queue.empty()) REQUIRE(queue.in_order().front() == queue.turn());
  }
}
