// SPDX-License-Identifier: Apache-2.0
// A snapshot of granules of a tiered range, by copying them aside before the program's first store to them.
//
// Place     EngineRange::freeze makes one; a checkpoint drains it.
// How       The granules are held and write-protected through a userfaultfd of the snapshot's own. A store
//           waits; that userfaultfd's reader copies the granule into the room and takes the protection away.
//           Readers of the snapshot read the program's own pages, through the engine's aliases, as long as they
//           are protected. Granules that cannot be protected are copied before freeze() returns.
// Threads   The reader resolves faults; view() and release() are one other thread's. mutex_ is never held while
//           memory of the range is touched, nor during a call of the kernel's that could wait.
//
// Invariants
//   Z1  A granule's live bytes are the snapshot's exactly as long as its state is live: it becomes
//       `aside` before its protection goes.
//   Z2  A granule that is frozen, and the room, are held: no mapping of theirs changes but by protection.
//   Z3  A thread that copies a granule or changes its protection claims it until the kernel's answer is there.
//       A claimed granule is not released; else a late answer would remove a protection of the mover.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/sync/mutex.h"
#include "terrace/tiering.h"
#include "tiering/migration/tiered_memory.h"
#include "tiering/migration/userfault.h"

namespace terrace {

class FrozenMemory final : public Snapshot {
 public:
  struct Part {
    uint32_t first = 0, count = 0;  // granules
  };
  // `busy` is the range's mark that there is a snapshot; cleared when this goes.
  FrozenMemory(tiering::TieredMemory& memory, std::atomic<bool>& busy);
  ~FrozenMemory() override;

  // Parts and room were checked. Errors: capacity_exhausted.
  Status freeze(std::span<const std::span<const std::byte>> parts, std::span<const std::span<std::byte>> room,
                int userfault_device, const std::string& why_not);

  std::vector<std::span<const std::byte>> view(std::span<const std::byte> part) const override;
  void release(std::span<const std::byte> part) override;
  SnapshotStatus status() const override;

 private:
  // lost: with a lease, before it was copied; only who looks at it has an error.
  enum class State : uint8_t { live, aside, lost, gone };
  struct Granule {
    uint32_t number = 0;
    State state = State::live;
    bool registered = false;
    bool held = false;
    bool claimed = false;  // Z3
    bool waiting = false;  // a store found no room
    uint64_t bytes_left = 0;
    const char* live = nullptr;  // where it is read without protection
    char* copy = nullptr;
  };

  static void on_fault(void* self, uint64_t address);
  void resolve(uint64_t address);
  void save(Granule& granule, char* slot);
  // Before there is a reader, and without the mutex, which is not held while memory_ is asked.
  void collect(std::span<const std::span<const std::byte>> parts,
               std::span<const std::span<std::byte>> room) TERRACE_NO_THREAD_SAFETY_ANALYSIS;
  void protect(const std::string& why_not);
  int protect_one(Granule& granule);
  Status copy_rest();
  Status copy_now(Granule& granule);
  void unprotect(Granule& granule);
  void wait_for_claim(const Granule& granule) TERRACE_REQUIRES(mutex_) {
    unclaimed_.wait(mutex_, [&] { return !granule.claimed; });
  }
  void let_go(std::vector<Granule*>& gone);
  char* base_of(const Granule& granule) const { return memory_.base() + granule.number * granule_bytes_; }
  Granule* find(uint32_t number);
  const Granule* find(uint32_t number) const { return const_cast<FrozenMemory*>(this)->find(number); }
  // Not analysed inside: what `each` needs is its caller's to hold.
  template <typename Each>
  void for_each_piece(std::span<const std::byte> part, Each each) const TERRACE_NO_THREAD_SAFETY_ANALYSIS;

  tiering::TieredMemory& memory_;
  std::atomic<bool>& busy_;
  const uint64_t granule_bytes_;
  const int process_;
  tiering::Userfault userfault_;
  std::vector<Granule> granules_;  // ascending; constant but for their states
  std::vector<Part> room_held_;

  mutable Mutex mutex_;
  ConditionVariable unclaimed_;
  std::vector<char*> free_slots_ TERRACE_GUARDED_BY(mutex_);
  SnapshotStatus status_ TERRACE_GUARDED_BY(mutex_);
};

}  // namespace terrace
