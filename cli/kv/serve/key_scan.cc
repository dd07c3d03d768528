// SPDX-License-Identifier: Apache-2.0
#include "cli/kv/serve/key_scan.h"

#include <algorithm>
#include <ctime>
#include <functional>
#include <string_view>

namespace terrace::kv_serve {
namespace {

constexpr size_t window_keys = 1 << 16;
constexpr uint64_t window_ns = 30'000'000'000;  // older: listed again, for keys that came since

uint64_t hash_of(std::string_view key) {
  return (std::hash<std::string_view>()(key) >> 1) |
         1;  // never 0, and positive for clients with signed numbers
}

}  // namespace

Status list_keys(KvSpace& space, const KvNamespace& name_space,
                 const std::function<bool(const KvBlockInfo&)>& each) {
  const uint64_t now_s = static_cast<uint64_t>(::time(nullptr));
  return space.list([&](const KvBlockInfo& block) {
    if (block.name_space != name_space.name()) return true;
    if (block.expires_unix_s != 0 && block.expires_unix_s <= now_s) return true;
    return each(block);
  });
}

// A heap of the smallest hashes: the greatest of them is on top, and gives way.
Status KeyScan::look(uint64_t after, uint64_t now_ns) {
  window_.clear();
  complete_ = true;
  const Status listed = list_keys(space_, name_space_, [&](const KvBlockInfo& block) {
    const uint64_t hash = hash_of(block.key);
    if (hash <= after) return true;
    if (window_.size() >= window_keys) {
      complete_ = false;
      if (hash >= window_.front().first) return true;
      std::pop_heap(window_.begin(), window_.end());
      window_.pop_back();
    }
    window_.emplace_back(hash, block.key);
    std::push_heap(window_.begin(), window_.end());
    return true;
  });
  std::sort(window_.begin(), window_.end());
  window_.erase(std::unique(window_.begin(), window_.end()), window_.end());
  // One with the last hash may have given way: all of that hash come with the next window.
  if (!complete_ && !window_.empty() && window_.front().first != window_.back().first) {
    const uint64_t last = window_.back().first;
    while (window_.back().first == last) window_.pop_back();
  }
  after_ = after;
  looked_ns_ = now_ns;
  return listed;
}

Result<KeyScan::Step> KeyScan::next(uint64_t cursor, uint64_t count, uint64_t now_ns) {
  const bool known = cursor != 0 && cursor >= after_ && looked_ns_ != 0 && now_ns - looked_ns_ < window_ns &&
                     (complete_ || (!window_.empty() && cursor < window_.back().first));
  if (!known) TERRACE_RETURN_IF_ERROR(look(cursor, now_ns));
  Step step;
  auto at = std::upper_bound(window_.begin(), window_.end(), cursor,
                             [](uint64_t hash, const Hashed& one) { return hash < one.first; });
  while (at != window_.end() && (step.keys.size() < count || at->first == step.cursor)) {
    step.cursor = at->first;
    step.keys.push_back(at->second);
    ++at;
  }
  if (at == window_.end() && complete_) step.cursor = 0;
  return step;
}

}  // namespace terrace::kv_serve
