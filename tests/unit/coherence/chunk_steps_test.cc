// SPDX-License-Identifier: Apache-2.0
// The words by which parts claim chunks of the data: what each step leaves, who meets whom, and what a death or a
// damaged word leaves.
#include "tests/unit/coherence/steps_fixture.h"

using namespace terrace;
using namespace terrace::coherence;

namespace {

constexpr uint64_t none = 0, wanted = 1, owned = 2;
constexpr uint64_t chunk_bytes =
    512;  // fewer than a tensor of shape_of() with two slots needs: two chunks each

// Chunks that a part's words call `claim`.
uint32_t count(Steps& steps, uint32_t part, uint64_t claim) {
  const Geometry at = steps.geometry();
  uint32_t found = 0;
  for (uint32_t chunk = 0; chunk < at.chunks; ++chunk) found += *at.claim(part, chunk) == claim;
  return found;
}

layout::TensorShape shape_of_bytes(uint64_t bytes) {
  return *plan_shape("t", DType::u8, Shape{bytes}, TensorHint::none, 0, 1);
}

// All of the data is one chunk.
struct OneChunk : Steps {
  OneChunk() : Steps(1 << 20) { REQUIRE(geometry().chunks == 1); }
};

}  // namespace

TEST_CASE("Chunks: a tensor has the chunks below it until it is removed") {
  Steps steps(chunk_bytes);
  Located tensor;
  REQUIRE(steps.owner.create("t", shape_of_bytes(3 * chunk_bytes), &tensor) == Outcome::done);
  CHECK(count(steps, 0, owned) == 4);  // of the name, too
  CHECK(count(steps, 0, wanted) == 0);
  const uint32_t first = static_cast<uint32_t>(tensor.shape.extent_offset / chunk_bytes);
  for (uint32_t chunk = first; chunk < first + 4; ++chunk) CHECK(*steps.geometry().claim(0, chunk) == owned);
  REQUIRE(steps.owner.own()->remove(tensor) == Outcome::done);
  CHECK(count(steps, 0, none) == steps.geometry().chunks);
}

TEST_CASE("Chunks: a tensor that fits into what the part has claims nothing") {
  Steps steps;  // chunks of a page
  steps.create(steps.owner, "a", 1);
  const uint32_t before = count(steps, 0, owned);
  steps.create(steps.owner, "b", 1);
  CHECK(before == 1);
  CHECK(count(steps, 0, owned) == 1);
}

TEST_CASE(
    "Chunks: of two who want the last one, the later sees that the first asks for it, and leaves nothing") {
  OneChunk steps;
  int stores = 0;
  Located other;
  Outcome met = Outcome::done;
  ToldMemory::before_store = [&] {
    if (++stores != 2) return;  // behind the owner's `wanted`
    CHECK(count(steps, 0, wanted) == 1);
    met = steps.other.create("o", Steps::shape_of("o", 1), &other);
    CHECK(count(steps, 1, none) == 1);
  };
  steps.create(steps.owner, "t", 1);
  CHECK(met == Outcome::crowded);
  ToldMemory::before_store = nullptr;
  CHECK(steps.other.create("o", Steps::shape_of("o", 1), &other) == Outcome::full);
}

TEST_CASE("Chunks: who asked for one while another got it goes without") {
  OneChunk steps;
  steps.publish(steps.other, steps.create(steps.other, "first", 1), 1);
  // The owner saw it free before: it claims by what it knew.
  REQUIRE(steps.other.own()->remove([&] {
    Located found;
    REQUIRE(steps.other.find("first", &found) == Outcome::done);
    return found;
  }()) == Outcome::done);
  Located kept = steps.create(steps.owner, "t", 1);
  REQUIRE(steps.owner.own()->remove(kept) == Outcome::done);
  steps.create(steps.other, "o", 1);
  Located refused;
  CHECK(steps.owner.create("t", Steps::shape_of("t", 1), &refused) == Outcome::full);
  CHECK(count(steps, 0, none) == 1);
  CHECK(count(steps, 1, owned) == 1);
}

