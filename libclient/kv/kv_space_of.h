// SPDX-License-Identifier: Apache-2.0
// KvSpace over one kind of memory: errors, waiting, who owns what, and in which order blocks go.
//
//   lookups   here: find(), exists, get, view
//   put       kv_put_inl.h: room, from the own chunks, free ones, parts without an owner, others, the worst blocks
//   erase     kv_erase_inl.h: own blocks, those of parts without an owner, those that others are asked for
//   tend      kv_tend_inl.h: what others ask for; their uses; what has expired
//   show      kv_show_inl.h: list, stat, verify
//   policy    kv_policy_inl.h: budgets, and what is kept
//   member    kv_member_inl.h: what a space of several members asks of each
//   spill     kv_spill_inl.h: what is evicted, and what is not here
//   local     kv_local_inl.h: copies of hot blocks in this process
//
// Threads   Any. own_ and seat_ are set once, under holder_mutex_.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "core/base/clock.h"
#include "core/base/sync/mutex.h"
#include "core/os/fork_mark.h"
#include "core/os/lossy_access.h"
#include "libclient/coherence/holder_claims.h"
#include "libclient/coherence/seat.h"
#include "libclient/kv/kv_base.h"
#include "libclient/kv/local/local_store.h"
#include "libclient/kv/own_order.h"
#include "libclient/kv/rules.h"
#include "libclient/kv/spill/spill_store.h"

namespace terrace {

template <typename Memory>
class KvSpaceOf final : public KvSpaceBase {
  using Block = kv::Block;
  using Outcome = coherence::Outcome;
  using Part = kv::BlockPart<Memory>;
  using Seat = coherence::Seat<Memory>;
  using Step = coherence::Step;

 public:
  KvSpaceOf(const coherence::Geometry& geometry, KvAttachOptions options)
      : options_(std::move(options)),
        claims_(geometry, options_.ownership, "KV space"),
        geometry_(geometry),
        reader_(Memory(), geometry),
        order_(geometry.records),
        last_uses_(geometry.holders(), 0),
        local_share_(local() == nullptr ? nullptr : local()->join()) {}
  ~KvSpaceOf() override;

  Status check() const { return options_.ownership == nullptr ? Status{} : claims_.check_kind(); }

  Status exists(const KvNamespace& name_space, std::span<const std::string_view> keys,
                std::span<bool> found) override;
  Result<uint64_t> prefix(const KvNamespace& name_space, std::span<const std::string_view> keys) override {
    return prefix_by_exists(*this, name_space, keys);
  }
  Result<uint64_t> get(const KvNamespace& name_space, const KvGet& get) override;
  std::vector<Result<uint64_t>> get_many(const KvNamespace& name_space, std::span<const KvGet> gets) override;
  Result<uint64_t> length(const KvNamespace& name_space, std::string_view key) override;
  Result<KvView> view(const KvNamespace& name_space, std::string_view key) override;
  Status put(const KvNamespace& name_space, const KvPut& put) override;
  std::vector<Status> put_many(const KvNamespace& name_space, std::span<const KvPut> puts) override;
  Result<KvWrite> begin_put(const KvNamespace& name_space, std::string_view key, uint64_t bytes,
                            const KvPutOptions& options) override;
  Status erase(const KvNamespace& name_space, std::string_view key, uint64_t wait_ns) override;
  Status list(const std::function<bool(const KvBlockInfo&)>& each) override;
  Result<KvStat> stat() override;
  KvCounters counters() const override;
  Result<KvVerified> verify() override;
  Result<uint64_t> evict(uint64_t bytes) override;
  Result<uint64_t> flush(const std::optional<KvNamespace>& name_space, uint64_t wait_ns) override;
  Result<KvPolicy> policy() override;
  Status set_policy(const KvPolicy& policy) override;
  void tend() override;
  std::optional<uint32_t> part() const override {
    return own() == nullptr ? std::nullopt : std::optional(own()->part());
  }
  Status health() const override { return {}; }

