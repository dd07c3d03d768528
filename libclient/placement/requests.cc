// SPDX-License-Identifier: Apache-2.0
// Pins and moves that were asked for: checked here, carried out by the mover.
#include <algorithm>
#include <utility>

#include "core/base/units.h"
#include "libclient/placement/core.h"

namespace terrace::placement {
namespace {

Error error(ErrorCode code, std::string detail) {
  return {code, 0, "TensorPool", std::move(detail)};
}

}  // namespace

bool MoveState::done() const {
  const MutexLock lock(mutex_);
  return done_;
}

Status MoveState::wait(uint64_t timeout_ns) {
  const MutexLock lock(mutex_);
  const auto timeout = Nanoseconds(std::min<uint64_t>(timeout_ns, uint64_t{1} << 55));
  if (!changed_.wait_for(mutex_, timeout, [this]() TERRACE_REQUIRES(mutex_) { return done_; }))
    return Error{ErrorCode::busy, 0, "MoveHandle::wait",
                 "not done after " + std::to_string(timeout_ns / ns_per_ms) + " ms; the move goes on"};
  return result_;
}

void MoveState::finish(Status result) {
  const MutexLock lock(mutex_);
  if (done_) return;
  done_ = true;
  result_ = std::move(result);
  changed_.notify_all();
}

void Core::count_pins(Run run, Tier tier, int by) {
  for (uint32_t granule = run.first; granule < run.first + run.count; ++granule) {
    uint16_t& count = pin_counts_[granule];
    uint32_t& pinned = tier == Tier::ddr ? pinned_ddr_ : pinned_cxl_;
    if (by > 0 && count == 0) ++pinned;
    count = static_cast<uint16_t>(count + by);
    if (by < 0 && count == 0) --pinned;
    pinned_in_ddr_[granule] = tier == Tier::ddr ? 1 : 0;
  }
  order_changed_ = order_changed_ || following_;  // there is more or less to plan with
  note_work();
}

Status Core::room_for_pin(const Storage& storage, Run run, Tier tier) const {
  uint32_t more = 0;
  for (uint32_t granule = run.first; granule < run.first + run.count; ++granule) {
    if (pin_counts_[granule] == 0) {
      ++more;
    } else if ((pinned_in_ddr_[granule] != 0) != (tier == Tier::ddr) || pin_counts_[granule] == UINT16_MAX) {
      return error(ErrorCode::busy,
                   in_words(storage) + " shares a granule with one that is pinned in the other tier");
    }
  }
  const uint32_t pinned = tier == Tier::ddr ? pinned_ddr_ : pinned_cxl_;
  const uint32_t all = tier == Tier::ddr ? ddr_max_ : cxl_max_;
  if (pinned + more <= all) return {};
  return error(ErrorCode::capacity_exhausted,
               in_words(storage) + " cannot be pinned in " + std::string(tier_name(tier)) + ": " +
                   format_size(uint64_t{pinned + more - all} * granule_bytes_) + " short (" +
                   format_size(uint64_t{all} * granule_bytes_) + " there, " +
                   format_size(uint64_t{pinned} * granule_bytes_) + " pinned)");
}

// Held, and still there: the range's own policy may have been faster.
Status Core::take_pin_hold(Storage& storage, Tier tier) {
  const std::span<std::byte> bytes{base_ + storage.place.offset, storage.bytes};
  TERRACE_ASSIGN_OR_RETURN(Hold hold, range_->hold(bytes));
  const Run run = run_of(bytes);
  const uint32_t absent = missing(run);
  if ((tier == Tier::ddr ? absent : run.count - absent) > 0)
    return error(ErrorCode::busy, in_words(storage) + " was moved by others while it was pinned; try again");
  storage.pin_hold = std::move(hold);
  return {};
}

void Core::undo_pin(Storage& storage) {
  storage.pins = 0;
  storage.pin_move = nullptr;
  count_pins(run_of({base_ + storage.place.offset, storage.bytes}), storage.pin_tier, -1);
}

Error Core::stays(const Storage& storage, Tier tier) const {
  return error(stopped_code_, in_words(storage) + " is not in " + std::string(tier_name(tier)) +
                                  ", and nothing moves: " + why_no_moves());
}

Result<std::shared_ptr<MoveHandle>> Core::pin(Storage& storage, Tier tier) {
  TERRACE_RETURN_IF_ERROR(check_leases());  // also of what is there already: its bytes may be gone
  const MutexLock lock(mutex_);
  if (tier == Tier::hbm) return to_hbm(storage, true);
  if (storage.replica != nullptr && device_->pins(*storage.replica) > 0)
    return error(ErrorCode::busy, in_words(storage) + " is pinned in hbm");
  if (storage.pins > 0) {
    if (storage.pin_tier != tier)
      return error(ErrorCode::busy,
                   in_words(storage) + " is pinned in " + std::string(tier_name(storage.pin_tier)));
    ++storage.pins;
    return std::shared_ptr<MoveHandle>(storage.pin_move);
  }
  auto state = std::make_shared<MoveState>();
  const std::span<std::byte> bytes{base_ + storage.place.offset, storage.bytes};
  const Run run = run_of(bytes);
  const uint32_t away = tier == Tier::ddr ? missing(run) : run.count - missing(run);
  if (away > 0 && !why_no_moves().empty()) return stays(storage, tier);
  TERRACE_RETURN_IF_ERROR(room_for_pin(storage, run, tier));
  storage.pins = 1;
  storage.pin_tier = tier;
  storage.pin_move = state;
  count_pins(run, tier, 1);
  // Where it is there already it is held at once; where the policy moves it just now, it is moved back.
  if (stopping_ || run.count == 0 || (away == 0 && take_pin_hold(storage, tier).ok())) {
    state->note_bytes(storage.bytes);
    state->finish({});
    return std::shared_ptr<MoveHandle>(std::move(state));
  }
  requests_.push_back(
      {.state = state, .storage = &storage, .bytes = bytes, .run = run, .tier = tier, .pin = true});
  note_work();
  return std::shared_ptr<MoveHandle>(std::move(state));
}

Status Core::unpin(Storage& storage) {
  const MutexLock lock(mutex_);
  if (storage.pins == 0 && storage.replica != nullptr && device_->unpin(*storage.replica)) return {};
  if (storage.pins == 0) return error(ErrorCode::invalid_argument, in_words(storage) + " is not pinned");
  if (--storage.pins > 0) return {};
  count_pins(run_of({base_ + storage.place.offset, storage.bytes}), storage.pin_tier, -1);
  storage.pin_hold.release();
  std::erase_if(requests_, [&](Request& request) {
    if (request.storage != &storage || !request.pin) return false;
    request.state->finish(error(ErrorCode::cancelled, in_words(storage) + " was unpinned"));
    return true;
  });
  storage.pin_move = nullptr;
  return {};
}

Result<std::shared_ptr<MoveHandle>> Core::move(Storage& storage, std::span<std::byte> bytes, Tier tier) {
  TERRACE_RETURN_IF_ERROR(check_leases());
  const MutexLock lock(mutex_);
  if (tier == Tier::hbm) return to_hbm(storage, false);
  auto state = std::make_shared<MoveState>();
  const Run run = run_of(bytes);
  const uint32_t away = tier == Tier::ddr ? missing(run) : run.count - missing(run);
  if (away == 0) {
    state->note_bytes(bytes.size());
    state->finish({});
    return std::shared_ptr<MoveHandle>(std::move(state));
  }
  if (storage.pins > 0 && storage.pin_tier != tier)
    return error(ErrorCode::busy,
                 in_words(storage) + " is pinned in " + std::string(tier_name(storage.pin_tier)));
  if (!why_no_moves().empty()) return stays(storage, tier);
  requests_.push_back({.state = state, .storage = &storage, .bytes = bytes, .run = run, .tier = tier});
  note_work();
  return std::shared_ptr<MoveHandle>(std::move(state));
}

void Core::cancel_requests(const Storage* storage, const char* why) {
  std::erase_if(requests_, [&](Request& request) {
    if (storage != nullptr && request.storage != storage) return false;
    request.state->finish(error(ErrorCode::cancelled, in_words(*request.storage) + ": " + why));
    return true;
  });
}

}  // namespace terrace::placement
