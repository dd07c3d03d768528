// SPDX-License-Identifier: Apache-2.0
// A chunk that was given back in a cache only, when the host loses power: too rare for worlds of chance, so that here
// the moment is chosen.
#include <doctest/doctest.h>

#include "core/base/check.h"
#include "libclient/coherence/space_core.h"
#include "tests/coherence/emulated_hosts.h"

using namespace terrace;
using namespace terrace::coherence;

namespace {

// Two parts, and one chunk.
Geometry small_space(std::span<std::byte> memory) {
  const Result<layout::SpaceHeader> header =
      plan_header(memory, {.parts = 2, .records = 8, .pins = 8, .mode = layout::SpaceMode::noncoherent});
  TERRACE_CHECK(header.ok(), "the emulated space has room");
  return *check_header(*header, memory);
}

// Whether a tensor outlasts the power cut of its host. It has a chunk that another program of that host was giving
// back: that one had stored it, not written it back, before the creator's access `moment`, and never went on.
// `seed`: which lines come out of the cache before the power is gone.
bool outlasts_power_cut(uint64_t moment, uint64_t seed, Step left_out) {
  Fabric fabric(4 * 4096, 2, seed);
  fabric.leave_out(left_out);
  fabric.set_wildness(0);
  const Geometry geometry = small_space(fabric.memory());
  const IsDead nobody = [](uint32_t, uint64_t) { return false; };
  Program giving{.host = 0, .turn = [] {}}, taking{.host = 0, .turn = [] {}}, later{.host = 1, .turn = [] {}};
  SpaceCore<EmulatedHost> giver(EmulatedHost(fabric, giving), geometry, nobody);
  SpaceCore<EmulatedHost> taker(EmulatedHost(fabric, taking), geometry, nobody);
  SpaceCore<EmulatedHost> heir(EmulatedHost(fabric, later), geometry, nobody);
  const layout::TensorShape shape = *plan_shape("old", DType::u8, Shape{64}, TensorHint::none, 0, 1);
  giver.become_owner(0, 1, 0);
  taker.become_owner(1, 1, 0);
  Located old, made;
  // From here on the taker knows the chunk for free, and claims it without a look before.
  REQUIRE(taker.create("new", shape, &made) == Outcome::done);
  REQUIRE(taker.own()->remove(made) == Outcome::done);
  REQUIRE(giver.create("old", shape, &old) == Outcome::done);
  giving.turn = [&] { giving.killed = fabric.load(0, geometry.claim(0, 0)) == 0; };
  uint64_t accesses = 0;
  taking.turn = [&] {
    if (accesses++ == moment) CHECK_THROWS_AS((void)giver.own()->remove(old), Killed);
  };
  const bool created = taker.create("new", shape, &made) == Outcome::done;
  fabric.lose_power(0);
  heir.become_owner(1, 2, 1);
  return !created || heir.find("new", &made) == Outcome::done;
}

}  // namespace

TEST_CASE("Coherence: no stale claim comes back with a power cut") {
  int lost = 0;
  for (uint64_t moment = 0; moment < 200; ++moment)
    for (uint64_t seed = 0; seed < 8; ++seed) {
      CHECK(outlasts_power_cut(moment, seed, Step::none));
      lost += !outlasts_power_cut(moment, seed, Step::claims_seen_kept);
    }
  CHECK(lost > 0);
}
