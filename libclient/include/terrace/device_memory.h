// SPDX-License-Identifier: Apache-2.0
// Memory of an accelerator (tier hbm): allocate it, copy to and from it on streams, wait for the copies.
//
//   auto device = DeviceMemory::open_cuda({});             // the driver is found at run time, never linked
//   if (!device.ok()) device = DeviceMemory::make_emulated({.capacity_bytes = 8ull << 30});
//   auto buffer = (*device)->allocate(weights.size(), "weights");
//   auto stream = (*device)->make_stream();
//   auto copied = (*stream)->upload(*buffer, 0, weights);   // returns at once
//   Status done = copied->wait();
//
// There are two kinds: devices of the CUDA driver, and an emulated one for machines without a GPU. The emulated
// one has a capacity, and a bandwidth and latency in each direction; its memory is this process's. Both behave
// the same; info() says the kind.
//
// Place     libclient/device; DeviceReplicas (terrace/device_replicas.h) caches tensors on top of it.
// Threads   Everything here is called from any thread. Each stream has one thread, which makes its copies in
//           order; streams run beside each other.
// Order     Only a stream and the events of this header order copies. A framework's own streams do not know
//           them: wait for the event before launching a kernel that reads the bytes, and for the kernel before
//           downloading its results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/base/result.h"

namespace terrace {

enum class DeviceKind : uint8_t { emulated, cuda };
std::string_view device_kind_name(DeviceKind kind);  // "emulated", "cuda"

struct DeviceInfo {
  DeviceKind kind = DeviceKind::emulated;
  int32_t ordinal = 0;  // the driver's number of the device; 0 for an emulated one
  std::string name;     // "NVIDIA H200", "emulated device"
  uint64_t capacity_bytes = 0;
  int32_t driver_version = 0;  // 12040 for CUDA 12.4; 0 for an emulated one
  // For people: the kind of device. An emulated one says that it is emulated, and its limits.
  std::string description;
};

struct DeviceUse {
  uint64_t capacity_bytes = 0;
  uint64_t free_bytes = 0;       // of the whole device: others use it too
  uint64_t allocated_bytes = 0;  // by this DeviceMemory
};

// Says when an operation is done. Copies of an event are the same event; a default-constructed event
// is done.
class DeviceEvent {
 public:
  class State;

  DeviceEvent() = default;
  explicit DeviceEvent(std::shared_ptr<State> state) : state_(std::move(state)) {}

  bool done() const;  // with success or an error
  // Waits until it is done.
  // Errors    of the operation: lease_expired (the host memory was fenced during the copy), io_error (the
  //           device failed), unavailable (the device had failed before; or this is a forked child, and the
  //           operation was not done)
  Status wait() const;
  // At most so long.
  // Returns   whether it is done.
  // Errors    as wait()
  Result<bool> wait_for(uint64_t timeout_ns) const;
  // A descriptor that is readable once it is done, for poll and epoll; do not read from it.
  // Ownership  The event's: valid while a copy of this event is left.
  // Errors     limit_exceeded and others of eventfd(2)
  Result<int> fd() const;

 private:
  std::shared_ptr<State> state_;
};

// Memory of a device.
//
// Ownership  Frees it when the last reference is gone. Copies under way keep one.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  // The device's address; one of an emulated device is an address of this process.
  virtual uint64_t address() const = 0;
  virtual uint64_t bytes() const = 0;
};

// Copies, one after the other, in the order of the calls.
//
// Ownership  The host memory is the caller's and must stay mapped until the copy's event is done. Destroying
//            the stream waits for all copies that it has begun.
class DeviceStream {
 public:
  // Runs on the stream's thread after a copy and before its event is done. Its return value becomes the event's
  // result. It must not wait for this stream, nor destroy it.
  using Finish = std::function<Status(Status copied)>;

  virtual ~DeviceStream() = default;

