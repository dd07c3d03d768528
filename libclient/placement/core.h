// SPDX-License-Identifier: Apache-2.0
// Shared by all tensors of a pool: the range, the places of tensors in it, the order of the step, and the
// thread that copies.
//
// Place     tensor_pool.h's classes are thin handles on it: TensorPool (pool.cc), Tensor (tensor.cc), guards
//           (guard.cc). Below it a TieredRange, which alone moves anything.
//           Beside it a DeviceTier, where the pool has a device: replicas in HBM.
// Threads   Everything from any thread, under mutex_; the mover thread copies without it. Order of locks:
//           mutex_, then the DeviceTier's, then a MoveState's.
// Lifetime  Tensors share it. stop() ends the thread, and with it all moves; the memory stays until the last
//           tensor.
//
// Invariants
//   P2  The tier's pinned granules fit it, each counted once.
//   P3  While an order is followed the range's own policy is paused, so that only one decides; it runs again
//       as soon as the order is forgotten.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/base/sync/mutex.h"
#include "libclient/placement/cost.h"
#include "libclient/placement/device_tier.h"
#include "libclient/placement/granule_space.h"
#include "libclient/placement/move_state.h"
#include "libclient/placement/order.h"
#include "libclient/placement/schedule.h"
#include "terrace/tensor_pool.h"

namespace terrace::placement {

using SteadyTime = std::chrono::steady_clock::time_point;
using Nanoseconds = std::chrono::nanoseconds;

class Core;

// A tensor's memory; views share it. What may change is the core's, under its mutex.
struct Storage {
  Storage(std::shared_ptr<Core> of, const TensorSpec& spec, uint64_t bytes);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  const std::shared_ptr<Core> core;
  const std::string name;
  const DType dtype;
  const Shape shape;
  const uint64_t bytes;
  Place place;
  TensorHint hint;
  uint8_t flags;
  double passes = 1;
  // Uses in step `use_step`, and of the steps before it.
  uint64_t use_step = 0, uses_now = 0;
  double uses_before = -1;  // negative: no step is over yet
  uint64_t reads = 0, writes = 0, waits = 0, wait_ns = 0;
  uint32_t pins = 0;
  Tier pin_tier = Tier::ddr;
  std::shared_ptr<MoveState> pin_move;
  Hold pin_hold;
  std::shared_ptr<HbmEntry> replica;  // null: the pool has no device, or no bytes. Set before anybody sees it
};

class OpenGuard {
 public:
  ~OpenGuard();
  std::span<std::byte> bytes;
  std::shared_ptr<Storage> storage;
  Run run;
  static constexpr uint64_t not_in_order = UINT64_MAX;
  uint64_t ticket = not_in_order;  // of the OrderLearner
  size_t index = 0;                // in Core::open_
  bool entered = false;
  bool holds = false;
  Hold hold;
  bool told_device = false, writes = false;  // tier hbm was told of it
};

class OpenDeviceGuard {
 public:
  ~OpenDeviceGuard();
  std::shared_ptr<Storage> storage;
  DeviceTier::Opened opened;
  bool entered = false, writes = false;
  uint64_t address = 0, bytes = 0;
  Shape shape;
  Strides strides;
};

class Core : public std::enable_shared_from_this<Core> {
 public:
  static Result<std::shared_ptr<Core>> make(const TensorPoolOptions& options,
                                            std::vector<std::shared_ptr<Lease>> leases);
  ~Core();
  // Only by the process that made it; a child of fork that lets go of its pool keeps its copy for ever.
  void stop();
  bool in_child() const;

  Result<std::shared_ptr<Storage>> create(const TensorSpec& spec);
  Result<std::shared_ptr<Storage>> find(const std::string& name);
  void retire(Storage& storage);

  Result<std::unique_ptr<OpenGuard>> open(const std::shared_ptr<Storage>& storage, std::span<std::byte> bytes,
                                          bool write, const GuardOptions& options);
  void close(OpenGuard& guard);

  // device_guard.cc: tier hbm. Without a device `unsupported`; a tensor of no bytes has no replica.
  Result<std::shared_ptr<OpenDeviceGuard>> open_device(const std::shared_ptr<Storage>& storage, bool write,
                                                       const DeviceGuardOptions& options);
  void close(OpenDeviceGuard& guard);
  Status write_back(Storage& storage);
  Status discard_hbm(Storage& storage);
  const DeviceInfo& device_info() const { return device_->info(); }

