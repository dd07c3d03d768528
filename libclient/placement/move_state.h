// SPDX-License-Identifier: Apache-2.0
// The state of a move, behind its MoveHandle.
#pragma once

#include <atomic>

#include "core/base/sync/mutex.h"
#include "terrace/tensor_pool.h"

namespace terrace::placement {

class MoveState final : public MoveHandle {
 public:
  bool done() const override;
  Status wait(uint64_t timeout_ns) override;
  uint64_t bytes_there() const override { return bytes_.load(std::memory_order_relaxed); }

  void note_bytes(uint64_t bytes) { bytes_.store(bytes, std::memory_order_relaxed); }
  void finish(Status result);

 private:
  mutable Mutex mutex_;
  ConditionVariable changed_;
  bool done_ TERRACE_GUARDED_BY(mutex_) = false;
  Status result_ TERRACE_GUARDED_BY(mutex_);
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace terrace::placement
