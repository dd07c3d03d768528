// SPDX-License-Identifier: Apache-2.0
// The seam of the coherence protocol: every load, store, copy, write-back, invalidation and barrier on shared
// memory goes through a type that satisfies CoherenceMemory, given as a template parameter.
//
//   CoherentMemory     (coherent_memory.h)     hosts with coherent caches, or one host: atomics, nothing else
//   NonCoherentMemory  (noncoherent_memory.h)  clwb and clflushopt, with barriers that order them
//   EmulatedHost       (tests/coherence)       one of several made-up hosts, each with a cache that misbehaves
//
// Every ordering action names the Step of the protocol that it is. The two real memories hardly look at it; a
// test leaves one step out, wherever it is done, and must see the damage, so that no step is there for nothing
// and the test is blind to none.
//
// Threads   A memory object has no state (or, in tests, one thread).
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace terrace::coherence {

enum class Step : uint8_t {
  // Publishing. Without it:
  mark_written_back,   // readers do not see that a slot is being overwritten
  mark_before_data,    // the slot's new bytes, or the look at the pins, overtake the mark
  pins_invalidated,    // the owner sees old pins
  pins_before_look,    // the same: the look overtakes the invalidation
  pin_check,           // a slot is overwritten under a reader in place
  data_written_back,   // readers get the slot's old bytes under the new version
  data_before_flip,    // the new version overtakes its bytes
  flip_written_back,   // nobody hears of the new version
  flip_before_return,  // publish() returns before others can see it

  // Acquiring.
  record_invalidated,   // an old word: a stale read
  record_before_look,   // the same
  data_invalidated,     // the slot's old bytes under the new version
  data_before_read,     // the same
  read_before_recheck,  // the second look at the word overtakes the copy
  recheck_invalidated,  // the second look sees the first one's line
  recheck_before_look,  // the same
  recheck,              // an overwritten slot is taken for whole

  // Reading in place.
  pin_written_back,    // the owner does not see the pin
  pin_before_recheck,  // the look at the word overtakes the pin
  pin_recheck,         // pinned after the owner looked

  // Creating and finding.
  shape_written_back,  // readers get an older tensor's description
  shape_before_live,   // the same
  shape_invalidated,   // the same, seen from the reader
  shape_before_read,   // the same
  create_before_look,  // two holders create one name
  create_look,         // the same
  live_written_back,   // a tensor that nobody finds
  live_before_return,  // create() returns before others can find it

  // Using a copy of a block that this process made before.
  copy_invalidated,  // a block that is gone is read from its copy
  copy_before_look,  // the same
  copy_look,         // the same

  // Claiming chunks of the data.
  claim_written_back,  // two parts have one chunk: two tensors in one place
  claim_before_look,   // the same
  claims_invalidated,  // the same
  claims_before_look,  // the same
  claim_look,          // the same
  claims_seen_kept,    // the same, after a power cut
  owned_written_back,  // a chunk with tensors that no part has, after its owner's death
  claim_given_back,    // the claims of one who left overwrite the next one's
  dead_written_back,   // what a dead one stored into a chunk overwrites what the chunk's next part stores
  dead_before_none,    // the same: the chunk is given back before that is written

  // Removing.
  retire_written_back,  // pinned while it is removed
  retire_before_pins,   // the same
  retire_pin_check,     // its bytes become another tensor's under a reader in place
  gone_written_back,    // its bytes become another tensor's under a reader
  gone_before_reuse,    // the same

  // Taking a part over.
  take_over_invalidated,   // the new owner works on an old state of the part
  take_over_before_look,   // the same
  take_over_roll_back,     // a half-written slot becomes readable, or a record stays odd for ever
  take_over_written_back,  // others work on the dead owner's state

  // Owning.
  abort_written_back,    // what was given up overwrites what the next owner writes
  release_written_back,  // the owner line of one who left overwrites the next one's
  none,                  // what is no step: clearing a pin late is only slow
};
inline constexpr size_t step_count = static_cast<size_t>(Step::none);

// Addresses lie in the space; `word` is 8-byte aligned. What a memory must do:
//
//   load            one indivisible load; later accesses of this thread do not overtake it on this host
//   store           one indivisible store; earlier accesses of this thread are not overtaken by it on this host
//   read            a copy, in any order; what it gives is not sure before the next load_barrier
//   write           a copy, in any order
//   write_back      begins to bring this host's stores to these lines to memory; they may stay cached
//   invalidate      begins to drop these lines from this host's caches, so that a later load asks the memory;
//                   what this host stored to them is written back first
//   store_barrier   stores and write-backs before it have reached memory before stores after it do
//   load_barrier    loads and invalidations before it are done before loads and invalidations after it
//   full_barrier    both, and stores and write-backs before it reach memory before loads after it
//   performs        whether the step is done at all: true, but in tests
template <typename Memory>
concept CoherenceMemory = requires(Memory memory, uint64_t* word, const uint64_t* const_word, void* to,
                                   const void* from, size_t bytes, Step step) {
  { Memory::coherent } -> std::convertible_to<bool>;
  { memory.load(const_word) } -> std::same_as<uint64_t>;
  memory.store(word, uint64_t{});
  memory.read(to, from, bytes);
  memory.write(to, from, bytes);
  memory.write_back(from, bytes, step);
  memory.invalidate(from, bytes, step);
  memory.store_barrier(step);
  memory.load_barrier(step);
  memory.full_barrier(step);
  { memory.performs(step) } -> std::same_as<bool>;
  memory.pause();
};

}  // namespace terrace::coherence
