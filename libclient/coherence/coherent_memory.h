// Shared memory whose readers and writers have coherent caches: processes of one host, or hosts on a fabric
// with hardware coherence. Ordering is all that is left to do.
//
// Copies go through `rep movsb` where there is one: they may run beside a writer (the protocol finds out by the
// second look at the word), which a memcpy may not in C++.
#pragma once

#include <atomic>
#include <cstring>

#include "libclient/coherence/memory.h"

namespace terrace::coherence {

// Copies bytes that somebody else may be changing.
inline void racing_copy(void* to, const void* from, size_t bytes) {
#if defined(__x86_64__)
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
#else
  auto* out = static_cast<unsigned char*>(to);
  const auto* in = static_cast<const unsigned char*>(from);
  for (size_t at = 0; at < bytes; ++at)
    __atomic_store_n(out + at, __atomic_load_n(in + at, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
#endif
}

// Orders for the processor and the compiler. A thread sanitizer does not model free-standing barriers, and on
// x86 the weaker two are the compiler's matter only.
inline void ordered_accesses() {
#if defined(__x86_64__)
  asm volatile("" : : : "memory");
#else
  std::atomic_thread_fence(std::memory_order_acq_rel);
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
  uint64_t load(const uint64_t* word) const { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
  void store(uint64_t* word, uint64_t value) const { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
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
    std::atomic_thread_fence(std::memory_order_seq_cst);
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
