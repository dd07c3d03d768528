// SPDX-License-Identifier: Apache-2.0
// Holders of one space whose single stores a test sees, and can let die at any of them.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "libclient/coherence/memory/coherent_memory.h"
#include "libclient/coherence/space_core.h"
#include "tests/unit/tensor/aligned_memory.h"

namespace terrace::coherence {

struct Died {};

// Ordinary memory that tells of each store before it happens.
struct ToldMemory : CoherentMemory {
  static inline std::function<void()> before_store;
  static void tell() {
    if (before_store) before_store();
  }
  void store(uint64_t* word, uint64_t value) const {
    tell();
    CoherentMemory::store(word, value);
  }
  void write(void* to, const void* from, size_t bytes) const {
    tell();
    CoherentMemory::write(to, from, bytes);
  }
};

using Core = SpaceCore<ToldMemory>;
inline constexpr uint64_t there = layout::word_live | layout::word_linked;

struct Steps {
  explicit Steps(uint64_t chunk_bytes = 0) : memory(formatted(chunk_bytes)) {
    owner.become_owner(0, 1, 0);
    other.become_owner(1, 1, 0);
  }
  ~Steps() { ToldMemory::before_store = nullptr; }

  Geometry geometry() {
    layout::SpaceHeader header;
    std::memcpy(&header, memory.span().data(), sizeof header);
    return *check_header(header, memory.span());
  }
  Core core() {
    return Core(ToldMemory(), geometry(), [this](uint32_t part, uint64_t epoch) {
      if (asked) asked();
      return part == dead_part && epoch <= dead_epoch;
    });
  }
  static layout::TensorShape shape_of(const std::string& name, uint32_t slots) {
    return *plan_shape(name, DType::u8, Shape{64}, TensorHint::none, 0, slots);
  }
  Located create(Core& core, const std::string& name, uint32_t slots) {
    Located created;
    const Outcome outcome =
        core.create(name, shape_of(name, slots), &created);  // may throw, which REQUIRE keeps
    REQUIRE(outcome == Outcome::done);
    return created;
  }
  uint64_t& word(const Located& tensor) { return geometry().record(tensor.part, tensor.record)->slots.word; }
  static void fill(const Ticket& ticket, uint8_t value) {
    std::fill(ticket.bytes.begin(), ticket.bytes.end(), std::byte{value});
  }
  void publish(Core& core, const Located& tensor, uint8_t value) {
    Ticket ticket;
    const Outcome outcome = core.own()->begin_write(tensor, &ticket);
    REQUIRE(outcome == Outcome::done);
    fill(ticket, value);
    core.own()->publish(ticket, 0);
  }
  // What a reader gets: the value of all bytes; nothing when there is none to read.
  std::optional<int> value(Core& core, const Located& tensor) {
    std::vector<std::byte> bytes(64);
    uint64_t version = 0;
    if (core.reader().read(tensor, bytes, 0, &version) != Outcome::done) return std::nullopt;
    return bytes == std::vector<std::byte>(64, bytes[0]) ? static_cast<int>(bytes[0]) : -1;
  }
  uint32_t pin(Core& core, const Located& tensor) {
    uint32_t pin = 0;
    uint64_t version = 0;
    std::span<const std::byte> bytes;
    REQUIRE(core.pin(tensor, &pin, &version, &bytes) == Outcome::done);
    return pin;
  }
  // A part or seat of a new owner.
  void check_owner(uint32_t holder, uint64_t epoch) {
    const Geometry at = geometry();
    CHECK(at.owner(holder)->epoch == epoch);
    CHECK(at.owner(holder)->state == static_cast<uint64_t>(layout::PartState::owned));
    CHECK(at.owner(holder)->pins_used == 0);
    for (uint32_t index = 0; index < at.pins; ++index) CHECK(*at.pin(holder, index) == 0);
  }
  // The part is whole: as what its owner line, its pins and its records say.
  void check_whole(uint64_t epoch) {
    const Geometry at = geometry();
    check_owner(0, epoch);
    for (uint32_t index = 0; index < at.records; ++index) {
      const uint64_t left = at.record(0, index)->slots.word;
      CHECK(version_of(left) % 2 == 0);
      CHECK_FALSE(has(left, layout::word_tentative));
      CHECK_FALSE(has(left, layout::word_retiring));
      if (has(left, layout::word_live)) CHECK(has(left, layout::word_linked));
    }
  }

  static uint64_t free_bytes(Core& core) { return core.own()->free_space().free_bytes(); }

  static AlignedMemory formatted(uint64_t chunk_bytes) {
    AlignedMemory memory(1 << 20);  // of zeros
    const layout::SpaceHeader header = *plan_header(
        memory.span(), {.parts = 3, .records = 16, .pins = 8, .seats = 2, .chunk_bytes = chunk_bytes});
    std::memcpy(memory.span().data(), &header, sizeof header);
    return memory;
  }

  AlignedMemory memory;
  uint32_t dead_part = 99;
  uint64_t dead_epoch = 0;
  std::function<void()> asked;
  Core owner = core(), other = core();
};

// Runs `act` again and again in worlds of their own, and lets it die at its first store, at its second, ...
// until it gets through; `then` looks at each.
template <typename Prepare, typename Act, typename Then>
int at_each_store(Prepare prepare, Act act, Then then) {
  for (int last = 0;; ++last) {
    Steps steps;
    auto prepared = prepare(steps);
    int stores = 0;
    ToldMemory::before_store = [&] {
      if (stores++ == last) throw Died();
    };
    bool died = false;
    try {
      act(steps, prepared);
    } catch (const Died&) {
      died = true;
    }
    ToldMemory::before_store = nullptr;
    steps.dead_part = died ? 0 : 99;
    steps.dead_epoch = 2;
    then(steps, prepared, died);
    if (!died) return last;
    REQUIRE(last < 1000);
  }
}

}  // namespace terrace::coherence
