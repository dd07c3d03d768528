// SPDX-License-Identifier: Apache-2.0
// In which order the blocks of the own part go: one order of all, and one more for each budget that an operator set. Pure.
//
// Threads   One at a time: the space's order mutex.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/check.h"
#include "libclient/coherence/word.h"
#include "libclient/kv/block.h"
#include "libclient/kv/record_versions.h"
#include "tiering/eviction/block_order.h"

namespace terrace::kv {

// The blocks of one budget.
class BudgetBlocks {
 public:
  uint64_t bytes() const { return bytes_; }
  bool contains(uint32_t record) const { return order_.contains(record); }
  void insert(uint32_t record, const eviction::NewBlock& block) {
    if (record >= sizes_.size()) sizes_.resize(record + size_t{1});
    sizes_[record] = block.bytes;
    bytes_ += block.bytes;
    order_.insert(record, block);
  }
  void erase(uint32_t record, bool evicted) {
    bytes_ -= sizes_[record];
    order_.erase(record, evicted);
  }
  void use(uint32_t record) { order_.use(record); }
  void skip(uint32_t record) { order_.skip(record); }
  std::optional<uint32_t> victim() { return order_.victim(); }
  size_t size() const { return order_.size(); }

 private:
  eviction::BlockOrder order_;
  std::vector<uint64_t> sizes_;  // by record
  uint64_t bytes_ = 0;
};

class OwnOrder {
 public:
  explicit OwnOrder(uint32_t records) : versions_(records) {}

  // Of two blocks that had one record the later one is in the order, whoever of their threads comes first.
  // `budgets`: those that the block counts for.
  void insert(const Block& block, const std::vector<uint16_t>& budgets) {
    uint64_t& version = versions_.of(block.record);
    if (coherence::version_of(block.word) <= version) return;
    drop(block.record, false);
    version = coherence::version_of(block.word);
    all_.insert(block.record, as_new(block));
    for (const uint16_t budget : budgets) budgets_[budget].insert(block.record, as_new(block));
  }
  // Who put it, and comes late, finds that it is gone.
  void erase(const Block& block, bool evicted) {
    uint64_t& version = versions_.of(block.record);
    if (coherence::version_of(block.word) < version) return;
    version = coherence::version_of(block.word);
    drop(block.record, evicted);
  }
  void drop(uint32_t record, bool evicted) {
    if (all_.contains(record)) all_.erase(record, evicted);
    for (BudgetBlocks& budget : budgets_)
      if (budget.contains(record)) budget.erase(record, evicted);
  }
  void use(uint32_t record) {
    if (!all_.contains(record)) return;
    all_.use(record);
    for (BudgetBlocks& budget : budgets_)
      if (budget.contains(record)) budget.use(record);
  }
  void skip(uint32_t record) {
    if (all_.contains(record)) all_.skip(record);
  }
  std::optional<uint32_t> victim() { return all_.victim(); }
  size_t size() const { return all_.size(); }

  // Forgets the budgets there were; add() makes the new ones complete.
  void set_budgets(size_t count) { budgets_ = std::vector<BudgetBlocks>(count); }
  void add(const Block& block, const std::vector<uint16_t>& budgets) {
    if (!all_.contains(block.record)) return;
    for (const uint16_t budget : budgets)
      if (!budgets_[budget].contains(block.record)) budgets_[budget].insert(block.record, as_new(block));
  }
  BudgetBlocks& budget(size_t index) { return budgets_[index]; }

 private:
  static eviction::NewBlock as_new(const Block& block) {
    return {.key = block.key.low, .parent = block.parent, .bytes = block.extent_bytes};
  }

  eviction::BlockOrder all_;  // by record
  std::vector<BudgetBlocks> budgets_;
  RecordVersions versions_;  // of the block in the order
};

}  // namespace terrace::kv
