// The state of a move, behind its MoveHandle.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>

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
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  Status result_;
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace terrace::placement
