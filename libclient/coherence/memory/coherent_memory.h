// SPDX-License-Identifier: Apache-2.0
// Shared memory whose readers and writers have coherent caches: processes of one host, or hosts on a fabric
// with hardware coherence. Only ordering is left to do.
//
// Memory that goes away gives zeros and drops stores (core/os/lossy_access.h); the caller checks afterwards.
// Copies go through `rep movsb` where there is one: they may run beside a writer (the protocol finds out by the
// second look at the word), which a memcpy may not in C++.
#pragma once

#include <atomic>

#include "core/os/lossy_access.h"
#include "libclient/coherence/memory/memory.h"

namespace terrace::coherence {

// Copies bytes that somebody else may be changing.
inline void racing_copy(void* to, const void* from, size_t bytes) {
  os::copy_or_drop(to, from, bytes);
}

// Orders for the processor and the compiler. A thread sanitizer does not model free-standing barriers, and on
// x86 the weaker two are the compiler's matter only.
inline void ordered_accesses() {
#if defined(__x86_64__)
  asm volatile("" : : : "memory");
#else
  std::atomic_thread_fence(std::memory_order_acq_rel);    // acq_rel: pairs with this in the other holder
#endif
}

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

class CoherentMemory {
 public:
  static constexpr bool coherent = true;

  // acquire: pairs with the publisher's release in store(), so that what was written before the word is seen.
  uint64_t load(const uint64_t* word) const { return os::load_or_zero(word); }
  void store(uint64_t* word, uint64_t value) const { os::store_or_drop(word, value); }
  void read(void* to, const void* from, size_t bytes) const { racing_copy(to, from, bytes); }
  void write(void* to, const void* from, size_t bytes) const { racing_copy(to, from, bytes); }
  void write_back(const void*, size_t, Step) const {}
  void invalidate(const void*, size_t, Step) const {}
  // What users stored to a slot may have gone past the caches, where x86 keeps no order by itself.
  void store_barrier(Step step) const {
#if defined(__x86_64__)
    if (step == Step::data_before_flip) asm volatile("sfence" : : : "memory");
#endif
    ordered_accesses();
  }
  void load_barrier(Step) const {
    ordered_accesses();
  }
  // A store, then a load of something else: the one order that x86 does not keep by itself.
  void full_barrier(Step) const {
#if defined(__x86_64__)
    asm volatile("lock; orq $0, (%%rsp)" : : : "memory", "cc");
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);  // seq_cst: pairs with this in the other holder
#endif
  }
  static constexpr bool performs(Step) {
    return true;
  }
  void pause() const {
    pause_briefly();
  }
};
static_assert(CoherenceMemory<CoherentMemory>);

}  // namespace terrace::coherence
