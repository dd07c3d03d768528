// SPDX-License-Identifier: Apache-2.0
// Shared memory of hosts whose caches are not coherent with each other. A store reaches the memory by a
// write-back of its line, a load asks the memory after its line was dropped; sfence and mfence order both.
//
//   write_back  clwb (the line stays cached), else clflushopt, else clflush
//   invalidate  clflushopt, else clflush: a reader's lines of others' parts are clean, so nothing is written
//   mfence      orders all of these with loads; sfence with stores only
//
// The instructions are chosen once, by CPUID. On processors that are not x86-64 there is no such memory:
// supported() says so and a space of this mode is refused.
#pragma once

#include "libclient/coherence/memory/coherent_memory.h"

namespace terrace::coherence {

class NonCoherentMemory {
 public:
  static constexpr bool coherent = false;
  static bool supported();
  // "clwb", "clflushopt" or "clflush": what write_back uses.
  static const char* write_back_instruction();

  uint64_t load(const uint64_t* word) const { return os::load_or_zero(word); }
  void store(uint64_t* word, uint64_t value) const { os::store_or_drop(word, value); }
  void read(void* to, const void* from, size_t bytes) const { racing_copy(to, from, bytes); }
  // Large copies go past the caches: their lines need no write-back, and none of the reader's are evicted.
  void write(void* to, const void* from, size_t bytes) const;
  void write_back(const void* from, size_t bytes, Step) const;
  void invalidate(const void* from, size_t bytes, Step) const;
  void store_barrier(Step) const;
  void load_barrier(Step) const;
  void full_barrier(Step) const;
  static constexpr bool performs(Step) { return true; }
  void pause() const { pause_briefly(); }
};
static_assert(CoherenceMemory<NonCoherentMemory>);

}  // namespace terrace::coherence
