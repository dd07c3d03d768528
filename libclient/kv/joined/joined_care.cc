// SPDX-License-Identifier: Apache-2.0
// JoinedSpace: erasing and evicting blocks, and the policy, of all members.
//
// Who moves a block puts the copy, then looks whether the block is there still (joined_shrink.cc). So what erases goes
// round twice: a copy that was not there at the first round is either found at the second, or taken back by who made it.
#include <map>

#include "libclient/kv/joined/joined_space.h"
#include "libclient/kv/kv_base.h"

namespace terrace::kv {

Status JoinedSpace::erase(const KvNamespace& name_space, std::string_view key, uint64_t wait_ns) {
  const Pass pass(gate_);
  const MemberSet& set = current();
  if (set.size() == 0) return all_lost();
  Status missing = all_lost();
  bool erased = false;
  for (size_t asked = 0; asked < set.size() * (set.alone() ? 1 : 2); ++asked) {
    const Entry& entry = set[asked % set.size()];
    if (entry.member->lost.load(std::memory_order_relaxed)) continue;
    Status done = entry.space().erase(name_space, key, wait_ns);
    erased = erased || done.ok();
    if (done.ok() || lost_by(entry, done.error())) continue;
    const bool asks_again = !set.alone() && asked < set.size();
    // An owner that lets go of a member meanwhile does not answer; at the second round nobody owns that part.
    if (done.error().code == ErrorCode::busy && asks_again) continue;
    if (done.error().code != ErrorCode::not_found) return done;
    missing = std::move(done);
  }
  return erased ? Status{} : std::move(missing);
}

Result<uint64_t> JoinedSpace::flush(const std::optional<KvNamespace>& name_space, uint64_t wait_ns) {
  const Pass pass(gate_);
  const MemberSet& set = current();
  uint64_t gone = 0;
  bool any = false;
  std::optional<Error> failed;
  for (size_t asked = 0; asked < set.size() * (set.alone() ? 1 : 2); ++asked) {
    const Entry& entry = set[asked % set.size()];
    if (entry.member->lost.load(std::memory_order_relaxed)) continue;
    const Result<uint64_t> flushed = entry.space().flush(name_space, wait_ns);
    if (flushed.ok()) {
      any = true;
      gone += *flushed;
    } else if (!lost_by(entry, flushed.error())) {
      failed = flushed.error();
    }
  }
  if (failed) return std::move(*failed);
  if (!any) return all_lost();
  return gone;
}

// Each member evicts as many bytes as it has of the blocks that were not used for longest in all of them.
Result<uint64_t> JoinedSpace::evict(uint64_t bytes) {
  const Pass pass(gate_);
  const MemberSet& set = current();
  if (set.size() == 0) return all_lost();
  if (set.alone()) return set[0].space().evict(bytes);
  struct Used {
    uint64_t unix_s, bytes;
    size_t member;
  };
  std::vector<Used> blocks;
  for (size_t at = 0; at < set.size(); ++at) {
    if (set[at].member->lost.load(std::memory_order_relaxed)) continue;
    const Status listed = set[at].space().list([&](const KvBlockInfo& block) {
      blocks.push_back({block.used_unix_s, block.bytes, at});
      return true;
    });
    if (!listed.ok() && !lost_by(set[at], listed.error())) return listed.error();
  }
  std::stable_sort(blocks.begin(), blocks.end(),
                   [](const Used& one, const Used& other) { return one.unix_s < other.unix_s; });
  std::map<size_t, uint64_t> of_members;
  uint64_t chosen = 0;
  for (size_t next = 0; next < blocks.size() && chosen < bytes; ++next) {
    chosen += blocks[next].bytes;
    of_members[blocks[next].member] += blocks[next].bytes;
  }
  uint64_t gone = 0;
  for (const auto& [at, share] : of_members) {
    const Result<uint64_t> evicted = set[at].space().evict(share);
    if (!evicted.ok() && !lost_by(set[at], evicted.error())) return evicted;
    gone += evicted.ok() ? *evicted : 0;
  }
  return gone;
}

// All of them have the same one, but for what repair_policies() has not brought together yet: then the newest counts.
std::optional<PolicyText> JoinedSpace::newest_policy(const MemberSet& set) {
  std::optional<PolicyText> newest;
  for (const Entry& entry : set) {
    if (entry.member->lost.load(std::memory_order_relaxed)) continue;
    std::optional<PolicyText> text = entry.space().policy_text();
    if (text && (!newest || text->is_newer_than(*newest))) newest = std::move(text);
  }
  return newest;
}

Result<KvPolicy> JoinedSpace::policy() {
  const Pass pass(gate_);
  if (std::optional<PolicyText> newest = newest_policy(current())) return std::move(newest->policy);
  for (const Entry& entry : current()) {
    if (entry.member->lost.load(std::memory_order_relaxed)) continue;
    Result<KvPolicy> said = entry.space().policy();
    if (said.ok() || !lost_by(entry, said.error())) return said;
  }
  return all_lost();
}

// One generation in all members. Whoever dies between two of them leaves a newest one, which repair_policies() puts into the
// others.
Status JoinedSpace::set_policy(const KvPolicy& policy) {
  constexpr uint64_t wait_ns = 1'000'000'000;
  TERRACE_RETURN_IF_ERROR(check_policy(policy));
  const Pass pass(gate_);
  const std::optional<PolicyText> last = newest_policy(current());
  const PolicyText next{
      .generation = next_policy_generation(last ? last->generation : 0, KvSpaceBase::now_unix_ms()),
      .policy = policy};
  std::optional<Error> failed;
  std::string behind;
  bool any = false;
  for (const Entry& entry : current()) {
    if (entry.member->lost.load(std::memory_order_relaxed)) continue;
    Status put = entry.space().put_policy(next, wait_ns);
    // A newer one: it was set in the same moment, and comes behind this one.
    if (put.ok() || put.error().code == ErrorCode::already_exists) {
      any = true;
      continue;
    }
    if (lost_by(entry, put.error())) continue;
    behind += (behind.empty() ? "" : ", ") + entry.member->where;
    if (!failed) failed = std::move(put).error();
  }
  if (!failed) return any ? Status{} : Status(all_lost());
  if (!current().alone())
    failed->detail +=
        any ? "; not in " + behind + " yet: a holder with a part of it puts it there, or set it again"
            : " (" + behind + ")";
  return std::move(*failed);
}

}  // namespace terrace::kv
