// SPDX-License-Identifier: Apache-2.0
// Two holders who meet at one exact point: what the question "is it dead?" does is what the other one does just
// before it dies.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/unique_fd.h"
#include "libclient/coherence/memory/coherent_memory.h"
#include "libclient/coherence/space_core.h"
#include "tests/unit/coherence/space_fixture.h"

using namespace terrace;
using coherence::Located;
using coherence::Outcome;

namespace {

using Core = coherence::SpaceCore<coherence::CoherentMemory>;

// Holders a and b of parts 0 and 1. When b asks whether somebody is dead, `last_act` happens, and a is.
struct Meeting : SpaceFixture {
  static SpaceOptions owned_by_program() {
    SpaceOptions options = small();
    options.ownership = SpaceOwnership::program;
    return options;
  }
  Meeting()
      : SpaceFixture(owned_by_program()),
        a(coherence::CoherentMemory(), geometry(), [](uint32_t, uint64_t) { return false; }),
        b(coherence::CoherentMemory(), geometry(), [this](uint32_t part, uint64_t) {
          if (part != 0) return false;
          if (last_act) std::exchange(last_act, nullptr)();
          return true;
        }) {
    a.become_owner(0, 1, 0);
    b.become_owner(1, 1, 0);
  }
  coherence::Geometry geometry() {
    layout::SpaceHeader header;
    std::memcpy(&header, memory.span().data(), sizeof header);
    return *coherence::check_header(header, memory.span());
  }
  Located create(Core& core, const std::string& name, uint32_t slots) {
    Located created;
    const auto shape = *coherence::plan_shape(name, DType::u8, Shape{64}, TensorHint::none, 0, slots);
    REQUIRE(core.create(name, shape, &created) == Outcome::done);
    return created;
  }
  void publish(Core& core, const Located& tensor, uint8_t value) {
    coherence::Ticket ticket;
    REQUIRE(core.own()->begin_write(tensor, &ticket) == Outcome::done);
    std::fill(ticket.bytes.begin(), ticket.bytes.end(), std::byte{value});
    core.own()->publish(ticket, 0);
  }

  std::function<void()> last_act;
  Core a, b;
};

}  // namespace

TEST_CASE("Crossing: a name that its creator confirmed just before it died is taken") {
  Meeting both;
  const auto shape = *coherence::plan_shape("t", DType::u8, Shape{64}, TensorHint::none, 0, 2);
  Located first, second;
  REQUIRE(both.a.own()->place("t", shape, &first) == Outcome::done);
  both.last_act = [&] { both.a.own()->confirm(first); };
  CHECK(both.b.create("t", shape, &second) == Outcome::exists);
  CHECK(both.last_act == nullptr);
  REQUIRE(both.b.find("t", &second) == Outcome::done);
  CHECK(second.part == 0);
}

TEST_CASE("Crossing: a tentative name of a dead creator is in nobody's way") {
  Meeting both;
  const auto shape = *coherence::plan_shape("t", DType::u8, Shape{64}, TensorHint::none, 0, 2);
  Located first, second;
  REQUIRE(both.a.own()->place("t", shape, &first) == Outcome::done);
  CHECK(both.b.create("t", shape, &second) == Outcome::done);
  CHECK(second.part == 1);
}

TEST_CASE("Crossing: a name is tentative while another thread of its holder creates it") {
  Meeting both;
  const auto shape = *coherence::plan_shape("t", DType::u8, Shape{64}, TensorHint::none, 0, 2);
  Located first, second;
  REQUIRE(both.a.own()->place("t", shape, &first) == Outcome::done);
  CHECK(both.a.create("t", shape, &second) == Outcome::raced);
  const auto watcher = TensorSpace::attach(both.memory.span());
  REQUIRE(watcher.ok());
  CHECK((*watcher)->open("t").error().code == ErrorCode::not_found);
  CHECK((*watcher)->list().empty());
  both.a.own()->confirm(first);
  CHECK(both.a.create("t", shape, &second) == Outcome::exists);
  CHECK((*watcher)->list().size() == 1);
}

