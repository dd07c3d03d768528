// SPDX-License-Identifier: Apache-2.0
// Learning the order of a step: what is taken for the same order, and what for another.
#include "libclient/placement/order.h"

#include <doctest/doctest.h>

#include <numeric>
#include <vector>

using namespace terrace::placement;
using Step = OrderLearner::Step;

namespace {

// One granule each.
Step run(OrderLearner& learner, const std::vector<uint32_t>& order) {
  for (const uint32_t granule : order) learner.closed(learner.opened(granule, 1));
  return learner.step();
}

}  // namespace

TEST_CASE("OrderLearner: two steps of one order are needed, and enough") {
  OrderLearner learner;
  CHECK(run(learner, {1, 2, 3, 2}) == Step::observing);
  CHECK_FALSE(learner.known());
  CHECK(run(learner, {1, 2, 3, 2}) == Step::learned);
  REQUIRE(learner.known());
  REQUIRE(learner.cycle().size() == 4);
  CHECK(learner.cycle()[3].first == 2);
  CHECK(run(learner, {1, 2, 3, 2}) == Step::following);
  CHECK(learner.deviations() == 0);
}

TEST_CASE("OrderLearner: a read and a write of one place right behind each other are one use") {
  OrderLearner learner;
  CHECK(run(learner, {1, 1, 2}) == Step::observing);
  CHECK(run(learner, {1, 2, 2, 2}) == Step::learned);
  CHECK(learner.cycle().size() == 2);
}

TEST_CASE("OrderLearner: a part of a tensor is another use than all of it") {
  OrderLearner learner;
  learner.opened(0, 8);
  learner.step();
  learner.opened(0, 4);
  CHECK(learner.step() == Step::observing);
}

TEST_CASE("OrderLearner: empty steps teach nothing") {
  OrderLearner learner;
  for (int i = 0; i < 3; ++i) CHECK(learner.step() == Step::observing);
  CHECK_FALSE(learner.known());
}

TEST_CASE("OrderLearner: the position follows, over skipped uses and around unknown ones") {
  OrderLearner learner;
  std::vector<uint32_t> order(40);
  std::iota(order.begin(), order.end(), 0u);
  run(learner, order);
  REQUIRE(run(learner, order) == Step::learned);
  for (uint32_t i = 0; i < 10; ++i) learner.opened(i, 1);
  CHECK(learner.position() == 10);
  learner.opened(13, 1);  // three skipped
  CHECK(learner.position() == 14);
  learner.opened(900, 1);  // nobody knows it
  CHECK(learner.position() == 14);
  learner.opened(11, 1);  // late, not new
  CHECK(learner.position() == 14);
  learner.opened(14, 1);
  CHECK(learner.position() == 15);
  for (uint32_t i = 15; i < 40; ++i) learner.opened(i, 1);
  CHECK(learner.step() == Step::following);
  CHECK(learner.deviations() == 4);
}

TEST_CASE("OrderLearner: another order is forgotten at once and learned after two steps") {
  OrderLearner learner;
  std::vector<uint32_t> order(40), other(40);
  std::iota(order.begin(), order.end(), 0u);
  std::iota(other.rbegin(), other.rend(), 100u);
  run(learner, order);
  REQUIRE(run(learner, order) == Step::learned);
  CHECK(run(learner, other) == Step::forgotten);
  CHECK_FALSE(learner.known());
  CHECK(run(learner, other) == Step::learned);
  CHECK(learner.cycle()[0].first == 139);
}

TEST_CASE("OrderLearner: a small change that stays is taken over without forgetting") {
  OrderLearner learner;
  std::vector<uint32_t> order(40);
  std::iota(order.begin(), order.end(), 0u);
  run(learner, order);
  REQUIRE(run(learner, order) == Step::learned);
  order.insert(order.begin() + 20, 77);
  CHECK(run(learner, order) == Step::following);
  CHECK(run(learner, order) == Step::learned);
  CHECK(learner.cycle().size() == 41);
}

TEST_CASE(
    "OrderLearner: how long guards stay open is noted, and a guard of an earlier step closes harmlessly") {
  OrderLearner learner;
  for (int step = 0; step < 2; ++step) {
    const uint64_t first = learner.opened(1, 1);
    learner.closed(learner.opened(2, 1));
    learner.closed(learner.opened(3, 1));
    learner.closed(first);
    learner.closed(learner.opened(4, 1));
    learner.step();
    learner.closed(first);
  }
  REQUIRE(learner.known());
  CHECK(learner.cycle()[0].positions == 3);
  CHECK(learner.cycle()[1].positions == 1);
}

TEST_CASE("OrderLearner: a guard that is open at the step's end is in use until then") {
  OrderLearner learner;
  for (int step = 0; step < 2; ++step) {
    const uint64_t first = learner.opened(1, 1);
    for (uint32_t i = 2; i < 6; ++i) learner.closed(learner.opened(i, 1));
    learner.step();
    learner.closed(first);
  }
  REQUIRE(learner.known());
  CHECK(learner.cycle()[0].positions == 5);
  CHECK(learner.cycle()[1].positions == 1);
}

TEST_CASE("OrderLearner: a step that is too long is not learned") {
  OrderLearner learner({.uses_max = 4});
  for (int i = 0; i < 3; ++i) CHECK(run(learner, {1, 2, 3, 4, 5}) == Step::observing);
  CHECK(run(learner, {1, 2}) == Step::observing);
  CHECK(run(learner, {1, 2}) == Step::learned);
}
