// SPDX-License-Identifier: Apache-2.0
// SpillStore: putting blocks into the queue.
#include <algorithm>
#include <cstring>

#include "libclient/kv/spill/spill_store.h"

namespace terrace::kv {

Status SpillStore::put(const KvNamespace& name_space, const KvSpillPut& put) {
  TERRACE_RETURN_IF_ERROR(check_key(put.key));
  if (!usable()) return unusable();
  const auto refuse = [](ErrorCode code, std::string detail) {
    return Error{.code = code, .where = "KvSpill::put", .detail = "KV spill: " + std::move(detail)};
  };
  if (!options_.puts) return refuse(ErrorCode::permission_denied, "opened to read only");
  if (put.bytes.size() > folder_->geometry().max_block_bytes)
    return refuse(ErrorCode::limit_exceeded, "a block of " + std::to_string(put.bytes.size()) +
                                                 " bytes; the folder takes " +
                                                 std::to_string(folder_->geometry().max_block_bytes));
  const os::LossyAccesses accesses;
  const uint64_t seed = namespace_hash(name_space.name());
  const SpillBlock block{
      .key = key_of(seed, put.key),
      .bytes = put.bytes.size(),
      .parent = put.parent.empty() ? 0 : key_of(seed, put.parent).low,
      .name_space = static_cast<uint32_t>(seed),
      .expires_unix_s = static_cast<uint32_t>(std::min<uint64_t>(put.expires_unix_s, UINT32_MAX))};
  const auto [write, is_there] = begin_put(block, extent_bytes(put.bytes.size(), name_space.name(), put.key));
  if (is_there) return {};
  if (write == nullptr)
    return refuse(
        ErrorCode::busy,
        "dropped: the queue is full, no segment can be had now, or the disk fails; stat() says which");
  std::byte* const frame = write->frame.get();
  if (!put.bytes.empty()) std::memcpy(frame, put.bytes.data(), put.bytes.size());
  std::memset(frame + put.bytes.size(), 0, write->block.name_offset() - put.bytes.size());
  const std::vector<std::byte> names = name_bytes(name_space.name(), put.key);
  std::memcpy(frame + write->block.name_offset(), names.data(), names.size());
  finish_put(write);
  return {};
}

SpillStore::Begun SpillStore::begin_put(const SpillBlock& block, uint64_t extent) {
  if (!usable() || !options_.puts || block.bytes > folder_->geometry().max_block_bytes) return {};
  const os::LossyAccesses accesses;
  auto write = std::make_shared<SpillWrite>();
  write->token = folder_->map().token(block.key);
  if (look_up(block.key)) {
    SpillCounts::add(counts_.there_already);
    return {.write = nullptr, .is_there = true};
  }
  write->block = block;
  write->block.frame_bytes = frame_bytes(extent);
  const bool paused = slot_.load(std::memory_order_relaxed) < 0 ||
                      clock_.now_ns() < paused_until_ns_.load(std::memory_order_relaxed);
  bool taken = false;
  if (!paused) {
    const MutexLock lock(mutex_);
    taken = !ends_ && (queued_bytes_ == 0 || queued_bytes_ + write->block.frame_bytes <= options_.queue_bytes);
    if (taken) queued_bytes_ += write->block.frame_bytes;
  }
  if (taken) write->frame = buffers_.take(write->block.frame_bytes);
  if (write->frame != nullptr) {
    // The last page has bytes behind the names, which go to the disk as well.
    std::memset(write->frame.get() + write->block.frame_bytes - layout::spill_page_bytes, 0,
                layout::spill_page_bytes);
    return {.write = std::move(write)};
  }
  if (taken) {
    const MutexLock lock(mutex_);
    queued_bytes_ -= write->block.frame_bytes;
  }
  SpillCounts::add(counts_.dropped);
  return {};
}

void SpillStore::finish_put(std::shared_ptr<SpillWrite> write) {
  {
    const MutexLock lock(mutex_);
    const bool first = !ends_ && waiting_.emplace(write->block.key.low, write).second;
    if (!first) {  // another thread's put of the same key is on its way
      queued_bytes_ -= write->block.frame_bytes;
      SpillCounts::add(counts_.there_already);
      return;
    }
    write->number = next_number_++;
    unfinished_.insert(write->number);
    waiting_count_.store(waiting_.size(), std::memory_order_relaxed);
    queue_.push_back(std::move(write));
  }
  work_.notify_one();
}

void SpillStore::cancel_put(const SpillWrite& write) {
  const MutexLock lock(mutex_);
  queued_bytes_ -= write.block.frame_bytes;
}

}  // namespace terrace::kv
