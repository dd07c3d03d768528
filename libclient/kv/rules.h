// SPDX-License-Identifier: Apache-2.0
// An operator's policy of a space: as text, which a block of the space's own has, and as answers to questions. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "libclient/kv/block.h"
#include "terrace/kv_space.h"

namespace terrace::kv {

inline constexpr size_t policy_entries_max = 256;
inline constexpr size_t policy_text_max = policy_entries_max * 1024;
// No caller can name it: namespaces have no control characters.
inline constexpr std::string_view own_name_space = "\x01terrace";

struct PolicyText {
  uint64_t generation = 0;  // of two blocks that have one, the higher counts
  KvPolicy policy;
  // Of one generation, as two that are set at once may have, all holders take the same one.
  bool is_newer_than(const PolicyText& other) const;
};
// Of the policy that replaces the one of generation `last`: later ones have higher ones, also those of who did not see
// all members. Its block has the other key (docs/formats/kv_space.md).
uint64_t next_policy_generation(uint64_t last, uint64_t now_unix_ms);
std::string text_of(const PolicyText& policy);
// Nothing when it makes no sense.
std::optional<PolicyText> policy_of(std::string_view text);
// Errors    invalid_argument  says which entry
Status check_policy(const KvPolicy& policy);

// What holds for the blocks of one namespace.
struct NamespaceRules {
  std::vector<uint16_t> budgets;  // by index in the policy
  bool kept = false;
};

// Threads   One at a time.
class Rules {
 public:
  Rules() = default;
  explicit Rules(KvPolicy policy);

  const KvPolicy& policy() const { return policy_; }
  bool empty() const { return policy_.budgets.empty() && policy_.kept.empty(); }
  // By the low half of a namespace's hash, which records have; nothing: its name has to be learned.
  const NamespaceRules* find(uint32_t name_space) const;
  const NamespaceRules& learn(uint32_t name_space, std::string_view name);
  bool keeps_key(const BlockKey& key) const;

 private:
  KvPolicy policy_;
  std::unordered_map<uint32_t, NamespaceRules> by_name_space_;
  std::unordered_map<uint64_t, uint64_t> keys_;  // low and high half
};

}  // namespace terrace::kv
