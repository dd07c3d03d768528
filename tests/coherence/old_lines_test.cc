// SPDX-License-Identifier: Apache-2.0
// Lines that a host has of what others changed since, or that it has not written back, at the moments when they do
// most harm: too rare for worlds of chance, so that here the moment is chosen.
#include <doctest/doctest.h>

#include <array>
#include <utility>

#include "core/base/check.h"
#include "libclient/coherence/space_core.h"
#include "tests/coherence/emulated_hosts.h"

using namespace terrace;
using namespace terrace::coherence;

namespace {

// Two hosts whose caches do nothing of their own accord. Part 0 is of epoch 1's owner until `dead` is set.
struct Scene {
  static constexpr uint64_t words = 16;  // of a tensor: two lines

  Scene() {
    const Result<layout::SpaceHeader> header = plan_header(
        fabric.memory(), {.parts = 2, .records = 8, .pins = 8, .mode = layout::SpaceMode::noncoherent});
    TERRACE_CHECK(header.ok(), "the emulated space has room");
    geometry = *check_header(*header, fabric.memory());
    fabric.set_wildness(0);
  }
  EmulatedHost memory(uint32_t host) { return EmulatedHost(fabric, programs[host]); }
  SpaceCore<EmulatedHost> core(uint32_t host) {
    return SpaceCore<EmulatedHost>(memory(host), geometry, [this](uint32_t part, uint64_t epoch) {
      if (asked) std::exchange(asked, nullptr)();
      return dead && part == 0 && epoch == 1;
    });
  }
  static layout::TensorShape shape(std::string_view name, uint32_t slots) {
    return *plan_shape(name, DType::u64, Shape{words}, TensorHint::none, 0, slots);
  }
  static void fill(const EmulatedHost& memory, const Ticket& ticket, uint64_t value) {
    std::array<uint64_t, words> bytes;
    bytes.fill(value);
    memory.write(ticket.bytes.data(), bytes.data(), ticket.bytes.size());
  }
  void publish(SpaceCore<EmulatedHost>& core, uint32_t host, const Located& tensor, uint64_t value) {
    Ticket ticket;
    REQUIRE(core.own()->begin_write(tensor, &ticket) == Outcome::done);
    fill(memory(host), ticket, value);
    core.own()->publish(ticket, 0);
  }

  Fabric fabric{8 * 4096, 2, 1};
  Program programs[2] = {{.host = 0, .turn = [] {}}, {.host = 1, .turn = [] {}}};
  Geometry geometry;
  bool dead = false;
  std::function<void()> asked;  // what happens when somebody asks whether an owner is dead
};

}  // namespace

TEST_CASE("Coherence: no stale owner line says that a creator is dead") {
  Scene scene;
  auto first = scene.core(1), heir = scene.core(1), creator = scene.core(0);
  creator.become_owner(1, 1, 0);
  first.become_owner(0, 1, 1);
  (void)scene.memory(0).load(&scene.geometry.owner(0)->epoch);  // as a look at the pins does
  scene.dead = true;
  heir.become_owner(0, 2, 1);
  Located theirs, mine;
  // The heir has looked at the creator's part, in which there is no such name yet, and confirms next.
  REQUIRE(heir.own()->place("t", Scene::shape("t", 2), &theirs) == Outcome::done);
  CHECK(creator.create("t", Scene::shape("t", 2), &mine) == Outcome::raced);
}

TEST_CASE("Coherence: no stale record keeps a tensor out of a list") {
  Scene scene;
  auto owner = scene.core(1), reader = scene.core(0);
  owner.become_owner(0, 1, 1);
  Located tensor, seen;
  REQUIRE(owner.create("t", Scene::shape("t", 2), &tensor) == Outcome::done);
  REQUIRE(owner.own()->remove(tensor) == Outcome::done);
  // The reader looks at each record, as list() does, before and after it is there again.
  uint64_t word = 0;
  CHECK(reader.reader().describe(0, tensor.record, {}, &seen, &word) == Outcome::gone);
  REQUIRE(owner.create("t", Scene::shape("t", 2), &tensor) == Outcome::done);
  CHECK(reader.reader().describe(0, tensor.record, {}, &seen, &word) == Outcome::done);
  CHECK(seen.incarnation == tensor.incarnation);
}

TEST_CASE("Coherence: no stale word hides what an owner ended before its death was known") {
  Scene scene;
  auto owner = scene.core(1), reader = scene.core(0);
  owner.become_owner(0, 1, 1);
  reader.become_owner(1, 1, 0);
  Located tensor;
  REQUIRE(owner.create("t", Scene::shape("t", 2), &tensor) == Outcome::done);
  scene.publish(owner, 1, tensor, 1);
  // Its removal: the mark, a look at the pins, the end. The reader pins behind the look, and sees the mark.
  const EmulatedHost memory = scene.memory(1);
  layout::TensorSlots* const line = &scene.geometry.record(0, tensor.record)->slots;
  const auto set_word = [&](uint64_t word) {
    memory.store(&line->word, word);
    memory.write_back(line, sizeof *line, Step::none);
    memory.store_barrier(Step::none);
  };
  const uint64_t before = memory.load(&line->word);
  set_word(before | layout::word_retiring);
  scene.dead = true;
  scene.asked = [&] { set_word(version_of(before) + 4); };
  uint32_t pin = 0;
  uint64_t version = 0;
  std::span<const std::byte> bytes;
  CHECK(reader.pin(tensor, &pin, &version, &bytes) == Outcome::raced);
  CHECK(scene.asked == nullptr);
}

TEST_CASE("Coherence: no stale line of an owner that left comes down on the next one's") {
  Scene scene;
  auto left = scene.core(0), next = scene.core(1), writer = scene.core(1);
  writer.become_owner(1, 1, 1);
  Located pinned, own;
  REQUIRE(writer.create("pinned", Scene::shape("pinned", 1), &pinned) == Outcome::done);
  scene.publish(writer, 1, pinned, 1);
  left.become_owner(0, 1, 0);
  REQUIRE(left.create("own", Scene::shape("own", 2), &own) == Outcome::done);
  scene.publish(left, 0, own, 2);
  Ticket given_up;
  REQUIRE(left.own()->begin_write(own, &given_up) == Outcome::done);
  Scene::fill(scene.memory(0), given_up, 3);
  left.own()->abort(given_up, true);
  left.own()->release();
  next.become_owner(0, 2, 1);
  scene.publish(next, 1, own, 4);
  uint32_t pin = 0;
  uint64_t version = 0;
  std::span<const std::byte> bytes;
  REQUIRE(next.pin(pinned, &pin, &version, &bytes) == Outcome::done);
  // All that the first one's host still has goes where caches put it.
  scene.fabric.fence(0, scene.fabric.memory().data(), scene.fabric.memory().size());
  Ticket refused;
  CHECK(writer.own()->begin_write(pinned, &refused) == Outcome::pinned);
  std::array<uint64_t, Scene::words> copy{};
  CHECK(writer.reader().read(own, std::as_writable_bytes(std::span(copy)), 0, &version) == Outcome::done);
  for (const uint64_t word : copy) CHECK(word == 4);
}
