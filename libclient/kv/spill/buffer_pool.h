// SPDX-License-Identifier: Apache-2.0
// Memory for frames, aligned for O_DIRECT, that is used again: fresh memory costs a page fault for each 4 KiB.
//
// Ownership A buffer goes back to its pool, which must outlive it.
// Threads   Any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/sync/mutex.h"

namespace terrace::kv {

class BufferPool {
 public:
  explicit BufferPool(uint64_t keep_bytes) : keep_bytes_(keep_bytes) {}
  ~BufferPool() {
    for (const auto& [memory, bytes] : free_) std::free(memory);
  }
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // `bytes`: a multiple of 4096. nullptr: no memory.
  std::shared_ptr<std::byte> take(uint64_t bytes) {
    std::byte* memory = nullptr;
    uint64_t has = bytes;
    {
      const MutexLock lock(mutex_);
      for (size_t index = free_.size(); memory == nullptr && index-- > 0;) {
        if (free_[index].second < bytes || free_[index].second > 2 * bytes) continue;
        std::tie(memory, has) = std::exchange(free_[index], free_.back());
        free_.pop_back();
        kept_bytes_ -= has;
      }
    }
    if (memory == nullptr) memory = static_cast<std::byte*>(std::aligned_alloc(4096, bytes));
    if (memory == nullptr) return nullptr;
    return {memory, [this, has](std::byte* used) { give(used, has); }};
  }

 private:
  void give(std::byte* memory, uint64_t bytes) {
    {
      const MutexLock lock(mutex_);
      if (kept_bytes_ + bytes <= keep_bytes_ && free_.size() < 1024) {
        free_.push_back({memory, bytes});
        kept_bytes_ += bytes;
        return;
      }
    }
    std::free(memory);
  }

  const uint64_t keep_bytes_;
  Mutex mutex_;
  uint64_t kept_bytes_ TERRACE_GUARDED_BY(mutex_) = 0;
  std::vector<std::pair<std::byte*, uint64_t>> free_ TERRACE_GUARDED_BY(mutex_);
};

}  // namespace terrace::kv