  Status finish_write(KvWrite::State& write) override;
  void fill_write(const KvWrite::State& write, std::span<const std::byte> bytes) override {
    if (!forked()) Memory().write(write.bytes.data(), bytes.data(), bytes.size());
  }
  void abort_write(const KvWrite::State& write) override {
    if (forked()) return;
    const HandleEnds ends(handles_);
    own()->cancel(write.room);
  }

  // kv_member_inl.h
  Status exists_here(std::span<const kv::BlockKey> keys, std::span<bool> found) override;
  Result<KvWrite> begin_put_in_free_room(const KvNamespace& name_space, std::string_view key, uint64_t bytes,
                                         const KvPutOptions& options) override;
  std::optional<std::string> read_own(std::string_view key) override;
  // acquire: pairs with HandleEnds
  uint64_t handles() const override { return handles_.load(std::memory_order_acquire); }
  bool other_has_own(std::string_view key) override;
  uint32_t parts_without_owner() override;
  uint32_t other_holders() override;
  void share_budgets(uint64_t all_data_bytes) override {
    all_data_bytes_.store(all_data_bytes, std::memory_order_relaxed);
  }
  std::optional<kv::PolicyText> policy_text() override;
  Status put_policy(const kv::PolicyText& text, uint64_t wait_ns) override;
  std::vector<Block> blocks_by_worth() override;
  std::optional<kv::Names> copy_out(const Block& block, std::vector<std::byte>* bytes) override;
  bool is_still(const Block& block) override { return reader_.recheck(block); }
  Status put_copy(const kv::Names& said, const Block& of, std::span<const std::byte> bytes) override;

 protected:
  void unpin(uint32_t pin) override {
    if (forked()) return;
    const HandleEnds ends(handles_);
    pins().drop(pin);
  }

 private:
  struct PolicyBlock {
    uint64_t version = 0;  // 0: none
    uint32_t part = 0, record = 0;
    bool operator==(const PolicyBlock&) const = default;
  };
  using PolicyBlocks = std::array<PolicyBlock, 2>;
  enum class RoomFrom : uint8_t { anywhere, what_is_free };
  // The last thing that is done with a view or a write: what it used may go behind it.
  class HandleEnds {
   public:
    explicit HandleEnds(std::atomic<uint64_t>& handles) : handles_(handles) {}
    ~HandleEnds() { handles_.fetch_sub(1, std::memory_order_release); }  // release: pairs with handles()

   private:
    std::atomic<uint64_t>& handles_;
  };

  bool forked() const { return !process_.is_here(); }
  Part* own() const { return own_.load(std::memory_order_acquire); }    // acquire: pairs with take_part()
  Seat* seat() const { return seat_.load(std::memory_order_acquire); }  // acquire: pairs with take_seat()
  // A holder that had a seat before it got a part pins from the seat still.
  coherence::PinTable<Memory>& pins() { return seat() != nullptr ? seat()->pins() : own()->pins(); }
  uint32_t holder() const { return seat() != nullptr ? seat()->holder() : own()->part(); }

  Outcome find(const kv::BlockKey& key, Block* found);
  Outcome find_in(uint32_t part, const kv::BlockKey& key, Block* found);
  std::vector<uint32_t> parts_in_use() const;
  static constexpr size_t group_most = 64;
  // Keys whose lines are on their way.
  void find_expected(std::span<const uint32_t> parts, std::span<const kv::BlockKey> keys, uint64_t now_unix_s,
                     std::span<bool> found);
  bool in_use(uint32_t part) const;
  Result<uint64_t> copy_found(const KvNamespace& name_space, const KvGet& get, const Block& block);
  bool has_name(const Block& block, std::string_view name_space, std::string_view key);
  void note_use(const Block& block);
  Status take_part();
  Status take_seat();
  Status can_hold();  // a seat or a part, for pins and wishes