TEST_CASE("Crossing: a pin that meets a removal does not hold what was removed before the remover died") {
  Meeting both;
  const Located tensor = both.create(both.a, "t", 2);
  both.publish(both.a, tensor, 1);
  uint64_t& word = both.geometry().record(0, tensor.record)->slots.word;
  // a has looked at the pins: there was none. It ends its removal while b asks.
  word |= layout::word_retiring;
  uint32_t pin = 0;
  uint64_t version = 0;
  std::span<const std::byte> bytes;
  SUBCASE("it ended the removal") {
    both.last_act = [&] { word = layout::word_linked | (coherence::version_of(word) + 4); };
    CHECK(both.b.pin(tensor, &pin, &version, &bytes) == Outcome::raced);
    CHECK(both.b.own()->pins().in_use() == 0);
  }
  SUBCASE("it died first") {
    CHECK(both.b.pin(tensor, &pin, &version, &bytes) == Outcome::done);
    CHECK(bytes[0] == std::byte{1});
  }
  CHECK(both.last_act == nullptr);
}

TEST_CASE("Crossing: who waits for a reader in place has not touched the only slot, nor does it look so") {
  Meeting both;
  const Located tensor = both.create(both.b, "t", 1);
  both.publish(both.b, tensor, 7);
  uint32_t pin = 0;
  uint64_t version = 0;
  std::span<const std::byte> bytes;
  REQUIRE(both.a.pin(tensor, &pin, &version, &bytes) == Outcome::done);
  // b asks whether a, whose pin it sees, is dead: what others see of the tensor meanwhile.
  Outcome seen = Outcome::gone;
  both.last_act = [&] { seen = both.a.reader().look(tensor).outcome; };
  coherence::Ticket ticket;
  (void)both.b.own()->begin_write(tensor, &ticket);
  CHECK(both.last_act == nullptr);
  CHECK(seen == Outcome::done);
}

TEST_CASE("Crossing: a part with another owner is not stored to") {
  Meeting both;
  const Located tensor = both.create(both.a, "t", 2);
  both.geometry().owner(0)->epoch = 2;
  coherence::Ticket ticket;
  CHECK(both.a.own()->begin_write(tensor, &ticket) == Outcome::disowned);
  CHECK(both.a.own()->remove(tensor) == Outcome::disowned);
  Located other;
  const auto shape = *coherence::plan_shape("u", DType::u8, Shape{64}, TensorHint::none, 0, 2);
  CHECK(both.a.create("u", shape, &other) == Outcome::disowned);
}

TEST_CASE("Crossing: a version that was published just before its writer died is there") {
  SpaceFixture space;
  struct LastAct final : OwnershipSource {
    std::function<void()> act;
    Result<uint64_t> claim(uint32_t, const std::function<uint64_t()>&) override { return uint64_t{1}; }
    void release(uint32_t) override {}
    bool is_dead(uint32_t, uint64_t) override {
      if (act) std::exchange(act, nullptr)();
      return true;
    }
  };
  const auto writer = space.attach();
  const auto ownership = std::make_shared<LastAct>();
  auto reading = TensorSpace::attach(space.memory.span(), {.ownership = ownership, .own_a_part = false});
  REQUIRE(reading.ok());
  const std::unique_ptr<TensorSpace> reader = std::move(*reading);
  CHECK_FALSE(reader->part().has_value());
  const SharedTensor tensor = *writer->create(u8_tensor("t", 64), {.double_buffered = false});
  REQUIRE(writer->publish(tensor, bytes_of(1, 64)).ok());
  auto begun = writer->write(tensor);
  REQUIRE(begun.ok());
  TensorWrite write = std::move(*begun);
  SUBCASE("it published") {
    ownership->act = [&] { write.publish(); };
    const auto version = reader->version(tensor);
    REQUIRE_FALSE(version.ok());
    CHECK(version.error().code == ErrorCode::busy);  // "again": the next look has it
    CHECK(reader->version(tensor).ok());
  }
  SUBCASE("it did not") {
    CHECK(reader->version(tensor).error().code == ErrorCode::unavailable);
  }
}

TEST_CASE("Crossing: a dead writer's heir that writes, too, is not taken for dead") {
  // What is_dead() does: the part is taken over; its next owner publishes, and begins to write once more.
  struct HeirActs final : OwnershipSource {
    std::function<void()> act;
    Result<uint64_t> claim(uint32_t, const std::function<uint64_t()>&) override { return uint64_t{1}; }
    void release(uint32_t) override {}
    bool is_dead(uint32_t, uint64_t epoch) override {
      if (act) std::exchange(act, nullptr)();
      return epoch == 1;
    }
  };
  Meeting both;
  const Located tensor = both.create(both.a, "t", 1);
  both.publish(both.a, tensor, 1);
  const auto source = std::make_shared<HeirActs>();
  auto reading = TensorSpace::attach(both.memory.span(), {.ownership = source, .own_a_part = false});
  REQUIRE(reading.ok());
  const SharedTensor seen = *(*reading)->open("t");
  coherence::Ticket lost, next;
  REQUIRE(both.a.own()->begin_write(tensor, &lost) == Outcome::done);
  Core heir(coherence::CoherentMemory(), both.geometry(), [](uint32_t, uint64_t) { return true; });
  source->act = [&] {
    heir.become_owner(0, 2, 0);
    both.publish(heir, tensor, 2);
    REQUIRE(heir.own()->begin_write(tensor, &next) == Outcome::done);
  };
  const auto version = (*reading)->version(seen);
  CHECK(source->act == nullptr);
  REQUIRE_FALSE(version.ok());
  CHECK(version.error().code == ErrorCode::busy);  // the heir lives, and publishes soon
  heir.own()->publish(next, 0);
  CHECK((*reading)->version(seen).ok());
}

