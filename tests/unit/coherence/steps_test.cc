// SPDX-License-Identifier: Apache-2.0
// What each step leaves in the memory, as docs/formats/tensor_space.md names it; and what is left when the
// owner dies at any of its stores.
#include "tests/unit/coherence/steps_fixture.h"

using namespace terrace;
using namespace terrace::coherence;

TEST_CASE("Steps: each leaves the word that the format names") {
  for (const uint32_t slots : {1u, 2u}) {
    Steps steps;
    Located tensor;
    REQUIRE(steps.owner.own()->place("t", Steps::shape_of("t", slots), &tensor) == Outcome::done);
    CHECK(steps.word(tensor) == (there | layout::word_blank | layout::word_tentative | 4));
    CHECK(tensor.incarnation == 1);
    CHECK(steps.geometry().record(0, tensor.record)->slots.owner_epoch == 1);
    steps.owner.own()->confirm(tensor);
    CHECK(steps.word(tensor) == (there | layout::word_blank | 4));
    Ticket ticket, second;
    REQUIRE(steps.owner.own()->begin_write(tensor, &ticket) == Outcome::done);
    CHECK(steps.word(tensor) == (there | layout::word_blank | 5));
    // Another thread of its holder.
    CHECK(steps.owner.own()->begin_write(tensor, &second) == Outcome::writing);
    CHECK(steps.owner.own()->remove(tensor) == Outcome::writing);
    CHECK(steps.word(tensor) == (there | layout::word_blank | 5));
    Steps::fill(ticket, 1);
    steps.owner.own()->publish(ticket, 0);
    CHECK(steps.word(tensor) == (there | 6));
    REQUIRE(steps.owner.own()->begin_write(tensor, &ticket) == Outcome::done);
    CHECK(steps.word(tensor) == (there | 7));
    steps.owner.own()->abort(ticket, false);
    CHECK(steps.word(tensor) == (there | 6));
    REQUIRE(steps.owner.own()->begin_write(tensor, &ticket) == Outcome::done);
    Steps::fill(ticket, 2);
    steps.owner.own()->abort(ticket, true);
    CHECK(steps.word(tensor) == (slots == 2 ? there | 10 : there | layout::word_blank | 8));
    CHECK(steps.value(steps.other, tensor) == (slots == 2 ? std::optional(1) : std::nullopt));
    const uint64_t version = version_of(steps.word(tensor));
    REQUIRE(steps.owner.own()->remove(tensor) == Outcome::done);
    CHECK(steps.word(tensor) == version + 4);  // nothing behind it: not linked either
    CHECK(steps.owner.own()->begin_write(tensor, &ticket) == Outcome::gone);
    const Located again = steps.create(steps.owner, "t", slots);
    CHECK(again.record == tensor.record);
    CHECK(again.incarnation == 2);
    CHECK(steps.word(again) == (there | layout::word_blank | (version + 8)));
    CHECK(steps.owner.own()->begin_write(tensor, &ticket) == Outcome::gone);
    CHECK(steps.owner.own()->remove(tensor) == Outcome::gone);
    CHECK_FALSE(steps.value(steps.other, tensor).has_value());
  }
}

TEST_CASE("Steps: a take-over leaves the words that the format names") {
  struct Case {
    uint32_t slots;
    uint64_t found, left;
  };
  constexpr uint64_t often = layout::word_version_mask / 2 + 1;
  const Case cases[] = {{2, there | 6, there | 6},
                        {2, there | 7, there | 10},
                        {1, there | 7, there | layout::word_blank | 10},
                        {2, there | layout::word_blank | 7, there | layout::word_blank | 10},
                        {2, there | layout::word_retiring | 6, there | 6},
                        {1, there | layout::word_blank | 6, there | layout::word_blank | 6},
                        {2, there | layout::word_blank | layout::word_tentative | 4, 8},
                        // Nobody published that often: it could count into the flags.
                        {2, there | (often - 2), there | (often - 2)},
                        {2, there | often, often + 4},
                        {2, there | (often + 1), often + 4}};
  for (const Case& each : cases) {
    Steps steps;
    const Located tensor = steps.create(steps.owner, "t", each.slots);
    steps.word(tensor) = each.found;
    *steps.geometry().pin(0, 3) = pin_word(1, 0, 0);
    Core heir = steps.core();
    heir.become_owner(0, 2, 7);
    CHECK(steps.word(tensor) == each.left);
    steps.check_whole(2);
    CHECK(steps.geometry().owner(0)->host == 7);
    heir.own()->release();
    CHECK(steps.geometry().owner(0)->state == static_cast<uint64_t>(layout::PartState::free));
  }
}

