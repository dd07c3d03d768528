// SPDX-License-Identifier: Apache-2.0
// The timing rule between an agent and its manager, with made-up clocks and delays: the agent has always begun,
// and by its margin finished, to fence before the manager relies on it.
#include "daemon/model/host_lease.h"

#include <doctest/doctest.h>

#include <vector>

#include "core/base/prng.h"
#include "core/base/units.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

// A clock that began at some other time and goes `skew_ppm` too fast (or slow, below 0).
struct SkewedClock {
  uint64_t offset_ns = 0;
  int64_t skew_ppm = 0;
  uint64_t at(uint64_t true_ns) const {
    const auto drift = static_cast<int64_t>(true_ns / 1000) * skew_ppm / 1000;
    return offset_ns + true_ns + static_cast<uint64_t>(drift);
  }
};

struct Message {
  uint64_t sent_ns = 0;      // true time
  uint64_t received_ns = 0;  // true time; UINT64_MAX: lost
  uint64_t answered_ns = 0;  // true time when the answer is there; UINT64_MAX: lost
};

// One life of an agent: heartbeats, some of them late or lost, until both sides' ends have passed. Returns by
// how much (true time) the agent's end of fencing was before the manager's.
int64_t slack_of_one_life(Prng& random, int64_t skew_limit_ppm) {
  const HostLeaseTerms terms{random.below(60'000) * ns_per_ms + ns_per_s};
  const auto skew = [&] { return static_cast<int64_t>(random.below(2 * skew_limit_ppm + 1)) - skew_limit_ppm; };
  // The true rates differ by the sum of both: half of the limit each.
  const SkewedClock agent{random.below(ns_per_s * 1000), skew() / 2};
  const SkewedClock manager{random.below(ns_per_s * 1000), skew() / 2};
  HostLeasePromise promise(terms);
  HostLeaseCount count(terms);
  uint64_t now_ns = ns_per_s;
  count.begin(manager.at(now_ns));
  bool first = true;
  const uint64_t lost_one_in = 1 + random.below(6);
  for (;;) {
    // What is leased changes, and with it the margin; what was refused is not leased.
    if (random.below(2) == 0) {
      const uint64_t margin_ns = terms.agent_margin_ns_for(random.below(terms.length_ns / 4 + 1));
      const uint64_t before_ns = promise.fence_at_ns(), at_ns = agent.at(now_ns);
      if (promise.set_margin(margin_ns, at_ns)) {
        if (before_ns != 0) REQUIRE(promise.fence_at_ns() > at_ns);
      } else {
        REQUIRE(promise.fence_at_ns() == before_ns);
      }
    }
    Message message;
    message.sent_ns = now_ns;
    const uint64_t delay_max = random.below(4) == 0 ? terms.length_ns : terms.length_ns / 20;
    message.received_ns = message.sent_ns + random.below(delay_max + 1);
    message.answered_ns = message.received_ns + random.below(delay_max + 1);
    const bool lost = !first && random.below(lost_one_in) == 0;
    const bool answer_lost = !first && random.below(lost_one_in + 1) == 0;
    if (!lost) {
      const bool heard = first ? (count.begin(manager.at(message.received_ns)), true)
                               : count.heard(manager.at(message.received_ns));
      if (heard && !answer_lost) promise.answered(agent.at(message.sent_ns), agent.at(message.answered_ns));
      if (!heard) break;
    }
    first = false;
    if (lost || answer_lost) {
      if (random.below(2) == 0) break;
      now_ns = message.sent_ns + terms.answer_ns_max(promise.margin_ns());
    } else {
      now_ns = message.answered_ns + random.below(terms.heartbeat_ns(promise.margin_ns()) + 1);
    }
    if (promise.fence_at_ns() == 0 || !promise.holds(agent.at(now_ns)))
      break;  // it has fenced; it would register anew
  }
  if (promise.fence_at_ns() == 0) return 1;
  // In true time: when the agent has fenced (its margin is the time it has for that), and when the manager
  // relies on it.
  const auto true_time = [](const SkewedClock& clock, uint64_t local_ns) {
    const double rate = 1.0 + static_cast<double>(clock.skew_ppm) / 1e6;
    return static_cast<double>(local_ns - clock.offset_ns) / rate;
  };
  const double fenced = true_time(agent, promise.fence_at_ns() + promise.margin_ns());
  const double relied_on = true_time(manager, count.end_ns());
  return static_cast<int64_t>(relied_on - fenced);
}

}  // namespace

TEST_CASE("HostLease: the agent has fenced before the manager relies on it, whatever is late or lost (T1)") {
  Prng random(4);
  int64_t least = INT64_MAX;
  for (int life = 0; life < 200'000; ++life) {
    const int64_t slack = slack_of_one_life(random, 80'000);  // clocks up to 8% apart
    if (slack < least) least = slack;
    REQUIRE(slack > 0);
  }
  CHECK(least > 0);
}

TEST_CASE("HostLease: clocks that differ by more than the margin break the rule, so the test would notice") {
  Prng random(5);
  bool broken = false;
  for (int life = 0; life < 20'000 && !broken; ++life) broken = slack_of_one_life(random, 400'000) <= 0;
  CHECK(broken);
}

TEST_CASE("HostLease: an end that has passed is never extended (T2)") {
  const HostLeaseTerms terms{10 * ns_per_s};
  HostLeaseCount count(terms);
  count.begin(100 * ns_per_s);
  CHECK(count.end_ns() == 111 * ns_per_s);
  CHECK(count.heard(110 * ns_per_s));
  CHECK(count.end_ns() == 121 * ns_per_s);
  CHECK(!count.lapsed(120 * ns_per_s));
  CHECK(count.lapsed(121 * ns_per_s));
  CHECK(!count.heard(120 * ns_per_s));  // also not by a clock that is read earlier
  CHECK(count.lapsed(0));
  count.begin(130 * ns_per_s);
  CHECK(!count.lapsed(130 * ns_per_s));

  HostLeasePromise promise(terms);
  CHECK(!promise.holds(0));
  CHECK(promise.answered(50 * ns_per_s, 51 * ns_per_s));
  CHECK(promise.fence_at_ns() == 58 * ns_per_s);
  CHECK(promise.answered(49 * ns_per_s, 52 * ns_per_s));  // an older one's answer takes nothing away
  CHECK(promise.fence_at_ns() == 58 * ns_per_s);
  CHECK(!promise.answered(57 * ns_per_s, 58 * ns_per_s));
  CHECK(promise.fence_at_ns() == 58 * ns_per_s);
  CHECK(!promise.holds(58 * ns_per_s));
}

TEST_CASE("HostLease: a margin grows while there is time for it, and an end stays where it was (T2)") {
  const HostLeaseTerms terms{10 * ns_per_s};
  HostLeasePromise promise(terms);
  CHECK(promise.set_margin(2 * ns_per_s, 0));
  CHECK(promise.answered(50 * ns_per_s, 50 * ns_per_s));
  CHECK(promise.fence_at_ns() == 58 * ns_per_s);
  CHECK(promise.set_margin(4 * ns_per_s, 55 * ns_per_s));
  CHECK(promise.fence_at_ns() == 56 * ns_per_s);
  CHECK(!promise.set_margin(5 * ns_per_s, 55 * ns_per_s));  // it would have to fence now
  CHECK(promise.fence_at_ns() == 56 * ns_per_s);
  CHECK(promise.answered(55 * ns_per_s, 55'500 * ns_per_ms));
  CHECK(promise.fence_at_ns() == 61 * ns_per_s);
  CHECK(!promise.set_margin(2 * ns_per_s,
                            61 * ns_per_s));  // it has begun to fence: a smaller one takes nothing back
  CHECK(!promise.holds(61 * ns_per_s));
  CHECK(!promise.answered(60 * ns_per_s, 61 * ns_per_s));
}

TEST_CASE("HostLease: an answer that took longer than the lease promises nothing") {
  HostLeasePromise promise(HostLeaseTerms{10 * ns_per_s});
  CHECK(!promise.answered(1 * ns_per_s, 9 * ns_per_s));
  CHECK(promise.fence_at_ns() == 0);
}

TEST_CASE("HostLeaseCount: shorter terms count only when the agent has shown that it knows them") {
  constexpr uint64_t second = 1'000'000'000;
  HostLeaseCount before(HostLeaseTerms{600 * second});
  before.begin(0);
  HostLeaseCount now(HostLeaseTerms{10 * second});
  now.begin(100 * second);
  now.not_before(before.end_ns());
  CHECK_FALSE(now.lapsed(200 * second));  // its answer may have been lost: it relies on the 600 s
  CHECK(now.heard(210 * second));
  CHECK(now.end_ns() == 221 * second);
  CHECK(now.lapsed(221 * second));
}
