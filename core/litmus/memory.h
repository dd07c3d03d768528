// SPDX-License-Identifier: Apache-2.0
// The seam of the litmus run: every access to the tested memory goes through a type that satisfies
// LitmusMemory, given as a template parameter.
//
//   HostMemory      (host_memory.h)      the means of a program of this machine: atomics and cache-line flushes
//   CachedMemory    (cached_memory.h)    a made-up host with its own cache, which is not coherent
//   EmulatedHost    (tests/unit/litmus)  the same over the emulator that attacks the tensor protocol
//
// Addresses are aligned words of the region. A memory's operations:
//
//   load              one indivisible load; later accesses of this side do not overtake it (acquire)
//   store             one indivisible store; earlier accesses of this side are not overtaken by it (release)
//   compare_exchange  one indivisible read-modify-write; false: the word was not `expected`
//   full_barrier      stores before it are seen by others before loads after it are done
//   publish           this side's stores to these lines are in the memory itself when it returns
//   refresh           as publish, and the next load of these lines asks the memory
//   wait              lets the other side go on; `turn` counts from 0 since this wait began. false: the other
//                     side is not waited for any longer
//   pause             a short while, of no meaning
//
// Without coherent caches only publish and refresh work for certain: by them the two sides tell each other
// their progress and their results. The run finds out whether the other operations work, too.
//
// Threads   One side each.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace terrace::litmus {

template <typename Memory>
concept LitmusMemory = requires(Memory memory, uint64_t* word, const uint64_t* const_word, size_t bytes,
                                uint64_t turn) {
  { memory.load(const_word) } -> std::same_as<uint64_t>;
  memory.store(word, uint64_t{});
  { memory.compare_exchange(word, uint64_t{}, uint64_t{}) } -> std::same_as<bool>;
  memory.full_barrier();
  memory.publish(const_word, bytes);
  memory.refresh(const_word, bytes);
  { memory.wait(turn) } -> std::same_as<bool>;
  memory.pause();
};

}  // namespace terrace::litmus