  // Putting
  // `waited_ns`: of options.wait_ns, by all puts of one call.
  Status put_one(const KvNamespace& name_space, const KvPut& put, uint64_t* waited_ns);
  Result<KvWrite> begin_unspilled(const KvNamespace& name_space, std::string_view key, uint64_t bytes,
                                  const KvPutOptions& options, uint64_t* waited_ns);
  // Whatever the spill has.
  Result<KvWrite> begin_here(const KvNamespace& name_space, std::string_view key, uint64_t bytes,
                             const KvPutOptions& options, uint64_t* waited_ns,
                             RoomFrom from = RoomFrom::anywhere);
  void start_tending();
  Outcome make_room(uint64_t bytes, kv::Room* room, uint64_t wait_ns, uint64_t* waited_ns);
  Outcome ask_for_room(uint64_t bytes, kv::Room* room, uint64_t wait_ns, uint64_t* waited_ns);
  bool evict_one(uint64_t* evicted_bytes);
  void fill_order(uint32_t records) TERRACE_REQUIRES(order_mutex_);
  void into_order(const Block& block) TERRACE_REQUIRES(order_mutex_);
  Outcome reserve(uint64_t bytes, kv::Room* room);
  bool clear_chunks(Part& part, const std::vector<bool>& chunks);
  bool clear_chunk(Part& part, uint32_t chunk);
  uint32_t fair_share();
  bool free_what_nobody_owns();
  template <typename Body>
  bool adopt(uint32_t part, Body body);
  uint32_t chunks_of(uint32_t part) const;

  // Erasing
  Outcome remove_own(const Block& block, bool evicted);
  uint64_t erase_all(std::vector<Block> blocks, uint64_t wait_ns);
  uint64_t ask_and_wait(std::vector<Block> blocks, uint64_t deadline_ns);
  uint64_t remove_all(uint32_t part, std::vector<Block>* blocks);
  uint64_t deadline(uint64_t wait_ns) const {
    const uint64_t now_ns = clock_.now_ns();
    return wait_ns > UINT64_MAX - now_ns ? UINT64_MAX : now_ns + wait_ns;
  }
  bool owner_lives(uint32_t part);

  // Spilling
  kv::SpillStore* spill() const { return static_cast<kv::SpillStore*>(options_.spill.get()); }
  void offer_to_spill(const Block& block);
  std::optional<Result<uint64_t>> get_spilled(const KvNamespace& name_space, const KvGet& get,
                                              const kv::BlockKey& key);
  bool fetch_spilled(const KvNamespace& name_space, std::string_view name, const kv::BlockKey& key);
  bool put_back(const KvNamespace& name_space, std::string_view name, const kv::BlockKey& key,
                const kv::SpillFrame& frame, const kv::SpillToken& token);
  Status add_spilled(const KvNamespace& name_space, std::span<const std::string_view> keys,
                     std::span<bool> found);
  void read_ahead(const KvNamespace& name_space, std::span<const KvGet> gets);
  bool erase_spilled(const KvNamespace& name_space, std::string_view key);
  uint64_t flush_spilled(const std::optional<KvNamespace>& name_space);

  // Local copies
  kv::LocalStore* local() const { return static_cast<kv::LocalStore*>(options_.local.get()); }
  kv::LocalRef find_local(const KvNamespace& name_space, std::string_view name, const kv::BlockKey& key,
                          Block* now);
  void count_local_hit(kv::LocalCopy& copy, const Block& now);
  std::optional<Result<uint64_t>> get_local(const KvNamespace& name_space, const KvGet& get,
                                            const kv::BlockKey& key);
  bool may_keep_local(const Block& block);
  void keep_local(const KvNamespace& name_space, const Block& block, std::span<const std::byte> bytes,
                  std::span<const std::byte> name);
  kv::LocalRef copy_local(const KvNamespace& name_space, std::string_view name, const Block& block);
  KvView view_of(kv::LocalRef copy);

  // Tending
  void do_removals();
  bool give_room() TERRACE_REQUIRES(tend_mutex_);
  std::optional<uint32_t> worst_chunk();
  void read_uses() TERRACE_REQUIRES(tend_mutex_);
  void drop_expired(uint32_t records) TERRACE_REQUIRES(tend_mutex_);

