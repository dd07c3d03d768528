// SPDX-License-Identifier: Apache-2.0
// Allocations, copies and evictions of tier hbm.
#include <algorithm>
#include <utility>

#include "libclient/placement/device_tier.h"

namespace terrace::placement {
namespace {

Status told_of(Status copied, const HbmEntry& entry, const char* where_to) {
  if (copied.ok()) return copied;
  Error error = std::move(copied).error();
  error.detail = entry.words + " was not copied " + where_to + " hbm: " + error.detail;
  return error;
}

}  // namespace

void DeviceTier::charge(Entry& entry) {
  used_ += entry.bytes();
  charged_.push_back(&entry);
}

void DeviceTier::uncharge(Entry& entry) {
  used_ -= entry.bytes();
  std::erase(charged_, &entry);
  entry.phase = Entry::Phase::absent;
  entry.version = 0;
  entry.dirty = entry.to_leave = false;
  for (const auto& release : entry.releases) release->finish({});
  entry.releases.clear();
}

// Reserved first (H1), then asked for without the mutex.
DeviceTier::Outcome DeviceTier::allocate_and_raise(Entry& entry, bool upload) {
  const bool ahead = !entry.wanted;
  charge(entry);
  entry.phase = Entry::Phase::preparing;
  auto buffer = [&]() TERRACE_REQUIRES(mutex_) {
    const MutexUnlock unlocked(mutex_);
    return device_->allocate(entry.bytes(), entry.words);
  }();
  if (!buffer.ok()) {
    uncharge(entry);
    changed_.notify_all();  // no event(): where it waits for room it would be tried again at once, for ever
    return device_is_short(entry, std::move(buffer).error());
  }
  entry.buffer = counted(entry, std::move(*buffer));
  entry.phase = Entry::Phase::resident;
  entry.version = 0;  // of no host version: stale
  event();
  // Somebody who wants all of it may have come meanwhile: the next look sees to that.
  if (upload && entry.host_writers == 0 && !entry.gone) begin_upload(entry, ahead);
  return Outcome::done;
}

// Others use the device too: it may have less than the budget says.
DeviceTier::Outcome DeviceTier::device_is_short(Entry& entry, Error refused) {
  // For a copy ahead nobody goes: it would be the next that is copied ahead.
  if (refused.code == ErrorCode::capacity_exhausted && entry.wanted) {
    // Where it waits it is looked at again when what is under way has ended.
    const Outcome made = make_room(1, victims(next_uses()));
    if (made != Outcome::nothing) return made;
  }
  entry.up_failed = entry.host_version;
  if (!entry.wanted) {
    event();
    return Outcome::done;
  }
  if (refused.code == ErrorCode::capacity_exhausted) ++counts_.refused;
  refused.detail = entry.words + " is not brought to hbm: " + refused.detail;
  end_want(entry, refused);
  return Outcome::done;
}

bool DeviceTier::begin_upload(Entry& entry, bool ahead) {
  const uint64_t version = entry.host_version;
  auto event_of = up_->upload(entry.buffer, 0, entry.host, [this, &entry, version, ahead](Status copied) {
    const MutexLock lock(mutex_);
    if (ahead) --ahead_under_way_;
    return uploaded(entry, std::move(copied), version);
  });
  if (!event_of.ok()) {
    (void)uploaded(entry, std::move(event_of).error(), version);
    return false;
  }
  entry.phase = Entry::Phase::rising;
  if (ahead) {
    ++ahead_under_way_;
    ++counts_.uploads_ahead;
  }
  return true;
}

Status DeviceTier::uploaded(Entry& entry, Status copied, uint64_t version) {
  Status result = told_of(std::move(copied), entry, "to");
  entry.phase = Entry::Phase::resident;
  if (result.ok()) {
    entry.up_failed = 0;
    entry.version = version;  // stale already if a host guard wrote meanwhile
    ++counts_.uploads;
    counts_.uploaded_bytes += entry.bytes();
  } else {
    entry.version = 0;
    entry.up_failed = version;
    ++counts_.failed_copies;
    end_want(entry, result);
  }
  event();
  return result;
}

bool DeviceTier::begin_sink(Entry& entry) {
  entry.sink_error = {};
  auto event_of = down_->download(entry.host, entry.buffer, 0, [this, &entry](Status copied) {
    const MutexLock lock(mutex_);
    return sunk(entry, std::move(copied), true);
  });
  if (!event_of.ok()) {
    (void)sunk(entry, std::move(event_of).error(), false);
    return false;
  }
  entry.phase = Entry::Phase::sinking;
  return true;
}

Status DeviceTier::sunk(Entry& entry, Status copied, bool begun) {
  Status result = told_of(std::move(copied), entry, "back from");
  entry.phase = Entry::Phase::resident;
  entry.to_leave = false;
  entry.sink_error = result;
  ++entry.sinks;
  if (result.ok()) {
    entry.dirty = entry.torn = false;
    entry.version = entry.host_version;
    ++counts_.write_backs;
    counts_.written_back_bytes += entry.bytes();
  } else {
    entry.torn = entry.torn || begun;
    ++counts_.failed_copies;
  }
  event();
  return result;
}

// The same buffer; what its last user's end does. A stream may have it a moment longer than its copy lasts, and
// only then is its memory free for others (H1).
std::shared_ptr<DeviceBuffer> DeviceTier::counted(Entry& entry, std::shared_ptr<DeviceBuffer> buffer) {
  DeviceBuffer* const of_device = buffer.get();
  return {of_device, [this, &entry, kept = std::move(buffer)](DeviceBuffer*) mutable {
            kept.reset();
            const MutexLock lock(mutex_);
            uncharge(entry);
            event();
          }};
}

// Freed without the mutex: a driver waits for the device in it. The entry is absent once all have let it go.
void DeviceTier::drop_buffer(Entry& entry) {
  entry.phase = Entry::Phase::leaving;
  std::shared_ptr<DeviceBuffer> buffer = std::move(entry.buffer);
  entry.buffer = nullptr;
  const MutexUnlock unlocked(mutex_);
  buffer.reset();
}

}  // namespace terrace::placement
