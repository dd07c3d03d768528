// SPDX-License-Identifier: Apache-2.0
// SpillStore: finding and reading blocks, and reading them ahead.
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "libclient/kv/spill/spill_store.h"

namespace terrace::kv {

namespace {

Error block_not_there() {
  return Error{.code = ErrorCode::not_found, .where = "KvSpill", .detail = "KV spill: the block is not there"};
}

}  // namespace

// In any slot's index.
std::optional<SpillBlock> SpillStore::find(const BlockKey& key) {
  const uint32_t used = folder_->map().slots_used();
  for (uint32_t slot = 0; slot < used; ++slot) {
    SlotIndex* const index = folder_->index(slot);
    if (index == nullptr) continue;
    std::optional<SpillBlock> block = index->find(key);
    if (block && !block->is_expired(spill_now_s())) return block;
  }
  return std::nullopt;
}

std::optional<SpillBlock> SpillStore::look_up(const BlockKey& key) {
  const os::LossyAccesses accesses;
  if (waiting_count_.load(std::memory_order_relaxed) != 0) {
    const MutexLock lock(mutex_);
    const auto found = waiting_.find(key.low);
    if (found != waiting_.end() && found->second->block.key == key &&
        !found->second->block.is_expired(spill_now_s()))
      return found->second->block;
  }
  return find(key);
}

bool SpillStore::is_current(const SpillBlock& block) {
  SlotIndex* const index = folder_->index(block.slot);
  return index != nullptr && index->holds(block);
}

Result<uint64_t> SpillStore::get(const KvNamespace& name_space, const KvGet& get) {
  TERRACE_RETURN_IF_ERROR(check_key(get.key));
  if (!usable()) return unusable();
  const std::optional<SpillFrame> found =
      fetch(key_of(namespace_hash(name_space.name()), get.key), name_space.name(), get.key);
  if (!found) return block_not_there();
  if (get.into.size() < found->block.bytes)
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "KvSpill::get",
                 .detail = "KV spill: the block has " + std::to_string(found->block.bytes) +
                           " bytes, more than the " + std::to_string(get.into.size()) + " given"};
  if (found->block.bytes != 0) std::memcpy(get.into.data(), found->frame.get(), found->block.bytes);
  return found->block.bytes;
}

Result<uint64_t> SpillStore::length(const KvNamespace& name_space, std::string_view name) {
  TERRACE_RETURN_IF_ERROR(check_key(name));
  if (!usable()) return unusable();
  const std::optional<SpillBlock> block = look_up(key_of(namespace_hash(name_space.name()), name));
  if (!block) return block_not_there();
  return block->bytes;
}

// A group of keys at a time: all their lines are on their way before the first is looked at.
Status SpillStore::exists(const KvNamespace& name_space, std::span<const std::string_view> keys,
                          std::span<bool> found) {
  constexpr size_t group_most = 64;
  if (keys.size() != found.size())
    return Error{
        .code = ErrorCode::invalid_argument, .where = "KvSpill", .detail = "KV spill: as many answers as keys"};
  for (const std::string_view key : keys) TERRACE_RETURN_IF_ERROR(check_key(key));
  if (!usable()) return unusable();
  const os::LossyAccesses accesses;
  const uint64_t seed = namespace_hash(name_space.name());
  const uint32_t used = folder_->map().slots_used();
  BlockKey group[group_most];
  for (size_t from = 0; from < keys.size(); from += group_most) {
    const size_t count = std::min(group_most, keys.size() - from);
    for (size_t at = 0; at < count; ++at) {
      group[at] = key_of(seed, keys[from + at]);
      for (uint32_t slot = 0; slot < used; ++slot)
        if (const SlotIndex* const index = folder_->index(slot); index != nullptr) index->expect(group[at]);
    }
    for (size_t at = 0; at < count; ++at) found[from + at] = look_up(group[at]).has_value();
  }
  return {};
}

std::optional<SpillFrame> SpillStore::fetch(const BlockKey& key, std::string_view name_space,
                                            std::string_view name) {
  if (!usable()) return std::nullopt;
  const os::LossyAccesses accesses;
  std::optional<SpillFrame> found = fetch_queued(key, name_space, name);
  if (found) SpillCounts::add(counts_.queued_hits);
  if (!found && (found = fetch_ahead(key, name_space, name))) SpillCounts::add(counts_.prefetch_hits);
  // Gone while it was read, or damaged: another slot may have it.
  for (int attempt = 0; !found && attempt < 8; ++attempt) {
    const std::optional<SpillBlock> block = find(key);
    if (!block) break;
    found = read(*block, name_space, name);
  }
  SpillCounts::add(found ? counts_.hits : counts_.misses);
  if (found) SpillCounts::add(counts_.hit_bytes, found->block.bytes);
  return found;
}

std::optional<SpillFrame> SpillStore::fetch_queued(const BlockKey& key, std::string_view name_space,
                                                   std::string_view name) {
  if (waiting_count_.load(std::memory_order_relaxed) == 0) return std::nullopt;
  std::shared_ptr<SpillWrite> write;
  {
    const MutexLock lock(mutex_);
    const auto found = waiting_.find(key.low);
    if (found == waiting_.end() || found->second->block.is_expired(spill_now_s())) return std::nullopt;
    write = found->second;
  }
  if (!(write->block.key == key) || write->token != folder_->map().token(key) ||
      !has_names({write->frame.get() + write->block.name_offset(),
                  write->block.frame_bytes - write->block.name_offset()},
                 name_space, name))
    return std::nullopt;
  SpillFrame frame{.block = write->block, .frame = write->frame};
  return frame;
}

