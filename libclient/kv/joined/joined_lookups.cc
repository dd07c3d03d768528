// SPDX-License-Identifier: Apache-2.0
// JoinedSpace: finding blocks. A member that has none of a key is as one whose memory is gone: the next one is asked.
#include <algorithm>

#include "libclient/kv/joined/joined_space.h"
#include "libclient/kv/kv_base.h"

namespace terrace::kv {
namespace {

// Keys in the order of the members that they prefer: each member's lie beside each other.
struct SortedKeys {
  std::vector<BlockKey> keys;
  std::vector<uint32_t> places;  // of their answers
  std::vector<uint32_t> begins;  // by member, and the end
};

SortedKeys sorted_keys(const MemberSet& set, std::span<const BlockKey> keys) {
  std::vector<uint8_t> preferred(keys.size());
  SortedKeys sorted{.keys = std::vector<BlockKey>(keys.size()),
                    .places = std::vector<uint32_t>(keys.size()),
                    .begins = std::vector<uint32_t>(set.size() + 1)};
  for (size_t index = 0; index < keys.size(); ++index) {
    preferred[index] = static_cast<uint8_t>(set.preferred(keys[index]));
    ++sorted.begins[preferred[index] + size_t{1}];
  }
  for (size_t at = 0; at < set.size(); ++at) sorted.begins[at + 1] += sorted.begins[at];
  std::vector<uint32_t> next = sorted.begins;
  for (size_t index = 0; index < keys.size(); ++index) {
    const uint32_t place = next[preferred[index]]++;
    sorted.keys[place] = keys[index];
    sorted.places[place] = static_cast<uint32_t>(index);
  }
  return sorted;
}

}  // namespace

// The member that has a block of that key, whatever the spill has.
std::optional<size_t> JoinedSpace::place_of(const MemberSet& set, const BlockKey& key, size_t preferred) {
  for (size_t step = 0; step < set.size(); ++step) {
    const size_t at = set.behind(preferred, step);
    bool found = false;
    if (set[at].member->lost.load(std::memory_order_relaxed)) continue;
    const Status asked = set[at].space().exists_here(std::span(&key, 1), std::span(&found, 1));
    if (!asked.ok()) (void)lost_by(set[at], asked.error());
    if (asked.ok() && found) return at;
  }
  return std::nullopt;
}

template <typename Ask>
auto JoinedSpace::ask_each(const KvNamespace& name_space, std::string_view key, Ask ask)
    -> decltype(ask(std::declval<MemberKvSpace&>())) {
  const Pass pass(gate_);
  const MemberSet& set = current();
  if (set.size() == 0) return all_lost();
  size_t preferred = 0;
  if (!set.alone()) {
    const BlockKey hash = key_of(name_space, key);
    preferred = set.preferred(hash);
    // Where there is a spill, a member that has none would answer with what is there.
    if (spills()) preferred = place_of(set, hash, preferred).value_or(preferred);
  }
  std::optional<Error> missing;
  for (size_t step = 0; step < set.size(); ++step) {
    const Entry& entry = set[set.behind(preferred, step)];
    if (entry.member->lost.load(std::memory_order_relaxed)) continue;
    auto answer = ask(entry.space());
    if (answer.ok() || set.alone()) {
      if (!answer.ok()) (void)lost_by(entry, answer.error());
      return answer;
    }
    const ErrorCode code = answer.error().code;
    if (lost_by(entry, answer.error())) continue;
    // Who cannot read in place there need not, if the block is elsewhere.
    if (code == ErrorCode::busy && !entry.space().length(name_space, key).ok()) continue;
    if (code != ErrorCode::not_found) return answer;
    missing = std::move(answer).error();
  }
  if (missing) return std::move(*missing);
  return all_lost();
}

Result<uint64_t> JoinedSpace::get(const KvNamespace& name_space, const KvGet& get) {
  Result<uint64_t> got =
      ask_each(name_space, get.key, [&](MemberKvSpace& space) { return space.get(name_space, get); });
  if (!got.ok() && got.error().code == ErrorCode::not_found) misses_.fetch_add(1, std::memory_order_relaxed);
  return got;
}

Result<uint64_t> JoinedSpace::length(const KvNamespace& name_space, std::string_view key) {
  return ask_each(name_space, key, [&](MemberKvSpace& space) { return space.length(name_space, key); });
}

Result<KvView> JoinedSpace::view(const KvNamespace& name_space, std::string_view key) {
  Result<KvView> got =
      ask_each(name_space, key, [&](MemberKvSpace& space) { return space.view(name_space, key); });
  if (!got.ok() && got.error().code == ErrorCode::not_found) misses_.fetch_add(1, std::memory_order_relaxed);
  return got;
}

Status JoinedSpace::exists(const KvNamespace& name_space, std::span<const std::string_view> keys,
                           std::span<bool> found) {
  const Pass pass(gate_);
  const MemberSet& set = current();
  if (set.alone()) {
    Status asked = set[0].space().exists(name_space, keys, found);
    if (!asked.ok()) (void)lost_by(set[0], asked.error());
    return asked;
  }
  if (keys.size() != found.size()) return refuse(ErrorCode::invalid_argument, "as many answers as keys");
  TERRACE_RETURN_IF_ERROR(exists_in(set, name_space, keys, found));
  if (!spills()) return {};
  std::vector<std::string_view> missing;
  std::vector<size_t> places;
  for (size_t index = 0; index < keys.size(); ++index)
    if (!found[index]) missing.push_back(keys[index]), places.push_back(index);
  const auto spilled = std::make_unique<bool[]>(missing.size());
  for (const Entry& entry : set) {
    if (!entry.space().exists(name_space, missing, {spilled.get(), missing.size()}).ok()) continue;
    for (size_t index = 0; index < places.size(); ++index) found[places[index]] = spilled[index];
    break;
  }
  return {};
}

// Each member twice: for the keys that prefer it, and then for all others that were found nowhere so far.
Status JoinedSpace::exists_in(const MemberSet& set, const KvNamespace& name_space,
                              std::span<const std::string_view> keys, std::span<bool> found) {
  const uint64_t seed = namespace_hash(name_space.name());
  std::vector<BlockKey> hashes(keys.size());
  for (size_t index = 0; index < keys.size(); ++index) {
    TERRACE_RETURN_IF_ERROR(KvSpaceBase::check_key(keys[index]));
    hashes[index] = kv::key_of(seed, keys[index]);
  }
  const SortedKeys sorted = sorted_keys(set, hashes);
  const auto there = std::make_unique<bool[]>(keys.size()), answers = std::make_unique<bool[]>(keys.size());
  bool any = false;
  size_t left = keys.size();
  const auto ask = [&](size_t at, std::span<const BlockKey> asked, std::span<bool> said) -> Status {
    const Entry& entry = set[at];
    if (entry.member->lost.load(std::memory_order_relaxed)) return {};
    any = true;
    if (asked.empty()) return {};
    const Status status = entry.space().exists_here(asked, said);
    if (!status.ok()) {
      std::fill(said.begin(), said.end(), false);
      return lost_by(entry, status.error()) ? Status{} : status;
    }
    left -= static_cast<size_t>(std::count(said.begin(), said.end(), true));
    return {};
  };
  for (size_t at = 0; at < set.size(); ++at) {
    const uint32_t begin = sorted.begins[at], count = sorted.begins[at + 1] - begin;
    TERRACE_RETURN_IF_ERROR(ask(at, {sorted.keys.data() + begin, count}, {there.get() + begin, count}));
  }
  std::vector<uint32_t> chosen(keys.size());
  for (size_t at = 0; at < set.size() && left != 0; ++at) {
    size_t count = 0;
    // Without a branch for each: which of them are there is as good as random.
    for (uint32_t index = 0; index < keys.size(); ++index) {
      const bool is_own = index >= sorted.begins[at] && index < sorted.begins[at + 1];
      chosen[count] = index;
      hashes[count] = sorted.keys[index];
      count += there[index] || is_own ? 0 : 1;
    }
    TERRACE_RETURN_IF_ERROR(ask(at, {hashes.data(), count}, {answers.get(), count}));
    for (size_t index = 0; index < count; ++index) there[chosen[index]] = answers[index];
  }
  for (size_t index = 0; index < keys.size(); ++index) found[sorted.places[index]] = there[index];
  if (!any && !keys.empty()) return all_lost();
  return {};
}

// As exists_in(). With a spill one after the other: a member that has none would fetch it.
std::vector<Result<uint64_t>> JoinedSpace::get_many(const KvNamespace& name_space,
                                                    std::span<const KvGet> gets) {
  const Pass pass(gate_);
  const MemberSet& set = current();
  std::vector<Result<uint64_t>> results;
  results.reserve(gets.size());
  if (!set.alone() && (spills() || set.size() == 0)) {
    for (const KvGet& one : gets) results.push_back(get(name_space, one));
    return results;
  }
  if (set.alone()) {
    results = set[0].space().get_many(name_space, gets);
  } else {
    const uint64_t seed = namespace_hash(name_space.name());
    std::vector<uint8_t> preferred;
    for (const KvGet& one : gets)
      preferred.push_back(static_cast<uint8_t>(set.preferred(kv::key_of(seed, one.key))));
    results.assign(gets.size(), Result<uint64_t>(all_lost()));
    const auto is_open = [](const Result<uint64_t>& result) {
      return !result.ok() &&
             (result.error().code == ErrorCode::not_found || result.error().code == ErrorCode::lease_expired);
    };
    std::vector<KvGet> asked;
    std::vector<size_t> places;
    for (size_t step = 0; step < set.size(); ++step)
      for (size_t at = 0; at < set.size(); ++at) {
        if (set[at].member->lost.load(std::memory_order_relaxed)) continue;
        asked.clear();
        places.clear();
        for (size_t index = 0; index < gets.size(); ++index)
          if (is_open(results[index]) && set.behind(preferred[index], step) == at)
            asked.push_back(gets[index]), places.push_back(index);
        if (asked.empty()) continue;
        std::vector<Result<uint64_t>> got = set[at].space().get_many(name_space, asked);
        for (size_t index = 0; index < places.size(); ++index) {
          if (!got[index].ok() && lost_by(set[at], got[index].error())) continue;
          results[places[index]] = std::move(got[index]);
        }
      }
  }
  for (const Result<uint64_t>& result : results) {
    if (result.ok()) continue;
    if (set.alone()) (void)lost_by(set[0], result.error());
    if (result.error().code == ErrorCode::not_found) misses_.fetch_add(1, std::memory_order_relaxed);
  }
  return results;
}

}  // namespace terrace::kv
