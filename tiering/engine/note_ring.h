// SPDX-License-Identifier: Apache-2.0
// Notes for the engine's thread: uses that are announced, and accesses that were counted. Any thread writes, one reads.
//
// Threads   put() from any thread; all else the engine thread's.
// Memory    The caller's, so that libc alone does: NoteRing::bytes of it, which outlive the ring.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace terrace::tiering {

struct Note {
  uint32_t range = 0, first = 0, count = 0;
  uint32_t accesses = 0;  // 0: an announcement
  uint64_t when_ns = 0;   // monotonic: of the accesses, or when the announced use will be
};

class NoteRing {
  struct Place {
    Note note;
    // Of the ring's position: empty, to be written at `position`; position + 1: written.
    std::atomic<uint32_t> sequence;
  };

 public:
  static constexpr uint32_t notes_max = 4096;
  static constexpr size_t bytes = notes_max * sizeof(Place);

  void open(void* memory);
  // False, and counted, when so many wait to be taken that there is no place.
  bool put(const Note& note);
  // The oldest one; false: none.
  bool take(Note* note);
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  Place* places_ = nullptr;
  std::atomic<uint32_t> next_{0};
  uint32_t read_ = 0;
  std::atomic<uint64_t> dropped_{0};
};

}  // namespace terrace::tiering