// The answer's word is compared again: what was read ahead may have been erased since.
std::optional<SpillFrame> SpillStore::fetch_ahead(const BlockKey& key, std::string_view name_space,
                                                  std::string_view name) {
  if (ahead_count_.load(std::memory_order_relaxed) == 0) return std::nullopt;
  std::shared_ptr<Ahead> ahead;
  {
    const MutexLock lock(mutex_);
    const auto found = ahead_.find(key.low);
    if (found == ahead_.end() || !(found->second->block.key == key)) return std::nullopt;
    ahead = found->second;
    done_.wait(mutex_, [&]() TERRACE_REQUIRES(mutex_) {
      return ahead->state == Ahead::State::ready || ahead->state == Ahead::State::failed;
    });
    if (const auto still = ahead_.find(key.low); still != ahead_.end() && still->second == ahead) {
      ahead_bytes_ -= ahead->block.frame_bytes;
      ahead_.erase(still);
      ahead_count_.store(ahead_.size(), std::memory_order_relaxed);
    }
    if (ahead->state != Ahead::State::ready) return std::nullopt;
  }
  const SpillBlock& block = ahead->block;
  if (block.is_expired(spill_now_s()) || !is_current(block) ||
      check_frame(block, {ahead->frame.get(), block.frame_bytes}, name_space, name) != FrameCheck::right)
    return std::nullopt;
  SlotIndex& index = *folder_->index(block.slot);
  SpillFrame frame{.block = block, .frame = ahead->frame, .uses = index.uses(block.record)};
  index.note_use(block.record);
  return frame;
}

// Of a frame that is wrong the record goes, whoever's it is, unless it is another block's by now.
std::optional<SpillFrame> SpillStore::read(const SpillBlock& block, std::string_view name_space,
                                           std::string_view name) {
  const std::shared_ptr<std::byte> frame = buffers_.take(block.frame_bytes);
  if (frame == nullptr) return std::nullopt;
  SlotIndex& index = *folder_->index(block.slot);
  if (!read_frame(block, frame.get())) {
    index.remove(block);
    return std::nullopt;
  }
  if (!index.holds(block)) return std::nullopt;
  const FrameCheck check = check_frame(block, {frame.get(), block.frame_bytes}, name_space, name);
  if (check == FrameCheck::wrong) {
    SpillCounts::add(counts_.wrong);
    index.remove(block);
  }
  if (check != FrameCheck::right) return std::nullopt;
  SpillFrame found{.block = block, .frame = frame, .uses = index.uses(block.record)};
  index.note_use(block.record);
  return found;
}

bool SpillStore::read_frame(const SpillBlock& block, std::byte* into) {
  uint64_t done = 0;
  while (done < block.frame_bytes) {
    const ssize_t result = ::pread(folder_->data(), into + done, block.frame_bytes - done,
                                   static_cast<off_t>(block.offset + done));
    if (result < 0 && errno == EINTR) continue;
    if (result < 0 && errno == EINVAL && folder_->direct()) {
      folder_->give_up_direct(errno);
      continue;
    }
    if (result < 0) {
      note_error(errno, "reading " + folder_->path("kv-spill.data"));
      SpillCounts::add(counts_.read_errors);
    }
    // A file that ends here was cut off.
    if (result <= 0 || result % 512 != 0) return false;
    done += static_cast<uint64_t>(result);
  }
  return true;
}

Result<uint64_t> SpillStore::prefetch(const KvNamespace& name_space, std::span<const std::string_view> keys) {
  for (const std::string_view key : keys) TERRACE_RETURN_IF_ERROR(check_key(key));
  if (!usable()) return unusable();
  const os::LossyAccesses accesses;
  const uint64_t seed = namespace_hash(name_space.name());
  uint64_t count = 0, bytes = 0;
  for (const std::string_view name : keys) {
    const BlockKey key = key_of(seed, name);
    const std::optional<SpillBlock> block = find(key);
    if (!block) continue;
    bytes += block->frame_bytes;
    if (bytes > options_.prefetch_bytes) break;  // those that come first are asked for first
    const MutexLock lock(mutex_);
    if (ahead_.count(key.low) == 0) {
      make_room_ahead(block->frame_bytes);
      if (ends_ || ahead_bytes_ + block->frame_bytes > options_.prefetch_bytes) break;
      auto ahead = std::make_shared<Ahead>();
      ahead->block = *block;
      ahead->number = next_number_++;
      ahead_bytes_ += block->frame_bytes;
      ahead_.emplace(key.low, ahead);
      ahead_count_.store(ahead_.size(), std::memory_order_relaxed);
      ahead_queue_.push_back(std::move(ahead));
    }
    ++count;
  }
  work_.notify_one();
  return count;
}

// What was read and not asked for since goes, the oldest first.
void SpillStore::make_room_ahead(uint64_t bytes) {
  while (ahead_bytes_ + bytes > options_.prefetch_bytes) {
    auto oldest = ahead_.end();
    for (auto at = ahead_.begin(); at != ahead_.end(); ++at)
      if ((at->second->state == Ahead::State::ready || at->second->state == Ahead::State::failed) &&
          (oldest == ahead_.end() || at->second->number < oldest->second->number))
        oldest = at;
    if (oldest == ahead_.end()) return;
    ahead_bytes_ -= oldest->second->block.frame_bytes;
    ahead_.erase(oldest);
  }
}

}  // namespace terrace::kv