TEST_CASE("Steps: nobody finds a name before its creator has looked whether it is free") {
  Steps steps;
  Located theirs, mine, found;
  REQUIRE(steps.other.own()->place("t", Steps::shape_of("t", 2), &theirs) == Outcome::done);
  std::optional<Outcome> meanwhile;
  steps.asked = [&] {  // whether the other creator is dead
    if (!meanwhile) meanwhile = steps.other.find("t", &found);
  };
  CHECK(steps.owner.create("t", Steps::shape_of("t", 2), &mine) == Outcome::raced);
  CHECK(meanwhile == Outcome::gone);
}

TEST_CASE("Steps: two names of one hash are two tensors") {
  const std::string names[] = {"8yn0iYCKYHlIj4-BwPqk", "GReLUrM4wMqfg9yzV3KQ"};
  REQUIRE(name_hash(names[0]) == name_hash(names[1]));
  Steps steps;
  Located made[2], found;
  made[0] = steps.create(steps.owner, names[0], 2);
  CHECK(steps.other.find(names[1], &found) == Outcome::gone);
  made[1] = steps.create(steps.owner, names[1], 2);
  for (const int which : {0, 1}) {
    REQUIRE(steps.other.find(names[which], &found) == Outcome::done);
    CHECK(found.record == made[which].record);
  }
}

TEST_CASE("Steps: a take-over fixes the whole chain before a name, whatever broke it") {
  Steps steps;
  const Geometry at = steps.geometry();
  // Three names that want one record.
  std::vector<std::string> names;
  for (int number = 0; names.size() < 3; ++number)
    if (const std::string name = "t" + std::to_string(number); at.home(name_hash(name)) == 5)
      names.push_back(name);
  std::vector<Located> tensors;
  for (const std::string& name : names) tensors.push_back(steps.create(steps.owner, name, 2));
  REQUIRE(tensors[2].record == 7);
  steps.word(tensors[0]) = steps.word(tensors[1]) = 0;  // as never used
  Located found;
  CHECK(steps.other.find(names[2], &found) == Outcome::gone);
  Core heir = steps.core();
  heir.become_owner(0, 2, 0);
  CHECK(steps.other.find(names[2], &found) == Outcome::done);
  CHECK(steps.other.find(names[1], &found) == Outcome::gone);
}

TEST_CASE("Steps: a take-over says so before it changes anything") {
  Steps steps;
  const Located tensor = steps.create(steps.owner, "t", 2);
  steps.publish(steps.owner, tensor, 1);
  steps.word(tensor) |= 1;
  const uint64_t found = steps.word(tensor);
  bool told = false;
  ToldMemory::before_store = [&] {
    if (steps.geometry().record(0, tensor.record)->slots.owner_epoch == 2) return;  // of a record: begun
    told |= steps.geometry().owner(0)->state == static_cast<uint64_t>(layout::PartState::repairing) &&
            steps.geometry().owner(0)->epoch == 2 && steps.word(tensor) == found;
  };
  steps.core().become_owner(0, 2, 0);
  ToldMemory::before_store = nullptr;
  CHECK(told);
}

