// SPDX-License-Identifier: Apache-2.0
// KvSpaceOf: what an operator says of some namespaces: how many bytes they may have, and what stays.
//
//   where    a block of the space's own has it; of two of them the one of the higher generation counts, so that there is
//            one all the time while it is replaced
//   budgets  each owner counts the blocks of other parts in pieces as it tends, keeps its own below what others leave or
//            an equal share of the budget, whichever is more, and makes room in parts that nobody owns
//   kept     is offered by the order, and passed over
#pragma once

namespace terrace {

template <typename Memory>
bool KvSpaceOf<Memory>::is_own_block(const Block& block) const {
  const auto is_it = [&](const kv::BlockKey& key) { return block.key == key; };
  return std::any_of(policy_keys_.begin(), policy_keys_.end(), is_it) ||
         std::any_of(list_keys_.begin(), list_keys_.end(), is_it);
}

// Where the policy's blocks are. Nothing: they were being replaced.
template <typename Memory>
auto KvSpaceOf<Memory>::look_for_policy() -> std::optional<PolicyBlocks> {
  PolicyBlocks there;
  for (size_t slot = 0; slot < there.size(); ++slot) {
    Block block;
    const Outcome outcome = find(policy_keys_[slot], &block);
    if (outcome != Outcome::done && outcome != Outcome::gone) return std::nullopt;
    if (outcome == Outcome::done)
      there[slot] = {
          .version = block.word & layout::word_version_mask, .part = block.part, .record = block.record};
  }
  return there;
}

// Reads the policy if other blocks have it than at the last look. Between the looks at two keys the one there was may have
// gone and the next one come: none counts if it was so twice, and never where there was one, as an empty policy has
// a block, too.
template <typename Memory>
void KvSpaceOf<Memory>::load_policy() {
  constexpr int attempts = 8;
  const PolicyBlocks none;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    const std::optional<PolicyBlocks> there = look_for_policy();
    if (!there || (*there == none && policy_seen_ != none)) continue;
    if (*there == none ? look_for_policy() == there : *there == policy_seen_) {
      policy_known_.store(true, std::memory_order_relaxed);
      return;
    }
    std::optional<kv::PolicyText> newest;
    for (size_t slot = 0; slot < there->size(); ++slot) {
      if ((*there)[slot].version == 0) continue;
      std::optional<kv::PolicyText> text = read_policy(slot);
      if (text && (!newest || text->generation > newest->generation)) newest = std::move(text);
    }
    if (!newest) continue;
    policy_seen_ = *there;
    policy_generation_ = newest->generation;
    policy_known_.store(true, std::memory_order_relaxed);
    use_policy(std::move(newest->policy));
    return;
  }
}

template <typename Memory>
void KvSpaceOf<Memory>::use_policy(KvPolicy policy) {
  const MutexLock lock(order_mutex_);
  if (policy == rules_.policy()) return;
  rules_ = kv::Rules(std::move(policy));
  has_rules_.store(!rules_.empty(), std::memory_order_relaxed);
  const size_t budgets = rules_.policy().budgets.size();
  order_.set_budgets(budgets);
  budget_counts_.assign(budgets, {.sharers = owners()});
  if (own() == nullptr || budgets == 0) return;
  own()->each_block(0, geometry_.records, [this](const Block& block) TERRACE_NO_THREAD_SAFETY_ANALYSIS {
    order_.add(block, rules_of(block).budgets);
  });
}

template <typename Memory>
std::optional<kv::PolicyText> KvSpaceOf<Memory>::read_policy(size_t slot) {
  const std::optional<std::string> text = read_own_block(policy_keys_[slot]);
  return text ? kv::policy_of(*text) : std::nullopt;
}

template <typename Memory>
kv::PolicyText KvSpaceOf<Memory>::policy_here() {
  load_policy();
  const MutexLock lock(order_mutex_);
  return {.generation = policy_generation_, .policy = rules_.policy()};
}

