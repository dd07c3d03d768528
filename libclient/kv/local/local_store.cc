// SPDX-License-Identifier: Apache-2.0
#include "libclient/kv/local/local_store.h"

#include <sys/mman.h>

#include "core/base/units.h"

namespace terrace {

Result<std::shared_ptr<KvLocal>> KvLocal::open(const KvLocalOptions& options) {
  constexpr uint64_t large_page = 2 << 20;
  if (options.bytes < kv_local_bytes_min)
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "KvLocal::open",
                 .detail = "local copies: at least 1 MiB, not " + std::to_string(options.bytes) + " bytes"};
  if (options.bytes > kv_local_bytes_limit)
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "KvLocal::open",
                 .detail = "local copies: at most 64 TiB, not " + std::to_string(options.bytes) + " bytes"};
  TERRACE_RETURN_IF_ERROR(kv::check_policy({.budgets = options.budgets}));
  const uint64_t bytes = options.bytes / 4096 * 4096;
  TERRACE_ASSIGN_OR_RETURN(os::MemoryMap memory, os::MemoryMap::anonymous(bytes, large_page));
  // Fewer misses of the TLB, where the kernel has such pages; and no copies of the cache in a core file.
  (void)::madvise(memory.data(), bytes, MADV_HUGEPAGE);
  (void)::madvise(memory.data(), bytes, MADV_DONTDUMP);
  return std::shared_ptr<KvLocal>(std::make_shared<kv::LocalStore>(std::move(memory), options));
}

}  // namespace terrace

