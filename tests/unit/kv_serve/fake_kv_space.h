// SPDX-License-Identifier: Apache-2.0
// A KV space of ordinary memory, which fails when it is told to. It has no pins and no blocks in place.
#pragma once

#include <algorithm>
#include <ctime>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "terrace/kv_space.h"

namespace terrace {

class FakeKvSpace final : public KvSpace {
 public:
  struct Block {
    std::string bytes;
    uint64_t expires_unix_s = 0;
  };
  std::map<std::string, Block> blocks;  // by namespace, a zero and key
  std::optional<ErrorCode> put_fails, erase_fails, get_fails;
  std::function<void()> before_put;  // what another holder does in between
  int erased = 0, listed = 0;

  static std::string name_of(const KvNamespace& name_space, std::string_view key) {
    return name_space.name() + '\0' + std::string(key);
  }
  static Error failure(ErrorCode code) { return Error{.code = code, .where = "fake", .detail = "as told"}; }
  const Block* find(const KvNamespace& name_space, std::string_view key) const {
    const auto found = blocks.find(name_of(name_space, key));
    return found == blocks.end() ? nullptr : &found->second;
  }

  Status exists(const KvNamespace& name_space, std::span<const std::string_view> keys,
                std::span<bool> found) override {
    for (size_t at = 0; at < keys.size(); ++at) found[at] = find(name_space, keys[at]) != nullptr;
    return {};
  }
  Result<uint64_t> prefix(const KvNamespace&, std::span<const std::string_view>) override {
    return uint64_t{0};
  }
  Result<uint64_t> get(const KvNamespace& name_space, const KvGet& get) override {
    if (get_fails) return failure(*get_fails);
    const Block* block = find(name_space, get.key);
    if (block == nullptr) return failure(ErrorCode::not_found);
    if (get.into.size() < block->bytes.size()) return failure(ErrorCode::invalid_argument);
    std::ranges::copy(std::as_bytes(std::span(block->bytes)), get.into.begin());
    return uint64_t{block->bytes.size()};
  }
  std::vector<Result<uint64_t>> get_many(const KvNamespace&, std::span<const KvGet>) override { return {}; }
  Result<uint64_t> length(const KvNamespace& name_space, std::string_view key) override {
    const Block* block = find(name_space, key);
    if (block == nullptr) return failure(ErrorCode::not_found);
    return uint64_t{block->bytes.size()};
  }
  Result<KvView> view(const KvNamespace& name_space, std::string_view key) override {
    return failure(find(name_space, key) == nullptr ? ErrorCode::not_found : ErrorCode::limit_exceeded);
  }
  Status put(const KvNamespace& name_space, const KvPut& put) override {
    if (before_put) before_put();
    if (put_fails) return failure(*put_fails);
    if (find(name_space, put.key) != nullptr) return failure(ErrorCode::already_exists);
    const std::string_view bytes(reinterpret_cast<const char*>(put.bytes.data()), put.bytes.size());
    const uint64_t ttl_s = put.options.ttl_s;
    blocks[name_of(name_space, put.key)] = {std::string(bytes),
                                            ttl_s == 0 ? 0 : static_cast<uint64_t>(::time(nullptr)) + ttl_s};
    return {};
  }
  std::vector<Status> put_many(const KvNamespace&, std::span<const KvPut>) override { return {}; }
  Result<KvWrite> begin_put(const KvNamespace&, std::string_view, uint64_t, const KvPutOptions&) override {
    return failure(ErrorCode::capacity_exhausted);
  }
  Status erase(const KvNamespace& name_space, std::string_view key, uint64_t) override {
    if (erase_fails) return failure(*erase_fails);
    if (blocks.erase(name_of(name_space, key)) == 0) return failure(ErrorCode::not_found);
    ++erased;
    return {};
  }
  Status list(const std::function<bool(const KvBlockInfo&)>& each) override {
    ++listed;
    for (const auto& [name, block] : blocks) {
      const size_t zero = name.find('\0');
      KvBlockInfo info;
      info.name_space = name.substr(0, zero);
      info.key = name.substr(zero + 1);
      info.bytes = block.bytes.size();
      info.expires_unix_s = block.expires_unix_s;
      if (!each(info)) break;
    }
    return {};
  }
  Result<KvStat> stat() override { return KvStat{}; }
  KvCounters counters() const override { return {}; }
  Result<KvVerified> verify() override { return KvVerified{}; }
  Result<uint64_t> evict(uint64_t) override { return uint64_t{0}; }
  Result<uint64_t> flush(const std::optional<KvNamespace>& name_space, uint64_t) override {
    return uint64_t{std::erase_if(blocks, [&](const auto& one) {
      return !name_space || one.first.starts_with(name_space->name() + '\0');
    })};
  }
  Result<KvPolicy> policy() override { return KvPolicy{}; }
  Status set_policy(const KvPolicy&) override { return {}; }
  void tend() override {}
  std::optional<uint32_t> part() const override { return std::nullopt; }
  Status health() const override { return {}; }

 private:
  void unpin(uint32_t) override {}
};

}  // namespace terrace