template <typename Memory>
Result<KvPolicy> KvSpaceOf<Memory>::policy() {
  const MutexLock lock(policy_mutex_);
  return policy_here().policy;
}

template <typename Memory>
std::optional<kv::PolicyText> KvSpaceOf<Memory>::policy_text() {
  const MutexLock lock(policy_mutex_);
  kv::PolicyText text = policy_here();
  if (!policy_known_.load(std::memory_order_relaxed)) return std::nullopt;
  return text;
}

template <typename Memory>
Status KvSpaceOf<Memory>::can_set_policy(const KvPolicy& policy) {
  TERRACE_RETURN_IF_ERROR(kv::check_policy(policy));
  if (forked()) return in_child();
  if (options_.ownership == nullptr || !options_.puts) return read_only();
  return take_part();
}

template <typename Memory>
Status KvSpaceOf<Memory>::set_policy(const KvPolicy& policy) {
  constexpr uint64_t wait_ns = 1'000'000'000;
  TERRACE_RETURN_IF_ERROR(can_set_policy(policy));
  const MutexLock lock(policy_mutex_);
  const uint64_t last = policy_here().generation;
  return replace_policy({.generation = kv::next_policy_generation(last, now_unix_ms()), .policy = policy},
                        wait_ns);
}

template <typename Memory>
Status KvSpaceOf<Memory>::put_policy(const kv::PolicyText& text, uint64_t wait_ns) {
  TERRACE_RETURN_IF_ERROR(can_set_policy(text.policy));
  const MutexLock lock(policy_mutex_);
  const kv::PolicyText here = policy_here();
  if (here.generation == text.generation && here.policy == text.policy) return {};
  if (here.generation != 0 && here.is_newer_than(text))
    return refuse(ErrorCode::already_exists, "KV space: another policy was set meanwhile");
  return replace_policy(text, wait_ns);
}

template <typename Memory>
Status KvSpaceOf<Memory>::replace_policy(const kv::PolicyText& text, uint64_t wait_ns) {
  const std::string bytes = kv::text_of(text);
  const size_t slot = text.generation % policy_keys_.size();
  // One that was left there, by a holder that died between the two steps below.
  TERRACE_RETURN_IF_ERROR(erase_policy(slot, wait_ns));
  TERRACE_RETURN_IF_ERROR(put_own(policy_key(slot), std::as_bytes(std::span(bytes.data(), bytes.size()))));
  (void)erase_policy(1 - slot, wait_ns);  // its generation is lower: it counts no longer
  load_policy();
  return {};
}

template <typename Memory>
Status KvSpaceOf<Memory>::erase_policy(size_t slot, uint64_t wait_ns) {
  Block block;
  if (find(policy_keys_[slot], &block) == Outcome::gone) return {};
  if (find(policy_keys_[slot], &block) == Outcome::done && erase_all({block}, wait_ns) == 1) return {};
  return refuse(ErrorCode::busy, "KV space: the owner of part " + std::to_string(block.part) +
                                     " has not given up an older policy yet; try again");
}

template <typename Memory>
const kv::NamespaceRules& KvSpaceOf<Memory>::rules_of(const Block& block) {
  static const kv::NamespaceRules none;
  if (rules_.empty()) return none;
  if (const kv::NamespaceRules* const known = rules_.find(block.name_space); known != nullptr) return *known;
  const std::optional<kv::Names> said = names(block);
  return said ? rules_.learn(block.name_space, said->name_space) : none;
}

// No wish for room takes it; erase() and flush() do.
template <typename Memory>
bool KvSpaceOf<Memory>::is_kept(const Block& block) {
  if (is_own_block(block)) return true;
  if (!has_rules_.load(std::memory_order_relaxed)) return false;
  const MutexLock lock(order_mutex_);
  return rules_.keeps_key(block.key) || rules_of(block).kept;
}

template <typename Memory>
uint32_t KvSpaceOf<Memory>::owners() const {
  uint32_t owners = 0;
  for (uint32_t part = 0; part < geometry_.parts; ++part)
    owners += claims_.last_owner(part).epoch != 0 && !claims_.last_owner(part).gave_back ? 1 : 0;
  return std::max(1u, owners);
}

