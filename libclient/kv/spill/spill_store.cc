// SPDX-License-Identifier: Apache-2.0
// SpillStore: open, close, figures, erase, flush.
#include "libclient/kv/spill/spill_store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "core/base/signals_blocked.h"

namespace terrace {

Result<std::shared_ptr<KvSpill>> KvSpill::open(const std::string& folder, const KvSpillOptions& options) {
  if (options.queue_depth == 0 || options.queue_depth > 1024)
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "KvSpill::open",
                 .detail = "KV spill: queue_depth is 1 to 1024, not " + std::to_string(options.queue_depth)};
  const os::LossyAccesses accesses;
  TERRACE_ASSIGN_OR_RETURN(auto opened, kv::SpillFolder::open(folder, options));
  // In a forked child nothing is taken down: the thread, and what it waits for, are the parent's.
  const std::shared_ptr<kv::SpillStore> store(new kv::SpillStore(std::move(opened), options),
                                              [](kv::SpillStore* of) {
                                                if (!of->forked()) delete of;
                                              });
  TERRACE_RETURN_IF_ERROR(store->start());
  return std::shared_ptr<KvSpill>(store);
}

namespace kv {

SpillStore::SpillStore(std::unique_ptr<SpillFolder> folder, const KvSpillOptions& options)
    : folder_(std::move(folder)), options_(options), buffers_(64 << 20) {}

Status SpillStore::start() {
  queue_io_ = std::make_unique<IoQueue>(options_.queue_depth, options_.io_uring);
  io_uring_ = queue_io_->io_uring();
  io_uring_reason_ = queue_io_->reason();
  if (options_.puts) {
    TERRACE_ASSIGN_OR_RETURN(const std::optional<uint32_t> slot, folder_->take_slot());
    if (slot) {
      log_ = std::make_unique<SegmentLog>(*folder_, buffers_, counts_, *slot);
      slot_ = static_cast<int32_t>(*slot);
    }
  }
  const SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    if (log_ != nullptr) folder_->leave_slot(log_->slot());
    return os_error(error.code().value(), "KvSpill::open", "KV spill: no thread to be had");
  }
  return {};
}

SpillStore::~SpillStore() {
  close();
}

void SpillStore::close() {
  if (forked()) return;
  const MutexLock closing(close_mutex_);
  closed_ = true;
  {
    const MutexLock lock(mutex_);
    ends_ = true;
  }
  work_.notify_all();
  if (thread_.joinable()) thread_.join();
  const os::LossyAccesses accesses;
  if (const int32_t slot = slot_.exchange(-1); slot >= 0) folder_->leave_slot(static_cast<uint32_t>(slot));
}

bool SpillStore::usable() const {
  return !closed_.load(std::memory_order_relaxed) && !lost_.load(std::memory_order_relaxed) && !forked();
}

Error SpillStore::unusable() const {
  return Error{
      .code = ErrorCode::unavailable,
      .where = "KvSpill",
      .detail = forked() ? "KV spill: it belongs to the process that forked this one; open the folder again"
                : lost_  ? "KV spill: the folder's map was cut off, or its disk fails; open the folder again"
                         : "KV spill: it was closed"};
}

Status SpillStore::check_key(std::string_view key) {
  if (!key.empty() && key.size() <= kv_key_bytes_max) return {};
  return Error{.code = ErrorCode::invalid_argument,
               .where = "KvSpill",
               .detail = "KV spill: a key is 1 to 512 bytes, not " + std::to_string(key.size())};
}

void SpillStore::note_error(int os_errno, const std::string& what) {
  const MutexLock lock(mutex_);
  last_error_ = what + ": " + std::strerror(os_errno);
}

void SpillStore::pause_writes(uint64_t ns) {
  paused_until_ns_.store(clock_.now_ns() + ns, std::memory_order_relaxed);
}

// First the count, which whoever publishes compares; then what is published.
Status SpillStore::erase(const KvNamespace& name_space, std::string_view name) {
  TERRACE_RETURN_IF_ERROR(check_key(name));
  if (!usable()) return unusable();
  const os::LossyAccesses accesses;
  const BlockKey key = key_of(namespace_hash(name_space.name()), name);
  folder_->map().note_erase(key);
  bool erased = false;
  {
    const MutexLock lock(mutex_);
    if (const auto found = waiting_.find(key.low); found != waiting_.end()) {
      found->second->cancelled = erased = true;
      waiting_.erase(found);
    }
  }
  for (uint32_t slot = 0; slot < folder_->map().slots_used(); ++slot) {
    SlotIndex* const index = folder_->index(slot);
    for (int copies = 0; index != nullptr && copies < 64; ++copies) {
      const std::optional<SpillBlock> block = index->find(key);
      if (!block) break;
      index->remove(*block);
      erased = true;
    }
  }
  if (erased) return {};
  return Error{.code = ErrorCode::not_found, .where = "KvSpill", .detail = "KV spill: the block is not there"};
}

