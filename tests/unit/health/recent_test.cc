// SPDX-License-Identifier: Apache-2.0
#include "daemon/health/recent.h"

#include <doctest/doctest.h>

using namespace terrace::daemon;

TEST_CASE("Recent: what a counter grew by counts for a window, and no longer") {
  Recent recent(1000);
  CHECK(recent.note(3, 100) == 3);  // since the counter's begin
  CHECK(recent.note(3, 600) == 3);
  CHECK(recent.note(5, 1000) == 5);
  CHECK(recent.note(5, 1200) == 2);
  CHECK(recent.note(5, 1999) == 2);
  CHECK(recent.note(5, 2100) == 0);
  CHECK(recent.note(9, 50'000) == 4);
  CHECK(recent.note(9, 51'100) == 0);
  CHECK(recent.note(2, 51'200) == 0);  // it began again
  CHECK(recent.note(4, 51'300) == 2);
}

TEST_CASE("Recent: many looks within a moment keep what they saw") {
  Recent recent(64'000);
  uint64_t value = 0;
  for (uint64_t now = 1; now <= 10'000; ++now) CHECK(recent.note(++value, now) == value);
  CHECK(recent.note(value, 80'000) == 0);
}

TEST_CASE("Backlog: work is behind when what waited at the window's begin is not done at its end") {
  Backlog erasing(100);
  CHECK_FALSE(erasing.note(0, 50, 10));
  CHECK_FALSE(erasing.note(10, 40, 100));
  CHECK(erasing.note(40, 10, 110));        // the first 50 have waited for 100, and 10 of them still do
  CHECK_FALSE(erasing.note(50, 70, 120));  // others do, since a moment
  CHECK_FALSE(erasing.note(90, 60, 200));  // always something to do, and nothing that waits for long
  CHECK_FALSE(erasing.note(120, 90, 220));
  CHECK_FALSE(erasing.note(150, 90, 310));
  CHECK(erasing.note(150, 90, 420));
  CHECK_FALSE(erasing.note(150, 0, 430));  // it was forgotten: a recovery begins anew
}
