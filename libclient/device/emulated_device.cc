// SPDX-License-Identifier: Apache-2.0
#include "libclient/device/emulated_device.h"

#include <time.h>

#include <algorithm>
#include <thread>

#include "core/base/units.h"
#include "core/os/memory_map.h"
#include "libclient/device/capacity_errors.h"
#include "libclient/device/guarded.h"
#include "libclient/device/host_pages.h"
#include "libclient/device/stream_queue.h"

namespace terrace::device {
namespace {

using Clock = EmulatedLink::Clock;

// A device's allocator has such a grain too.
constexpr uint64_t grain_bytes = 512;

class EmulatedBuffer final : public Allocation {
 public:
  EmulatedBuffer(std::shared_ptr<EmulatedDevice> owner, os::MemoryMap memory, uint64_t bytes, uint64_t charged)
      : Allocation(owner, reinterpret_cast<uintptr_t>(memory.data()), bytes),
        device_(std::move(owner)),
        memory_(std::move(memory)),
        charged_bytes_(charged) {}
  ~EmulatedBuffer() override {
    memory_ = {};
    device_->freed(charged_bytes_);
  }

 private:
  std::shared_ptr<EmulatedDevice> device_;
  os::MemoryMap memory_;
  uint64_t charged_bytes_;
};

// What this thread has computed. The machine's own time of a copy is this: while the thread had no processor
// the emulated device would have gone on.
std::chrono::nanoseconds thread_time() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

class EmulatedEngine final : public CopyEngine {
 public:
  explicit EmulatedEngine(EmulatedDevice& device) : device_(device) {}
  Status begin(const CopyOperation& operation, const std::function<void()>& finish) override;
  Status finish_oldest() override { return {}; }
  bool oldest_is_done() override { return true; }
  uint32_t depth() const override { return 1; }

 private:
  EmulatedDevice& device_;  // the stream keeps it
  Clock::time_point arrived_{};
};

// Nothing is begun before it: the depth is one.
Status EmulatedEngine::begin(const CopyOperation& operation, const std::function<void()>&) {
  auto* to = operation.kind == CopyKind::download ? operation.host_to
                                                  : reinterpret_cast<std::byte*>(operation.device_to);
  const auto* from = operation.kind == CopyKind::upload
                         ? operation.host_from
                         : reinterpret_cast<const std::byte*>(operation.device_from);
  const Clock::time_point sent =
      std::max(arrived_, operation.ready_at) + std::chrono::nanoseconds(device_.latency_ns());
  const std::chrono::nanoseconds before = thread_time();
  arrived_ = sent;
  EmulatedLink& link = device_.link(operation.kind);
  for (uint64_t done = 0; done < operation.bytes;) {
    const uint64_t bytes = std::min(link.piece_bytes(), operation.bytes - done);
    arrived_ = link.send(arrived_, bytes);
    TERRACE_RETURN_IF_ERROR(copy_guarded_bytes(to + done, from + done, bytes));
    done += bytes;
    arrived_ = std::max(arrived_, sent + (thread_time() - before));
    // So that streams take turns. Short sleeps are late by more than they last: these are slept at the end.
    if (arrived_ - Clock::now() > std::chrono::microseconds(500)) std::this_thread::sleep_until(arrived_);
  }
  std::this_thread::sleep_until(arrived_);
  return {};
}

class EmulatedRegistration final : public HostRegistration {
 public:
  explicit EmulatedRegistration(std::span<const std::byte> memory) : held_(memory) {}
  bool direct() const override { return true; }
  const std::string& reason() const override { return reason_; }

