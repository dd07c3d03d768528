// SPDX-License-Identifier: Apache-2.0
#include "libclient/kv/rules.h"

#include <algorithm>
#include <charconv>

namespace terrace::kv {
namespace {

constexpr std::string_view heading = "terrace-kv-policy 1 ";
constexpr char digits[] = "0123456789abcdef";

std::string hex_of(std::string_view bytes) {
  std::string hex;
  for (const unsigned char byte : bytes) hex += {digits[byte >> 4], digits[byte & 15]};
  return hex;
}

int value_of(char digit) {
  const std::string_view all(digits, 16);
  const size_t at = all.find(digit);
  return at == std::string_view::npos ? -1 : static_cast<int>(at);
}

std::optional<std::string> bytes_of(std::string_view hex) {
  if (hex.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  for (size_t at = 0; at < hex.size(); at += 2) {
    const int high = value_of(hex[at]), low = value_of(hex[at + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes += static_cast<char>(high * 16 + low);
  }
  return bytes;
}

std::optional<uint64_t> number_of(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// The text before `end`, which `text` loses together with it.
std::optional<std::string_view> cut(std::string_view* text, char end) {
  const size_t at = text->find(end);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view before = text->substr(0, at);
  text->remove_prefix(at + 1);
  return before;
}

// "budget BYTES NAMESPACES", "keep HEX-OF-KEY NAMESPACES"; the last word may be empty or have spaces.
bool take_line(std::string_view line, KvPolicy* policy) {
  const auto kind = cut(&line, ' '), word = cut(&line, ' ');
  if (!kind || !word) return false;
  if (*kind == "budget") {
    const auto bytes = number_of(*word);
    if (bytes) policy->budgets.push_back({.namespaces = std::string(line), .bytes = *bytes});
    return bytes.has_value();
  }
  auto key = bytes_of(*word);
  if (*kind != "keep" || !key) return false;
  policy->kept.push_back({.namespaces = std::string(line), .key = std::move(*key)});
  return true;
}

// Whole pieces: "a" covers "a" and "a/b", not "ab".
bool covers(std::string_view namespaces, std::string_view name) {
  if (!name.starts_with(namespaces)) return false;
  return namespaces.empty() || name.size() == namespaces.size() || name[namespaces.size()] == '/';
}

Error refuse(std::string detail) {
  return Error{.code = ErrorCode::invalid_argument, .where = "KvPolicy", .detail = "KV space: " + detail};
}

}  // namespace

bool PolicyText::is_newer_than(const PolicyText& other) const {
  return generation != other.generation ? generation > other.generation : text_of(*this) > text_of(other);
}

uint64_t next_policy_generation(uint64_t last, uint64_t now_unix_ms) {
  const uint64_t next = std::max(last + 1, now_unix_ms);
  return next % 2 == last % 2 ? next + 1 : next;
}

std::string text_of(const PolicyText& policy) {
  std::string text = std::string(heading) + std::to_string(policy.generation) + '\n';
  for (const KvBudget& budget : policy.policy.budgets)
    text += "budget " + std::to_string(budget.bytes) + ' ' + budget.namespaces + '\n';
  for (const KvKept& kept : policy.policy.kept)
    text += "keep " + hex_of(kept.key) + ' ' + kept.namespaces + '\n';
  return text;
}

std::optional<PolicyText> policy_of(std::string_view text) {
  if (text.size() > policy_text_max || !text.starts_with(heading)) return std::nullopt;
  text.remove_prefix(heading.size());
  PolicyText found;
  const auto first = cut(&text, '\n');
  const auto generation = number_of(first.value_or(""));
  if (!generation) return std::nullopt;
  found.generation = *generation;
  while (!text.empty()) {
    const auto line = cut(&text, '\n');
    if (!line || !take_line(*line, &found.policy)) return std::nullopt;
  }
  if (!check_policy(found.policy).ok()) return std::nullopt;
  return found;
}

Status check_policy(const KvPolicy& policy) {
  if (policy.budgets.size() > policy_entries_max || policy.kept.size() > policy_entries_max)
    return refuse("a policy has at most " + std::to_string(policy_entries_max) +
                  " budgets, and as many that are kept");
  std::unordered_set<std::string> named;
  for (const KvBudget& budget : policy.budgets) {
    if (!KvNamespace::of(budget.namespaces).ok())
      return refuse("a budget's namespaces are at most 255 bytes of UTF-8 without control characters");
    if (budget.bytes == 0)
      return refuse("the budget of '" + budget.namespaces + "' is 0; flush them and put nothing there instead");
    if (!named.insert(budget.namespaces).second) return refuse("'" + budget.namespaces + "' has two budgets");
  }
  for (const KvKept& kept : policy.kept) {
    if (!KvNamespace::of(kept.namespaces).ok())
      return refuse("what is kept has namespaces of at most 255 bytes of UTF-8 without control characters");
    if (kept.key.size() > kv_key_bytes_max) return refuse("a key that is kept has at most 512 bytes");
  }
  return {};
}

Rules::Rules(KvPolicy policy) : policy_(std::move(policy)) {
  for (const KvKept& kept : policy_.kept) {
    if (kept.key.empty()) continue;
    const BlockKey key = key_of(namespace_hash(kept.namespaces), kept.key);
    keys_[key.low] = key.high;
  }
}

const NamespaceRules* Rules::find(uint32_t name_space) const {
  const auto found = by_name_space_.find(name_space);
  return found == by_name_space_.end() ? nullptr : &found->second;
}

// Names come from memory that others store to: they are forgotten when there are too many.
const NamespaceRules& Rules::learn(uint32_t name_space, std::string_view name) {
  constexpr size_t names_max = 65536;
  if (by_name_space_.size() >= names_max) by_name_space_.clear();
  NamespaceRules rules;
  for (size_t index = 0; index < policy_.budgets.size(); ++index)
    if (covers(policy_.budgets[index].namespaces, name)) rules.budgets.push_back(static_cast<uint16_t>(index));
  rules.kept = std::any_of(policy_.kept.begin(), policy_.kept.end(), [&](const KvKept& kept) {
    return kept.key.empty() && covers(kept.namespaces, name);
  });
  return by_name_space_[name_space] = std::move(rules);
}

bool Rules::keeps_key(const BlockKey& key) const {
  const auto found = keys_.find(key.low);
  return found != keys_.end() && found->second == key.high;
}

}  // namespace terrace::kv