  // Policy
  static std::string_view policy_key(size_t slot) { return slot == 0 ? "policy 0" : "policy 1"; }
  bool is_own_block(const Block& block) const;
  std::optional<PolicyBlocks> look_for_policy();
  void load_policy() TERRACE_REQUIRES(policy_mutex_);
  void use_policy(KvPolicy policy);
  std::optional<kv::PolicyText> read_policy(size_t slot);
  kv::PolicyText policy_here() TERRACE_REQUIRES(policy_mutex_);
  Status can_set_policy(const KvPolicy& policy);
  Status replace_policy(const kv::PolicyText& text, uint64_t wait_ns) TERRACE_REQUIRES(policy_mutex_);
  Status erase_policy(size_t slot, uint64_t wait_ns);
  Status put_own(std::string_view key, std::span<const std::byte> bytes) {
    return put(own_name_space(), {.key = key, .bytes = bytes, .options = {.checksum = true}});
  }
  const kv::NamespaceRules& rules_of(const Block& block) TERRACE_REQUIRES(order_mutex_);
  bool is_kept(const Block& block);
  std::optional<std::string> read_own_block(const kv::BlockKey& key);
  uint64_t budget_bytes(size_t budget) const TERRACE_REQUIRES(order_mutex_);
  uint32_t owners() const;
  uint64_t allowance(size_t budget) const TERRACE_REQUIRES(order_mutex_);
  Status fit_budgets(const std::string& name_space, uint32_t tag, std::string_view key, uint64_t extent);
  bool fits_budget(size_t budget, uint64_t extent);
  Error over_budget(size_t budget, std::string_view key, uint64_t extent);
  bool evict_of(size_t budget);
  void count_budgets(uint32_t records) TERRACE_REQUIRES(tend_mutex_);
  void end_count(size_t budget, const std::vector<uint64_t>& by_part);
  uint64_t evict_left(Part& left, size_t budget, uint64_t bytes);

  std::optional<kv::Names> names(const Block& block);
  KvBlockInfo info_of(const Block& block, kv::Names names);
  enum class Expired : uint8_t { passed_over, too };
  template <typename Each>
  void each_block(Each each, Expired expired = Expired::passed_over);

  const KvAttachOptions options_;
  const os::ForkMark process_;
  const coherence::HolderClaims<Memory> claims_;
  const coherence::Geometry geometry_;
  kv::BlockReader<Memory> reader_;
  SystemClock clock_;

  Mutex holder_mutex_;
  std::unique_ptr<Part> own_held_ TERRACE_GUARDED_BY(holder_mutex_);
  std::unique_ptr<Seat> seat_held_ TERRACE_GUARDED_BY(holder_mutex_);
  std::atomic<Part*> own_ = nullptr;
  std::atomic<Seat*> seat_ = nullptr;

  Mutex order_mutex_;
  kv::OwnOrder order_ TERRACE_GUARDED_BY(order_mutex_);
  uint32_t order_filled_ TERRACE_GUARDED_BY(order_mutex_) =
      0;  // records that were looked at since the take-over
  kv::Rules rules_ TERRACE_GUARDED_BY(order_mutex_);
  std::atomic<bool> has_rules_ = false;
  struct BudgetCount {
    uint64_t others = 0;   // bytes of other parts, at the last count
    uint32_t sharers = 1;  // owners with blocks of it, with this one
    uint64_t stays = 0;    // bytes that nobody owns and that cannot go: they are kept, or read in place
  };
  std::vector<BudgetCount> budget_counts_ TERRACE_GUARDED_BY(order_mutex_);

  const std::array<kv::BlockKey, 2> policy_keys_ = {
      kv::key_of(kv::namespace_hash(kv::own_name_space), policy_key(0)),
      kv::key_of(kv::namespace_hash(kv::own_name_space), policy_key(1))};
  const std::array<kv::BlockKey, 3> list_keys_ = {
      kv::key_of(kv::namespace_hash(kv::own_name_space), kv::member_list_key(0)),
      kv::key_of(kv::namespace_hash(kv::own_name_space), kv::member_list_key(1)),
      kv::key_of(kv::namespace_hash(kv::own_name_space), kv::member_edit_key)};
  std::atomic<uint64_t> all_data_bytes_ = 0;  // of all members; 0: this one is alone
  std::atomic<uint64_t> handles_ = 0;         // views and writes of this process
  Mutex policy_mutex_;
  PolicyBlocks policy_seen_ TERRACE_GUARDED_BY(policy_mutex_);
  std::atomic<bool> policy_known_ = false;  // looked at once
  uint64_t policy_generation_ TERRACE_GUARDED_BY(policy_mutex_) = 0;