// What this holder's blocks may have of a budget.
template <typename Memory>
uint64_t KvSpaceOf<Memory>::allowance(size_t budget) const {
  const uint64_t bytes = budget_bytes(budget);
  const BudgetCount& count = budget_counts_[budget];
  return std::max(bytes - std::min(bytes, count.others),
                  (bytes - std::min(bytes, count.stays)) / count.sharers);
}

// Makes the budgets of a namespace have room for a block of `extent` bytes.
template <typename Memory>
Status KvSpaceOf<Memory>::fit_budgets(const std::string& name_space, uint32_t tag, std::string_view key,
                                      uint64_t extent) {
  if (!has_rules_.load(std::memory_order_relaxed)) return {};
  std::vector<uint16_t> budgets;
  {
    const MutexLock lock(order_mutex_);
    const kv::NamespaceRules* const known = rules_.find(tag);
    budgets = (known != nullptr ? *known : rules_.learn(tag, name_space)).budgets;
    fill_order(budgets.empty() ? 0 : geometry_.records);
  }
  for (const uint16_t budget : budgets)
    while (!fits_budget(budget, extent))
      if (!evict_of(budget)) {
        add(counts_.puts_refused);
        return over_budget(budget, key, extent);
      }
  return {};
}

template <typename Memory>
bool KvSpaceOf<Memory>::fits_budget(size_t budget, uint64_t extent) {
  const MutexLock lock(order_mutex_);
  // The policy may be another one since.
  return budget >= budget_counts_.size() || order_.budget(budget).bytes() + extent <= allowance(budget);
}

template <typename Memory>
Error KvSpaceOf<Memory>::over_budget(size_t budget, std::string_view key, uint64_t extent) {
  const MutexLock lock(order_mutex_);
  const auto& budgets = rules_.policy().budgets;
  const KvBudget of = budget < budgets.size() ? budgets[budget] : KvBudget();
  const uint64_t most = budget < budgets.size() ? budget_bytes(budget) : 0;
  return refuse(
      extent > most ? ErrorCode::limit_exceeded : ErrorCode::capacity_exhausted,
      who(key) + " takes " + std::to_string(extent) + " bytes, and the budget of '" + of.namespaces + "' is " +
          std::to_string(of.bytes) +
          (most != of.bytes ? ", of which this member has " + std::to_string(most) : "") +
          (extent > most ? "" : ", which is used up by other holders, or by what is read in place or kept"));
}

// The worst block of a budget that can go. false: there is none.
template <typename Memory>
bool KvSpaceOf<Memory>::evict_of(size_t budget) {
  for (size_t stays = 0;; ++stays) {
    uint32_t victim = 0;
    {
      const MutexLock lock(order_mutex_);
      if (budget >= budget_counts_.size() || stays > order_.budget(budget).size()) return false;
      const std::optional<uint32_t> next = order_.budget(budget).victim();
      if (!next) return false;
      victim = *next;
    }
    Block block;
    if (reader_.describe(own()->part(), victim, &block) != Outcome::done) {
      const MutexLock lock(order_mutex_);
      order_.drop(victim, false);
      continue;
    }
    const Outcome outcome = is_kept(block) ? Outcome::pinned : remove_own(block, true);
    if (outcome != Outcome::pinned) return outcome == Outcome::done || outcome == Outcome::gone;
    const MutexLock lock(order_mutex_);
    if (budget < budget_counts_.size() && order_.budget(budget).contains(victim))
      order_.budget(budget).skip(victim);
  }
}

