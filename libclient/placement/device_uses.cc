// SPDX-License-Identifier: Apache-2.0
// Who uses tier hbm: device guards, pins and moves; what they wait for.
#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/units.h"
#include "libclient/placement/device_tier.h"

namespace terrace::placement {
namespace {

using Clock = std::chrono::steady_clock;

Error error(ErrorCode code, std::string detail) {
  return {code, 0, "TensorPool", std::move(detail)};
}

}  // namespace

// Into wants_, once; guards and moves of it are told by end_want().
void DeviceTier::want(Entry& entry) {
  if (!entry.wanted) wants_.push_back(&entry);
  entry.wanted = true;
  event();
}

void DeviceTier::end_want(Entry& entry, const Status& result) {
  if (entry.wanted) wants_.remove(&entry);
  entry.wanted = false;
  entry.last_use = ++clock_;
  for (Entry::Waiter* waiter : entry.waiters)
    if (!result.ok()) waiter->failed = result;
  for (const auto& move : entry.moves) {
    if (result.ok()) move->note_bytes(entry.bytes());
    // Of pins: nothing is pinned if it fails.
    if (!result.ok() && move == entry.pin_move && entry.pins > 0) {
      entry.pins = 0;
      entry.pin_move = nullptr;
      pinned_ -= entry.bytes();
    }
    move->finish(result);
  }
  entry.moves.clear();
  event();
}

Result<DeviceTier::Opened> DeviceTier::open(Entry& entry, bool write, const DeviceGuardOptions& options) {
  const MutexLock lock(mutex_);
  const auto begin = Clock::now();
  const bool forever = options.timeout_ns > uint64_t{1} << 55;
  const auto end = begin + std::chrono::nanoseconds(forever ? 0 : options.timeout_ns);
  Entry::Waiter waiter{.overwrite = write && options.overwrite, .failed = {}};
  const auto ready = [&] {
    if (write)
      return entry.phase == Entry::Phase::resident && (waiter.overwrite || entry.current()) &&
             entry.host_waiters == 0;
    return entry.current();
  };
  Opened opened;
  if (step_aware_) opened.ticket = learner_.opened(entry.slot, 1);
  ++counts_.guards;
  entry.waiters.push_back(&waiter);
  entry.to_leave = false;
  Status result;
  bool waited = false;
  for (;;) {
    if (entry.host_writers > 0) {
      result = error(ErrorCode::busy, entry.words + " has an open write guard on the host: close it first");
      break;
    }
    if (ready()) break;
    if (entry.lost() && !waiter.overwrite) {
      result = lost_bytes(entry);
      break;
    }
    if (!waiter.failed.ok()) {
      result = waiter.failed;
      break;
    }
    const bool lacks = waiter.overwrite ? !entry.has_bytes() : !entry.current();
    if (lacks && stopping_) {
      result = error(ErrorCode::cancelled, entry.words + " is not in hbm, and the pool is gone");
      break;
    }
    if (lacks && (!waited || !entry.wanted)) want(entry);  // else two that wait would wake each other for ever
    waited = true;
    if (forever) {
      changed_.wait(mutex_);
    } else if (changed_.wait_until(mutex_, end) == std::cv_status::timeout && !ready()) {
      result = error(ErrorCode::busy, entry.words + " was not in hbm after " +
                                          std::to_string(options.timeout_ns / ns_per_ms) + " ms");
      break;
    }
  }
  std::erase(entry.waiters, &waiter);
  if (waited) {
    ++counts_.guard_waits;
    counts_.guard_wait_ns += static_cast<uint64_t>((Clock::now() - begin) / std::chrono::nanoseconds(1));
  }
  event();  // the order has gone on; and room that it waited with may be others'
  if (!result.ok()) {
    if (step_aware_) learner_.closed(opened.ticket);
    return std::move(result).error();
  }
  entry.last_use = ++clock_;
  if (write) {
    entry.dirty = true;
    entry.sink_error = {};
    ++entry.writers;
    ++entry.device_writes;
  } else {
    ++entry.readers;
    ++entry.device_reads;
  }
  opened.buffer = entry.buffer;
  return opened;
}

void DeviceTier::close(Entry& entry, bool write, uint64_t ticket) {
  const MutexLock lock(mutex_);
  write ? --entry.writers : --entry.readers;
  entry.last_use = ++clock_;
  if (step_aware_) learner_.closed(ticket);
  event();
}

Result<std::shared_ptr<MoveState>> DeviceTier::bring(Entry& entry) {
  auto state = std::make_shared<MoveState>();
  const MutexLock lock(mutex_);
  if (entry.current()) {
    state->note_bytes(entry.bytes());
    state->finish({});
    return state;
  }
  if (stopping_) return error(ErrorCode::unsupported, entry.words + " is not in hbm, and the pool is gone");
  entry.moves.push_back(state);
  want(entry);
  return state;
}

Result<std::shared_ptr<MoveState>> DeviceTier::pin(Entry& entry) {
  auto state = std::make_shared<MoveState>();
  const MutexLock lock(mutex_);
  if (entry.pins > 0) {
    ++entry.pins;
    return entry.pin_move;
  }
  if (stopping_ && !entry.current())
    return error(ErrorCode::unsupported, entry.words + " is not in hbm, and the pool is gone");
  if (pinned_ + entry.bytes() > budget_) {
    ++counts_.refused;
    return error(
        ErrorCode::capacity_exhausted,
        entry.words + " cannot be pinned in hbm: " + std::to_string(pinned_ + entry.bytes() - budget_) +
            " bytes short (" + std::to_string(budget_) + " there, " + std::to_string(pinned_) + " pinned)");
  }
  pinned_ += entry.bytes();
  order_changed_ = order_changed_ || following_;  // there is less to plan with
  entry.pins = 1;
  entry.to_leave = false;
  entry.pin_move = state;
  if (entry.phase != Entry::Phase::leaving) {  // else they are told once it has left
    for (const auto& release : entry.releases)
      release->finish(error(ErrorCode::cancelled, entry.words + " was pinned in hbm"));
    entry.releases.clear();
  }
  if (entry.current()) {
    state->note_bytes(entry.bytes());
    state->finish({});
  } else {
    entry.moves.push_back(state);
    want(entry);
  }
  return state;
}

bool DeviceTier::unpin(Entry& entry) {
  const MutexLock lock(mutex_);
  if (entry.pins == 0) return false;
  if (--entry.pins > 0) return true;
  pinned_ -= entry.bytes();
  order_changed_ = order_changed_ || following_;
  std::erase(entry.moves, entry.pin_move);
  entry.pin_move->finish(error(ErrorCode::cancelled, entry.words + " was unpinned"));
  entry.pin_move = nullptr;
  event();
  return true;
}

uint32_t DeviceTier::pins(const Entry& entry) const {
  const MutexLock lock(mutex_);
  return entry.pins;
}

Result<std::shared_ptr<MoveState>> DeviceTier::release(Entry& entry) {
  auto state = std::make_shared<MoveState>();
  const MutexLock lock(mutex_);
  if (entry.pins > 0) return error(ErrorCode::busy, entry.words + " is pinned in hbm");
  for (const auto& move : entry.moves)
    move->finish(error(ErrorCode::cancelled, entry.words + " was moved elsewhere"));
  entry.moves.clear();
  if (entry.phase == Entry::Phase::absent) {
    state->finish({});
  } else {
    entry.sink_error = {};  // tried once more
    entry.releases.push_back(state);
    event();
  }
  return state;
}

}  // namespace terrace::placement
