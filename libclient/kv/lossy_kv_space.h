// SPDX-License-Identifier: Apache-2.0
// A KV space whose memory may go away at any moment, when its lease ends: as lossy_space.h, for KvSpace.
//
// Threads   Any number.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "core/os/lossy_access.h"
#include "libclient/coherence/lossy_space.h"
#include "libclient/kv/kv_base.h"

namespace terrace {

class LossyKvSpace final : public MemberKvSpace {
 public:
  LossyKvSpace(std::unique_ptr<KvSpaceBase> space, std::span<const std::byte> memory)
      : space_(std::move(space)), memory_(memory) {}
  ~LossyKvSpace() override {
    const os::LossyAccesses accesses;
    space_.reset();
  }

  Status exists(const KvNamespace& name_space, std::span<const std::string_view> keys,
                std::span<bool> found) override {
    return survive([&] { return space_->exists(name_space, keys, found); });
  }
  Result<uint64_t> prefix(const KvNamespace& name_space, std::span<const std::string_view> keys) override {
    return survive([&] { return space_->prefix(name_space, keys); });
  }
  Result<uint64_t> get(const KvNamespace& name_space, const KvGet& get) override {
    return survive([&] { return space_->get(name_space, get); });
  }
  std::vector<Result<uint64_t>> get_many(const KvNamespace& name_space, std::span<const KvGet> gets) override {
    return survive_many(gets.size(), [&] { return space_->get_many(name_space, gets); });
  }
  Result<uint64_t> length(const KvNamespace& name_space, std::string_view key) override {
    return survive([&] { return space_->length(name_space, key); });
  }
  Result<KvView> view(const KvNamespace& name_space, std::string_view key) override {
    return survive([&] { return space_->view(name_space, key); });
  }
  Status put(const KvNamespace& name_space, const KvPut& put) override {
    return survive([&] { return space_->put(name_space, put); });
  }
  std::vector<Status> put_many(const KvNamespace& name_space, std::span<const KvPut> puts) override {
    return survive_many(puts.size(), [&] { return space_->put_many(name_space, puts); });
  }
  Result<KvWrite> begin_put(const KvNamespace& name_space, std::string_view key, uint64_t bytes,
                            const KvPutOptions& options) override {
    return survive([&] { return space_->begin_put(name_space, key, bytes, options); });
  }
  Status erase(const KvNamespace& name_space, std::string_view key, uint64_t wait_ns) override {
    return survive([&] { return space_->erase(name_space, key, wait_ns); });
  }
  Status list(const std::function<bool(const KvBlockInfo&)>& each) override {
    return survive([&] { return space_->list(each); });
  }
  Result<KvStat> stat() override {
    return survive([&] { return space_->stat(); });
  }
  KvCounters counters() const override { return space_->counters(); }
  Result<KvVerified> verify() override {
    return survive([&] { return space_->verify(); });
  }
  Result<uint64_t> evict(uint64_t bytes) override {
    return survive([&] { return space_->evict(bytes); });
  }
  Result<uint64_t> flush(const std::optional<KvNamespace>& name_space, uint64_t wait_ns) override {
    return survive([&] { return space_->flush(name_space, wait_ns); });
  }
  Result<KvPolicy> policy() override {
    return survive([&] { return space_->policy(); });
  }
  Status set_policy(const KvPolicy& policy) override {
    return survive([&] { return space_->set_policy(policy); });
  }
  void tend() override {
    if (lost_.load(std::memory_order_relaxed)) return;
    const os::LossyAccesses accesses;
    space_->tend();
  }
  std::optional<uint32_t> part() const override { return space_->part(); }
  // One word is enough to know: the memory of a space goes as a whole.
  Status health() const override {
    if (lost_.load(std::memory_order_relaxed)) return lost_memory("KvSpace", memory_.data(), memory_);
    const os::LossyAccesses accesses;
    (void)os::load_or_zero(reinterpret_cast<const uint64_t*>(memory_.data()));
    const void* const address = os::LossyAccesses::lost_address();
    return address == nullptr ? Status{} : Status(lost_at(address));
  }

