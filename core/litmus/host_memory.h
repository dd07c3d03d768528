// SPDX-License-Identifier: Apache-2.0
// The memory of a litmus run as a program of this machine has it: atomic loads, stores and compare-and-swap,
// and for the meetings of both sides flushes of cache lines, so that they work where caches are not coherent.
//
// Place     core/litmus; for one side. Copies are the same side.
// Threads   One side each; `abandoned` is shared by both.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/litmus/memory.h"

namespace terrace::litmus {

class HostMemory {
 public:
  // How long wait() goes on: `patience_ns` from its turn 0, and no longer once `abandoned` (nullptr: never) is
  // set.
  explicit HostMemory(uint64_t patience_ns, const std::atomic<bool>* abandoned = nullptr)
      : patience_ns_(patience_ns), abandoned_(abandoned) {}
  void set_patience(uint64_t patience_ns) { patience_ns_ = patience_ns; }

  // acquire: pairs with store() of the other side; release: with its load()
  uint64_t load(const uint64_t* word) const { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
  void store(uint64_t* word, uint64_t value) const { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
  bool compare_exchange(uint64_t* word, uint64_t expected, uint64_t desired) const {
    // seq_cst: pairs with the same call of the other side.
    return __atomic_compare_exchange_n(word, &expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  }
  // A store, then a load of something else: the one order that x86 does not keep by itself.
  void full_barrier() const {
#if defined(__x86_64__)
    asm volatile("lock; orq $0, (%%rsp)" : : : "memory", "cc");
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);  // seq_cst: pairs with the other side's full_barrier()
#endif
  }
  void publish(const uint64_t* at, size_t bytes) const {
    flush(at, bytes);
  }
  void refresh(const uint64_t* at, size_t bytes) const {
    flush(at, bytes);
  }
  bool wait(uint64_t turn);
  void pause() const;

 private:
  static void flush(const uint64_t* at, size_t bytes);

  uint64_t patience_ns_;
  uint64_t began_ns_ = 0;
  const std::atomic<bool>* abandoned_;
};
static_assert(LitmusMemory<HostMemory>);

}  // namespace terrace::litmus
