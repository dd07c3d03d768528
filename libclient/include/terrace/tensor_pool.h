// SPDX-License-Identifier: Apache-2.0
// Tensors with fixed addresses, whose bytes lie in DDR or in leases of CXL memory. The first placement follows
// from a tensor's hint, later ones from its use. Once the order of a step is known, tensors are copied to DDR
// ahead of use. With a device, its memory is a tier as well: terrace/tensor_device.h.
//
//   auto pool = TensorPool::make({.session = session.get(), .ddr_bytes = 16ull << 30}, leases);
//   auto weight = (*pool)->create({.name = "w0", .dtype = DType::bf16, .shape = {4096, 4096},
//                                  .hint = TensorHint::weights});
//   { auto guard = (*weight)->read(); use(guard->bytes()); }
//   (*pool)->step();   // once a training step or request: the order of uses repeats from here on
//
// Guards    Not needed for safety: every load or store waits for a granule that is being moved. A guard says
//           which bytes are used and when; the pool learns a step's order from that. Opening a guard may wait
//           until the bytes are in DDR. A guard does not stop moves, since processors do not notice them. A
//           guard with `hold` does, for devices and system calls that access the pages past the page tables.
//           If the pool has a device, guards also say which copy is newer
//           (terrace/tensor_device.h).
// Ownership A Tensor, its views and its guards keep the memory alive, also after the TensorPool is gone; then
//           nothing moves any more. A Tiering that was passed in must outlive all of them.
// Threads   All from any thread. A pool has one thread that copies, beside its Tiering's two.
// fork      A child may only destroy its copies; its accesses to the tensors raise SIGSEGV.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "terrace/arena.h"
#include "terrace/session.h"
#include "terrace/tensor.h"
#include "terrace/tensor_device.h"
#include "terrace/tiering.h"

namespace terrace {

// The waiting of a guard until its bytes are in DDR. A guard waits only while the step's order is known: other
// copies are planned around it. It never waits longer than the copies of its missing bytes, and of the bytes
// that make room, take.
enum class GuardWait : uint8_t {
  by_cost,  // if reading from CXL, as often as advised, takes longer than the copy
  always,
  never,
};

struct TensorPoolOptions {
  Session* session = nullptr;  // for the pool's own Tiering, as in TieringOptions; used by make() only
  // Used instead of a Tiering of the pool's own. It must not divide DDR between its ranges (ddr_bytes_shared):
  // the budget is the pool's.
  Tiering* tiering = nullptr;
  std::string name = "tensors";  // of its range, as `terrace tier` shows it
  uint64_t ddr_bytes = 0;        // the DDR budget, rounded down to granules of 2 MiB
  // Copied a second, both directions together, by the pool's thread and by its own Tiering. 0: no bound.
  uint64_t copy_bytes_per_s_max = 2ull << 30;
  uint64_t copy_batch_bytes = 8ull << 20;  // copied before the most urgent copy is chosen again
  // Of the range while no order is known, as in TieredRangeOptions.
  std::string policy = {};
  bool step_aware = true;
  GuardWait guard_wait = GuardWait::by_cost;
  // 0: the figures of the leases, if they have any, else usual ones.
  uint32_t ddr_latency_ns = 0, cxl_latency_ns = 0;
  uint64_t ddr_bytes_per_s = 0, cxl_bytes_per_s = 0;
  // The device whose memory is tier hbm; null: the pool has none.
  std::shared_ptr<DeviceMemory> device = {};
  uint64_t hbm_bytes = 0;  // of it, for this pool's tensors; 0: nine tenths of the device
};

struct TensorAdvice {
  std::optional<TensorHint> hint = {};
  std::optional<uint8_t> flags = {};  // read_mostly, streaming
  std::optional<float> passes = {};   // over the bytes while one guard is open; 1 at first
};

struct TensorResidency {
  uint64_t ddr_bytes = 0, cxl_bytes = 0;  // together the tensor's bytes
  // Beside them: all of the bytes while a device has them as new as the host or newer, else 0.
  uint64_t hbm_bytes = 0;
  uint64_t hbm_dirty_bytes = 0;  // of these: newer than the host's
};

struct TensorStatistics {
  uint64_t reads = 0, writes = 0;  // guards opened, of views too
  float uses_per_step = 0;         // of the last steps
  uint64_t guard_waits = 0, guard_wait_ns = 0;
  uint32_t pins = 0;
  uint64_t device_reads = 0, device_writes = 0;
};

// A move under way. Dropping it does not stop the move.
class MoveHandle {
 public:
  virtual ~MoveHandle() = default;
  virtual bool done() const = 0;
  // Errors    busy       not done after `timeout_ns`; it goes on
  //           the move's own: capacity_exhausted (how many bytes short), cancelled (tensor or pool gone), busy
  //           (held), unsupported (nothing moves here: why)
  virtual Status wait(uint64_t timeout_ns) = 0;
  // Of the tensor in the wanted tier, as of the last piece that was moved.
  virtual uint64_t bytes_there() const = 0;
};

struct GuardOptions {
  bool hold = false;                   // the bytes do not move while the guard lives
  std::optional<GuardWait> wait = {};  // instead of the pool's
};

class Tensor;
namespace placement {
class OpenGuard;
}

// Movable only. Closes when destroyed.
class ReadGuard {
 public:
  ReadGuard() = default;
  explicit ReadGuard(std::unique_ptr<placement::OpenGuard> open);
  ReadGuard(ReadGuard&&) noexcept;
  ReadGuard& operator=(ReadGuard&&) noexcept;
  ~ReadGuard();
  // From the view's first to its last byte; strided views have others in between.
  std::span<const std::byte> bytes() const;
  template <typename Element>
  std::span<const Element> as() const {
    const std::span<const std::byte> all = bytes();
    return {reinterpret_cast<const Element*>(all.data()), all.size() / sizeof(Element)};
  }
  void close();

