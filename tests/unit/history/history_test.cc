// SPDX-License-Identifier: Apache-2.0
// The ring of the last hour: its bounds, and pools that come and go.
#include "daemon/history/history.h"

#include <doctest/doctest.h>

using namespace terrace;
using namespace terrace::daemon;

TEST_CASE("History: the oldest moment goes when there are too many") {
  History history(3);
  for (uint64_t at = 1; at <= 5; ++at) history.add({.at_ns = at, .grants = at * 10});
  REQUIRE(history.moments().size() == 3);
  CHECK(history.moments().front().at_ns == 3);
  CHECK(history.moments().back().grants == 50);
}

TEST_CASE("History: a moment that is not newer than the last is not taken") {
  History history(3);
  history.add({.at_ns = 5});
  history.add({.at_ns = 5, .grants = 1});
  history.add({.at_ns = 4});
  REQUIRE(history.moments().size() == 1);
  CHECK(history.moments()[0].grants == 0);
}

TEST_CASE("History: pools that come and go keep their rows") {
  History history;
  history.add({.at_ns = 1, .pools = {{.name = "a", .leased_bytes = 7}}});
  history.add({.at_ns = 2, .pools = {{.name = "b"}, {.name = "a"}}});
  history.add({.at_ns = 3, .pools = {{.name = "b", .waiting = 2}}});
  CHECK(history.pool_names() == std::vector<std::string>{"a", "b"});
  REQUIRE(find_pool(history.moments()[0], "a") != nullptr);
  CHECK(find_pool(history.moments()[0], "a")->leased_bytes == 7);
  CHECK(find_pool(history.moments()[0], "b") == nullptr);
  CHECK(find_pool(history.moments()[2], "b")->waiting == 2);
}

TEST_CASE("History: of too many pools the last are left out") {
  History history(2, 2);
  history.add({.at_ns = 1, .pools = {{.name = "a"}, {.name = "b"}, {.name = "c"}}});
  CHECK(history.pool_names() == std::vector<std::string>{"a", "b"});
}
