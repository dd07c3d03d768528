// SPDX-License-Identifier: Apache-2.0
// The operations of a part's owner alone: take over, create, write, publish, remove. All stores to shared
// memory are here and in pins.h, each to the owner's own part.
//
// Publishing                                            what a crash leaves
//   pins, where there is only one slot                  nothing
//   word := odd, written back, full barrier, pins       odd word, old bytes: rolled back
//   bytes into the other slot (or the only one)         the same; the only slot: content lost, blank
//   bytes written back; checksum; barrier               the same
//   word := even, written back, barrier                 the old version or the new one, whole
//
// Threads   Any number of this process, one operation at a time (a mutex); a slot that is being written belongs
//           to the holder of its Ticket.
#pragma once

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_set>

#include "core/base/sync/mutex.h"
#include "libclient/coherence/chains.h"
#include "libclient/coherence/chunk_claims.h"
#include "libclient/coherence/free_space.h"
#include "libclient/coherence/owner_line.h"
#include "libclient/coherence/pins.h"
#include "libclient/coherence/reader.h"

namespace terrace::coherence {

// A slot that is being written.
struct Ticket {
  Located tensor;
  uint64_t before = 0;   // the word that it had
  uint64_t version = 0;  // that it will have
  std::span<std::byte> bytes;
};

template <CoherenceMemory Memory>
class OwnedPart {
 public:
  OwnedPart(Memory memory, const Geometry& geometry, uint32_t part, uint64_t epoch, uint64_t host,
            IsDead is_dead)
      : memory_(memory),
        geometry_(geometry),
        reader_(memory, geometry),
        part_(part),
        epoch_(epoch),
        host_(host),
        is_dead_(std::move(is_dead)),
        pins_(memory, geometry, part),
        chunks_(memory, geometry, part, is_dead_) {}

  uint32_t part() const { return part_; }
  uint64_t epoch() const { return epoch_; }
  PinTable<Memory>& pins() { return pins_; }
  // What is free in its chunks, and the chunks that nobody has by now.
  FreeSpace free_space() {
    MutexLock lock(mutex_);
    return with_chunks(free_, chunks_.look_for_free(), geometry_);
  }

  // Makes the part whole after whoever had it before, whatever that left behind: half-written versions go back
  // to the last published one, pins of the dead go, what makes no sense goes. May be done again after a crash.
  void take_over();
  // Leaves records and data to the next owner. No pins, tickets or tensors in place may be in use.
  void release();

  // A tentative tensor under a name that this part does not have. Visible to others' create() when it returns.
  // Returns done, exists, raced (another thread creates it), full, crowded, disowned.
  Outcome place(std::string_view name, const layout::TensorShape& planned, Located* created);
  void confirm(const Located& tensor);   // the name is this holder's
  void withdraw(const Located& tensor);  // it is not

  // Returns done, writing (another thread is), pinned, gone, disowned.
  Outcome begin_write(const Located& tensor, Ticket* ticket);
  // `checksum` of ticket.bytes; ignored where the space has none.
  void publish(const Ticket& ticket, uint32_t checksum);
  // `touched`: bytes of the slot were stored.
  void abort(const Ticket& ticket, bool touched);
  // Returns done, writing, pinned, gone, disowned.
  Outcome remove(const Located& tensor);
  // Removes what other holders ask for, of tensors that say TensorFlags::peers_may_remove and that nobody writes
  // or reads in place now. Returns how many.
  uint64_t remove_what_peers_ask();

 private:
  layout::SpaceRecord* record(uint32_t index) const { return geometry_.record(part_, index); }
  uint64_t* word_at(uint32_t index) const { return &record(index)->slots.word; }
  void set_word(uint32_t index, uint64_t word, Step written_back) TERRACE_REQUIRES(mutex_) {
    memory_.store(&record(index)->slots.owner_epoch, epoch_);
    memory_.store(word_at(index), word);
    memory_.write_back(record(index), sizeof(layout::TensorSlots), written_back);
  }
  // For the functions of chains.h, which are called under the mutex.
  struct Table {
    OwnedPart* part;
    uint32_t records() const { return part->geometry_.records; }
    uint64_t word(uint32_t index) const { return part->memory_.load(part->word_at(index)); }
    void set_word(uint32_t index, uint64_t word, Step step) const TERRACE_NO_THREAD_SAFETY_ANALYSIS {
      part->set_word(index, word, step);
    }
    uint32_t home(uint32_t index) const {
      return part->geometry_.home(part->memory_.load(&part->record(index)->slots.name_hash));
    }
  };
  bool is_this(const Located& tensor, uint64_t word) {
    return has(word, layout::word_live) &&
           memory_.load(&record(tensor.record)->slots.incarnation) == tensor.incarnation;
  }
  // Whether the owner line still says so. A second line of defence, where the memory is coherent: ownership
  // that was given to two shows itself before the next store.
  bool still_owner() const { return memory_.load(&geometry_.owner(part_)->epoch) == epoch_; }
  bool pinned(uint32_t index, std::optional<uint32_t> slot, Step check) const {
    return memory_.performs(check) && anybody_pinned(memory_, geometry_, part_, index, slot, is_dead_);
  }
  void make_gone(uint32_t index, uint64_t word) TERRACE_REQUIRES(mutex_);
  // Room for `bytes`, in a chunk that is claimed for them if need be. Returns done, full, crowded.
  Outcome take_room(uint64_t bytes, uint64_t* offset) TERRACE_REQUIRES(mutex_);
  void give_room(const layout::TensorShape& shape) TERRACE_REQUIRES(mutex_);  // of a tensor that is gone
  bool repair(uint32_t index, uint64_t word) TERRACE_REQUIRES(mutex_);
  void set_owner(layout::PartState state) TERRACE_REQUIRES(mutex_);

  Memory memory_;
  const Geometry geometry_;
  Reader<Memory> reader_;
  const uint32_t part_;
  const uint64_t epoch_;
  const uint64_t host_;
  const IsDead is_dead_;
  PinTable<Memory> pins_;
  mutable Mutex mutex_;
  ChunkClaims<Memory> chunks_ TERRACE_GUARDED_BY(mutex_);
  FreeSpace free_ TERRACE_GUARDED_BY(mutex_);  // in the part's chunks
  uint32_t live_ TERRACE_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace::coherence

#include "libclient/coherence/part_inl.h"
#include "libclient/coherence/take_over_inl.h"
