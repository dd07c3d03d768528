// SPDX-License-Identifier: Apache-2.0
// JoinedSpace: what there is, in all members.
#include "libclient/kv/joined/joined_space.h"

namespace terrace::kv {
namespace {

void add_stat(KvStat& sum, KvStat of, uint32_t member) {
  sum.data_bytes += of.data_bytes;
  sum.free_bytes += of.free_bytes;
  sum.blocks += of.blocks;
  sum.block_bytes += of.block_bytes;
  sum.blocks_max += of.blocks_max;
  sum.max_block_bytes = std::max(sum.max_block_bytes, of.max_block_bytes);
  if (of.coherence == SpaceCoherence::noncoherent) sum.coherence = of.coherence;
  sum.checksums = sum.checksums || of.checksums;
  sum.kept_bytes += of.kept_bytes;
  sum.local_blocks += of.local_blocks;
  sum.local_bytes += of.local_bytes;
  sum.local_max_bytes = std::max(sum.local_max_bytes, of.local_max_bytes);  // one budget for all
  for (KvPartInfo& part : of.parts) {
    part.member = member;
    sum.parts.push_back(std::move(part));
  }
  for (const KvBudgetUse& use : of.budgets) {
    const auto same = std::find_if(sum.budgets.begin(), sum.budgets.end(), [&](const KvBudgetUse& one) {
      return one.budget.namespaces == use.budget.namespaces;
    });
    if (same == sum.budgets.end())
      sum.budgets.push_back(use);
    else
      same->used_bytes += use.used_bytes;
  }
}

}  // namespace

KvCounters JoinedSpace::counters() const {
  KvCounters sum;
  {
    const MutexLock lock(look_mutex_);
    sum = departed_counters_;
    for (const auto& member : departed_) add_counters(sum, member->space->counters());
    for (const Entry& entry : *set_held_) add_counters(sum, entry.space().counters());
  }
  sum.misses = misses_.load(std::memory_order_relaxed);
  sum.puts_refused -= std::min(sum.puts_refused, refused_twice_.load(std::memory_order_relaxed));
  sum.members_joined = members_joined_.load(std::memory_order_relaxed);
  sum.members_lost = members_lost_.load(std::memory_order_relaxed);
  return sum;
}

// In the list's order; one that is not mapped is lost.
std::vector<KvMemberInfo> JoinedSpace::members() {
  const MutexLock lock(look_mutex_);
  std::vector<KvMemberInfo> infos;
  for (const ListedMember& listed : list_.members) {
    const auto missing = missing_.find(listed.id);
    const bool older_policy = std::any_of(set_held_->begin(), set_held_->end(), [&](const Entry& entry) {
      return entry.member->id == listed.id && entry.member->older_policy_looks != 0;
    });
    infos.push_back({.where = listed.where,
                     .state = missing != missing_.end() ? "lost"
                              : listed.leaving          ? "leaving"
                                                        : "filling",
                     .loss = missing != missing_.end() ? missing->second.loss : "",
                     .older_policy = older_policy});
  }
  if (infos.empty()) infos.push_back({.where = where_, .state = "filling"});
  return infos;
}

Result<KvStat> JoinedSpace::stat() {
  std::vector<KvMemberInfo> infos = members();
  KvStat sum;
  bool any = false;
  const Pass pass(gate_);
  for (const Entry& entry : current()) {
    if (entry.member->lost.load(std::memory_order_relaxed)) continue;
    Result<KvStat> told = entry.space().stat();
    if (!told.ok() && !lost_by(entry, told.error())) return told;
    if (!told.ok()) continue;
    any = true;
    if (entry.index < infos.size()) {
      KvMemberInfo& info = infos[entry.index];
      info.data_bytes = told->data_bytes;
      info.free_bytes = told->free_bytes;
      info.blocks = told->blocks;
      info.block_bytes = told->block_bytes;
    }
    add_stat(sum, std::move(*told), entry.index);
  }
  if (!any) return all_lost();
  sum.members = std::move(infos);
  return sum;
}

Status JoinedSpace::list(const std::function<bool(const KvBlockInfo&)>& each) {
  const Pass pass(gate_);
  bool any = false, more = true;
  for (const Entry& entry : current()) {
    if (entry.member->lost.load(std::memory_order_relaxed)) continue;
    const Status listed = entry.space().list([&](const KvBlockInfo& block) {
      KvBlockInfo told = block;
      told.member = entry.index;
      return more = each(told);
    });
    if (!listed.ok() && !lost_by(entry, listed.error())) return listed;
    any = any || listed.ok();
    if (!more) return {};
  }
  return any ? Status{} : Status(all_lost());
}

Result<KvVerified> JoinedSpace::verify() {
  const Pass pass(gate_);
  KvVerified sum;
  bool any = false;
  for (const Entry& entry : current()) {
    if (entry.member->lost.load(std::memory_order_relaxed)) continue;
    Result<KvVerified> told = entry.space().verify();
    if (!told.ok() && !lost_by(entry, told.error())) return told;
    if (!told.ok()) continue;
    any = true;
    sum.blocks += told->blocks;
    sum.bytes += told->bytes;
    sum.without_checksum += told->without_checksum;
    sum.changed += told->changed;
    for (KvBlockInfo& block : told->wrong) {
      block.member = entry.index;
      sum.wrong.push_back(std::move(block));
    }
  }
  if (!any) return all_lost();
  return sum;
}

}  // namespace terrace::kv
