// SPDX-License-Identifier: Apache-2.0
#include "libclient/coherence/word.h"

#include <doctest/doctest.h>

using namespace terrace::coherence;
namespace layout = terrace::layout;

namespace {
constexpr uint64_t live = layout::word_live | layout::word_linked;
}

TEST_CASE("Word: what may be read follows from flags and version") {
  CHECK(stable_of(live | 8, 1).version == 8);
  CHECK(stable_of(live | 9, 1).outcome == Outcome::writing);
  CHECK(stable_of(live | 9, 2).version == 8);
  CHECK(stable_of(live | layout::word_blank | 9, 2).outcome == Outcome::blank);
  CHECK(stable_of(live | layout::word_retiring | 8, 1).version == 8);
  CHECK(stable_of(live | layout::word_tentative | 8, 1).outcome == Outcome::gone);
  CHECK(stable_of(layout::word_linked | 8, 1).outcome == Outcome::gone);
  CHECK(stable_of(0, 2).outcome == Outcome::gone);
  CHECK(stable_of(live | 1, 2).outcome == Outcome::blank);  // no version is 0
}

TEST_CASE("Word: a slot holds its version until it is written again") {
  for (uint64_t version = 2; version < 40; version += 2) {
    CHECK(slot_of(version, 2) != slot_of(version + 2, 2));
    CHECK(slot_of(version, 2) == slot_of(version + 4, 2));  // what a take-over and an abort rest on
    CHECK(slot_of(version, 1) == 0);
    CHECK(still_holds(live | version, version, 1));
    CHECK_FALSE(still_holds(live | (version + 1), version, 1));
    CHECK(still_holds(live | (version + 1), version, 2));
    CHECK(still_holds(live | (version + 2), version, 2));
    CHECK_FALSE(still_holds(live | (version + 3), version, 2));
    CHECK_FALSE(still_holds(live | (version - 2), version, 2));
    CHECK_FALSE(still_holds(layout::word_linked | version, version, 2));
    CHECK_FALSE(still_holds(live | layout::word_blank | version, version, 1));
  }
}