 private:
  std::unique_ptr<placement::OpenGuard> open_;
};

// As ReadGuard. Guards do not exclude each other: the caller must order two writers.
class WriteGuard {
 public:
  WriteGuard() = default;
  explicit WriteGuard(std::unique_ptr<placement::OpenGuard> open);
  WriteGuard(WriteGuard&&) noexcept;
  WriteGuard& operator=(WriteGuard&&) noexcept;
  ~WriteGuard();
  std::span<std::byte> bytes() const;
  template <typename Element>
  std::span<Element> as() const {
    const std::span<std::byte> all = bytes();
    return {reinterpret_cast<Element*>(all.data()), all.size() / sizeof(Element)};
  }
  void close();

 private:
  std::unique_ptr<placement::OpenGuard> open_;
};

// A tensor, or a view of one: strides over the same memory, which a view keeps alive.
class Tensor {
 public:
  virtual ~Tensor() = default;

  virtual const std::string& name() const = 0;  // of a view: its base's
  virtual DType dtype() const = 0;
  virtual const Shape& shape() const = 0;
  virtual const Strides& strides() const = 0;  // in elements; may be negative or 0 in views
  virtual TensorHint hint() const = 0;
  virtual uint8_t flags() const = 0;
  virtual bool is_view() const = 0;
  // The first element ([0, 0, ...]): constant over the tensor's life. nullptr where there are no elements.
  // Loads and stores through it are always allowed; only guards count.
  virtual std::byte* data() const = 0;
  // From the lowest to the highest byte of the elements.
  virtual std::span<std::byte> bytes() const = 0;

  // `length` elements of a dimension from `start` on, every `step`th.
  // Errors    invalid_argument  no such dimension; outside it; step 0; elements that share bytes (F4, F6)
  virtual Result<std::shared_ptr<Tensor>> slice(uint32_t dimension, uint64_t start, uint64_t length,
                                                uint64_t step = 1) = 0;
  // Any shape and strides within this view's base, beginning `offset` elements behind the base's first one.
  // Errors    invalid_argument  reaches outside the base; elements that share bytes
  virtual Result<std::shared_ptr<Tensor>> as_strided(const Shape& shape, const Strides& strides,
                                                     uint64_t offset) = 0;

  // Errors    lease_expired, lease_revoked  a lease behind the pool is gone, or about to; its bytes may be
  //           busy  a device guard is open (for read(): that writes)
  //           others, of a pool with a device: the write-back that it waited for failed
  virtual Result<ReadGuard> read(const GuardOptions& options = {}) = 0;
  virtual Result<WriteGuard> write(const GuardOptions& options = {}) = 0;

  // For a device: waits until the whole tensor (of a view: its base) is in HBM, and keeps it there. Tensors
  // without a guard or pin make room: by the order of the step the one needed last, else the least recently
  // used one. Bytes that a device has written are written back first.
  //
  // Errors    unsupported         the pool has no device
  //           busy                a host write guard is open; not there after the timeout (the copy goes on)
  //           capacity_exhausted  more than the budget less what is pinned and in use: says how many bytes
  //           cancelled           it is not there, and the pool is gone
  //           lease_expired, lease_revoked, io_error, unavailable  of the copy; the tensor is where it was
  virtual Result<DeviceGuard> device_read(const DeviceGuardOptions& options = {}) = 0;
  // As device_read(); from now on the device's bytes are newer than the host's.
  virtual Result<DeviceGuard> device_write(const DeviceGuardOptions& options = {}) = 0;
  // Waits until the host's bytes are as new as the device's.
  // Errors  as read()
  virtual Status write_back() = 0;
  // Drops the replica in HBM, also a newer one: the host's bytes count from now on. For a tensor that cannot be
  // written back because its device or lease is lost.
  // Errors    busy  a device guard is open, or it is pinned in hbm
  virtual Status discard_hbm() = 0;