Result<uint64_t> SpillStore::flush(const std::optional<KvNamespace>& name_space) {
  if (!usable()) return unusable();
  const os::LossyAccesses accesses;
  const auto tag = static_cast<uint32_t>(namespace_hash(name_space ? name_space->name() : ""));
  const auto goes = [&](const SpillBlock& block) { return !name_space || block.name_space == tag; };
  folder_->map().note_flush();
  uint64_t count = 0;
  {
    const MutexLock lock(mutex_);
    for (auto at = waiting_.begin(); at != waiting_.end();) {
      if (!goes(at->second->block)) {
        ++at;
        continue;
      }
      at->second->cancelled = true;
      at = waiting_.erase(at);
      ++count;
    }
  }
  for (uint32_t slot = 0; slot < folder_->map().slots_used(); ++slot) {
    SlotIndex* const index = folder_->index(slot);
    for (uint64_t record = 0; index != nullptr && record < folder_->geometry().records(); ++record) {
      const std::optional<SpillBlock> block = index->at(record);
      if (!block || !goes(*block)) continue;
      index->remove(*block);
      ++count;
    }
  }
  return count;
}

Status SpillStore::drain() {
  if (!usable()) return unusable();
  const MutexLock lock(mutex_);
  const uint64_t until = next_number_;
  done_.wait(mutex_,
             [&]() TERRACE_REQUIRES(mutex_) { return unfinished_.empty() || *unfinished_.begin() >= until; });
  return {};
}

Result<KvSpillStat> SpillStore::stat() {
  if (!usable()) return unusable();
  const os::LossyAccesses accesses;
  const SpillGeometry& geometry = folder_->geometry();
  SpillMap& map = folder_->map();
  KvSpillStat stat{.budget_bytes = geometry.budget_bytes,
                   .segment_bytes = geometry.segment_bytes,
                   .segments = geometry.segments,
                   .free_segments = map.segments_of(std::nullopt).size(),
                   .index_bytes = geometry.index_bytes(),
                   .max_block_bytes = geometry.max_block_bytes,
                   .slots = map.slots_used(),
                   .slots_open = map.slots_open()};
  const uint64_t now_s = spill_now_s();
  for (uint32_t slot = 0; slot < stat.slots; ++slot) {
    SlotIndex* const index = folder_->index(slot);
    for (uint64_t record = 0; index != nullptr && record < geometry.records(); ++record) {
      const std::optional<SpillBlock> block = index->at(record);
      if (!block || block->is_expired(now_s)) continue;
      ++stat.blocks;
      stat.block_bytes += block->bytes;
    }
  }
  if (const int32_t slot = slot_.load(); slot >= 0) {
    stat.slot = static_cast<uint32_t>(slot);
    stat.slot_segments = map.segments_of(stat.slot).size();
  }
  stat.direct = folder_->direct();
  stat.direct_reason = folder_->direct_reason();
  stat.io_uring = io_uring_;
  stat.io_uring_reason = io_uring_reason_;
  const MutexLock lock(mutex_);
  stat.last_error = last_error_;
  return stat;
}

KvSpillCounters SpillStore::counters() const {
  const auto of = [](const std::atomic<uint64_t>& count) { return count.load(std::memory_order_relaxed); };
  return {.hits = of(counts_.hits),
          .misses = of(counts_.misses),
          .hit_bytes = of(counts_.hit_bytes),
          .prefetch_hits = of(counts_.prefetch_hits),
          .queued_hits = of(counts_.queued_hits),
          .written = of(counts_.written),
          .written_bytes = of(counts_.written_bytes),
          .there_already = of(counts_.there_already),
          .dropped = of(counts_.dropped),
          .write_errors = of(counts_.write_errors),
          .read_errors = of(counts_.read_errors),
          .wrong = of(counts_.wrong),
          .segments_reused = of(counts_.segments_reused),
          .segments_taken = of(counts_.segments_taken),
          .segments_given = of(counts_.segments_given),
          .kept = of(counts_.kept)};
}

}  // namespace kv
}  // namespace terrace