TEST_CASE("Steps: an owner that dies at any store of a publication leaves the last version, or the new one") {
  for (const uint32_t slots : {1u, 2u}) {
    const int stores = at_each_store(
        [&](Steps& steps) {
          const Located tensor = steps.create(steps.owner, "t", slots);
          steps.publish(steps.owner, tensor, 1);
          return tensor;
        },
        [](Steps& steps, const Located& tensor) { steps.publish(steps.owner, tensor, 2); },
        [&](Steps& steps, const Located& tensor, bool died) {
          const bool odd = version_of(steps.word(tensor)) % 2 == 1;
          const std::optional<int> before = steps.value(steps.other, tensor);
          CHECK(before == (!died ? std::optional(2) : slots == 1 && odd ? std::nullopt : std::optional(1)));
          Core heir = steps.core();
          heir.become_owner(0, 2, 0);
          steps.check_whole(2);
          CHECK(steps.value(steps.other, tensor) == before);
          steps.publish(heir, tensor, 3);
          CHECK(steps.value(steps.other, tensor) == 3);
        });
    CHECK(stores > 0);
  }
}

TEST_CASE("Steps: a creator that dies at any store leaves the tensor, or a name that is free at once") {
  at_each_store([](Steps&) { return 0; }, [](Steps& steps, int) { steps.create(steps.owner, "t", 2); },
                [](Steps& steps, int, bool died) {
                  Located found;
                  const bool there_now = steps.other.find("t", &found) == Outcome::done;
                  CHECK((died || there_now));
                  const Outcome created = steps.other.create("t", Steps::shape_of("t", 2), &found);
                  CHECK(created == (there_now ? Outcome::exists : Outcome::done));
                  Core heir = steps.core();
                  heir.become_owner(0, 3, 0);
                  steps.check_whole(3);
                  REQUIRE(steps.other.find("t", &found) == Outcome::done);
                  CHECK(found.part == (there_now ? 0u : 1u));
                  Located again;
                  CHECK(heir.create("t", Steps::shape_of("t", 2), &again) == Outcome::exists);
                  // The other one's tensor takes a chunk.
                  CHECK(Steps::free_bytes(heir) ==
                        steps.geometry().data_bytes -
                            (there_now ? found.shape.extent_bytes : steps.geometry().chunk_bytes));
                });
}

TEST_CASE("Steps: an owner that dies at any store of a removal leaves the tensor, or nothing of it") {
  at_each_store(
      [](Steps& steps) {
        const Located tensor = steps.create(steps.owner, "t", 2);
        steps.publish(steps.owner, tensor, 1);
        return tensor;
      },
      [](Steps& steps, const Located& tensor) {
        const Outcome outcome = steps.owner.own()->remove(tensor);
        REQUIRE(outcome == Outcome::done);
      },
      [](Steps& steps, const Located& tensor, bool died) {
        const bool left = steps.value(steps.other, tensor) == 1;
        CHECK((died || !left));
        if (left) steps.other.own()->pins().drop(steps.pin(steps.other, tensor));  // a death that is known
        Core heir = steps.core();
        heir.become_owner(0, 3, 0);
        steps.check_whole(3);
        CHECK((steps.value(steps.other, tensor) == 1) == left);
      });
}

TEST_CASE("Steps: a take-over that dies at any store is done again") {
  at_each_store(
      [](Steps& steps) {
        const Located tensor = steps.create(steps.owner, "t", 2), single = steps.create(steps.owner, "s", 1);
        Located tentative;
        steps.publish(steps.owner, tensor, 1);
        steps.publish(steps.owner, single, 1);
        Ticket ticket;
        REQUIRE(steps.owner.own()->begin_write(tensor, &ticket) == Outcome::done);
        Steps::fill(ticket, 2);
        REQUIRE(steps.owner.own()->begin_write(single, &ticket) == Outcome::done);
        REQUIRE(steps.owner.own()->place("n", Steps::shape_of("n", 2), &tentative) == Outcome::done);
        return std::pair(tensor, single);
      },
      [](Steps& steps, const auto&) { steps.core().become_owner(0, 2, 0); },
      [](Steps& steps, const auto& tensors, bool) {
        CHECK(steps.value(steps.other, tensors.first) == 1);
        Core heir = steps.core();
        heir.become_owner(0, 3, 0);
        steps.check_whole(3);
        CHECK(steps.value(steps.other, tensors.first) == 1);
        CHECK_FALSE(steps.value(steps.other, tensors.second).has_value());
        Located found;
        CHECK(steps.other.find("n", &found) == Outcome::gone);
        CHECK(Steps::free_bytes(heir) == steps.geometry().data_bytes - tensors.first.shape.extent_bytes -
                                             tensors.second.shape.extent_bytes);
      });
}

