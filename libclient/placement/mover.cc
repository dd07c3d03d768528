// SPDX-License-Identifier: Apache-2.0
// The thread that copies: what somebody waits for, then what was asked for, then what the order needs next.
//
// Threads   run() is the pool's thread; it holds mutex_ except while it copies, waits, or changes the range's
//           policy.
#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/units.h"
#include "libclient/placement/core.h"

namespace terrace::placement {
namespace {

constexpr auto idle = std::chrono::milliseconds(100);
constexpr auto saves_up = std::chrono::milliseconds(5);  // of the copy budget, while nothing was to be copied
constexpr auto leave_alone = std::chrono::milliseconds(20);  // a granule that would not move
constexpr uint32_t failures_max = 25;                        // of a request, mostly so far apart
constexpr double rate_unbounded = 4e9;                       // until something was copied

SteadyTime now() {
  return std::chrono::steady_clock::now();
}

Error error(ErrorCode code, std::string detail) {
  return {code, 0, "TensorPool", std::move(detail)};
}

bool is_for_good(ErrorCode code) {
  return code == ErrorCode::unsupported || code == ErrorCode::lease_expired || code == ErrorCode::lease_revoked;
}

}  // namespace

void Core::note_work() {
  ++work_;
  mover_wakes_.notify_one();
}

double Core::copy_rate() const {
  if (rate_ != 0) return static_cast<double>(rate_);
  const uint64_t copied = counts_.copied_to_ddr_bytes + counts_.copied_to_cxl_bytes;
  return counts_.copy_ns == 0 ? rate_unbounded
                              : static_cast<double>(copied) * 1e9 / static_cast<double>(counts_.copy_ns);
}

void Core::run() {
  const MutexLock lock(mutex_);
  while (!stopping_) {
    if (rate_ != 0 && now() < next_copy_) {
      mover_wakes_.wait_until(mutex_, next_copy_, [this]() TERRACE_REQUIRES(mutex_) {
        return stopping_ || rate_ == 0 || now() >= next_copy_;
      });
      continue;
    }
    const uint64_t seen = work_;
    plan_order();
    settle_policy();
    if (stopping_) break;
    const Batch batch = next_batch();
    if (batch.empty()) {
      if (work_ == seen)
        mover_wakes_.wait_for(mutex_, requests_.empty() ? Nanoseconds(idle) : Nanoseconds(leave_alone));
      continue;
    }
    carry_out(batch);
  }
}

// P3. Without the lock, since the range's own thread may be in the middle of a round.
void Core::settle_policy() {
  if (following_ == policy_paused_) return;
  const bool pause = following_;
  policy_paused_ = pause;
  const MutexUnlock unlocked(mutex_);
  pause ? range_->pause() : range_->resume();
}

void Core::plan_order() {
  if (!order_changed_) return;
  order_changed_ = false;
  if (!learner_.known()) return;
  const std::vector<Use> cycle(learner_.cycle().begin(), learner_.cycle().end());
  const uint32_t ddr = ddr_max_ - std::min(ddr_max_, pinned_ddr_);
  std::vector<uint8_t> pinned(granules_);
  for (uint32_t granule = 0; granule < granules_; ++granule) pinned[granule] = pin_counts_[granule] > 0 ? 1 : 0;
  Schedule schedule = [&]() TERRACE_REQUIRES(mutex_) {
    const MutexUnlock unlocked(mutex_);
    return Schedule(cycle, granules_, ddr, pinned);
  }();
  if (!learner_.known() || order_changed_) return;
  schedule_ = std::move(schedule);
  following_ = !schedule_.empty() && stopped_.empty();
}

std::vector<uint8_t> Core::states(SteadyTime at) const {
  std::vector<uint8_t> states(granules_);
  for (uint32_t granule = 0; granule < granules_; ++granule) {
    if (in_ddr(granule)) states[granule] |= GranuleState::in_ddr;
    if (pin_counts_[granule] > 0) states[granule] |= GranuleState::fixed;
    if (not_before_[granule] > at || (pin_counts_[granule] > 0 && pinned_in_ddr_[granule] == 0))
      states[granule] |= GranuleState::fixed | GranuleState::immovable;
  }
  for (const OpenGuard* guard : open_)
    for (uint32_t i = 0; i < guard->run.count; ++i)
      states[guard->run.first + i] |=
          static_cast<uint8_t>(GranuleState::fixed | (guard->holds ? GranuleState::immovable : 0));
  return states;
}

// What a byte of each granule saves in a step by being in DDR; -1: nobody's.
std::vector<float> Core::values() const {
  std::vector<float> values(granules_, -1);
  for (const Storage* storage : storages_) {
    const Run run = run_of({base_ + storage->place.offset, storage->bytes});
    const auto value = static_cast<float>(saved_ns_per_byte(costs_, facts_of(*storage)));
    for (uint32_t i = 0; i < run.count; ++i) values[run.first + i] = std::max(values[run.first + i], value);
  }
  return values;
}

Core::Batch Core::next_batch() {
  if (!stopped_.empty()) {
    while (!requests_.empty()) finish_request(error(stopped_code_, "nothing moves: " + stopped_));
    return {};
  }
  if (!requests_.empty() && (waiters_.empty() || !following_)) {
    // Requests that can only wait keep nothing from the order.
    if (Batch batch = request_batch(); !batch.empty()) return batch;
  }
  if (!following_) return {};
  const std::vector<uint8_t> at = states(now());
  const auto in = static_cast<uint32_t>(
      std::count_if(at.begin(), at.end(), [](uint8_t state) { return (state & GranuleState::in_ddr) != 0; }));
  std::vector<Run> demanded;
  for (Waiter* waiter : waiters_) {
    demanded.push_back(waiter->run);
    if (waiter->given_up || awaited(waiter->run) > 0) continue;
    waiter->given_up = true;
    guards_wake_.notify_all();
  }
  Batch batch = batch_of(next_moves(schedule_, {.position = learner_.position(),
                                                .granules = at,
                                                .room = ddr_max_ - std::min(ddr_max_, in),
                                                .demanded = demanded,
                                                .moves_max = 2 * batch_granules_}),
                         in);
  if (!waiters_.empty() && batch.empty()) {
    for (Waiter* waiter : waiters_) waiter->given_up = true;
    guards_wake_.notify_all();
  }
  return batch;
}

// As many as are moved between two looks, and no more out than there are free slots.
Core::Batch Core::batch_of(const std::vector<PlannedMove>& moves, uint32_t in_ddr_now) const {
  Batch batch;
  const uint32_t in_cxl = granules_ - in_ddr_now;
  const uint32_t slots = cxl_max_ - std::min(cxl_max_, in_cxl);
  for (const PlannedMove& move : moves) {
    if (move.to_ddr) {
      batch.in.push_back(move.granule);
      if (batch.in.size() == batch_granules_) break;
    } else {
      if (batch.out.size() == slots) break;
      batch.out.push_back(move.granule);
    }
  }
  return batch;
}

// Of the first request for which there is something to do now. It stays the first as long as it comes nearer to
// its end, so that two that want each other's place do not take turns.
Core::Batch Core::request_batch() {
  const SteadyTime time = now();
  for (size_t tries = requests_.size(); tries > 0 && !requests_.empty(); --tries) {
    Request& request = requests_.front();
    const uint32_t left = away(request);
    const TensorResidency there = host_residency(request.bytes);
    request.state->note_bytes(request.tier == Tier::ddr ? there.ddr_bytes : there.cxl_bytes);
    if (left == 0) {
      finish_request(request.pin ? take_pin_hold(*request.storage, request.tier) : Status());
      continue;
    }
    if (request.retry_at > time) {
      std::rotate(requests_.begin(), requests_.begin() + 1, requests_.end());
      continue;
    }
    const std::vector<uint8_t> at = states(time);
    const auto in = static_cast<uint32_t>(
        std::count_if(at.begin(), at.end(), [](uint8_t state) { return (state & GranuleState::in_ddr) != 0; }));
    if (request.failures >= failures_max) {
      finish_request(too_little_room(request, left, in));
      continue;
    }
    request.away = left;
    request.least_away = std::min(request.least_away, left);
    Batch batch = request.tier == Tier::ddr ? raise_batch(request, at, in) : sink_batch(request, at, in);
    if (!batch.empty()) {
      batch.for_request = request.state;
      return batch;
    }
    request.held = std::any_of(at.begin() + request.run.first,
                               at.begin() + request.run.first + request.run.count, [&](uint8_t state) {
                                 const Tier tier = (state & GranuleState::in_ddr) != 0 ? Tier::ddr : Tier::cxl;
                                 return tier != request.tier && (state & GranuleState::immovable) != 0;
                               });
    ++request.failures;
    retry_later(requests_.begin());
  }
  return {};
}

uint32_t Core::away(const Request& request) const {
  const uint32_t absent = missing(request.run);
  return request.tier == Tier::ddr ? absent : request.run.count - absent;
}

// Behind the others, which may make room.
void Core::retry_later(std::deque<Request>::iterator request) {
  request->retry_at = now() + leave_alone;
  std::rotate(request, request + 1, requests_.end());
}

// What else moved is no step towards its end.
void Core::judge_request(const Batch& batch, uint32_t sank, uint32_t rose) {
  const auto request = std::find_if(requests_.begin(), requests_.end(),
                                    [&](const Request& one) { return one.state == batch.for_request; });
  if (request == requests_.end()) return;  // unpinned meanwhile, or its tensor is gone
  const SteadyTime time = now();
  request->held = false;
  for (uint32_t i = 0; i < request->run.count; ++i)
    request->held = request->held || not_before_[request->run.first + i] > time;
  const uint32_t left = away(*request);
  if (left < request->least_away) {
    request->least_away = left;
    request->failures = 0;
  }
  if (left < request->away) return;  // as far as it had been, before others needed the room
  ++request->failures;
  // With room that was made just now, or with others in the place of those that would not go, it goes on.
  const bool at_once = request->tier == Tier::ddr ? sank < batch.out.size() : batch.out.empty() && rose > 0;
  if (!at_once) retry_later(request);
}

Error Core::too_little_room(const Request& request, uint32_t away, uint32_t in) const {
  const bool full = !request.held && (request.tier == Tier::ddr ? in >= ddr_max_ : granules_ - in >= cxl_max_);
  return error(full ? ErrorCode::capacity_exhausted : ErrorCode::busy,
               in_words(*request.storage) + " is " + format_size(uint64_t{away} * granule_bytes_) +
                   " short of being in " + std::string(tier_name(request.tier)) +
                   (full ? ", whose other bytes are in use or pinned" : ": those granules are held"));
}

Core::Batch Core::raise_batch(const Request& request, const std::vector<uint8_t>& at, uint32_t in) {
  std::vector<uint8_t> seen = at;
  const SteadyTime time = now();
  // The tensor's own granules may move whoever has a guard open; only not those that would not a moment ago.
  for (uint32_t granule = request.run.first; granule < request.run.first + request.run.count; ++granule)
    if (not_before_[granule] > time) seen[granule] |= GranuleState::in_ddr | GranuleState::fixed;
  const uint32_t room = ddr_max_ - std::min(ddr_max_, in);
  const Run demanded[] = {request.run};
  if (following_) {
    std::vector<PlannedMove> moves = next_moves(schedule_, {.position = learner_.position(),
                                                            .granules = seen,
                                                            .room = room,
                                                            .demanded = demanded,
                                                            .moves_max = 2 * batch_granules_});
    // The order's own lie behind them: they are no part of the request.
    size_t own = 0;
    for (size_t i = 0; i < moves.size(); ++i)
      if (moves[i].to_ddr && moves[i].granule - request.run.first < request.run.count) own = i + 1;
    moves.resize(own);
    return batch_of(moves, in);
  }
  const std::vector<float> value = values();
  std::vector<uint32_t> victims;
  for (uint32_t granule = 0; granule < granules_; ++granule)
    if (seen[granule] == GranuleState::in_ddr && granule - request.run.first >= request.run.count)
      victims.push_back(granule);
  std::stable_sort(victims.begin(), victims.end(), [&](uint32_t a, uint32_t b) { return value[a] < value[b]; });
  std::vector<PlannedMove> moves;
  size_t next_victim = 0;
  uint32_t left = room;
  for (uint32_t granule = request.run.first; granule < request.run.first + request.run.count; ++granule) {
    if ((seen[granule] & GranuleState::in_ddr) != 0) continue;
    if (left > 0) {
      --left;
    } else {
      if (next_victim == victims.size()) break;
      moves.push_back({.granule = victims[next_victim++], .to_ddr = false});
    }
    moves.push_back({.granule = granule, .to_ddr = true});
  }
  return batch_of(moves, in);
}

Core::Batch Core::sink_batch(const Request& request, const std::vector<uint8_t>& at, uint32_t in) {
  Batch batch;
  const SteadyTime time = now();
  const uint32_t in_cxl = granules_ - in;
  const uint32_t slots = cxl_max_ - std::min(cxl_max_, in_cxl);
  uint32_t wanted = 0;
  for (uint32_t granule = request.run.first; granule < request.run.first + request.run.count; ++granule) {
    const bool pinned = pin_counts_[granule] > 0 && pinned_in_ddr_[granule] != 0;
    if ((at[granule] & GranuleState::in_ddr) == 0 || pinned || not_before_[granule] > time) continue;
    ++wanted;
    if (batch.out.size() < std::min(slots, batch_granules_)) batch.out.push_back(granule);
  }
  if (wanted == 0 || !batch.out.empty()) return batch;
  // CXL is full, so DDR is not: something else rises first, what gains most by it.
  const std::vector<float> value = values();
  std::vector<uint32_t> rising;
  for (uint32_t granule = 0; granule < granules_; ++granule)
    if (at[granule] == 0 && granule - request.run.first >= request.run.count) rising.push_back(granule);
  std::stable_sort(rising.begin(), rising.end(), [&](uint32_t a, uint32_t b) { return value[a] > value[b]; });
  const uint32_t room = ddr_max_ - std::min(ddr_max_, in);
  rising.resize(std::min<size_t>(rising.size(), std::min({wanted, room, batch_granules_})));
  batch.in = std::move(rising);
  return batch;
}

// What a lease that ends does to a move looks like many things, from no room to granules that would not go.
void Core::finish_request(Status result) {
  if (!result.ok())
    if (Status lost = check_leases(); !lost.ok()) result = std::move(lost);
  Request request = std::move(requests_.front());
  requests_.pop_front();
  if (request.pin && !result.ok()) undo_pin(*request.storage);
  request.state->finish(std::move(result));
}

uint32_t Core::move_runs(const std::vector<uint32_t>& granules, Tier tier, size_t at_most,
                         std::vector<uint32_t>* refused, Status* stopped) {
  uint32_t moved = 0;
  for (size_t i = 0; i < granules.size() && moved < at_most;) {
    size_t end = i + 1;
    while (end < granules.size() && granules[end] == granules[end - 1] + 1 && end - i < at_most - moved) ++end;
    const uint64_t bytes = (end - i) * granule_bytes_;
    auto there = range_->move_to({base_ + uint64_t{granules[i]} * granule_bytes_, bytes}, tier);
    if (!there.ok() && is_for_good(there.error().code)) {
      *stopped = there.error();
      return moved;
    }
    for (; i < end; ++i) {
      if (in_ddr(granules[i]) == (tier == Tier::ddr))
        ++moved;
      else
        refused->push_back(granules[i]);
    }
  }
  return moved;
}

void Core::carry_out(const Batch& batch) {
  std::vector<uint32_t> out = batch.out, in = batch.in, refused;
  std::sort(out.begin(), out.end());
  const bool whole = std::is_sorted(in.begin(), in.end());
  if (!whole) std::sort(in.begin(), in.end());
  const SteadyTime begin = now();
  Status stopped;
  uint32_t sank = 0, rose = 0;
  {
    const MutexUnlock unlocked(mutex_);
    sank = move_runs(out, Tier::cxl, out.size(), &refused, &stopped);
    // For each that did not go out one must stay away.
    const size_t may_rise = in.size() - std::min<size_t>(in.size(), out.size() - sank);
    if (stopped.ok()) rose = move_runs(in, Tier::ddr, may_rise, &refused, &stopped);
  }
  const SteadyTime end = now();
  counts_.copied_to_cxl_bytes += sank * granule_bytes_;
  counts_.copied_to_ddr_bytes += rose * granule_bytes_;
  if (sank + rose > 0) counts_.copy_ns += static_cast<uint64_t>((end - begin) / Nanoseconds(1));
  for (const uint32_t granule : refused) not_before_[granule] = end + leave_alone;
  if (batch.for_request != nullptr) judge_request(batch, sank, rose);
  if (rate_ != 0) {
    const double seconds = static_cast<double>((sank + rose) * granule_bytes_) / static_cast<double>(rate_);
    next_copy_ = std::max(next_copy_, begin - saves_up) + Nanoseconds(static_cast<int64_t>(seconds * 1e9));
  }
  costs_.copy_bytes_per_s = copy_rate();
  if (!stopped.ok()) {
    stopped_ = stopped.error().detail.empty() ? "the range does not move any more" : stopped.error().detail;
    stopped_code_ = stopped.error().code;
    following_ = false;
  }
  guards_wake_.notify_all();
}

}  // namespace terrace::placement
