// SPDX-License-Identifier: Apache-2.0
// Tier hbm of a pool: replicas of its tensors in a device's memory, under a budget of bytes.
//
// Place     core.h asks it where a guard, pin or move is of the device, and at each host guard; it asks nothing
//           back. Its users are in device_uses.cc, whom it serves and who makes room in device_room.cc,
//           allocations and copies in device_copies.cc.
// Threads   Any, under mutex_. One thread of its own decides what to copy, evict and write back; the streams'
//           threads finish copies. Order of locks: the core's, mutex_, then a MoveState's or a stream's.
//           Nothing that waits, allocates or frees device memory does so under mutex_.
//
// Invariants
//   H1  used_ is the sum over charged_: an entry is charged from before its memory is asked for until after it
//       was freed, and used_ <= budget_. So room that is on its way to or from somebody is seen by all who
//       look.
//   H2  what is evicted is clean or stale, and no guard, waiting guard, pin or copy has it.
//   H3  a replica is dirty only while no host write guard is open and the host's bytes are older; bytes go to
//       the host only from a dirty one.
//   H4  who is refused for want of room is so by what guards and pins keep, never by copies under way.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/base/sync/mutex.h"
#include "libclient/placement/device_schedule.h"
#include "libclient/placement/move_state.h"
#include "libclient/placement/order.h"
#include "terrace/tensor_device.h"

namespace terrace::placement {

// Of one tensor, for as long as it lives.
struct HbmEntry {
  enum class Phase : uint8_t {
    absent,
    preparing,  // its memory is being allocated
    rising,     // copied up
    resident,
    sinking,  // written back
    leaving,  // its memory is being freed
  };
  struct Waiter {  // a device guard that is not open yet
    bool overwrite = false;
    Status failed;
  };

  std::string words;  // for errors
  std::span<std::byte> host;
  uint32_t slot = 0;
  // Under the tier's mutex:
  Phase phase = Phase::absent;
  std::shared_ptr<DeviceBuffer> buffer;
  uint64_t host_version = 1;  // grows with each host write guard
  uint64_t version = 0;       // of the host's bytes that the replica has
  uint64_t up_failed = 0;     // at this host version: not tried again unasked
  bool dirty = false;
  bool torn = false;         // a write-back failed half-way: the host's bytes are of two versions
  bool to_leave = false;     // is written back to make room
  bool sink_wanted = false;  // somebody waits for the write-back
  bool wanted = false;       // is in wants_
  bool gone = false;         // its tensor is
  Status sink_error;         // of the last one
  uint64_t sinks = 0;        // write-backs that ended, well or not
  uint32_t readers = 0, writers = 0, host_writers = 0, host_waiters = 0, pins = 0;
  std::vector<Waiter*> waiters;
  std::vector<std::shared_ptr<MoveState>> moves, releases;
  std::shared_ptr<MoveState> pin_move;
  uint64_t last_use = 0, device_reads = 0, device_writes = 0;

  uint64_t bytes() const { return host.size(); }
  bool has_bytes() const { return phase == Phase::resident || phase == Phase::sinking; }
  bool current() const { return has_bytes() && (dirty || version == host_version); }
  bool lost() const { return torn && !(dirty && has_bytes()); }  // nobody has all of its bytes any more
  bool in_use() const { return readers + writers > 0 || !waiters.empty(); }
  bool copying() const { return phase != Phase::absent && phase != Phase::resident; }
};

class DeviceTier {
 public:
  using Entry = HbmEntry;

  static Result<std::unique_ptr<DeviceTier>> make(std::shared_ptr<DeviceMemory> device, uint64_t budget_bytes,
                                                  bool step_aware);
  ~DeviceTier();  // no entry is left
  // Nothing is brought any more, and who waits for that is told; what is dirty can still be written back.
  void stop();

  std::shared_ptr<Entry> add(std::string words, std::span<std::byte> host);
  void retire(const std::shared_ptr<Entry>& entry);  // waits for its copies

  // A host guard opens: waits for a write-back. Each that is well has its host_closed().
  Status host_opens(Entry& entry, bool write);
  void host_closed(Entry& entry, bool write);
  Status discard(Entry& entry);

  struct Opened {
    std::shared_ptr<DeviceBuffer> buffer;
    uint64_t ticket = 0;
  };
  Result<Opened> open(Entry& entry, bool write, const DeviceGuardOptions& options);
  void close(Entry& entry, bool write, uint64_t ticket);

  Result<std::shared_ptr<MoveState>> bring(Entry& entry);
  Result<std::shared_ptr<MoveState>> pin(Entry& entry);
  bool unpin(Entry& entry);  // false: it was not pinned
  uint32_t pins(const Entry& entry) const;
  // Done when the replica is given up.
  Result<std::shared_ptr<MoveState>> release(Entry& entry);