  // Each returns at once with the event of the copy.
  // Errors    invalid_argument  a part outside of the buffer, or a buffer of another device
  //           unavailable       the device was lost
  virtual Result<DeviceEvent> upload(const std::shared_ptr<DeviceBuffer>& to, uint64_t to_offset,
                                     std::span<const std::byte> from, Finish finish = {}) = 0;
  virtual Result<DeviceEvent> download(std::span<std::byte> to, const std::shared_ptr<DeviceBuffer>& from,
                                       uint64_t from_offset, Finish finish = {}) = 0;
  virtual Result<DeviceEvent> copy(const std::shared_ptr<DeviceBuffer>& to, uint64_t to_offset,
                                   const std::shared_ptr<DeviceBuffer>& from, uint64_t from_offset,
                                   uint64_t bytes, Finish finish = {}) = 0;
  // An event that is done when all earlier operations are done, with success or an error.
  virtual DeviceEvent record() = 0;
  // Later operations wait for `event`, with any result.
  virtual void wait(DeviceEvent event) = 0;
};

enum class HostAccess : uint8_t { read_only, read_write };  // how the memory is mapped

// Host memory that the device may reach by itself.
//
// Ownership  Unregisters the memory when destroyed, after the copies under way. The memory must not be
//            unmapped, remapped or moved to another tier before that: Hold memory of a TieredRange first.
//            Memory that the preload library moves is held by this object.
class HostRegistration {
 public:
  virtual ~HostRegistration() = default;
  virtual bool direct() const = 0;  // copies need no pinned buffer in between
  // The reason why not, in the driver's own words. Empty when direct.
  virtual const std::string& reason() const = 0;
};

class DeviceMemory;

struct CudaDeviceOptions {
  int32_t ordinal = 0;
  // Copies of memory that is not registered go through two pinned buffers a stream, each so large.
  uint64_t staging_bytes = 4ull << 20;
  // Larger memory is registered in pieces: drivers of 2025 refuse 512 GiB and more at once.
  uint64_t register_piece_bytes = 64ull << 30;
  // Also register memory of dax devices that is no lease's with OnFence::kill, whose memory is registered as any other. A
  // fence of such a lease then waits until it is unregistered, and some kernels fail at it (docs/operations/devdax.md).
  // Use it only on a machine for this program alone.
  bool register_dax = false;
  // Called once when the device is lost, on the first thread that notices. Must not call into this library.
  std::function<void(const Error&)> on_lost = {};
  std::string driver_library = "libcuda.so.1";
};

struct EmulatedDeviceOptions {
  uint64_t capacity_bytes = 1ull << 30;
  uint64_t upload_bytes_per_s = 0;    // of all streams together; 0: as fast as this machine copies
  uint64_t download_bytes_per_s = 0;  // both directions at once, as on PCIe
  uint64_t copy_bytes_per_s = 0;      // within the device
  uint64_t latency_ns = 0;            // before each copy
};

class DeviceMemory {
 public:
  // Errors    unsupported       no driver library, or one too old: the detail names what it lacks
  //           not_found         no such device; says how many there are
  //           version_mismatch  the driver's library and kernel module disagree
  //           others            with the driver's text
  static Result<std::shared_ptr<DeviceMemory>> open_cuda(const CudaDeviceOptions& options);
  // Errors    invalid_argument  no capacity
  static Result<std::shared_ptr<DeviceMemory>> make_emulated(const EmulatedDeviceOptions& options);
  virtual ~DeviceMemory() = default;

  virtual const DeviceInfo& info() const = 0;
  // Errors    io_error, unavailable  as health()
  virtual Result<DeviceUse> use() const = 0;
  // Success, or the error by which the device was lost. A lost device stays lost for this process: the driver's
  // context cannot be repaired. Its buffers can only be destroyed; all else fails with `unavailable`.
  virtual Status health() const = 0;

  // Uninitialised memory. Errors name `what`.
  // Errors    invalid_argument    no bytes
  //           capacity_exhausted  tier hbm; says how many bytes short
  virtual Result<std::shared_ptr<DeviceBuffer>> allocate(uint64_t bytes, std::string_view what) = 0;

  // Errors    limit_exceeded  no thread;  others with the driver's text
  virtual Result<std::unique_ptr<DeviceStream>> make_stream() = 0;

  // Registers memory, such as a lease's mapping, with the driver, so that the device copies from and to it
  // directly. Some memory cannot be registered: the driver refuses a file system's pages, or too much locked
  // memory; pages of a dax device are not pinned (CudaDeviceOptions). Copies then go through staging buffers;
  // direct() and reason() say so.
  // Errors    invalid_argument  nothing to register
  //           unavailable       the device was lost
  virtual Result<std::unique_ptr<HostRegistration>> register_host(std::span<const std::byte> memory,
                                                                  HostAccess access) = 0;
};

}  // namespace terrace
