// SPDX-License-Identifier: Apache-2.0
// A device whose copies wait for a test's word, and fail to order. Its memory is this process's.
#pragma once

#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "terrace/device_memory.h"

namespace terrace::test {

class GatedDevice final : public DeviceMemory, public std::enable_shared_from_this<GatedDevice> {
 public:
  explicit GatedDevice(uint64_t capacity) {
    info_.name = "gated device";
    info_.capacity_bytes = capacity;
  }
  enum Direction : uint8_t { up, down };
  void shut(Direction direction, bool is_shut) {
    const std::lock_guard lock(mutex_);
    shut_[direction] = is_shut;
    changed_.notify_all();
  }
  // The next `count` copies fail.
  void fail(Direction direction, int count) {
    const std::lock_guard lock(mutex_);
    failures_[direction] = count;
  }
  void take_away(uint64_t bytes) {  // by another program
    const std::lock_guard lock(mutex_);
    taken_ = bytes;
  }
  // Allocations wait meanwhile.
  void hold_allocations(bool held) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }
  uint32_t allocating() const {
    const std::lock_guard lock(mutex_);
    return allocating_;
  }
  void lose() {
    const std::lock_guard lock(mutex_);
    lost_ = Error{ErrorCode::unavailable, 0, "gated device", "it was lost"};
  }
  uint32_t waiting(Direction direction) const {  // copies that were begun and are not over
    const std::lock_guard lock(mutex_);
    return waiting_[direction];
  }
  uint64_t allocated() const {
    const std::lock_guard lock(mutex_);
    return allocated_;
  }

  const DeviceInfo& info() const override { return info_; }
  Result<DeviceUse> use() const override {
    return DeviceUse{.capacity_bytes = info_.capacity_bytes,
                     .free_bytes = info_.capacity_bytes - allocated(),
                     .allocated_bytes = allocated()};
  }
  Status health() const override {
    const std::lock_guard lock(mutex_);
    return lost_;
  }
  Result<std::shared_ptr<DeviceBuffer>> allocate(uint64_t bytes, std::string_view) override {
    std::unique_lock lock(mutex_);
    ++allocating_;
    changed_.wait(lock, [&] { return !held_; });
    --allocating_;
    if (!lost_.ok()) return lost_.error();
    if (allocated_ + taken_ + bytes > info_.capacity_bytes)
      return Error{ErrorCode::capacity_exhausted, 0, "gated device", "it is full"};
    allocated_ += bytes;
    return std::shared_ptr<DeviceBuffer>(std::make_shared<Buffer>(shared_from_this(), bytes));
  }
  Result<std::unique_ptr<DeviceStream>> make_stream() override {
    return std::unique_ptr<DeviceStream>(std::make_unique<Stream>(shared_from_this()));
  }
  Result<std::unique_ptr<HostRegistration>> register_host(std::span<const std::byte>, HostAccess) override {
    return Error{ErrorCode::unsupported, 0, "gated device", "it registers nothing"};
  }

 private:
  struct Buffer final : DeviceBuffer {
    Buffer(std::shared_ptr<GatedDevice> of, uint64_t count) : device(std::move(of)), memory(count) {}
    ~Buffer() override {
      const std::lock_guard lock(device->mutex_);
      device->allocated_ -= memory.size();
    }
    uint64_t address() const override { return reinterpret_cast<uintptr_t>(memory.data()); }
    uint64_t bytes() const override { return memory.size(); }
    std::shared_ptr<GatedDevice> device;
    std::vector<std::byte> memory;
  };

  class Stream final : public DeviceStream {
   public:
    explicit Stream(std::shared_ptr<GatedDevice> device)
        : device_(std::move(device)), thread_([this] { run(); }) {}
    ~Stream() override {
      {
        const std::lock_guard lock(device_->mutex_);
        ended_ = true;
        device_->changed_.notify_all();
      }
      thread_.join();
    }
    Result<DeviceEvent> upload(const std::shared_ptr<DeviceBuffer>& to, uint64_t offset,
                               std::span<const std::byte> from, Finish finish) override {
      return push({up, to, reinterpret_cast<std::byte*>(to->address() + offset), from.data(), from.size(),
                   std::move(finish)});
    }
    Result<DeviceEvent> download(std::span<std::byte> to, const std::shared_ptr<DeviceBuffer>& from,
                                 uint64_t offset, Finish finish) override {
      return push({down, from, to.data(), reinterpret_cast<const std::byte*>(from->address() + offset),
                   to.size(), std::move(finish)});
    }
    Result<DeviceEvent> copy(const std::shared_ptr<DeviceBuffer>&, uint64_t,
                             const std::shared_ptr<DeviceBuffer>&, uint64_t, uint64_t, Finish) override {
      return Error{ErrorCode::unsupported, 0, "gated device", "no copies within"};
    }
    DeviceEvent record() override { return {}; }
    void wait(DeviceEvent) override {}

   private:
    struct Copy {
      Direction direction;
      std::shared_ptr<DeviceBuffer> buffer;
      std::byte* to;
      const std::byte* from;
      size_t bytes;
      Finish finish;
    };
    Result<DeviceEvent> push(Copy copy) {
      const std::lock_guard lock(device_->mutex_);
      if (!device_->lost_.ok()) return device_->lost_.error();
      ++device_->waiting_[copy.direction];
      copies_.push_back(std::move(copy));
      device_->changed_.notify_all();
      return DeviceEvent();
    }
    void run() {
      for (;;) {
        std::unique_lock lock(device_->mutex_);
        device_->changed_.wait(lock, [&] {
          return (ended_ && copies_.empty()) ||
                 (!copies_.empty() && !device_->shut_[copies_.front().direction]);
        });
        if (copies_.empty()) return;
        Copy copy = std::move(copies_.front());
        copies_.pop_front();
        Status result;
        if (device_->failures_[copy.direction] > 0) {
          --device_->failures_[copy.direction];
          result = Error{ErrorCode::io_error, 0, "gated device", "as told"};
        }
        lock.unlock();
        if (!result.ok()) copy.bytes /= 2;  // as a real one may
        store(copy);
        (void)copy.finish(std::move(result));
        lock.lock();
        --device_->waiting_[copy.direction];
        lock.unlock();  // before the buffer goes
      }
    }
    // As pools.h: moves under it are ThreadSanitizer's stores.
    __attribute__((no_sanitize("thread"))) static void store(const Copy& copy) {
      std::memcpy(copy.to, copy.from, copy.bytes);
    }

    std::shared_ptr<GatedDevice> device_;
    std::deque<Copy> copies_;
    bool ended_ = false;
    std::thread thread_;
  };

  DeviceInfo info_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool shut_[2] = {false, false};
  int failures_[2] = {0, 0};
  uint32_t waiting_[2] = {0, 0};
  bool held_ = false;
  uint32_t allocating_ = 0;
  uint64_t allocated_ = 0, taken_ = 0;
  Status lost_;
};

}  // namespace terrace::test