  void step();
  HbmStatistics statistics() const;
  void add_to(const Entry& entry, uint64_t bytes, TensorResidency& residency) const;
  void add_to(const Entry& entry, TensorStatistics& statistics) const;
  const DeviceInfo& info() const { return device_->info(); }

 private:
  enum class Outcome : uint8_t {
    done,     // something was begun or ended: look again
    waits,    // for room that is on its way
    nothing,  // is to be done for it now
  };

  DeviceTier(std::shared_ptr<DeviceMemory> device, uint64_t budget, bool step_aware);
  Status start();
  void event() TERRACE_REQUIRES(mutex_);  // something that the thread or a waiter looks at has changed

  Status wait_for_sink(Entry& entry) TERRACE_REQUIRES(mutex_);

  // device_uses.cc
  void want(Entry& entry) TERRACE_REQUIRES(mutex_);
  void end_want(Entry& entry, const Status& result) TERRACE_REQUIRES(mutex_);

  // device_room.cc
  void run();
  bool look() TERRACE_REQUIRES(mutex_);
  bool serve_charged() TERRACE_REQUIRES(mutex_);
  Outcome serve_want(Entry& entry) TERRACE_REQUIRES(mutex_);
  Outcome bring_ahead() TERRACE_REQUIRES(mutex_);
  void plan_order() TERRACE_REQUIRES(mutex_);
  std::vector<NextUse> next_uses() const TERRACE_REQUIRES(mutex_);
  bool evictable(const Entry& entry) const TERRACE_REQUIRES(mutex_);
  bool will_be_evictable(const Entry& entry) const TERRACE_REQUIRES(mutex_);
  std::vector<Entry*> victims(const std::vector<NextUse>& next) const TERRACE_REQUIRES(mutex_);
  // Begins to free at least `bytes`, of these in this order. Says `waits` where enough is on its way.
  Outcome make_room(uint64_t bytes, const std::vector<Entry*>& order) TERRACE_REQUIRES(mutex_);
  static Error lost_bytes(const Entry& entry);
  Error short_of(const Entry& entry, uint64_t bytes) const TERRACE_REQUIRES(mutex_);

  // device_copies.cc
  Outcome allocate_and_raise(Entry& entry, bool upload) TERRACE_REQUIRES(mutex_);
  Outcome device_is_short(Entry& entry, Error refused) TERRACE_REQUIRES(mutex_);
  bool begin_upload(Entry& entry, bool ahead) TERRACE_REQUIRES(mutex_);
  bool begin_sink(Entry& entry) TERRACE_REQUIRES(mutex_);
  Status uploaded(Entry& entry, Status copied, uint64_t version) TERRACE_REQUIRES(mutex_);
  Status sunk(Entry& entry, Status copied, bool begun) TERRACE_REQUIRES(mutex_);
  void drop_buffer(Entry& entry) TERRACE_REQUIRES(mutex_);
  std::shared_ptr<DeviceBuffer> counted(Entry& entry, std::shared_ptr<DeviceBuffer> buffer);
  void charge(Entry& entry) TERRACE_REQUIRES(mutex_);
  void uncharge(Entry& entry) TERRACE_REQUIRES(mutex_);

  const std::shared_ptr<DeviceMemory> device_;
  const uint64_t budget_;
  const bool step_aware_;
  std::unique_ptr<DeviceStream> up_, down_;

  mutable Mutex mutex_;
  ConditionVariable wake_, changed_;
  uint64_t events_ TERRACE_GUARDED_BY(mutex_) = 0;
  bool stopping_ TERRACE_GUARDED_BY(mutex_) = false;
  bool ended_ TERRACE_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<Entry>> entries_ TERRACE_GUARDED_BY(mutex_);  // by slot; null: free
  std::vector<uint32_t> free_slots_ TERRACE_GUARDED_BY(mutex_);
  std::vector<Entry*> charged_ TERRACE_GUARDED_BY(mutex_);
  std::list<Entry*> wants_ TERRACE_GUARDED_BY(mutex_);  // in the order they were asked for
  uint64_t used_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint64_t pinned_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint64_t clock_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint32_t ahead_under_way_ TERRACE_GUARDED_BY(mutex_) = 0;
  OrderLearner learner_ TERRACE_GUARDED_BY(mutex_);
  DeviceSchedule schedule_ TERRACE_GUARDED_BY(mutex_);
  bool following_ TERRACE_GUARDED_BY(mutex_) = false;
  bool order_changed_ TERRACE_GUARDED_BY(mutex_) = false;
  HbmStatistics counts_ TERRACE_GUARDED_BY(mutex_);  // only the counters
  std::thread thread_;
};

}  // namespace terrace::placement