  Result<std::shared_ptr<MoveHandle>> pin(Storage& storage, Tier tier);
  Status unpin(Storage& storage);
  // `bytes` lie in the storage.
  Result<std::shared_ptr<MoveHandle>> move(Storage& storage, std::span<std::byte> bytes, Tier tier);
  // The replica in HBM is given up as well, where the tensor goes elsewhere.
  Result<std::shared_ptr<MoveHandle>> move_from_hbm(Storage& storage, std::span<std::byte> bytes, Tier tier);
  void advise(Storage& storage, const TensorAdvice& advice);

  void step();
  TensorPoolStatistics statistics() const;
  TensorStatistics statistics(const Storage& storage) const;
  TensorResidency residency(const Storage& storage, std::span<const std::byte> bytes) const;
  void set_copy_budget(uint64_t bytes_per_s);
  TieredRange& range() { return *range_; }
  std::byte* base() const { return base_; }
  Mutex& mutex() const TERRACE_RETURN_CAPABILITY(mutex_) { return mutex_; }

 private:
  struct Request {
    std::shared_ptr<MoveState> state;
    Storage* storage = nullptr;
    std::span<std::byte> bytes;
    Run run;
    Tier tier = Tier::ddr;
    bool pin = false;
    uint32_t away = 0;                 // granules that were still to be moved at the last look
    uint32_t least_away = UINT32_MAX;  // when it was nearest to its end
    uint32_t failures = 0;             // looks since then that moved none
    SteadyTime retry_at{};             // not looked at before
    bool held = false;                 // some of them would not move
  };
  struct Waiter {
    Run run;
    bool given_up = false;
  };
  // Granules to move, each list ascending.
  struct Batch {
    std::vector<uint32_t> out, in;
    bool in_first = false;
    std::shared_ptr<MoveState> for_request = {};
    bool empty() const { return out.empty() && in.empty(); }
  };

  Core() = default;
  Status begin(const TensorPoolOptions& options, std::vector<std::shared_ptr<Lease>> leases);
  void begin_state(const TensorPoolOptions& options) TERRACE_NO_THREAD_SAFETY_ANALYSIS;
  void read_costs(const TensorPoolOptions& options) TERRACE_REQUIRES(mutex_);
  Status start_thread();
  Status check_leases() const;

  Run run_of(std::span<const std::byte> bytes) const;
  bool in_ddr(uint32_t granule) const {
    return range_->tier_of(base_ + uint64_t{granule} * granule_bytes_) == Tier::ddr;
  }
  uint32_t missing(Run run) const;                           // of its granules, from DDR
  uint32_t awaited(Run run) const TERRACE_REQUIRES(mutex_);  // of those: that may come now
  bool begins_in_ddr(const UseFacts& facts, uint64_t granules) const TERRACE_REQUIRES(mutex_);
  UseFacts facts_of(const Storage& storage) const TERRACE_REQUIRES(mutex_);
  void note_use(Storage& storage, bool write) TERRACE_REQUIRES(mutex_);
  std::string in_words(const Storage& storage) const;
  std::string why_no_moves() const TERRACE_REQUIRES(mutex_);
  TensorResidency host_residency(std::span<const std::byte> bytes) const;
  void wait_for_ddr(Storage& storage, Run run) TERRACE_REQUIRES(mutex_);

  Result<std::shared_ptr<MoveHandle>> to_hbm(Storage& storage, bool pin) TERRACE_REQUIRES(mutex_);

  // requests.cc: pins and moves
  Error stays(const Storage& storage, Tier tier) const TERRACE_REQUIRES(mutex_);
  Status room_for_pin(const Storage& storage, Run run, Tier tier) const TERRACE_REQUIRES(mutex_);
  void count_pins(Run run, Tier tier, int by) TERRACE_REQUIRES(mutex_);
  void cancel_requests(const Storage* storage, const char* why) TERRACE_REQUIRES(mutex_);