TEST_CASE("Steps: who reads across publications and a take-over does not believe a slot that was touched") {
  Steps steps;
  const Located tensor = steps.create(steps.owner, "t", 2);
  steps.publish(steps.owner, tensor, 1);
  const uint64_t begun = steps.other.reader().look(tensor).version;  // the reader copies from now on
  steps.publish(steps.owner, tensor, 2);
  Ticket ticket;
  REQUIRE(steps.owner.own()->begin_write(tensor, &ticket) == Outcome::done);
  Steps::fill(ticket, 3);  // its slot
  SUBCASE("the writer dies") {
    Core heir = steps.core();
    heir.become_owner(0, 2, 0);
    CHECK_FALSE(still_holds(steps.word(tensor), begun, 2));
    CHECK(steps.value(steps.other, tensor) == 2);
  }
  SUBCASE("the writer gives up") {
    steps.owner.own()->abort(ticket, true);
    CHECK_FALSE(still_holds(steps.word(tensor), begun, 2));
    CHECK(steps.value(steps.other, tensor) == 2);
  }
  SUBCASE("the writer dies, and its record is another tensor's soon") {
    Core heir = steps.core();
    heir.become_owner(0, 2, 0);
    REQUIRE(heir.own()->remove(tensor) == Outcome::done);
    const Located next = steps.create(heir, "t", 2);
    REQUIRE(next.record == tensor.record);
    steps.publish(heir, next, 4);
    CHECK_FALSE(still_holds(steps.word(tensor), begun, 2));
  }
}

TEST_CASE("Steps: a seat is taken over and left as a part is, and its pins count while its holder lives") {
  Steps steps;
  const Located tensor = steps.create(steps.owner, "t", 1);
  steps.publish(steps.owner, tensor, 1);
  const Geometry at = steps.geometry();
  const uint32_t seat = at.parts + 1;
  at.owner(seat)->epoch = 1;
  at.owner(seat)->pins_used = 6;
  *at.pin(seat, 0) = *at.pin(seat, 5) = pin_word(0, tensor.record, 0);
  bool told = false;
  ToldMemory::before_store = [&] {
    told |= at.owner(seat)->epoch == 2 && *at.pin(seat, 5) != 0 &&
            at.owner(seat)->state == static_cast<uint64_t>(layout::PartState::repairing);
    CHECK((*at.pin(seat, 5) != 0 || told));
  };
  Core holder = steps.core();
  holder.take_seat(seat, 2, 7);
  ToldMemory::before_store = nullptr;
  CHECK(told);
  steps.check_owner(seat, 2);
  CHECK(at.owner(seat)->host == 7);
  Located none;
  CHECK(holder.create("n", Steps::shape_of("n", 1), &none) == Outcome::disowned);

  Ticket ticket;
  const uint32_t pin = steps.pin(holder, tensor);
  CHECK(steps.owner.own()->begin_write(tensor, &ticket) == Outcome::pinned);
  CHECK(steps.owner.own()->remove(tensor) == Outcome::pinned);
  steps.dead_part = seat;
  steps.dead_epoch = 2;
  CHECK(steps.owner.own()->begin_write(tensor, &ticket) == Outcome::done);
  steps.owner.own()->abort(ticket, false);
  steps.dead_part = 99;
  holder.pins().drop(pin);
  CHECK(steps.owner.own()->begin_write(tensor, &ticket) == Outcome::done);
  steps.owner.own()->abort(ticket, false);
  holder.seat()->release();
  CHECK(at.owner(seat)->state == static_cast<uint64_t>(layout::PartState::free));
  CHECK(at.owner(seat)->pins_used == 0);
}

