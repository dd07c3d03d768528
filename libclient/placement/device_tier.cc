// SPDX-License-Identifier: Apache-2.0
// Tier hbm: its beginning and end, tensors that come and go, host guards, figures.
#include "libclient/placement/device_tier.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "core/base/signals_blocked.h"
#include "core/base/units.h"

namespace terrace::placement {
namespace {

constexpr uint32_t order_uses_max = 1024;  // of device guards a step; the plan takes their square, under mutex_

using Clock = std::chrono::steady_clock;

uint64_t nanoseconds_since(Clock::time_point begin) {
  return static_cast<uint64_t>((Clock::now() - begin) / std::chrono::nanoseconds(1));
}

Error error(ErrorCode code, std::string detail) {
  return {code, 0, "TensorPool", std::move(detail)};
}

Error device_guard_is_open(const HbmEntry& entry) {
  return error(ErrorCode::busy, entry.words +
                                    " is in use by the device: close its device guard first, and let go of the "
                                    "DLPack tensors that were made of it");
}

}  // namespace

DeviceTier::DeviceTier(std::shared_ptr<DeviceMemory> device, uint64_t budget, bool step_aware)
    : device_(std::move(device)),
      budget_(budget),
      step_aware_(step_aware),
      learner_(OrderOptions{.uses_max = order_uses_max}) {}

Result<std::unique_ptr<DeviceTier>> DeviceTier::make(std::shared_ptr<DeviceMemory> device,
                                                     uint64_t budget_bytes, bool step_aware) {
  TERRACE_RETURN_IF_ERROR(device->health());
  const uint64_t capacity = device->info().capacity_bytes;
  const uint64_t budget = budget_bytes != 0 ? budget_bytes : capacity / 10 * 9;
  if (budget > capacity)
    return error(ErrorCode::invalid_argument, "hbm_bytes is " + format_size(budget) + ", and the device (" +
                                                  device->info().name + ") has " + format_size(capacity));
  std::unique_ptr<DeviceTier> tier(new DeviceTier(std::move(device), budget, step_aware));
  TERRACE_RETURN_IF_ERROR(tier->start());
  return tier;
}

Status DeviceTier::start() {
  TERRACE_ASSIGN_OR_RETURN(up_, device_->make_stream());
  TERRACE_ASSIGN_OR_RETURN(down_, device_->make_stream());
  Status started;
  try {
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& refused) {
    started =
        os_error(refused.code().value(), "TensorPool", "cannot start the thread of tier hbm (ulimit -u?)");
  }
  return started;
}

DeviceTier::~DeviceTier() {
  stop();
  {
    const MutexLock lock(mutex_);
    ended_ = true;
    event();
  }
  if (thread_.joinable()) thread_.join();
  up_.reset();  // their last copies take the mutex
  down_.reset();
}

void DeviceTier::stop() {
  const MutexLock lock(mutex_);
  if (std::exchange(stopping_, true)) return;
  following_ = false;
  while (!wants_.empty()) {
    Entry& entry = *wants_.front();
    end_want(entry, error(ErrorCode::cancelled, entry.words + " is not brought to hbm: the pool is gone"));
  }
  event();
}

void DeviceTier::event() {
  ++events_;
  wake_.notify_one();
  changed_.notify_all();
}

std::shared_ptr<HbmEntry> DeviceTier::add(std::string words, std::span<std::byte> host) {
  auto entry = std::make_shared<Entry>();
  entry->words = std::move(words);
  entry->host = host;
  const MutexLock lock(mutex_);
  if (free_slots_.empty()) {
    entry->slot = static_cast<uint32_t>(entries_.size());
    entries_.push_back(entry);
  } else {
    entry->slot = free_slots_.back();
    free_slots_.pop_back();
    entries_[entry->slot] = entry;
  }
  return entry;
}

// Its host memory is another tensor's afterwards.
void DeviceTier::retire(const std::shared_ptr<Entry>& entry) {
  const MutexLock lock(mutex_);
  entry->gone = true;
  end_want(*entry, error(ErrorCode::cancelled, entry->words + ": the tensor is gone"));
  if (entry->pins > 0) pinned_ -= entry->bytes();
  entry->pins = 0;
  changed_.wait(mutex_, [&] { return !entry->copying(); });
  if (entry->phase == Entry::Phase::resident) drop_buffer(*entry);
  changed_.wait(mutex_, [&] { return entry->phase == Entry::Phase::absent; });
  entries_[entry->slot] = nullptr;
  free_slots_.push_back(entry->slot);
}

Status DeviceTier::wait_for_sink(Entry& entry) {
  const auto begin = Clock::now();
  ++entry.host_waiters;
  Status result;
  bool waited = false;
  while (entry.dirty) {
    if (entry.writers > 0) {
      result = device_guard_is_open(entry);
      break;
    }
    const uint64_t before = entry.sinks;
    entry.sink_wanted = true;
    waited = true;
    event();
    changed_.wait(mutex_, [&] { return entry.sinks != before || !entry.dirty; });
    if (entry.dirty && !entry.sink_error.ok()) {
      result = entry.sink_error;
      break;
    }
  }
  --entry.host_waiters;
  if (waited) {
    ++counts_.host_waits;
    counts_.host_wait_ns += nanoseconds_since(begin);
    event();  // a device guard may wait for us
  }
  return result;
}

Status DeviceTier::host_opens(Entry& entry, bool write) {
  const MutexLock lock(mutex_);
  if (write && entry.readers + entry.writers > 0) return device_guard_is_open(entry);
  TERRACE_RETURN_IF_ERROR(wait_for_sink(entry));
  if (!write) return entry.lost() ? Status(lost_bytes(entry)) : Status();
  if (entry.readers + entry.writers > 0) return device_guard_is_open(entry);
  ++entry.host_version;
  ++entry.host_writers;
  entry.torn = false;     // who writes it says what it holds
  changed_.notify_all();  // device guards that wait give up
  return {};
}

void DeviceTier::host_closed(Entry& entry, bool write) {
  if (!write) return;
  const MutexLock lock(mutex_);
  if (--entry.host_writers == 0) event();
}

Status DeviceTier::discard(Entry& entry) {
  const MutexLock lock(mutex_);
  // What is under way ends first; a want would bring it again.
  changed_.wait(mutex_, [&] { return !entry.copying() || entry.in_use() || entry.pins > 0; });
  if (entry.in_use()) return device_guard_is_open(entry);
  if (entry.pins > 0) return error(ErrorCode::busy, entry.words + " is pinned in hbm: unpin it first");
  end_want(entry, error(ErrorCode::cancelled, entry.words + " was discarded from hbm"));
  if (entry.phase == Entry::Phase::resident) drop_buffer(entry);
  changed_.wait(mutex_, [&] { return entry.phase != Entry::Phase::leaving; });
  return {};
}

void DeviceTier::step() {
  const MutexLock lock(mutex_);
  if (!step_aware_ || stopping_) return;
  const OrderLearner::Step outcome = learner_.step();
  if (outcome == OrderLearner::Step::learned) order_changed_ = true;
  if (outcome == OrderLearner::Step::forgotten) following_ = false;
  event();
}

HbmStatistics DeviceTier::statistics() const {
  const MutexLock lock(mutex_);
  HbmStatistics result = counts_;
  result.capacity_bytes = device_->info().capacity_bytes;
  result.budget_bytes = budget_;
  result.used_bytes = used_;
  result.pinned_bytes = pinned_;
  for (const Entry* entry : charged_) {
    const uint64_t bytes = entry->bytes();
    if (entry->in_use()) result.in_use_bytes += bytes;
    if (entry->dirty) result.dirty_bytes += bytes;
    if (entry->copying()) result.under_way_bytes += bytes;
    if (entry->phase == Entry::Phase::resident && !entry->current()) result.stale_bytes += bytes;
    if (entry->current()) ++result.replicas;
  }
  result.following = following_;
  if (following_) {
    result.uses_per_step = schedule_.positions();
    result.planned_bytes_per_step = schedule_.fetch_bytes();
  }
  return result;
}

void DeviceTier::add_to(const Entry& entry, uint64_t bytes, TensorResidency& residency) const {
  const MutexLock lock(mutex_);
  if (!entry.current()) return;
  residency.hbm_bytes = bytes;
  residency.hbm_dirty_bytes = entry.dirty ? bytes : 0;
}

void DeviceTier::add_to(const Entry& entry, TensorStatistics& statistics) const {
  const MutexLock lock(mutex_);
  statistics.device_reads = entry.device_reads;
  statistics.device_writes = entry.device_writes;
  statistics.pins += entry.pins;
}

}  // namespace terrace::placement
