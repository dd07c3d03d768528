// SPDX-License-Identifier: Apache-2.0
#include "libclient/device/cuda/host_ranges.h"

#include <algorithm>
#include <iterator>

#include "core/base/units.h"

namespace terrace::device {
namespace {

bool may_only_read(const HostCover& cover) {
  return std::ranges::any_of(cover, [](const auto& range) { return range->read_only; });
}

bool went_with_a_device(const HostCover& cover) {
  return std::ranges::any_of(cover, [](const auto& range) { return range->lost(); });
}

}  // namespace

HostRange::~HostRange() {
  const CudaContext::Current current(*context_);
  if (!current.status().ok()) return;
  while (registered_bytes_ > 0) {
    const uint64_t last = (registered_bytes_ - 1) / piece_bytes * piece_bytes;
    // Fails only for a device that was lost; the kernel lets the pages go with the process then.
    (void)context_->driver().host_unregister(reinterpret_cast<void*>(begin + last));
    registered_bytes_ = last;
  }
}

Status HostRange::add(uint32_t flags) {
  const CudaContext::Current current(*context_);
  TERRACE_RETURN_IF_ERROR(current.status());
  while (registered_bytes_ < bytes) {
    const uint64_t piece = std::min(piece_bytes, bytes - registered_bytes_);
    TERRACE_RETURN_IF_ERROR(context_->check(
        context_->driver().host_register(reinterpret_cast<void*>(begin + registered_bytes_), piece, flags),
        "DeviceMemory::register_host", "host memory cannot be registered"));
    registered_bytes_ += piece;
  }
  return {};
}

uint64_t HostRange::in_piece(uintptr_t address, uint64_t wanted) const {
  const uint64_t offset = address - begin;
  return std::min({wanted, piece_bytes - offset % piece_bytes, bytes - offset});
}

uint64_t bytes_of_one_copy(const HostCover& cover, uintptr_t address, uint64_t wanted) {
  const auto after = std::find_if(cover.begin(), cover.end(),
                                  [&](const auto& range) { return address - range->begin < range->bytes; });
  TERRACE_CHECK(after != cover.end(), "a copy outside of the registered ranges that it was given");
  return (*after)->in_piece(address, wanted);
}

std::shared_ptr<HostRanges> HostRanges::of(const CudaDriver& driver) {
  static Mutex mutex;
  static std::map<decltype(driver.host_register), std::weak_ptr<HostRanges>> tables;
  const MutexLock lock(mutex);
  std::weak_ptr<HostRanges>& known = tables[driver.host_register];
  std::shared_ptr<HostRanges> table = known.lock();
  if (table == nullptr) known = table = std::make_shared<HostRanges>();
  return table;
}

Result<HostCover> HostRanges::add(const std::shared_ptr<CudaContext>& context, const Request& request) {
  const auto address = reinterpret_cast<uintptr_t>(request.memory.data());
  const uintptr_t begin = address & ~(page_bytes() - 1);
  const uint64_t bytes = round_up(address + request.memory.size(), page_bytes()) - begin;
  while (true) {
    Look now;  // let go after the mutex: the last to have a range unregisters it, and takes the mutex
    {
      const MutexLock lock(mutex_);
      now = look(begin, bytes);
      if (now.in_motion) {
        changed_.wait(mutex_);
        continue;
      }
      if (!request.read_only && may_only_read(now.cover)) {
        return Error{ErrorCode::permission_denied, 0, "DeviceMemory::register_host",
                     "a part of the host memory is registered for reading only"};
      }
      if (went_with_a_device(now.cover)) {
        return Error{
            ErrorCode::unavailable, 0, "DeviceMemory::register_host",
            "a part of the host memory was registered by a device that was lost: drop that registration"};
      }
      for (const Gap& gap : now.gaps) entries_[gap.begin].bytes = gap.bytes;
    }
    TERRACE_RETURN_IF_ERROR(fill(context, request, now));
    return std::move(now.cover);
  }
}

// Registers what is missing. Its entries are there, and go with the ranges if that fails.
Status HostRanges::fill(const std::shared_ptr<CudaContext>& context, const Request& request, Look& found) {
  HostCover made;
  for (const Gap& gap : found.gaps) {
    const std::span pages(reinterpret_cast<const std::byte*>(gap.begin), gap.bytes);
    made.push_back(own(std::make_unique<HostRange>(context, pages, request.piece_bytes, request.read_only)));
  }
  const uint32_t flags = cuda::register_portable | (request.read_only ? cuda::register_read_only : 0);
  for (const auto& range : made) TERRACE_RETURN_IF_ERROR(range->add(flags));
  {
    const MutexLock lock(mutex_);
    for (const auto& range : made) {
      Entry& entry = entries_.at(range->begin);
      entry.range = range;
      entry.ready = true;
    }
  }
  changed_.notify_all();
  std::ranges::move(made, std::back_inserter(found.cover));
  return {};
}

std::shared_ptr<HostRange> HostRanges::own(std::unique_ptr<HostRange> range) {
  return {range.release(), [table = shared_from_this()](HostRange* last) {
            const uintptr_t begin = last->begin;
            delete last;
            table->gone(begin);
          }};
}

void HostRanges::gone(uintptr_t begin) {
  {
    const MutexLock lock(mutex_);
    entries_.erase(begin);
  }
  changed_.notify_all();
}

HostCover HostRanges::find(const std::byte* memory, uint64_t bytes, bool to_write) const {
  Look found;  // let go after the mutex
  {
    const MutexLock lock(mutex_);
    found = look(reinterpret_cast<uintptr_t>(memory), bytes);
  }
  if (!found.gaps.empty() || found.in_motion || (to_write && may_only_read(found.cover))) return {};
  if (went_with_a_device(found.cover)) return {};
  return std::move(found.cover);
}

HostRanges::Look HostRanges::look(uintptr_t begin, uint64_t bytes) const {
  Look found;
  const uintptr_t end = begin + bytes;
  uintptr_t at = begin;
  auto next = entries_.upper_bound(begin);
  if (next != entries_.begin() && begin - std::prev(next)->first < std::prev(next)->second.bytes) --next;
  for (; next != entries_.end() && next->first < end; ++next) {
    const auto& [first, entry] = *next;
    if (first > at) found.gaps.push_back({at, first - at});
    at = first + entry.bytes;
    if (auto range = entry.ready ? entry.range.lock() : nullptr; range != nullptr) {
      found.cover.push_back(std::move(range));
    } else {
      found.in_motion = true;
    }
  }
  if (at < end) found.gaps.push_back({at, end - at});
  return found;
}

}  // namespace terrace::device
