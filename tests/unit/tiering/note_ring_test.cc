// SPDX-License-Identifier: Apache-2.0
// Notes of many threads for one reader: none is torn, doubled or out of its thread's order; what has no place is counted.
#include "tiering/engine/note_ring.h"

#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

using namespace terrace;
using tiering::Note;
using tiering::NoteRing;

namespace {

struct Ring {
  Ring() : memory(new std::byte[NoteRing::bytes]) { ring.open(memory.get()); }
  std::unique_ptr<std::byte[]> memory;
  NoteRing ring;
};

}  // namespace

TEST_CASE("NoteRing: as many as it has places, in order; the next one is dropped and counted, on each lap") {
  Ring made;
  for (uint32_t lap = 0; lap < 3; ++lap) {
    for (uint32_t i = 0; i < NoteRing::notes_max; ++i)
      REQUIRE(made.ring.put({.range = 1, .first = i, .count = lap, .accesses = 2, .when_ns = 3}));
    CHECK_FALSE(made.ring.put({}));
    CHECK(made.ring.dropped() == lap + 1);
    Note note;
    for (uint32_t i = 0; i < NoteRing::notes_max; ++i) {
      REQUIRE(made.ring.take(&note));
      REQUIRE(note.first == i);
      REQUIRE(note.count == lap);
    }
    CHECK_FALSE(made.ring.take(&note));
  }
}

TEST_CASE("NoteRing: writers and the reader at once") {
  constexpr uint32_t writers = 4, notes = 50'000;
  Ring made;
  std::atomic<uint32_t> writing{writers};
  std::vector<std::thread> threads;
  for (uint32_t writer = 0; writer < writers; ++writer)
    threads.emplace_back([&made, &writing, writer] {
      for (uint32_t i = 1; i <= notes; ++i)
        made.ring.put({.range = writer,
                       .first = i,
                       .count = ~i,
                       .accesses = i ^ writer,
                       .when_ns = uint64_t{i} << 32 | i});
      writing.fetch_sub(1);
    });
  uint32_t last[writers] = {};
  uint64_t taken = 0, wrong = 0;
  Note note;
  for (;;) {
    const bool ended = writing.load() == 0;
    while (made.ring.take(&note)) {
      ++taken;
      REQUIRE(note.range < writers);
      wrong += note.count != ~note.first || note.accesses != (note.first ^ note.range) ||
               note.when_ns != (uint64_t{note.first} << 32 | note.first) || note.first <= last[note.range];
      last[note.range] = note.first;
    }
    if (ended) break;
  }
  for (std::thread& thread : threads) thread.join();
  while (made.ring.take(&note)) ++taken;
  CHECK(wrong == 0);
  CHECK(taken + made.ring.dropped() == uint64_t{writers} * notes);
}
