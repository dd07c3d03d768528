// SPDX-License-Identifier: Apache-2.0
// A stream: a queue of copies, and the thread that has its engine make them in order.
//
// Threads     upload() and the others from any; the engine is called by the stream's own only.
// Invariants  Q1  events are finished in the order of the calls.
//             Q2  a copy's buffers are released before its event is done.
//             Q3  the thread never waits for the device, for one copy, while an older one that is done by then
//                 has an event that is not finished.
#pragma once

#include <deque>
#include <memory>
#include <thread>

#include "core/base/sync/mutex.h"
#include "libclient/device/copy_operation.h"

namespace terrace::device {

class StreamQueue final : public DeviceStream {
 public:
  // Errors    limit_exceeded  no thread
  static Result<std::unique_ptr<DeviceStream>> make(std::shared_ptr<DeviceMemory> device,
                                                    std::unique_ptr<CopyEngine> engine);
  ~StreamQueue() override;

  Result<DeviceEvent> upload(const std::shared_ptr<DeviceBuffer>& to, uint64_t to_offset,
                             std::span<const std::byte> from, Finish finish) override;
  Result<DeviceEvent> download(std::span<std::byte> to, const std::shared_ptr<DeviceBuffer>& from,
                               uint64_t from_offset, Finish finish) override;
  Result<DeviceEvent> copy(const std::shared_ptr<DeviceBuffer>& to, uint64_t to_offset,
                           const std::shared_ptr<DeviceBuffer>& from, uint64_t from_offset, uint64_t bytes,
                           Finish finish) override;
  DeviceEvent record() override;
  void wait(DeviceEvent event) override;

 private:
  StreamQueue(std::shared_ptr<DeviceMemory> device, std::unique_ptr<CopyEngine> engine)
      : device_(std::move(device)), engine_(std::move(engine)) {}
  Status start();
  Result<std::shared_ptr<Allocation>> check(const std::shared_ptr<DeviceBuffer>& buffer, uint64_t offset,
                                            uint64_t bytes, bool may_be_a_peer) const;
  DeviceEvent enqueue(CopyOperation operation);
  void run();
  void begin(CopyOperation operation);
  void finish_oldest();
  void finish_done();
  void finish_all();

  const std::shared_ptr<DeviceMemory> device_;
  const std::unique_ptr<CopyEngine> engine_;
  std::deque<CopyOperation> begun_;  // the thread's own, as the next
  std::chrono::steady_clock::time_point waited_until_{};

  Mutex mutex_;
  ConditionVariable wake_;
  std::deque<CopyOperation> queue_ TERRACE_GUARDED_BY(mutex_);
  bool closing_ TERRACE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace terrace::device