  // Moves the whole tensor (of a view: its base) to `tier` and keeps it there; pins nest, with an unpin() each.
  // Others make room. A tensor that is there is pinned at once, else when the handle is done. If the handle
  // fails, nothing is pinned, nested pins included.
  // Errors    capacity_exhausted  with what is pinned already more than the tier has: says how many bytes
  //           busy                pinned in the other tier, or sharing a granule with one that is
  //           unsupported         nothing moves here, and it is not there already; hbm without a device
  //           lease_expired, lease_revoked  as read(); also the handle's
  //
  // In hbm: the replica keeps its address, and is copied again whenever a host write guard was closed.
  virtual Result<std::shared_ptr<MoveHandle>> pin(Tier tier) = 0;
  // Errors    invalid_argument  it is not pinned
  virtual Status unpin() = 0;
  // To DDR: this view's part only; others make room, the least used ones first. To hbm: a replica of the whole
  // tensor, as by device_read(); the handle fails with its errors.
  // Errors    as move_to()
  virtual Result<std::shared_ptr<MoveHandle>> prefetch(Tier tier = Tier::ddr) = 0;
  // As prefetch(), to any tier. Later use may move it again; bytes pinned elsewhere stay. A move to ddr or cxl
  // also drops the replica in HBM, once that is written back and no guard is open.
  // Errors    busy  pinned in the other tier;  unsupported  nothing moves here, and it is not there already;
  //           hbm without a device;  lease_expired, lease_revoked  as read(); also the handle's
  virtual Result<std::shared_ptr<MoveHandle>> move_to(Tier tier) = 0;
  virtual void advise(const TensorAdvice& advice) = 0;

  virtual TensorResidency residency() const = 0;
  virtual TensorStatistics statistics() const = 0;
};

enum class StepState : uint8_t {
  off,        // step_aware false, or nothing moves here
  observing,  // no order is known: the range's policy decides
  following,  // the order is known: the pool's thread copies ahead of it
};

struct TensorPoolStatistics {
  uint64_t tensors = 0, tensor_bytes = 0;
  uint64_t capacity_bytes = 0, free_bytes = 0;  // of both tiers together
  uint64_t ddr_bytes_max = 0, ddr_bytes = 0, cxl_bytes = 0, pinned_bytes = 0;
  StepState step_state = StepState::observing;
  std::string reason;  // why nothing moves; empty: it does
  uint64_t steps = 0, orders_learned = 0, orders_forgotten = 0, deviations = 0;
  uint32_t uses_per_step = 0;                                 // of the known order
  uint64_t planned_bytes_per_step = 0;                        // copied into DDR, and as many out of it
  uint64_t copied_to_ddr_bytes = 0, copied_to_cxl_bytes = 0;  // by the pool's thread
  uint64_t copy_ns = 0;                                       // that it took, without waits for the budget
  uint64_t guards = 0, guard_waits = 0, guard_wait_ns = 0, guard_waits_given_up = 0;
  HbmStatistics hbm = {};  // guards above are the host's
};

class TensorPool {
 public:
  // The pool has the leases' and the DDR budget's bytes together, less a few granules by which places are
  // traded.
  //
  // Errors    invalid_argument, not_found, already_exists, lease_*, limit_exceeded, out_of_memory  as
  //           Tiering::start and Tiering::make_range;  capacity_exhausted  less than a granule in all;
  //           unavailable and others  of the device
  static Result<std::unique_ptr<TensorPool>> make(const TensorPoolOptions& options,
                                                  std::vector<std::shared_ptr<Lease>> leases);
  virtual ~TensorPool() = default;

  // The contents are unspecified. 64-byte aligned; small tensors of like use share granules. The name is unique
  // among the pool's living tensors; find() needs one. `pinned`: pinned in the tier of its first placement.
  // Errors    already_exists      a living tensor has that name
  //           invalid_argument    not UTF-8, or longer than 1 KiB; sizes, as tensor_bytes()
  //           capacity_exhausted  no room in a row: says how many bytes short, and what each tier has
  virtual Result<std::shared_ptr<Tensor>> create(const TensorSpec& spec) = 0;
  // Errors    not_found
  virtual Result<std::shared_ptr<Tensor>> find(const std::string& name) = 0;

  // A step is over: the uses since the last call were one. Never waits for copies.
  virtual void step() = 0;
  virtual TensorPoolStatistics statistics() const = 0;
  virtual void set_copy_budget(uint64_t bytes_per_s) = 0;
  // For calls that the pool does not offer. While an order is known, the pool itself uses pause() and resume().
  virtual TieredRange& range() = 0;
};

}  // namespace terrace