TEST_CASE("Steps: who waits for a reader in place has marked nothing") {
  for (const uint32_t slots : {1u, 2u}) {
    Steps steps;
    const Located tensor = steps.create(steps.owner, "t", slots);
    steps.publish(steps.owner, tensor, 1);
    const uint32_t pin = steps.pin(steps.other, tensor);
    const uint64_t before = steps.word(tensor);
    uint64_t asked_at = 0;
    steps.asked = [&] { asked_at = steps.word(tensor); };
    CHECK(steps.owner.own()->remove(tensor) == Outcome::pinned);
    CHECK(asked_at == before);
    CHECK(steps.word(tensor) == before);
    Ticket ticket;
    if (slots == 2) steps.publish(steps.owner, tensor, 2);  // the other slot
    asked_at = 0;
    CHECK(steps.owner.own()->begin_write(tensor, &ticket) == Outcome::pinned);
    CHECK(version_of(asked_at) - version_of(steps.word(tensor)) == (slots == 1 ? 0 : 1));
    CHECK(version_of(steps.word(tensor)) % 2 == 0);
    // Nor is anybody in its way who reads the same record of another part, or has died.
    steps.other.own()->pins().drop(pin);
    *steps.geometry().pin(1, 0) = pin_word(2, tensor.record, slot_of(version_of(before), slots));
    REQUIRE(steps.owner.own()->begin_write(tensor, &ticket) == Outcome::done);
    steps.owner.own()->abort(ticket, false);
    *steps.geometry().pin(1, 0) = pin_word(0, tensor.record, slot_of(version_of(before), slots));
    CHECK(steps.owner.own()->begin_write(tensor, &ticket) == Outcome::pinned);
    CHECK(steps.owner.own()->remove(tensor) == Outcome::pinned);
    steps.dead_part = 1;
    steps.dead_epoch = 1;
    CHECK(steps.owner.own()->remove(tensor) == Outcome::done);
  }
}

TEST_CASE("Steps: a pin that comes between the look and the mark is seen") {
  for (const bool removes : {false, true}) {
    Steps steps;
    const Located tensor = steps.create(steps.owner, "t", 1);
    steps.publish(steps.owner, tensor, 1);
    const uint64_t before = steps.word(tensor);
    // Just before the mark: the second store of the operation, behind that of the epoch.
    int stores = 0;
    ToldMemory::before_store = [&] {
      if (++stores == 2) steps.pin(steps.other, tensor);
    };
    Ticket ticket;
    CHECK((removes ? steps.owner.own()->remove(tensor) : steps.owner.own()->begin_write(tensor, &ticket)) ==
          Outcome::pinned);
    CHECK(stores > 2);
    CHECK(steps.word(tensor) == before);
  }
}

TEST_CASE("Steps: what is given up or taken already leaves nothing") {
  Steps steps;
  const uint64_t free_before = Steps::free_bytes(steps.owner);
  const auto shape = Steps::shape_of("t", 2);
  for (int round = 0; round < 40; ++round) {  // more than there are records
    Located tensor;
    REQUIRE(steps.owner.own()->place("t", shape, &tensor) == Outcome::done);
    CHECK(Steps::free_bytes(steps.owner) == free_before - shape.extent_bytes);
    steps.owner.own()->withdraw(tensor);
    CHECK(Steps::free_bytes(steps.owner) == free_before);
    Located kept = steps.create(steps.owner, "t", 2);
    REQUIRE(steps.owner.own()->remove(kept) == Outcome::done);
    CHECK(Steps::free_bytes(steps.owner) == free_before);
  }
  steps.create(steps.other, "t", 2);
  int stores = 0;
  ToldMemory::before_store = [&] { ++stores; };
  Located tensor;
  CHECK(steps.owner.create("t", shape, &tensor) == Outcome::exists);
  CHECK(stores == 0);
}