 private:
  HeldPages held_;  // as a real device asks for: programs behave the same on both
  std::string reason_;
};

std::string rate(uint64_t bytes_per_s) {
  return bytes_per_s == 0 ? std::string("unlimited") : format_size(bytes_per_s) + "/s";
}

DeviceInfo describe(const EmulatedDeviceOptions& options) {
  DeviceInfo info;
  info.kind = DeviceKind::emulated;
  info.name = "emulated device";
  info.capacity_bytes = options.capacity_bytes;
  info.description =
      "emulated device in this process's memory, no GPU: " + format_size(options.capacity_bytes) + ", up " +
      rate(options.upload_bytes_per_s) + ", down " + rate(options.download_bytes_per_s) + ", within " +
      rate(options.copy_bytes_per_s) + ", latency " + format_duration(options.latency_ns);
  return info;
}

}  // namespace

uint64_t EmulatedLink::piece_bytes() const {
  return bytes_per_s_ == 0 ? ~uint64_t{0} : std::max(1 * mib, bytes_per_s_ / 500);
}

Clock::time_point EmulatedLink::send(Clock::time_point begin, uint64_t bytes) {
  if (bytes_per_s_ == 0) return begin;
  const double seconds = static_cast<double>(bytes) / static_cast<double>(bytes_per_s_);
  const MutexLock lock(mutex_);
  free_at_ = std::max(begin, free_at_) +
             std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  return free_at_;
}

EmulatedDevice::EmulatedDevice(const EmulatedDeviceOptions& options)
    : options_(options),
      info_(describe(options)),
      upload_(options.upload_bytes_per_s),
      download_(options.download_bytes_per_s),
      copy_(options.copy_bytes_per_s) {}

EmulatedLink& EmulatedDevice::link(CopyKind kind) {
  if (kind == CopyKind::upload) return upload_;
  return kind == CopyKind::download ? download_ : copy_;
}

Result<DeviceUse> EmulatedDevice::use() const {
  const MutexLock lock(mutex_);
  return DeviceUse{.capacity_bytes = options_.capacity_bytes,
                   .free_bytes = options_.capacity_bytes - allocated_bytes_,
                   .allocated_bytes = allocated_bytes_};
}

Result<std::shared_ptr<DeviceBuffer>> EmulatedDevice::allocate(uint64_t bytes, std::string_view what) {
  if (bytes == 0) return no_bytes(what);
  {
    const MutexLock lock(mutex_);
    const uint64_t free = options_.capacity_bytes - allocated_bytes_;
    if (bytes > free || round_up(bytes, grain_bytes) > free) {
      return not_enough_memory(what, bytes, free, options_.capacity_bytes, "the " + info_.name);
    }
    allocated_bytes_ += round_up(bytes, grain_bytes);
  }
  Result<os::MemoryMap> memory = os::MemoryMap::anonymous(round_up(bytes, page_bytes()), page_bytes());
  if (!memory.ok()) {
    freed(round_up(bytes, grain_bytes));
    return std::move(memory).error();
  }
  return std::shared_ptr<DeviceBuffer>(std::make_shared<EmulatedBuffer>(shared_from_this(), std::move(*memory),
                                                                        bytes, round_up(bytes, grain_bytes)));
}

void EmulatedDevice::freed(uint64_t bytes) {
  const MutexLock lock(mutex_);
  allocated_bytes_ -= bytes;
}

Result<std::unique_ptr<DeviceStream>> EmulatedDevice::make_stream() {
  return StreamQueue::make(shared_from_this(), std::make_unique<EmulatedEngine>(*this));
}

Result<std::unique_ptr<HostRegistration>> EmulatedDevice::register_host(std::span<const std::byte> memory,
                                                                        HostAccess) {
  if (memory.empty()) return nothing_to_register();
  return std::unique_ptr<HostRegistration>(std::make_unique<EmulatedRegistration>(memory));
}

}  // namespace terrace::device

namespace terrace {

Result<std::shared_ptr<DeviceMemory>> DeviceMemory::make_emulated(const EmulatedDeviceOptions& options) {
  if (options.capacity_bytes == 0) {
    return Error{ErrorCode::invalid_argument, 0, "DeviceMemory::make_emulated",
                 "an emulated device needs a capacity"};
  }
  return std::shared_ptr<DeviceMemory>(std::make_shared<device::EmulatedDevice>(options));
}

}  // namespace terrace
