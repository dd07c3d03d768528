// SPDX-License-Identifier: Apache-2.0
// JoinedSpace: who its members are, as the newest list says that any of them has.
#include "libclient/kv/joined/joined_space.h"

namespace terrace::kv {

void JoinedSpace::look() {
  if (forked()) return;
  const MutexLock lock(look_mutex_);
  look_now();
}

void JoinedSpace::look_now() {
  look_at_ns_.store(clock_.now_ns() + options_.look_ns, std::memory_order_relaxed);
  free_departed();
  drop_lost();
  learn_lists();
  if (list_.generation != 0) follow_list();
  repair_lists();
  repair_policies();
  give_parts();
  for (const Entry& entry : *set_held_) {
    entry.member->spare_parts.store(set_held_->alone() ? 0 : entry.space().parts_without_owner(),
                                    std::memory_order_relaxed);
    entry.space().share_budgets(set_held_->alone() ? 0 : set_held_->data_bytes());
  }
  free_departed();
}

std::optional<MemberList> JoinedSpace::list_in_slot(MemberKvSpace& space, size_t slot) {
  const std::optional<std::string> text = space.read_own(member_list_key(slot));
  return text ? member_list_of(*text) : std::nullopt;
}

// Between the looks at two keys the one there was may have gone and the next one come.
std::optional<MemberList> JoinedSpace::list_in(MemberKvSpace& space) {
  for (int attempt = 0; attempt < 4; ++attempt) {
    std::optional<MemberList> newest = list_in_slot(space, 0), other = list_in_slot(space, 1);
    if (other && (!newest || other->is_newer_than(*newest))) newest = std::move(other);
    if (newest) return newest;
  }
  return std::nullopt;
}

void JoinedSpace::learn(const MemberList& list) {
  if (list_.space != 0 && list.space != list_.space) return;
  if (list_.space == 0 || list.is_newer_than(list_)) list_ = list;
}

void JoinedSpace::learn_lists() {
  std::vector<std::pair<Member*, MemberList>> copies;
  for (const Entry& entry : *set_held_) {
    const std::optional<MemberList> copy = list_in(entry.space());
    if (!copy || (list_.space != 0 && copy->space != list_.space)) continue;
    learn(*copy);
    if (entry.member->id == 0) entry.member->id = copy->self;
    copies.emplace_back(entry.member.get(), *copy);
  }
  for (const Entry& entry : *set_held_) {
    const bool fresh =
        std::any_of(copies.begin(), copies.end(), [&](const auto& one) TERRACE_REQUIRES(look_mutex_) {
          return one.first == entry.member.get() && !list_.is_newer_than(one.second);
        });
    entry.member->stale_looks = fresh || list_.generation == 0 ? 0 : entry.member->stale_looks + 1;
  }
}

// Who has a part of a member whose list is an older one puts the newer one there.
void JoinedSpace::repair_lists() {
  constexpr uint32_t others_may_do_it = 2;
  for (const Entry& entry : *set_held_)
    if (entry.member->stale_looks > others_may_do_it && entry.member->has_part() && entry.member->id != 0)
      (void)write_list(entry.space(), list_, entry.member->id);
}

// The same of the policy, of which one that was set by who died, or did not reach all, is in some of them.
void JoinedSpace::repair_policies() {
  constexpr uint32_t others_may_do_it = 2;
  constexpr uint64_t wait_ns = 10'000'000;
  if (set_held_->alone()) return;
  const std::optional<PolicyText> newest = newest_policy(*set_held_);
  for (const Entry& entry : *set_held_) {
    const std::optional<PolicyText> there = entry.space().policy_text();
    const bool older = newest && there && there->policy != newest->policy;
    entry.member->older_policy_looks = older ? entry.member->older_policy_looks + 1 : 0;
    if (entry.member->older_policy_looks <= others_may_do_it || !entry.member->has_part()) continue;
    if (entry.space().put_policy(*newest, wait_ns).ok()) entry.member->older_policy_looks = 0;
  }
}

Result<std::shared_ptr<Member>> JoinedSpace::map_member(const std::string& where, KvMemberMemory memory) {
  KvAttachOptions options = options_.attach;
  options.ownership = owns_ ? memory.ownership : nullptr;
  auto member = std::make_shared<Member>();
  member->where = where;
  member->memory = std::move(memory);
  TERRACE_ASSIGN_OR_RETURN(member->space, attach_member(member->memory.bytes, std::move(options)));
  TERRACE_ASSIGN_OR_RETURN(member->data_bytes, data_bytes_of(member->memory.bytes));
  return member;
}

// The mapped member of that id; else it is opened, if it was not tried a moment ago. nullptr: it is lost.
std::shared_ptr<Member> JoinedSpace::mapped(const ListedMember& listed) {
  constexpr uint64_t pause_ns = 2'000'000'000;
  for (const Entry& entry : *set_held_)
    if (entry.member->id == listed.id) return entry.member;
  const auto known = missing_.find(listed.id);
  if (known != missing_.end() && clock_.now_ns() < known->second.again_at_ns) return nullptr;
  std::string loss = "nobody said how to open it";
  if (options_.open) {
    Result<KvMemberMemory> memory = options_.open(listed.where);
    Result<std::shared_ptr<Member>> member = memory.ok() ? map_member(listed.where, std::move(*memory))
                                                         : Result<std::shared_ptr<Member>>(memory.error());
    if (member.ok()) {
      const std::optional<MemberList> copy = list_in(*(*member)->space);
      if (copy) learn(*copy);
      if (copy && copy->self == listed.id && copy->space == list_.space) {
        (*member)->id = listed.id;
        members_joined_.fetch_add(1, std::memory_order_relaxed);
        return *member;
      }
      loss = "what is there now is not this member";
    } else {
      loss = member.error().detail.empty() ? member.error().to_string() : member.error().detail;
    }
  }
  missing_[listed.id] = {.loss = std::move(loss), .again_at_ns = clock_.now_ns() + pause_ns};
  return nullptr;
}

// A member that is opened may have a newer list.
void JoinedSpace::follow_list() {
  constexpr int rounds = 8;
  for (int round = 0; round < rounds; ++round) {
    const MemberList followed = list_;
    std::vector<Entry> entries;
    for (uint32_t index = 0; index < followed.members.size(); ++index) {
      const ListedMember& listed = followed.members[index];
      std::shared_ptr<Member> member = mapped(listed);
      if (member == nullptr) continue;
      missing_.erase(listed.id);
      entries.push_back(
          {.member = std::move(member), .leaving = listed.leaving, .salt = listed.id, .index = index});
    }
    publish(std::move(entries));
    if (!list_.is_newer_than(followed)) break;
  }
  std::erase_if(missing_, [&](const auto& one)
                              TERRACE_NO_THREAD_SAFETY_ANALYSIS { return list_.find(one.first) == nullptr; });
}

void JoinedSpace::publish(std::vector<Entry> entries) {
  const auto same = [](const Entry& one, const Entry& other) {
    return one.member == other.member && one.leaving == other.leaving && one.salt == other.salt &&
           one.index == other.index;
  };
  if (set_held_ != nullptr &&
      std::equal(entries.begin(), entries.end(), set_held_->begin(), set_held_->end(), same))
    return;
  auto next = std::make_unique<const MemberSet>(std::move(entries));
  if (set_held_ != nullptr) {
    for (const Entry& entry : *set_held_)
      if (std::none_of(next->begin(), next->end(),
                       [&](const Entry& one) { return one.member == entry.member; }))
        departed_.push_back(entry.member);
    retired_.push_back(std::move(set_held_));
  }
  set_held_ = std::move(next);
  // seq_cst: before the looks of wait_for_earlier(); pairs with current()
  current_.store(set_held_.get(), std::memory_order_seq_cst);
}

// Those whose memory is gone. What is in them stays mapped as long as views are.
void JoinedSpace::drop_lost() {
  constexpr uint64_t pause_ns = 2'000'000'000;
  std::vector<Entry> entries;
  for (const Entry& entry : *set_held_) {
    const Status health = entry.space().health();
    if (health.ok()) {
      entries.push_back(entry);
      continue;
    }
    (void)lost_by(entry, health.error());
    if (const uint64_t id = entry.member->id; id != 0)
      missing_[id] = {.loss = health.error().detail, .again_at_ns = clock_.now_ns() + pause_ns};
  }
  // The last one stays, to say what became of it.
  if (!entries.empty() || list_.members.size() > 1) publish(std::move(entries));
}

// What no call and no view uses any more. Others wait for its part.
void JoinedSpace::free_departed() {
  constexpr uint64_t patience_ns = 20'000'000;
  if (!retired_.empty()) {
    const uint64_t end_ns = clock_.now_ns() + patience_ns;
    if (!gate_.wait_for_earlier([&] { return clock_.now_ns() < end_ns; })) return;
    retired_.clear();
  }
  std::erase_if(departed_, [this](const std::shared_ptr<Member>& member) TERRACE_NO_THREAD_SAFETY_ANALYSIS {
    if (member->space->handles() != 0) return false;
    const KvCounters of = member->space->counters();
    add_counters(departed_counters_, of);
    return true;
  });
}

// A part beside another one, in a member that has none without an owner: the holder attaches there again, without one.
void JoinedSpace::give_parts() {
  if (set_held_->alone()) return;
  size_t parts = 0;
  for (const Entry& entry : *set_held_) parts += entry.member->has_part() ? 1 : 0;
  std::vector<Entry> entries(set_held_->begin(), set_held_->end());
  for (Entry& entry : entries) {
    if (parts < 2 || !entry.member->has_part() || entry.space().parts_without_owner() != 0) continue;
    Result<std::shared_ptr<Member>> again = map_member(entry.member->where, entry.member->memory);
    if (!again.ok()) continue;
    (*again)->id = entry.member->id.load();
    (*again)->no_part_until_ns = clock_.now_ns() + options_.look_ns;
    entry.member = std::move(*again);
    --parts;
  }
  publish(std::move(entries));
}

}  // namespace terrace::kv
