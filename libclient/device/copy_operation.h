// SPDX-License-Identifier: Apache-2.0
// One copy in a stream, and the interface of the engine that makes it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "libclient/device/device_event.h"
#include "terrace/device_memory.h"

namespace terrace::device {

// What allocate() makes: every DeviceBuffer is one of these.
class Allocation : public DeviceBuffer {
 public:
  Allocation(std::shared_ptr<DeviceMemory> owner, uint64_t address, uint64_t bytes)
      : owner_(std::move(owner)), address_(address), bytes_(bytes) {}
  uint64_t address() const final { return address_; }
  uint64_t bytes() const final { return bytes_; }
  DeviceMemory& owner() const { return *owner_; }

 private:
  std::shared_ptr<DeviceMemory> owner_;
  uint64_t address_, bytes_;
};

enum class CopyKind : uint8_t { upload, download, copy, record, wait };

struct CopyOperation {
  CopyKind kind = CopyKind::record;
  std::shared_ptr<Allocation> to, from;     // kept until it is done
  uint64_t device_to = 0, device_from = 0;  // addresses on the device
  const std::byte* host_from = nullptr;     // upload
  std::byte* host_to = nullptr;             // download
  uint64_t bytes = 0;
  DeviceStream::Finish finish;
  std::shared_ptr<DeviceEvent::State> event;         // none for wait
  DeviceEvent awaited;                               // wait only
  Status begun;                                      // of CopyEngine::begin
  std::chrono::steady_clock::time_point ready_at{};  // when the device could have begun it, but for its stream
};

// Makes a stream's copies.
//
// Threads   The stream's only.
class CopyEngine {
 public:
  virtual ~CopyEngine() = default;
  virtual void enter() {}  // once, before everything else
  // Begins a copy of at least one byte. If it was not well, finish_oldest() is not called for it. An engine
  // that waits for the device meanwhile calls `finish` first, for each older copy that is done by then: whoever
  // waits for one of these is told of it when it is done, not when this one is.
  virtual Status begin(const CopyOperation& operation, const std::function<void()>& finish) = 0;
  // Waits for the oldest that was begun.
  virtual Status finish_oldest() = 0;
  // Whether finish_oldest() would not wait. Asked only while something is begun.
  virtual bool oldest_is_done() = 0;
  virtual uint32_t depth() const = 0;  // how many may be begun and not finished
};

}  // namespace terrace::device