// A piece of the other parts' directories. At the end of a round the sums count.
template <typename Memory>
void KvSpaceOf<Memory>::count_budgets(uint32_t records) {
  size_t budgets = 0;
  {
    const MutexLock lock(order_mutex_);
    budgets = rules_.policy().budgets.size();
  }
  if (budgets == 0) return;
  if (counting_.size() != budgets) {
    counting_.assign(budgets, std::vector<uint64_t>(geometry_.parts));
    count_at_ = 0;
  }
  const uint64_t round = uint64_t{geometry_.parts} * geometry_.records;
  const uint64_t now = now_unix_s();
  std::vector<Block> blocks;
  for (uint32_t looked = 0; looked < records && count_at_ < round; ++looked) {
    const auto part = static_cast<uint32_t>(count_at_ / geometry_.records);
    const auto record = static_cast<uint32_t>(count_at_ % geometry_.records);
    if (part == own()->part() || !in_use(part)) {
      count_at_ = (uint64_t{part} + 1) * geometry_.records;
      continue;
    }
    Block block;
    if (reader_.describe(part, record, &block) == Outcome::done && !block.is_expired(now))
      blocks.push_back(block);
    ++count_at_;
  }
  {
    const MutexLock lock(order_mutex_);
    for (const Block& block : blocks)
      for (const uint16_t budget : rules_of(block).budgets)
        if (budget < counting_.size()) counting_[budget][block.part] += block.extent_bytes;
  }
  if (count_at_ < round) return;
  const auto counted = std::exchange(counting_, {});
  for (size_t budget = 0; budget < counted.size(); ++budget) end_count(budget, counted[budget]);
}

template <typename Memory>
void KvSpaceOf<Memory>::end_count(size_t budget, const std::vector<uint64_t>& by_part) {
  BudgetCount count{.sharers = 1};
  std::vector<uint32_t> ownerless;
  uint64_t ownerless_bytes = 0;
  for (uint32_t part = 0; part < by_part.size(); ++part) {
    if (by_part[part] == 0) continue;
    count.others += by_part[part];
    if (owner_lives(part)) {
      ++count.sharers;
      continue;
    }
    ownerless.push_back(part);
    ownerless_bytes += by_part[part];
  }
  uint64_t over = 0;
  {
    const MutexLock lock(order_mutex_);
    if (budget >= budget_counts_.size()) return;
    count.stays = std::min(budget_counts_[budget].stays, ownerless_bytes);
    budget_counts_[budget] = count;
    const uint64_t all = order_.budget(budget).bytes() + count.others, most = budget_bytes(budget);
    over = all > most ? all - most : 0;
  }
  for (size_t next = 0; next < ownerless.size() && over > 0; ++next)
    (void)adopt(ownerless[next], [&](Part& left) { over -= std::min(over, evict_left(left, budget, over)); });
  if (!ownerless.empty() && over > 0) {
    const MutexLock lock(order_mutex_);
    if (budget < budget_counts_.size())
      budget_counts_[budget].stays = std::min(ownerless_bytes, count.stays + over);
  }
  while (!fits_budget(budget, 0) && evict_of(budget)) {
  }
}

// Of a part that this holder has adopted: blocks of a budget, those unused for longest, until `bytes` are gone.
template <typename Memory>
uint64_t KvSpaceOf<Memory>::evict_left(Part& left, size_t budget, uint64_t bytes) {
  std::vector<Block> blocks;
  left.each_block(0, geometry_.records, [&](const Block& block) {
    const MutexLock lock(order_mutex_);
    const std::vector<uint16_t>& budgets = rules_of(block).budgets;
    if (std::find(budgets.begin(), budgets.end(), budget) != budgets.end()) blocks.push_back(block);
  });
  std::sort(blocks.begin(), blocks.end(),
            [](const Block& one, const Block& other) { return one.used_unix_s < other.used_unix_s; });
  uint64_t gone = 0;
  for (const Block& block : blocks) {
    if (gone >= bytes) break;
    if (is_kept(block)) continue;
    offer_to_spill(block);
    if (left.remove(block) != Outcome::done) continue;
    gone += block.extent_bytes;
    add(counts_.evicted);
    add(counts_.evicted_bytes, block.bytes);
  }
  return gone;
}

}  // namespace terrace
