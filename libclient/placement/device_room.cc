// SPDX-License-Identifier: Apache-2.0
// The thread of tier hbm: whom it serves next, and who makes room.
#include <algorithm>
#include <utility>

#include "libclient/placement/device_tier.h"

namespace terrace::placement {
namespace {

constexpr uint32_t ahead_max = 2;  // copies by the order under way: the link is busy, and a guard waits for few

}  // namespace

void DeviceTier::run() {
  const MutexLock lock(mutex_);
  while (!ended_) {
    const uint64_t seen = events_;
    if (look()) continue;
    wake_.wait(mutex_, [&]() TERRACE_REQUIRES(mutex_) { return ended_ || events_ != seen; });
  }
}

// Returns whether anything was done; the lock was let go then.
bool DeviceTier::look() {
  plan_order();
  if (serve_charged()) return true;
  for (Entry* entry : wants_)
    if (entry->phase != Entry::Phase::absent && serve_want(*entry) == Outcome::done) return true;
  for (Entry* entry : wants_) {
    if (entry->phase != Entry::Phase::absent) continue;
    const Outcome outcome = serve_want(*entry);
    if (outcome != Outcome::nothing) return outcome == Outcome::done;  // room goes to who asked first
  }
  return bring_ahead() == Outcome::done;
}

// What the host waits for, what pins ask for, and what is given up.
bool DeviceTier::serve_charged() {
  for (Entry* entry : charged_) {
    if (entry->phase != Entry::Phase::resident) continue;
    if (std::exchange(entry->sink_wanted, false) && entry->dirty && entry->writers == 0)
      return begin_sink(*entry), true;
    if (entry->pins > 0 && !entry->current() && !entry->in_use() && entry->host_writers == 0 &&
        entry->up_failed != entry->host_version)
      return begin_upload(*entry, false), true;
    if (entry->releases.empty() || entry->in_use() || entry->pins > 0) continue;
    if (entry->dirty && entry->sink_error.ok()) return begin_sink(*entry), true;
    if (!entry->dirty) return drop_buffer(*entry), true;  // and tells them
    for (const auto& release : std::exchange(entry->releases, {})) release->finish(entry->sink_error);
    return true;
  }
  return false;
}

DeviceTier::Outcome DeviceTier::serve_want(Entry& entry) {
  const bool upload = !entry.moves.empty() || std::any_of(entry.waiters.begin(), entry.waiters.end(),
                                                          [](const auto* one) { return !one->overwrite; });
  const bool nobody = entry.moves.empty() && entry.waiters.empty();
  if (nobody || entry.current() || (!upload && entry.phase == Entry::Phase::resident)) {
    end_want(entry, {});
    return Outcome::done;
  }
  if (upload && entry.lost()) {
    end_want(entry, lost_bytes(entry));
    return Outcome::done;
  }
  if (entry.host_writers > 0) return Outcome::nothing;  // guards have given up; moves go on once it is closed
  if (entry.phase == Entry::Phase::resident) {
    begin_upload(entry, false);
    return Outcome::done;
  }
  if (entry.phase != Entry::Phase::absent) return Outcome::nothing;
  const uint64_t free = budget_ - used_;
  if (free >= entry.bytes()) return allocate_and_raise(entry, upload);
  const uint64_t need = entry.bytes() - free;
  const Outcome made = make_room(need, victims(next_uses()));
  if (made != Outcome::nothing) return made;
  ++counts_.refused;
  end_want(entry, short_of(entry, need));
  return Outcome::done;
}

// The nearest use of the order that is not there, where that costs nobody what is needed sooner.
DeviceTier::Outcome DeviceTier::bring_ahead() {
  if (!following_ || stopping_ || ahead_under_way_ >= ahead_max) return Outcome::nothing;
  const std::vector<NextUse> next = next_uses();
  for (uint32_t ahead = 0; ahead < schedule_.positions(); ++ahead) {
    const uint32_t slot = schedule_.use((learner_.position() + ahead) % schedule_.positions()).slot;
    Entry* entry = slot < entries_.size() ? entries_[slot].get() : nullptr;
    if (entry == nullptr || entry->gone || entry->lost() || entry->current() || entry->copying() ||
        entry->wanted || entry->in_use() || entry->host_writers > 0 || entry->up_failed == entry->host_version)
      continue;
    if (entry->phase == Entry::Phase::resident) {
      begin_upload(*entry, true);
      return Outcome::done;
    }
    const uint64_t free = budget_ - used_;
    if (free >= entry->bytes()) {
      ++ahead_under_way_;
      const Outcome outcome = allocate_and_raise(*entry, true);
      --ahead_under_way_;
      return outcome;
    }
    std::vector<Entry*> order = victims(next);
    std::erase_if(order, [&](const Entry* one) {
      return next[one->slot].distance <= ahead || (next[one->slot].kept && one->current());
    });
    return make_room(entry->bytes() - free, order);
  }
  return Outcome::nothing;
}

void DeviceTier::plan_order() {
  if (!std::exchange(order_changed_, false)) return;
  following_ = false;
  if (!learner_.known() || stopping_) return;
  std::vector<SlotUse> cycle;
  for (const Use& use : learner_.cycle()) {
    const Entry* entry = use.first < entries_.size() ? entries_[use.first].get() : nullptr;
    // What is pinned has its room already.
    const uint64_t bytes = entry == nullptr || entry->pins > 0 ? 0 : entry->bytes();
    cycle.push_back({.slot = use.first, .bytes = bytes, .positions = use.positions});
  }
  schedule_ = DeviceSchedule(std::move(cycle), budget_ - std::min(budget_, pinned_));
  following_ = !schedule_.empty();
}

std::vector<NextUse> DeviceTier::next_uses() const {
  if (!following_) return std::vector<NextUse>(entries_.size());
  return schedule_.next_uses(learner_.position(), static_cast<uint32_t>(entries_.size()));
}

// H2. One that somebody waits for to be copied once a host guard is closed may go: that may take for ever.
bool DeviceTier::evictable(const Entry& entry) const {
  return entry.phase == Entry::Phase::resident && !entry.in_use() && entry.pins == 0 &&
         (!entry.wanted || entry.host_writers > 0) && (!entry.dirty || entry.sink_error.ok());
}

bool DeviceTier::will_be_evictable(const Entry& entry) const {
  if (entry.phase == Entry::Phase::leaving) return true;
  return !evictable(entry) && !entry.in_use() && entry.pins == 0 && (!entry.dirty || entry.sink_error.ok());
}

// What may go now, the first one first: stale ones, then by the order, or those used least recently.
std::vector<HbmEntry*> DeviceTier::victims(const std::vector<NextUse>& next) const {
  std::vector<Entry*> order;
  for (Entry* entry : charged_)
    if (evictable(*entry)) order.push_back(entry);
  std::sort(order.begin(), order.end(), [&](const Entry* a, const Entry* b) {
    if (a->current() != b->current()) return b->current();
    const NextUse &next_a = next[a->slot], &next_b = next[b->slot];
    if (next_a.kept != next_b.kept) return next_b.kept;
    if (next_a.distance != next_b.distance) return next_a.distance > next_b.distance;
    return a->last_use < b->last_use;
  });
  return order;
}

DeviceTier::Outcome DeviceTier::make_room(uint64_t bytes, const std::vector<Entry*>& order) {
  const auto comes = [](const Entry& entry) {
    return entry.phase == Entry::Phase::leaving ||
           (entry.phase == Entry::Phase::sinking && entry.to_leave && !entry.in_use() && entry.pins == 0);
  };
  uint64_t coming = 0, possible = 0;
  for (const Entry* entry : charged_) {
    if (comes(*entry)) coming += entry->bytes();
    if (will_be_evictable(*entry)) possible += entry->bytes();
  }
  for (const Entry* entry : order) possible += entry->bytes();
  if (possible < bytes) return Outcome::nothing;
  bool begun = false;
  for (Entry* entry : order) {
    if (coming >= bytes) break;
    if (!entry->dirty) {
      ++counts_.evictions;
      counts_.evicted_bytes += entry->bytes();
      drop_buffer(*entry);
      return Outcome::done;
    }
    entry->to_leave = true;
    if (begin_sink(*entry)) coming += entry->bytes();
    begun = true;
  }
  return begun ? Outcome::done : Outcome::waits;
}

Error DeviceTier::lost_bytes(const Entry& entry) {
  return {ErrorCode::corrupt, 0, "TensorPool",
          entry.words +
              " was copied back from hbm in part, and its replica was discarded: write it under write(), "
              "or all of it under device_write() with overwrite"};
}

Error DeviceTier::short_of(const Entry& entry, uint64_t bytes) const {
  uint64_t in_use = 0, pinned = 0, lost = 0, room = 0;
  std::string why;
  for (const Entry* one : charged_) {
    if (one->in_use()) {
      in_use += one->bytes();
    } else if (one->pins > 0) {
      pinned += one->bytes();
    } else if (one->dirty && !one->sink_error.ok()) {
      lost += one->bytes();
      why = one->sink_error.error().to_string();
    } else {
      room += one->bytes();
    }
  }
  std::string text = entry.words + " does not fit into hbm: " + std::to_string(bytes - std::min(bytes, room)) +
                     " bytes short of a budget of " + std::to_string(budget_) + " (in use " +
                     std::to_string(in_use) + ", pinned " + std::to_string(pinned);
  if (lost > 0) text += ", cannot be written back " + std::to_string(lost) + ": " + why;
  return {ErrorCode::capacity_exhausted, 0, "TensorPool",
          text + "); close device guards, unpin, or raise hbm_bytes"};
}

}  // namespace terrace::placement