  // What a space of several members asks.
  Status exists_here(std::span<const kv::BlockKey> keys, std::span<bool> found) override {
    return survive([&] { return space_->exists_here(keys, found); });
  }
  Result<KvWrite> begin_put_in_free_room(const KvNamespace& name_space, std::string_view key, uint64_t bytes,
                                         const KvPutOptions& options) override {
    return survive([&] { return space_->begin_put_in_free_room(name_space, key, bytes, options); });
  }
  std::optional<std::string> read_own(std::string_view key) override {
    const os::LossyAccesses accesses;
    return space_->read_own(key);
  }
  bool other_has_own(std::string_view key) override {
    const os::LossyAccesses accesses;
    return space_->other_has_own(key);
  }
  uint64_t handles() const override { return space_->handles(); }
  uint32_t parts_without_owner() override {
    const os::LossyAccesses accesses;
    return space_->parts_without_owner();
  }
  uint32_t other_holders() override {
    const os::LossyAccesses accesses;
    return space_->other_holders();
  }
  void share_budgets(uint64_t all_data_bytes) override { space_->share_budgets(all_data_bytes); }
  std::optional<kv::PolicyText> policy_text() override {
    const os::LossyAccesses accesses;
    std::optional<kv::PolicyText> text = space_->policy_text();
    return os::LossyAccesses::lost_address() == nullptr ? std::move(text) : std::nullopt;
  }
  Status put_policy(const kv::PolicyText& text, uint64_t wait_ns) override {
    return survive([&] { return space_->put_policy(text, wait_ns); });
  }
  std::vector<kv::Block> blocks_by_worth() override {
    const os::LossyAccesses accesses;
    return space_->blocks_by_worth();
  }
  std::optional<kv::Names> copy_out(const kv::Block& block, std::vector<std::byte>* bytes) override {
    const os::LossyAccesses accesses;
    std::optional<kv::Names> said = space_->copy_out(block, bytes);
    return os::LossyAccesses::lost_address() == nullptr ? std::move(said) : std::nullopt;
  }
  bool is_still(const kv::Block& block) override {
    const os::LossyAccesses accesses;
    return space_->is_still(block);
  }
  Status put_copy(const kv::Names& said, const kv::Block& of, std::span<const std::byte> bytes) override {
    return survive([&] { return space_->put_copy(said, of, bytes); });
  }

 protected:
  void unpin(uint32_t) override {}  // views hold the space behind this one

 private:
  template <typename Call>
  auto survive(Call call) const -> decltype(call()) {
    if (lost_.load(std::memory_order_relaxed)) [[unlikely]]
      return lost_memory("KvSpace", memory_.data(), memory_);
    const os::LossyAccesses accesses(os::LossyAccesses::Often{});
    auto answer = call();
    if (os::LossyAccesses::lost_address() != nullptr) [[unlikely]]
      return lost_at(os::LossyAccesses::lost_address());
    return answer;
  }
  template <typename Call>
  auto survive_many(size_t count, Call call) const -> decltype(call()) {
    using Answers = decltype(call());
    using One = typename Answers::value_type;
    // With parentheses: in braces the count would be the first of two answers, where an answer may be a number.
    if (lost_.load(std::memory_order_relaxed)) [[unlikely]]
      return Answers(count, One(lost_memory("KvSpace", memory_.data(), memory_)));
    const os::LossyAccesses accesses(os::LossyAccesses::Often{});
    auto answers = call();
    if (os::LossyAccesses::lost_address() != nullptr) [[unlikely]]
      return Answers(count, One(lost_at(os::LossyAccesses::lost_address())));
    return answers;
  }
  Error lost_at(const void* address) const {
    Error error = lost_memory("KvSpace", address, memory_);
    if (error.code == ErrorCode::lease_expired) lost_.store(true, std::memory_order_relaxed);
    return error;
  }

  std::unique_ptr<KvSpaceBase> space_;
  const std::span<const std::byte> memory_;
  mutable std::atomic<bool> lost_ = false;
};

}  // namespace terrace
