// SPDX-License-Identifier: Apache-2.0
#include "libclient/kv/spill/segment_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace terrace::kv {

using Counts = SpillCounts;

void SegmentLog::recover() {
  records_.assign(folder_.geometry().segments, {});
  index().recover([&](const SpillBlock& block) { return map_.owner(segment_of(block)) != slot_; },
                  [&](const SpillBlock& block) { records_[segment_of(block)].push_back(block.record); });
  count_ = map_.segments_of(slot_).size();
}

std::optional<uint64_t> SegmentLog::reserve(uint64_t frame_bytes) {
  if (active_ == no_segment || end_ + frame_bytes > folder_.geometry().segment_bytes) return std::nullopt;
  const uint64_t offset = active_ * folder_.geometry().segment_bytes + end_;
  end_ += frame_bytes;
  return offset;
}

uint64_t SegmentLog::share() const {
  return std::max<uint64_t>(1, folder_.geometry().segments / std::max(1u, map_.slots_open()));
}

void SegmentLog::start(uint32_t segment) {
  records_[segment].clear();
  active_ = segment;
  end_ = 0;
}

// Its disk space is taken now, so that a full disk is noticed before blocks are on their way.
bool SegmentLog::has_disk_space(uint32_t segment) {
  const uint64_t bytes = folder_.geometry().segment_bytes;
  int result = 0;
  do {
    result = ::fallocate(folder_.data(), 0, static_cast<off_t>(segment * bytes), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  return result == 0 || errno == EOPNOTSUPP || errno == ENOSYS;
}

bool SegmentLog::claim_free(uint64_t now_ms) {
  constexpr uint64_t pause_ms = 10'000;
  for (const SpillSegment& free : map_.segments_of(std::nullopt)) {
    if (!map_.claim(free, slot_, now_ms)) continue;
    if (!has_disk_space(free.index)) {
      map_.release({free.index, uint64_t{slot_ + 1} << layout::spill_segment_slot_shift | now_ms});
      grows_again_ms_ = now_ms + pause_ms;
      return false;
    }
    start(free.index);
    return true;
  }
  return false;
}

bool SegmentLog::next_segment(uint64_t now_ms, std::vector<KeptFrame>* kept) {
  const std::vector<SpillSegment> own = map_.segments_of(slot_);
  count_ = own.size();
  const uint64_t fair = share();
  if (now_ms >= grows_again_ms_ && !(own.size() >= fair && map_.somebody_wants(slot_, now_ms))) {
    if (claim_free(now_ms) || (free_of_the_dead(now_ms) && claim_free(now_ms))) {
      count_ = own.size() + 1;
      return true;
    }
    if (own.size() < fair) map_.store(&map_.slot(slot_)->wants_ms, now_ms);
  }
  for (const SpillSegment& oldest : own) {
    if (oldest.index == active_ && own.size() > 1) continue;
    *kept = worth_keeping(oldest.index);
    clear(oldest.index);
    if (!map_.renew(oldest.index, slot_, std::max(now_ms, own.back().age_ms() + 1))) {
      kept->clear();
      continue;
    }
    start(oldest.index);
    Counts::add(counts_.segments_reused);
    return true;
  }
  active_ = no_segment;
  return false;
}

void SegmentLog::clear(uint32_t segment) {
  for (const uint64_t record : records_[segment]) {
    const std::optional<SpillBlock> block = index().at(record);
    if (block && segment_of(*block) == segment) index().remove(*block);
  }
  records_[segment].clear();
}

// Most used first, at most a quarter of the segment: what is written on takes time from what is new.
std::vector<KeptFrame> SegmentLog::worth_keeping(uint32_t segment) {
  std::vector<std::pair<uint32_t, SpillBlock>> used;
  for (const uint64_t record : records_[segment]) {
    const std::optional<SpillBlock> block = index().at(record);
    const uint32_t uses = block && segment_of(*block) == segment ? index().uses(record) : 0;
    if (uses != 0 && !block->is_expired(spill_now_s())) used.push_back({uses, *block});
  }
  std::stable_sort(used.begin(), used.end(),
                   [](const auto& one, const auto& other) { return one.first > other.first; });
  std::vector<KeptFrame> kept;
  uint64_t bytes = 0;
  for (const auto& [uses, block] : used) {
    bytes += block.frame_bytes;
    if (bytes > folder_.geometry().segment_bytes / 4) break;
    KeptFrame frame{.block = block,
                    .frame = buffers_.take(block.frame_bytes),
                    .token = map_.token(block.key),
                    .uses = uses / 2};
    if (frame.frame == nullptr) break;
    if (::pread(folder_.data(), frame.frame.get(), block.frame_bytes, static_cast<off_t>(block.offset)) !=
            static_cast<ssize_t>(block.frame_bytes) ||
        !index().holds(block))
      continue;
    // What cannot be read right is not written on.
    if (frame_hash(block, {frame.frame.get(), block.frame_bytes}) != block.hash) continue;
    kept.push_back(std::move(frame));
  }
  Counts::add(counts_.kept, kept.size());
  return kept;
}

bool SegmentLog::publish(SpillBlock* block, uint32_t uses) {
  const uint64_t segment_bytes = folder_.geometry().segment_bytes;
  if (map_.owner(segment_of(*block)) != slot_) return true;  // somebody has stored to the map: it is dropped
  // One that has expired is in the way.
  if (const auto there = index().find(block->key); there && there->is_expired(spill_now_s()))
    index().remove(*there);
  const bool inserted = index().insert(block, uses, [&](const SpillBlock& one, const SpillBlock& other) {
    return map_.age_ms(static_cast<uint32_t>(one.offset / segment_bytes)) <
           map_.age_ms(static_cast<uint32_t>(other.offset / segment_bytes));
  });
  if (inserted) records_[segment_of(*block)].push_back(block->record);
  return inserted;
}

void SegmentLog::disk_full(uint64_t now_ms) {
  constexpr uint64_t pause_ms = 10'000;
  grows_again_ms_ = now_ms + pause_ms;
  if (active_ == no_segment) return;
  clear(active_);
  for (const SpillSegment& own : map_.segments_of(slot_))
    if (own.index == active_) map_.release(own);
  active_ = no_segment;
}

void SegmentLog::give_if_asked(uint64_t now_ms) {
  const std::vector<SpillSegment> own = map_.segments_of(slot_);
  count_ = own.size();
  const uint64_t fair = share();
  if (own.size() <= fair || !map_.somebody_wants(slot_, now_ms)) return;
  uint64_t gives = (own.size() - fair + 3) / 4;
  for (const SpillSegment& oldest : own) {
    if (oldest.index == active_ || gives-- == 0) break;
    clear(oldest.index);
    map_.release(oldest);
    --count_;
    Counts::add(counts_.segments_given);
  }
}

// Of the first slot that nobody owns and that has segments: its oldest quarter. Its next owner finds it in order.
bool SegmentLog::free_of_the_dead(uint64_t now_ms) {
  constexpr uint64_t pause_ms = 1'000;
  if (now_ms < looks_again_ms_) return false;
  for (uint32_t slot = 0; slot < layout::spill_slots; ++slot) {
    if (slot == slot_) continue;
    std::vector<SpillSegment> left = map_.segments_of(slot);
    if (left.empty()) continue;
    SlotIndex* const of_dead = folder_.index(slot);
    // Whose index is not whole has no blocks that anybody could find: but only its lock says that it is dead.
    if (of_dead == nullptr || !folder_.lock_slot(slot)) continue;
    left.resize((left.size() + 3) / 4);
    std::vector<bool> goes(folder_.geometry().segments);
    for (const SpillSegment& segment : left) goes[segment.index] = true;
    for (uint64_t record = 0; record < folder_.geometry().records(); ++record)
      if (const std::optional<SpillBlock> block = of_dead->at(record); block && goes[segment_of(*block)])
        of_dead->remove(*block);
    for (const SpillSegment& segment : left) map_.release(segment);
    map_.store(&map_.slot(slot)->open, 0);
    folder_.unlock_slot(slot);
    Counts::add(counts_.segments_taken, left.size());
    return true;
  }
  looks_again_ms_ = now_ms + pause_ms;
  return false;
}

}  // namespace terrace::kv