  Mutex uses_mutex_;
  uint64_t uses_ TERRACE_GUARDED_BY(uses_mutex_) = 0;
  bool uses_known_ TERRACE_GUARDED_BY(uses_mutex_) = false;

  Mutex adopt_mutex_;
  std::atomic<uint64_t> ask_again_at_ns_ = 0;
  std::atomic<uint64_t> adopt_again_at_ns_ = 0;
  std::atomic<uint64_t> owners_unknown_until_ns_ = 0;  // who says who lives was slow to answer
  std::atomic<uint64_t> yields_until_ns_ = 0;          // gives chunks, and claims none above its share
  std::atomic<bool> wants_seat_ = true;
  std::atomic<uint64_t> share_at_ns_ = 0;
  std::atomic<uint32_t> share_ = 1;

  Mutex tend_mutex_;
  std::vector<uint64_t> last_uses_ TERRACE_GUARDED_BY(tend_mutex_);
  uint32_t expiry_cursor_ TERRACE_GUARDED_BY(tend_mutex_) = 0;
  uint64_t ticks_ TERRACE_GUARDED_BY(tend_mutex_) = 0;
  uint64_t gives_again_at_ns_ TERRACE_GUARDED_BY(tend_mutex_) = 0;
  std::vector<std::vector<uint64_t>> counting_ TERRACE_GUARDED_BY(tend_mutex_);  // by budget, by part
  uint64_t count_at_ TERRACE_GUARDED_BY(tend_mutex_) = 0;
  // In a forked child it is left as it is: nobody there ends the waiting that its condition variable counts.
  struct Tender {
    Mutex mutex;
    ConditionVariable wakes;
    bool ends TERRACE_GUARDED_BY(mutex) = false;
    std::thread thread;
  };
  std::unique_ptr<Tender> tender_;
  const std::shared_ptr<kv::LocalShare> local_share_;

