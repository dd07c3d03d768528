// SPDX-License-Identifier: Apache-2.0
// A pool's tensors in the memory of a device (tier hbm): guards for the device's reads and writes,
// and statistics.
//
//   auto pool = TensorPool::make({.session = session.get(), .ddr_bytes = 16ull << 30, .device = device,
//                                 .hbm_bytes = 40ull << 30}, leases);
//   {
//     auto weight = (*tensor)->device_read();               // copied up where it is not there yet
//     launch_kernel(weight->address());
//     synchronize();                                        // before the guard closes
//   }
//
// A tensor in HBM is a replica: the tensor keeps its place in DDR or CXL. The pool learns from guards which of
// both is newer. So if the pool has a device, store to a tensor on the host only under a write guard; once a
// device has written it, read it only under a read guard.
//
//   host                    device
//   read() open             device_read(): both. device_write(): allowed; the host's reader sees its bytes
//                           change when the device's are written back (by the next read(), or an eviction)
//   write() open            device_read(), device_write(): busy
//   read() while device_write() is open: busy. write() while any device guard is open: busy
//   read(), write() after device_write(): wait until the device's bytes are written back
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/result.h"
#include "terrace/device_memory.h"
#include "terrace/dlpack.h"

namespace terrace {

namespace placement {
class OpenDeviceGuard;
}

struct DeviceGuardOptions {
  // device_write() only: the device will write the whole tensor, so nothing is copied up. Of a view: ignored.
  bool overwrite = false;
  uint64_t timeout_ns = UINT64_MAX;  // for the copy, and for room that others' copies are about to make
};

// A tensor in use by a device. While this lives, its bytes stay in the device's memory at their address, and
// the tensor and the device stay. Movable. Closes when it and all DLPack tensors made of it are gone.
//
// Threads  One at a time.
class DeviceGuard {
 public:
  DeviceGuard() = default;
  explicit DeviceGuard(std::shared_ptr<placement::OpenDeviceGuard> open);
  // Of the view's first element; 0 once closed, or where there are no bytes.
  uint64_t address() const;
  uint64_t bytes() const;  // from the view's first to its last byte
  // The whole tensor's buffer, for copies by the program; this reference keeps the guard open. nullptr where
  // there are no bytes.
  std::shared_ptr<DeviceBuffer> buffer() const;
  // For torch and others: kDLCUDA on a GPU; on an emulated device, whose memory is the host's, kDLCPU. The
  // guard stays open until the consumer calls the deleter. Read-only if the guard is.
  // Errors    invalid_argument  closed
  Result<dlpack::Memory> dlpack_memory() const;
  void close();

 private:
  std::shared_ptr<placement::OpenDeviceGuard> open_;
};

struct HbmStatistics {
  uint64_t capacity_bytes = 0;  // of the device; 0: the pool has none
  uint64_t budget_bytes = 0;
  // Of the budget: replicas, and room that is promised to copies under way.
  uint64_t used_bytes = 0;
  uint64_t pinned_bytes = 0;     // of these: pinned in hbm
  uint64_t in_use_bytes = 0;     // of these: a guard is open, or waits
  uint64_t dirty_bytes = 0;      // of these: newer than the host's
  uint64_t stale_bytes = 0;      // of these: older than the host's; the first to go
  uint64_t under_way_bytes = 0;  // of these: being copied, up or back
  uint64_t replicas = 0;
  uint64_t uploads = 0, uploaded_bytes = 0;
  uint64_t uploads_ahead = 0;  // of these: before anybody asked, by the order of the step
  uint64_t write_backs = 0, written_back_bytes = 0;
  uint64_t evictions = 0, evicted_bytes = 0;
  uint64_t failed_copies = 0;
  uint64_t refused = 0;  // for want of room
  uint64_t guards = 0, guard_waits = 0, guard_wait_ns = 0;
  uint64_t host_waits = 0, host_wait_ns = 0;  // of host guards, for a write-back
  bool following = false;                     // the order of device guards is known
  uint32_t uses_per_step = 0;                 // of that order
  uint64_t planned_bytes_per_step = 0;        // copied up, by its plan
};

}  // namespace terrace