  // mover.cc: the thread
  void run();
  void note_work() TERRACE_REQUIRES(mutex_);
  void settle_policy() TERRACE_REQUIRES(mutex_);
  void plan_order() TERRACE_REQUIRES(mutex_);
  std::vector<uint8_t> states(SteadyTime now) const TERRACE_REQUIRES(mutex_);
  std::vector<float> values() const TERRACE_REQUIRES(mutex_);
  Batch next_batch() TERRACE_REQUIRES(mutex_);
  Batch batch_of(const std::vector<PlannedMove>& moves, uint32_t in_ddr) const TERRACE_REQUIRES(mutex_);
  Batch request_batch() TERRACE_REQUIRES(mutex_);
  // capacity_exhausted: the tier is full; busy: granules are held.
  Error too_little_room(const Request& request, uint32_t away, uint32_t in_ddr) const TERRACE_REQUIRES(mutex_);
  Batch raise_batch(const Request& request, const std::vector<uint8_t>& states, uint32_t in_ddr)
      TERRACE_REQUIRES(mutex_);
  Batch sink_batch(const Request& request, const std::vector<uint8_t>& states, uint32_t in_ddr)
      TERRACE_REQUIRES(mutex_);
  uint32_t away(const Request& request) const
      TERRACE_REQUIRES(mutex_);  // granules that are not where it wants them
  void judge_request(const Batch& batch, uint32_t sank, uint32_t rose) TERRACE_REQUIRES(mutex_);
  void retry_later(std::deque<Request>::iterator request) TERRACE_REQUIRES(mutex_);
  void finish_request(Status result) TERRACE_REQUIRES(mutex_);
  Status take_pin_hold(Storage& storage, Tier tier) TERRACE_REQUIRES(mutex_);
  void undo_pin(Storage& storage) TERRACE_REQUIRES(mutex_);
  void carry_out(const Batch& batch) TERRACE_REQUIRES(mutex_);
  uint32_t move_runs(const std::vector<uint32_t>& granules, Tier tier, size_t at_most,
                     std::vector<uint32_t>* refused, Status* stopped);
  double copy_rate() const TERRACE_REQUIRES(mutex_);

  std::unique_ptr<Tiering> own_tiering_;
  Tiering* tiering_ = nullptr;
  std::vector<std::shared_ptr<Lease>> leases_;
  std::unique_ptr<TieredRange> range_;
  std::byte* base_ = nullptr;
  uint64_t granule_bytes_ = 0;
  uint32_t granules_ = 0, ddr_max_ = 0, cxl_max_ = 0, batch_granules_ = 1;
  std::unique_ptr<DeviceTier> device_;  // null: none
  Costs costs_ TERRACE_GUARDED_BY(mutex_);
  GuardWait guard_wait_ = GuardWait::by_cost;
  bool step_aware_ = true;
  int process_ = 0;

  mutable Mutex mutex_;
  std::unique_ptr<GranuleSpace> space_ TERRACE_GUARDED_BY(mutex_);
  std::unordered_set<Storage*> storages_ TERRACE_GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::weak_ptr<Storage>> names_ TERRACE_GUARDED_BY(mutex_);
  std::vector<OpenGuard*> open_ TERRACE_GUARDED_BY(mutex_);
  std::vector<uint16_t> pin_counts_ TERRACE_GUARDED_BY(mutex_);    // by granule
  std::vector<uint8_t> pinned_in_ddr_ TERRACE_GUARDED_BY(mutex_);  // of those with a count: the tier
  uint32_t pinned_ddr_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint32_t pinned_cxl_ TERRACE_GUARDED_BY(mutex_) = 0;
  std::array<double, 6> observed_uses_ TERRACE_GUARDED_BY(mutex_){
      -1, -1, -1, -1, -1, -1};  // a step, by hint; negative: none yet
  std::vector<SteadyTime> not_before_
      TERRACE_GUARDED_BY(mutex_);  // a granule that would not move is left alone until then
  std::deque<Request> requests_ TERRACE_GUARDED_BY(mutex_);
  std::vector<Waiter*> waiters_ TERRACE_GUARDED_BY(mutex_);
  OrderLearner learner_ TERRACE_GUARDED_BY(mutex_);
  Schedule schedule_ TERRACE_GUARDED_BY(mutex_);
  bool following_ TERRACE_GUARDED_BY(mutex_) = false;
  bool order_changed_ TERRACE_GUARDED_BY(mutex_) = false;
  bool policy_paused_ TERRACE_GUARDED_BY(mutex_) = false;
  std::string stopped_
      TERRACE_GUARDED_BY(mutex_);  // why nothing moves any more, and what is answered to who asks for it
  ErrorCode stopped_code_ TERRACE_GUARDED_BY(mutex_) = ErrorCode::unsupported;
  uint64_t step_number_ TERRACE_GUARDED_BY(mutex_) = 1;
  uint64_t rate_ TERRACE_GUARDED_BY(mutex_) = 0;  // bytes a second; 0: no bound
  SteadyTime next_copy_ TERRACE_GUARDED_BY(mutex_){};
  TensorPoolStatistics counts_ TERRACE_GUARDED_BY(mutex_);

  ConditionVariable mover_wakes_, guards_wake_;
  uint64_t work_ TERRACE_GUARDED_BY(mutex_) = 0;
  bool stopping_ TERRACE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace terrace::placement
