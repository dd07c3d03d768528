// SPDX-License-Identifier: Apache-2.0
// Ranges of host memory registered with the CUDA driver, and the search for the range of a copy.
//
// A registration counts for the whole process and every device (it is PORTABLE), and the driver refuses a page
// that has one. So there is one table for a driver, shared by the open devices. A request is covered by present
// ranges, such as a neighbour's last page, and by new ones in between.
//
// Threads      Any. Memory is pinned and unpinned without the mutex, which copies take: that can last seconds.
// Invariants   R1  a range is unregistered when neither a registration nor a copy under way keeps it.
//              R2  ranges in the table do not overlap. An entry is there before its pages are registered and
//                  until they are unregistered: no other thread registers one of them meanwhile.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/sync/mutex.h"
#include "libclient/device/cuda/cuda_context.h"
#include "libclient/device/host_pages.h"

namespace terrace::device {

// Whole pages, registered piece by piece.
class HostRange {
 public:
  HostRange(std::shared_ptr<CudaContext> context, std::span<const std::byte> pages, uint64_t bytes_at_once,
            bool for_reading)
      : begin(reinterpret_cast<uintptr_t>(pages.data())),
        bytes(pages.size()),
        piece_bytes(bytes_at_once),
        read_only(for_reading),
        context_(std::move(context)),
        held_(pages) {}
  ~HostRange();
  HostRange(const HostRange&) = delete;
  HostRange& operator=(const HostRange&) = delete;

  Status add(uint32_t flags);  // of cuda::register_*
  // How many of `wanted` bytes at `address` are within one piece: a copy must not cross its end.
  uint64_t in_piece(uintptr_t address, uint64_t wanted) const;
  // The device through which it was registered was lost, and the registration with it.
  bool lost() const { return context_->lost(); }

  const uintptr_t begin;
  const uint64_t bytes;
  const uint64_t piece_bytes;
  const bool read_only;  // the device may not write it

 private:
  const std::shared_ptr<CudaContext> context_;
  const HeldPages held_;
  uint64_t registered_bytes_ = 0;
};

// Ranges that have all of some memory, in any order: one, mostly. None: the memory is not registered.
using HostCover = std::vector<std::shared_ptr<HostRange>>;

// How many of `wanted` bytes at `address`, which are in the cover, one copy may have.
uint64_t bytes_of_one_copy(const HostCover& cover, uintptr_t address, uint64_t wanted);

class HostRanges : public std::enable_shared_from_this<HostRanges> {
 public:
  struct Request {
    std::span<const std::byte> memory;
    uint64_t piece_bytes = 0;
    bool read_only = false;
  };

  // The table of the driver's process.
  static std::shared_ptr<HostRanges> of(const CudaDriver& driver);

  // Waits while another thread registers, or lets go, some of these pages.
  // Errors    the driver's, as for pages that somebody registered who is not us;
  //           permission_denied  to be written, and a part is registered for reading only
  //           unavailable        a part is registered by a device that was lost, and not yet given back
  Result<HostCover> add(const std::shared_ptr<CudaContext>& context, const Request& request);
  // What has all of `memory`, and the device may write if it is to; or nothing.
  HostCover find(const std::byte* memory, uint64_t bytes, bool to_write) const;

 private:
  struct Entry {
    uint64_t bytes = 0;
    std::weak_ptr<HostRange> range;
    bool ready = false;  // false: being registered
  };
  struct Gap {
    uintptr_t begin;
    uint64_t bytes;
  };
  struct Look {
    HostCover cover;
    std::vector<Gap> gaps;
    bool in_motion = false;  // some of it is being registered or let go: look again later
  };

  Look look(uintptr_t begin, uint64_t bytes) const TERRACE_REQUIRES(mutex_);
  Status fill(const std::shared_ptr<CudaContext>& context, const Request& request, Look& found);
  std::shared_ptr<HostRange> own(std::unique_ptr<HostRange> range);  // whose end is told by gone()
  void gone(uintptr_t begin);

  mutable Mutex mutex_;
  ConditionVariable changed_;
  std::map<uintptr_t, Entry> entries_ TERRACE_GUARDED_BY(mutex_);
};

}  // namespace terrace::device
