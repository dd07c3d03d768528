// SPDX-License-Identifier: Apache-2.0
// Loads, stores, copies and flushes that go on when their memory goes away: a load gives 0, a store is dropped,
// a copy ends early, and lost_address() says so. Unlike guarded() they skip no code: locks are released,
// objects are destroyed, and an access costs as much as a plain one.
//
// How: each access is one instruction with an entry in a table of the program, "if a SIGBUS comes here, go on
// there". A LossyAccesses lives around a number of them, best around a call of the library.
//
// Threads   Any.
// Limits    Without x86-64 each access is a guard of its own (slower). Under ThreadSanitizer, which must see
//           the accesses, they are plain ones: memory that goes away ends the process.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/os/fault_guard.h"

#if defined(__SANITIZE_THREAD__)
#define TERRACE_LOSSY_PLAIN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TERRACE_LOSSY_PLAIN 1
#endif
#endif
#if !defined(TERRACE_LOSSY_PLAIN) && defined(__x86_64__)
#define TERRACE_LOSSY_TABLE 1
#endif

namespace terrace::os {

// While it lives, this thread's accesses of this file survive.
class LossyAccesses {
 public:
  // For calls of less than a microsecond, which the system call would triple: a handler that the program installs is
  // noticed by the first one after the clock's next tick, some milliseconds later.
  struct Often {};

  LossyAccesses();
  explicit LossyAccesses(Often);
  ~LossyAccesses();
  LossyAccesses(const LossyAccesses&) = delete;
  LossyAccesses& operator=(const LossyAccesses&) = delete;

  // Of the first access that was lost since this thread's innermost one began; nullptr: none was.
  static const void* lost_address();

 private:
  void open_signal();

  const void* const outer_;
  bool was_blocked_ = false;  // SIGBUS, in this thread
};

// One load outside of any LossyAccesses, where a system call each time would be too much: a handler that the
// program installs is noticed after at most 256 of them, or by the thread's next LossyAccesses.
uint64_t load_alone(const uint64_t* word);

#if defined(TERRACE_LOSSY_TABLE)

// Behind an instruction at label 1 with label 2 after it. In the group of the function around it ("?"), so that
// the linker drops both together.
#define TERRACE_GO_ON_AT_2 \
  ".pushsection terrace_lossy,\"a?\"\n\t.balign 4\n\t.long 1b - .\n\t.long 2b - .\n\t.popsection"

// Acquire and release need no more on x86-64.
inline uint64_t load_or_zero(const uint64_t* word) {
  uint64_t value = 0;
  asm volatile("1: movq %1, %0\n2:\n\t" TERRACE_GO_ON_AT_2 : "+r"(value) : "m"(*word) : "memory");
  return value;
}
inline void store_or_drop(uint64_t* word, uint64_t value) {
  asm volatile("1: movq %1, %0\n2:\n\t" TERRACE_GO_ON_AT_2 : "=m"(*word) : "r"(value) : "memory");
}
// Stores `value` where `expected` is; one indivisible step, and a full barrier.
inline void replace_or_drop(uint64_t* word, uint64_t expected, uint64_t value) {
  asm volatile("1: lock cmpxchgq %2, %1\n2:\n\t" TERRACE_GO_ON_AT_2
               : "+a"(expected), "+m"(*word)
               : "r"(value)
               : "memory", "cc");
}
inline void copy_or_drop(void* to, const void* from, size_t bytes) {
  asm volatile("1: rep movsb\n2:\n\t" TERRACE_GO_ON_AT_2 : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

#elif defined(TERRACE_LOSSY_PLAIN)

#define TERRACE_GO_ON_AT_2 ""
inline uint64_t load_or_zero(const uint64_t* word) {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);  // acquire: pairs with the two stores below
}
inline void store_or_drop(uint64_t* word, uint64_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);  // release: pairs with load_or_zero()
}
inline void replace_or_drop(uint64_t* word, uint64_t expected, uint64_t value) {
  // seq_cst: pairs with this call and load_or_zero() of other threads.
  __atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
#if defined(__x86_64__)
inline void copy_or_drop(void* to, const void* from, size_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}
#else
void copy_or_drop(void* to, const void* from, size_t bytes);
#endif

#else

uint64_t load_or_zero(const uint64_t* word);
void store_or_drop(uint64_t* word, uint64_t value);
void replace_or_drop(uint64_t* word, uint64_t expected, uint64_t value);
void copy_or_drop(void* to, const void* from, size_t bytes);

#endif

}  // namespace terrace::os