namespace terrace::kv {

constexpr uint32_t ids_most = 1 << 24;  // of an order

void LocalRef::reset() {
  if (copy_ != nullptr) copy_->store->release(std::exchange(copy_, nullptr));
}

LocalStore::LocalStore(os::MemoryMap memory, const KvLocalOptions& options)
    : memory_(std::move(memory)),
      most_bytes_(options.max_block_bytes != 0 ? options.max_block_bytes : memory_.size_bytes() / 8),
      seen_(memory_.size_bytes()),
      rules_(KvPolicy{.budgets = options.budgets}),
      free_(memory_.size_bytes()),
      budgets_(options.budgets.size()) {}

LocalStore::~LocalStore() {
  if (!process_.is_here()) return;
  const MutexLock lock(mutex_);
  for (LocalCopy* const copy : by_id_)
    if (copy != nullptr) remove(copy, false);
}

std::shared_ptr<LocalShare> LocalStore::join() {
  const MutexLock lock(mutex_);
  return std::make_shared<LocalShare>(++spaces_);
}

void LocalStore::leave(const LocalShare& share) {
  const MutexLock lock(mutex_);
  for (LocalCopy* const copy : by_id_)
    if (copy != nullptr && copy->share.get() == &share) remove(copy, false);
}

LocalRef LocalStore::find(const LocalShare& share, const BlockKey& key) {
  Shard& shard = shard_of(key);
  const MutexLock lock(shard.mutex);
  const auto found = shard.copies.find({share.space, key});
  if (found == shard.copies.end()) return {};
  found->second->holders.fetch_add(1, std::memory_order_relaxed);  // relaxed: the shard has one, too
  return LocalRef::of(found->second);
}

void LocalStore::use(LocalCopy& copy) {
  copy.hits.fetch_add(1, std::memory_order_relaxed);
  if (!mutex_.try_lock()) return;
  if (copy.in_order) {
    order_.use(copy.id);
    for (const uint16_t budget : copy.budgets) budgets_[budget].use(copy.id);
  }
  mutex_.unlock();
}

// Where copies go before they were of use, only some of those that are wanted come: they stay longer, and show whether
// they are worth it.
bool LocalStore::wants(const LocalShare& share, const Block& block) {
  if (block.extent_bytes > most_bytes_ || !seen_.again(share.space, block)) return false;
  const uint32_t one_of = copy_one_of_.load(std::memory_order_relaxed);
  return one_of == 1 || wanted_.fetch_add(1, std::memory_order_relaxed) % one_of == 0;
}

LocalRef LocalStore::begin(std::shared_ptr<LocalShare> share, const Block& block, std::string_view name_space) {
  const MutexLock lock(mutex_);
  std::vector<uint16_t> budgets;
  if (!budgets_.empty()) {
    const NamespaceRules* known = rules_.find(block.name_space);
    if (known == nullptr) known = &rules_.learn(block.name_space, name_space);
    budgets = known->budgets;
  }
  if (!fit_budgets(budgets, block.extent_bytes)) return {};
  const std::optional<uint64_t> offset = make_room(block.extent_bytes);
  if (!offset) return {};
  const std::optional<uint32_t> id = new_id();
  if (!id) {
    free_.give(*offset, block.extent_bytes);
    return {};
  }
  auto copy = std::make_unique<LocalCopy>();
  copy->block = block;
  copy->share = std::move(share);
  copy->store = this;
  copy->data = memory_.data() + *offset;
  copy->id = *id;
  copy->budgets = std::move(budgets);
  copy->in_order = true;
  copy->holders = 2;  // the order's, and the caller's
  const eviction::NewBlock added = {.key = block.key.low, .parent = block.parent, .bytes = block.extent_bytes};
  order_.insert(*id, added);
  for (const uint16_t budget : copy->budgets) budgets_[budget].insert(*id, added);
  copy->share->blocks.fetch_add(1, std::memory_order_relaxed);
  copy->share->bytes.fetch_add(block.extent_bytes, std::memory_order_relaxed);
  return LocalRef::of(by_id_[*id] = copy.release());
}

// Of two threads that copied one block the first one's stays; an older block's copy goes.
void LocalStore::finish(LocalCopy& copy) {
  const MutexLock lock(mutex_);
  Shard& shard = shard_of(copy.block.key);
  LocalCopy* older = nullptr;
  {
    const MutexLock shard_lock(shard.mutex);
    LocalCopy*& there = shard.copies[key_of(copy)];
    if (there == nullptr) there = &copy;
    older = there;
  }
  if (older == &copy) return;
  if (older->block.word == copy.block.word && older->block.part == copy.block.part &&
      older->block.record == copy.block.record)
    return remove(&copy, false);
  remove(older, false);
  const MutexLock shard_lock(shard.mutex);
  shard.copies[key_of(copy)] = &copy;
}

void LocalStore::drop(LocalCopy& copy) {
  const MutexLock lock(mutex_);
  remove(&copy, false);
}

// Its room is free once nobody reads it.
void LocalStore::remove(LocalCopy* copy, bool evicted) {
  if (!std::exchange(copy->in_order, false)) return;
  {
    Shard& shard = shard_of(copy->block.key);
    const MutexLock lock(shard.mutex);
    const auto found = shard.copies.find(key_of(*copy));
    if (found != shard.copies.end() && found->second == copy) shard.copies.erase(found);
  }
  order_.erase(copy->id, evicted);
  for (const uint16_t budget : copy->budgets) budgets_[budget].erase(copy->id, evicted);
  by_id_[copy->id] = nullptr;
  copy->share->blocks.fetch_sub(1, std::memory_order_relaxed);
  copy->share->bytes.fetch_sub(copy->block.extent_bytes, std::memory_order_relaxed);
  if (evicted) copy->share->evicted.fetch_add(1, std::memory_order_relaxed);
  // acq_rel: pairs with that of release(): what others read of it is read before its room is used again.
  if (copy->holders.fetch_sub(1, std::memory_order_acq_rel) == 1) free(copy);
}

void LocalStore::release(LocalCopy* copy) {
  if (!process_.is_here()) return;
  if (copy->holders.fetch_sub(1, std::memory_order_acq_rel) != 1) return;  // acq_rel: pairs with remove()
  const MutexLock lock(mutex_);
  free(copy);
}

void LocalStore::free(LocalCopy* copy) {
  free_.give(static_cast<uint64_t>(copy->data - memory_.data()), copy->block.extent_bytes);
  free_ids_.push_back(copy->id);
  delete copy;
}

std::optional<uint32_t> LocalStore::new_id() {
  if (!free_ids_.empty()) {
    const uint32_t id = free_ids_.back();
    free_ids_.pop_back();
    return id;
  }
  if (by_id_.size() == ids_most) return std::nullopt;
  by_id_.push_back(nullptr);
  return static_cast<uint32_t>(by_id_.size() - 1);
}

// Returns the bytes that it had; 0: it is being read, and passed over.
uint64_t LocalStore::evict(uint32_t id) {
  LocalCopy* const copy = by_id_[id];
  if (copy->holders.load(std::memory_order_relaxed) > 1) {
    order_.skip(id);
    for (const uint16_t budget : copy->budgets) budgets_[budget].skip(id);
    return 0;
  }
  const uint64_t bytes = copy->block.extent_bytes;
  note_worth(copy->hits.load(std::memory_order_relaxed));
  remove(copy, true);
  return bytes;
}

void LocalStore::note_worth(uint32_t hits) {
  constexpr uint32_t hits_most = 64, one_of_when_useless = 8;
  worth_of_16_ += std::min(hits, hits_most);
  worth_of_16_ -= worth_of_16_ / 16;
  copy_one_of_.store(worth_of_16_ >= 16 ? 1 : one_of_when_useless, std::memory_order_relaxed);
}

bool LocalStore::fit_budgets(const std::vector<uint16_t>& budgets, uint64_t bytes) {
  constexpr int skips_most = 32;
  const std::vector<KvBudget>& limits = rules_.policy().budgets;
  for (const uint16_t budget : budgets)
    if (bytes > limits[budget].bytes) return false;
  for (const uint16_t budget : budgets)
    for (int skips = 0; budgets_[budget].bytes() + bytes > limits[budget].bytes;) {
      const std::optional<uint32_t> victim = budgets_[budget].victim();
      if (!victim || (evict(*victim) == 0 && ++skips > skips_most)) return false;
    }
  return true;
}

// Blocks of one length leave holes of that length. Among smaller ones a large one may find none: after four times its
// bytes it goes without.
std::optional<uint64_t> LocalStore::make_room(uint64_t bytes) {
  constexpr int skips_most = 32;
  int skips = 0;
  uint64_t evicted = 0;
  std::optional<uint64_t> offset = free_.take(bytes);
  while (!offset && evicted < 4 * bytes) {
    const std::optional<uint32_t> victim = order_.victim();
    if (!victim) return std::nullopt;
    const uint64_t gone = evict(*victim);
    if (gone == 0 && ++skips > skips_most) return std::nullopt;
    evicted += gone;
    offset = free_.take(bytes);
  }
  return offset;
}

}  // namespace terrace::kv