  struct Counts {
    std::atomic<uint64_t> hits = 0, misses = 0, hit_bytes = 0, puts = 0, put_bytes = 0, puts_refused = 0,
                          evicted = 0, evicted_bytes = 0, expired = 0, erased = 0, chunks_given = 0,
                          parts_adopted = 0, spilled = 0, spill_hits = 0, spill_dropped = 0, local_hits = 0,
                          local_hit_bytes = 0, local_copied = 0, local_stale = 0;
  } counts_;
  static void add(std::atomic<uint64_t>& count, uint64_t value = 1) {
    count.fetch_add(value, std::memory_order_relaxed);
  }
};

template <typename Memory>
KvSpaceOf<Memory>::~KvSpaceOf() {
  if (forked()) {
    (void)tender_.release();  // it is the parent's
    return;
  }
  if (tender_ != nullptr) {
    {
      const MutexLock lock(tender_->mutex);
      tender_->ends = true;
    }
    tender_->wakes.notify_all();
    tender_->thread.join();
  }
  if (local() != nullptr) local()->leave(*local_share_);
  if (own() != nullptr) {
    own()->release();
    options_.ownership->release(own()->part());
  }
  if (seat() != nullptr) {
    seat()->release();
    options_.ownership->release(seat()->holder());
  }
}

// Of a part that nobody ever had there is nothing to find. Where the memory is not coherent the look costs as much as
// the search.
template <typename Memory>
bool KvSpaceOf<Memory>::in_use(uint32_t part) const {
  if constexpr (!Memory::coherent) return true;
  return Memory().load(&geometry_.owner(part)->epoch) != 0;
}

template <typename Memory>
coherence::Outcome KvSpaceOf<Memory>::find_in(uint32_t part, const kv::BlockKey& key, Block* found) {
  Outcome outcome = Outcome::raced;
  for (int attempt = 0; attempt < 4 && outcome == Outcome::raced; ++attempt)
    outcome = reader_.find(part, key, now_unix_s(), found);
  return outcome;
}

template <typename Memory>
coherence::Outcome KvSpaceOf<Memory>::find(const kv::BlockKey& key, Block* found) {
  Outcome worst = Outcome::gone;
  for (uint32_t part = 0; part < geometry_.parts; ++part) {
    if (!in_use(part)) continue;
    const Outcome outcome = find_in(part, key, found);
    if (outcome == Outcome::done) return outcome;
    if (outcome != Outcome::gone) worst = outcome;
  }
  return worst;
}

template <typename Memory>
std::vector<uint32_t> KvSpaceOf<Memory>::parts_in_use() const {
  std::vector<uint32_t> parts;
  for (uint32_t part = 0; part < geometry_.parts; ++part)
    if (in_use(part)) parts.push_back(part);
  return parts;
}

// A group of keys at a time: all their lines are on their way before the first is looked at.
template <typename Memory>
Status KvSpaceOf<Memory>::exists(const KvNamespace& name_space, std::span<const std::string_view> keys,
                                 std::span<bool> found) {
  if (keys.size() != found.size())
    return refuse(ErrorCode::invalid_argument, "KV space: as many answers as keys");
  const uint64_t seed = kv::namespace_hash(name_space.name()), now = now_unix_s();
  const std::vector<uint32_t> parts = parts_in_use();
  kv::BlockKey group[group_most];
  for (size_t from = 0; from < keys.size(); from += group_most) {
    const size_t count = std::min(group_most, keys.size() - from);
    for (size_t index = 0; index < count; ++index) {
      TERRACE_RETURN_IF_ERROR(check_key(keys[from + index]));
      group[index] = kv::key_of(seed, keys[from + index]);
      for (const uint32_t part : parts) reader_.expect(part, group[index]);
    }
    find_expected(parts, {group, count}, now, found.subspan(from, count));
  }
  return add_spilled(name_space, keys, found);
}

template <typename Memory>
Status KvSpaceOf<Memory>::exists_here(std::span<const kv::BlockKey> keys, std::span<bool> found) {
  const uint64_t now = now_unix_s();
  const std::vector<uint32_t> parts = parts_in_use();
  for (size_t from = 0; from < keys.size(); from += group_most) {
    const auto group = keys.subspan(from, std::min(group_most, keys.size() - from));
    for (const kv::BlockKey& key : group)
      for (const uint32_t part : parts) reader_.expect(part, key);
    find_expected(parts, group, now, found.subspan(from, group.size()));
  }
  return {};
}

template <typename Memory>
void KvSpaceOf<Memory>::find_expected(std::span<const uint32_t> parts, std::span<const kv::BlockKey> keys,
                                      uint64_t now, std::span<bool> found) {
  for (size_t index = 0; index < keys.size(); ++index) {
    bool there = false;
    for (size_t at = 0; at < parts.size() && !there; ++at)
      there = reader_.is_there(parts[at], keys[index], now);
    found[index] = there;
  }
}

template <typename Memory>
Result<uint64_t> KvSpaceOf<Memory>::length(const KvNamespace& name_space, std::string_view key) {
  TERRACE_RETURN_IF_ERROR(check_key(key));
  Block block;
  const Outcome outcome = find(kv::key_of(kv::namespace_hash(name_space.name()), key), &block);
  if (outcome == Outcome::done) return block.bytes;
  if (spill() != nullptr && outcome == Outcome::gone) return spill()->length(name_space, key);
  return error_of(outcome, key);
}

template <typename Memory>
Result<uint64_t> KvSpaceOf<Memory>::get(const KvNamespace& name_space, const KvGet& get) {
  TERRACE_RETURN_IF_ERROR(check_key(get.key));
  const kv::BlockKey key = kv::key_of(kv::namespace_hash(name_space.name()), get.key);
  if (auto copied = get_local(name_space, get, key)) return std::move(*copied);
  for (int attempt = 0; attempt < 4; ++attempt) {
    Block block;
    const Outcome outcome = find(key, &block);
    if (outcome == Outcome::gone)
      if (auto spilled = get_spilled(name_space, get, key)) return std::move(*spilled);
    if (outcome != Outcome::done) {
      add(counts_.misses);
      return error_of(outcome, get.key);
    }
    Result<uint64_t> copied = copy_found(name_space, get, block);
    // Gone while it was copied: maybe it was moved by who put it again.
    if (copied.ok() || copied.error().code != ErrorCode::not_found) return copied;
  }
  add(counts_.misses);
  return not_found(get.key);
}

template <typename Memory>
Result<uint64_t> KvSpaceOf<Memory>::copy_found(const KvNamespace& name_space, const KvGet& get,
                                               const Block& block) {
  if (get.into.size() < block.bytes) return too_short(get.key, get.into.size(), block.bytes);
  std::byte name[kv::name_bytes_max + 64];
  const std::span<std::byte> there(
      name, std::min<uint64_t>(sizeof name, block.extent_bytes - (block.name_offset() - block.offset)));
  const Outcome outcome = reader_.copy(block, get.into, there);
  if (outcome == Outcome::gone) return not_found(get.key);
  if (outcome != Outcome::done) return error_of(outcome, get.key);
  if (!kv::has_names(there, name_space.name(), get.key)) return error_of(Outcome::corrupt, get.key);
  keep_local(name_space, block, get.into.first(block.bytes), there);
  note_use(block);
  add(counts_.hits);
  add(counts_.hit_bytes, block.bytes);
  return block.bytes;
}

template <typename Memory>
std::vector<Result<uint64_t>> KvSpaceOf<Memory>::get_many(const KvNamespace& name_space,
                                                          std::span<const KvGet> gets) {
  std::vector<Result<uint64_t>> results;
  results.reserve(gets.size());
  read_ahead(name_space, gets);
  for (const KvGet& one : gets) results.push_back(get(name_space, one));
  return results;
}

template <typename Memory>
bool KvSpaceOf<Memory>::has_name(const Block& block, std::string_view name_space, std::string_view key) {
  std::byte name[kv::name_bytes_max + 64];
  const std::span<std::byte> there(
      name, std::min<uint64_t>(sizeof name, block.extent_bytes - (block.name_offset() - block.offset)));
  return reader_.copy_name(block, there) == Outcome::done && kv::has_names(there, name_space, key);
}

template <typename Memory>
Result<KvView> KvSpaceOf<Memory>::view(const KvNamespace& name_space, std::string_view key) {
  TERRACE_RETURN_IF_ERROR(check_key(key));
  if (forked()) return in_child();
  const kv::BlockKey hash = kv::key_of(kv::namespace_hash(name_space.name()), key);
  Block now;
  if (kv::LocalRef copy = find_local(name_space, key, hash, &now)) {
    count_local_hit(*copy, now);
    return view_of(std::move(copy));
  }
  TERRACE_RETURN_IF_ERROR(can_hold());
  for (int attempt = 0; attempt < 4; ++attempt) {
    Block block;
    Outcome outcome = find(hash, &block);
    if (outcome == Outcome::gone && attempt == 0 && fetch_spilled(name_space, key, hash))
      outcome = find(hash, &block);
    if (outcome != Outcome::done) {
      add(counts_.misses);
      return error_of(outcome, key);
    }
    if (kv::LocalRef copy = copy_local(name_space, key, block)) {
      note_use(block);
      add(counts_.hits);
      add(counts_.hit_bytes, block.bytes);
      return view_of(std::move(copy));
    }
    const std::optional<uint32_t> pin = pins().hold(coherence::pin_word(block.part, block.record, 0));
    if (!pin) return error_of(Outcome::full, key);
    KvView view;
    add(handles_);
    view.space_ = this;
    view.pin_ = *pin;
    Memory().full_barrier(Step::pin_before_recheck);
    if (!reader_.holds_after_pin(block)) continue;  // the view lets go of the pin
    Memory().invalidate(reader_.data(block), block.extent_bytes, Step::data_invalidated);
    Memory().load_barrier(Step::data_before_read);
    if (!has_name(block, name_space.name(), key)) return error_of(Outcome::corrupt, key);
    if (block.has_checksum() && reader_.checksum_in_place(block) != block.data_checksum)
      return error_of(Outcome::corrupt, key);
    view.bytes_ = {reader_.data(block), block.bytes};
    note_use(block);
    add(counts_.hits);
    add(counts_.hit_bytes, block.bytes);
    return view;
  }
  add(counts_.misses);
  return not_found(key);
}

// The owner of a block's part decides what goes, so it hears of uses: of its own at once, of others' by their rings.
// One that is missed costs nothing but a worse decision.
template <typename Memory>
void KvSpaceOf<Memory>::note_use(const Block& block) {
  constexpr uint32_t stamp_s = 16;
  if (options_.ownership == nullptr || forked()) return;
  if (own() != nullptr && block.part == own()->part()) {
    if (!order_mutex_.try_lock()) return;
    order_.use(block.record);
    order_mutex_.unlock();
    const auto now = static_cast<uint32_t>(now_unix_s());
    if (now - block.used_unix_s > stamp_s) own()->note_use(block, now);
    return;
  }
  // Who only copies needs a seat for this alone: it asks for one once.
  if (own() == nullptr && seat() == nullptr && wants_seat_.exchange(false)) (void)take_seat();
  if ((own() == nullptr && seat() == nullptr) || geometry_.uses == 0) return;
  if (!uses_mutex_.try_lock()) return;
  Memory memory;
  layout::PartOwner* const owner = geometry_.owner(holder());
  if (!uses_known_) uses_ = memory.load(&owner->uses);
  uses_known_ = true;
  uint64_t* const word = geometry_.use(holder(), static_cast<uint32_t>(uses_ % geometry_.uses));
  memory.store(word, coherence::removal_word(block.part, block.record, coherence::version_of(block.word)));
  memory.write_back(word, sizeof *word, Step::none);
  memory.store(&owner->uses, ++uses_);
  memory.write_back(owner, sizeof *owner, Step::none);
  uses_mutex_.unlock();
}

template <typename Memory>
Status KvSpaceOf<Memory>::can_hold() {
  if (own() != nullptr || seat() != nullptr) return {};
  if (options_.ownership == nullptr) return read_only();
  return take_seat();
}

template <typename Memory>
Status KvSpaceOf<Memory>::take_seat() {
  const MutexLock lock(holder_mutex_);
  if (own() != nullptr || seat() != nullptr) return {};
  const auto claimed = claims_.claim_first(claims_.to_try(geometry_.parts, geometry_.holders()));
  if (!claimed.ok() && claimed.error().code != ErrorCode::busy) return claimed.error();
  if (!claimed.ok())
    return refuse(ErrorCode::busy, "KV space: none of " + std::to_string(geometry_.seats) +
                                       " seats for holders that only read can be had" + claimed.error().detail +
                                       "; read by copy, end another holder, or format it with more seats");
  seat_held_ = std::make_unique<Seat>(Memory(), geometry_, claimed->holder, claimed->epoch, options_.host);
  seat_held_->take_over();
  seat_.store(seat_held_.get(), std::memory_order_release);  // release: pairs with seat()
  return {};
}

template <typename Memory>
Status KvSpaceOf<Memory>::take_part() {
  if (own() != nullptr) return {};
  if (options_.ownership == nullptr || !options_.puts) return read_only();
  const MutexLock lock(holder_mutex_);
  if (own() != nullptr) return {};
  const auto claimed = claims_.claim_first(claims_.to_try(0, geometry_.parts));
  if (!claimed.ok() && claimed.error().code != ErrorCode::busy) return claimed.error();
  if (!claimed.ok())
    return refuse(ErrorCode::busy, "KV space: none of " + std::to_string(geometry_.parts) +
                                       " parts can be had" + claimed.error().detail +
                                       "; end another holder that puts, or format it with more parts");
  own_held_ = std::make_unique<Part>(Memory(), geometry_, claimed->holder, claimed->epoch, options_.host,
                                     claims_.dead_check());
  own_held_->take_over();
  own_.store(own_held_.get(), std::memory_order_release);  // release: pairs with own()
  start_tending();
  return {};
}

}  // namespace terrace

#include "libclient/kv/kv_erase_inl.h"
#include "libclient/kv/kv_local_inl.h"
#include "libclient/kv/kv_member_inl.h"
#include "libclient/kv/kv_policy_inl.h"
#include "libclient/kv/kv_put_inl.h"
#include "libclient/kv/kv_show_inl.h"
#include "libclient/kv/kv_spill_inl.h"
#include "libclient/kv/kv_tend_inl.h"