TEST_CASE("Chunks: a creator that dies at any store keeps what it wanted until its part is taken over") {
  at_each_store([](Steps&) { return 0; }, [](Steps& steps, int) { steps.create(steps.owner, "t", 2); },
                [](Steps& steps, int, bool) {
                  const uint64_t asked_for = count(steps, 0, wanted) + count(steps, 0, owned);
                  const uint64_t bytes = steps.geometry().data_bytes;
                  CHECK(Steps::free_bytes(steps.other) == bytes - asked_for * steps.geometry().chunk_bytes);
                  Core heir = steps.core();
                  heir.become_owner(0, 3, 0);
                  Located found;
                  const bool there_now = heir.find("t", &found) == Outcome::done;
                  CHECK(count(steps, 0, wanted) == 0);
                  CHECK(count(steps, 0, owned) == (there_now ? 1u : 0u));
                });
}

TEST_CASE("Chunks: one that a dead holder wanted is taken, and nobody waits for it") {
  OneChunk steps;
  *steps.geometry().claim(0, 0) = wanted;
  Located refused;
  CHECK(steps.other.create("o", Steps::shape_of("o", 1), &refused) == Outcome::crowded);
  steps.dead_part = 0;
  steps.dead_epoch = 1;
  CHECK(steps.other.create("o", Steps::shape_of("o", 1), &refused) == Outcome::full);
  Core heir = steps.core();
  heir.become_owner(0, 2, 0);
  CHECK(steps.other.create("o", Steps::shape_of("o", 1), &refused) == Outcome::done);
}

TEST_CASE("Chunks: a take-over that dies at any store is done again, and gives back what is empty") {
  at_each_store(
      [](Steps& steps) {
        const Located kept = steps.create(steps.owner, "kept", 1);
        *steps.geometry().claim(0, steps.geometry().chunks - 1) = owned;  // died before it gave it back
        *steps.geometry().claim(0, steps.geometry().chunks - 2) = wanted;
        return kept;
      },
      [](Steps& steps, const Located&) { steps.core().become_owner(0, 2, 0); },
      [](Steps& steps, const Located& kept, bool) {
        Core heir = steps.core();
        heir.become_owner(0, 3, 0);
        CHECK(count(steps, 0, owned) == 1);
        CHECK(count(steps, 0, none) == steps.geometry().chunks - 1);
        CHECK(Steps::free_bytes(heir) == steps.geometry().data_bytes - kept.shape.extent_bytes);
      });
}

TEST_CASE("Chunks: words that make no sense are nobody's room, and are cleared by the part's next owner") {
  for (const uint64_t odd : {uint64_t{3}, uint64_t{4}, ~uint64_t{0}, uint64_t{1} << 63}) {
    Steps steps;
    const Geometry at = steps.geometry();
    for (uint32_t chunk = 0; chunk < at.chunks; ++chunk) *at.claim(0, chunk) = odd;
    CHECK(Steps::free_bytes(steps.other) == 0);
    Located refused;
    CHECK(steps.other.create("o", Steps::shape_of("o", 1), &refused) == Outcome::full);
    Core heir = steps.core();
    heir.become_owner(0, 2, 0);
    CHECK(count(steps, 0, none) == at.chunks);
    CHECK(Steps::free_bytes(steps.other) == at.data_bytes);
  }
}

TEST_CASE("Chunks: a tensor outside its part's chunks, or in a chunk of two parts, is gone at the take-over") {
  // The word of the tensor's chunk in its part; `owned`: in the other part.
  for (const uint64_t left : {none, wanted, uint64_t{3}, owned}) {
    Steps steps;
    const Located tensor = steps.create(steps.owner, "t", 1), theirs = steps.create(steps.other, "o", 1);
    steps.publish(steps.owner, tensor, 1);
    steps.publish(steps.other, theirs, 2);
    const auto chunk = static_cast<uint32_t>(tensor.shape.extent_offset / steps.geometry().chunk_bytes);
    *steps.geometry().claim(left == owned ? 1 : 0, chunk) = left;
    steps.dead_part = 0;
    steps.dead_epoch = 1;
    Core heir = steps.core();
    heir.become_owner(0, 2, 0);
    CHECK_FALSE(steps.value(steps.other, tensor).has_value());
    CHECK(steps.value(steps.other, theirs) == 2);
    CHECK(*steps.geometry().claim(0, chunk) == none);
    CHECK(count(steps, 0, owned) == 0);
  }
}