TEST_CASE("Crossing: a forked child cannot give away what is its parent's") {
  const UniqueFd file(::memfd_create("space", MFD_CLOEXEC));
  constexpr size_t bytes = 1 << 20;
  REQUIRE(::ftruncate(file.get(), bytes) == 0);
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  REQUIRE(at != MAP_FAILED);
  const std::span<std::byte> memory(static_cast<std::byte*>(at), bytes);
  REQUIRE(TensorSpace::format(memory, SpaceFixture::small()).ok());
  auto attached = TensorSpace::attach(memory, {.ownership = *ownership_by_locks(file.get())});
  REQUIRE(attached.ok());
  std::unique_ptr<TensorSpace> space = std::move(*attached);
  const auto watcher = *ownership_by_locks(file.get());
  const SharedTensor tensor = *space->create(u8_tensor("t", 64)), idle = *space->create(u8_tensor("idle", 64));
  REQUIRE(space->publish(tensor, bytes_of(1, 64)).ok());
  auto pinned = space->pin(tensor);
  auto begun = space->write(tensor);
  REQUIRE(pinned.ok());
  REQUIRE(begun.ok());
  TensorPin pin = std::move(*pinned);
  std::optional<TensorWrite> write = std::move(*begun);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    int wrong = 0;
    wrong += space->publish(tensor, bytes_of(9, 64)).ok() ? 1 : 0;
    wrong += space->pin(tensor).ok() ? 2 : 0;
    wrong += space->remove(tensor).ok() ? 4 : 0;
    wrong += space->create(u8_tensor("u", 64)).ok() ? 8 : 0;
    // Nor where no write or pin of the parent's is in its way.
    wrong += space->publish(idle, bytes_of(9, 64)).ok() ? 16 : 0;
    wrong += space->remove(idle).ok() ? 32 : 0;
    pin.reset();
    write.reset();
    space.reset();
    ::_exit(wrong);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK_FALSE(watcher->is_dead(*space->part(), 1));
  CHECK(watcher->claim(*space->part(), [] { return uint64_t{1}; }).error().code == ErrorCode::busy);
  std::fill(write->bytes().begin(), write->bytes().end(), std::byte{2});
  CHECK(write->publish() > pin.version());
  CHECK(pin.bytes()[0] == std::byte{1});
  CHECK(space->write(tensor).error().code == ErrorCode::busy);  // the pin is there
  pin.reset();
  write.reset();
  space.reset();
  ::munmap(at, bytes);
}

TEST_CASE("Crossing: what was not found in this memory is refused") {
  SpaceFixture space, other;
  const auto holder = space.attach();
  const auto stranger = other.attach();
  const SharedTensor tensor = *holder->create(u8_tensor("t", 64));
  CHECK(stranger->version(tensor).error().code == ErrorCode::invalid_argument);
  CHECK(stranger->remove(tensor).error().code == ErrorCode::invalid_argument);
  CHECK(holder->version(SharedTensor()).error().code == ErrorCode::invalid_argument);
  CHECK_FALSE(holder->is_current(SharedTensor(), 2));
  CHECK(holder->open("").error().code == ErrorCode::invalid_argument);
  const auto far = TensorSpace::attach(
      space.memory.span(), {.ownership = std::make_shared<MadeUpOwnership>(space.book), .part = UINT32_MAX});
  CHECK(far.error().code == ErrorCode::invalid_argument);
}

TEST_CASE("Crossing: spaces that share a file have locks of their own") {
  const UniqueFd file(::memfd_create("space", MFD_CLOEXEC));
  const auto a = *ownership_by_locks(file.get()), b = *ownership_by_locks(file.get(), 1 << 20);
  CHECK(a->claim(0, [] { return uint64_t{0}; }).ok());
  CHECK(b->claim(0, [] { return uint64_t{0}; }).ok());
  CHECK(a->is_dead(1, 1));
}
