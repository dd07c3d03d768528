// SPDX-License-Identifier: Apache-2.0
// JoinedSpace: making a member leave.
//
//   step                                                       what a crash leaves
//   the list says that it is leaving; two looks pass           a member that takes no new blocks; again, or grow()
//   its blocks are copied into free room of the others         copies: the same block twice
//   those that came meanwhile, too
//   a list without it, in all others and in it                 all of it, or the step before
//   holders let go of it                                       done
//
// A block stays where it is until its member is gone, so nobody misses it meanwhile. One that is erased must not come back
// by its copy: who made the copy looks whether the block is there still, and erases the copy if not.
#include <thread>
#include <unordered_set>

#include "libclient/kv/joined/joined_space.h"

namespace terrace::kv {

// Each holder has looked at the list since.
void JoinedSpace::wait_for_looks() {
  constexpr uint64_t more_ns = 200'000'000;
  const uint64_t end_ns = clock_.now_ns() + 2 * options_.look_ns + more_ns;
  while (clock_.now_ns() < end_ns) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    tend_members();
  }
}

// Others may wait for this holder while it waits, and it may have no thread for them.
void JoinedSpace::tend_members() {
  const Pass pass(gate_);
  for (const Entry& entry : current()) entry.space().tend();
}

Status JoinedSpace::move_block(Member& from, const Block& block, KvShrunk* shrunk) {
  std::vector<std::byte> bytes;
  const std::optional<Names> said = from.space->copy_out(block, &bytes);
  if (!said) return {};  // gone, or not worth it
  const Result<KvNamespace> name_space = KvNamespace::of(said->name_space);
  if (!name_space.ok()) return {};
  const std::string_view key = said->key;
  const Pass pass(gate_);
  const MemberSet& set = current();
  for (const Entry& entry : set) {
    bool there = false;
    if (entry.member.get() == &from || entry.leaving || entry.member->lost) continue;
    if (entry.space().exists_here(std::span(&block.key, 1), std::span(&there, 1)).ok() && there) return {};
  }
  const size_t preferred = set.preferred(block.key);
  Status worst = refuse(ErrorCode::capacity_exhausted, "no other member");
  for (size_t step = 0; step < set.size(); ++step) {
    const Entry& entry = set[set.behind(preferred, step)];
    if (entry.member.get() == &from || entry.leaving || entry.member->lost) continue;
    worst = entry.space().put_copy(*said, block, bytes);
    if (worst.ok()) {
      shrunk->moved += 1;
      shrunk->moved_bytes += block.bytes;
      if (!from.space->is_still(block)) (void)entry.space().erase(*name_space, key);
      return {};
    }
    if (worst.error().code == ErrorCode::already_exists) return {};
    (void)lost_by(entry, worst.error());
  }
  return worst;
}

// Until a round finds none that it has not tried.
Status JoinedSpace::move_blocks(Member& from, KvShrunk* shrunk) {
  constexpr int rounds = 4;
  struct Hash {
    size_t operator()(const BlockKey& key) const { return key.low; }
  };
  std::unordered_set<BlockKey, Hash> tried;
  shrunk->left_behind = 0;
  for (int round = 0; round < rounds; ++round) {
    bool any = false;
    for (const Block& block : from.space->blocks_by_worth()) {
      if (!tried.insert(block.key).second) continue;
      any = true;
      const Status moved = move_block(from, block, shrunk);
      if (moved.ok()) continue;
      if (from.lost || !from.space->health().ok()) return {};  // what is gone cannot be moved
      ++shrunk->left_behind;
    }
    if (!any) break;
  }
  return {};
}

// How many are left of those who own a part or a seat of it.
uint32_t JoinedSpace::wait_for_holders(const std::string& where, uint64_t deadline_ns) {
  constexpr auto pause = std::chrono::milliseconds(20);
  if (!options_.open) return 0;
  const Result<KvMemberMemory> memory = options_.open(where);
  if (!memory.ok()) return 0;  // it is gone: nobody has it
  const Result<std::unique_ptr<MemberKvSpace>> space =
      attach_member(memory->bytes, {.ownership = memory->ownership, .puts = false, .tends_itself = false});
  if (!space.ok()) return 0;
  for (;;) {
    look();  // lets go of it, too
    const uint32_t holders = (*space)->other_holders();
    if (holders == 0 || !(*space)->health().ok()) return 0;
    if (clock_.now_ns() >= deadline_ns) return holders;
    std::this_thread::sleep_for(pause);
    tend_members();
  }
}

Result<KvShrunk> JoinedSpace::shrink(const std::string& where, uint64_t wait_ns) {
  if (forked()) return refuse(ErrorCode::unavailable, "it belongs to the process that forked this one");
  const MutexLock lock(edit_mutex_);
  KvShrunk shrunk;
  std::shared_ptr<Member> member;
  uint64_t id = 0;
  {
    const MutexLock look_lock(look_mutex_);
    look_now();
    const ListedMember* const listed = list_.find(where);
    if (listed != nullptr) id = listed->id;
    for (const Entry& entry : *set_held_)
      if (entry.member->id == id && id != 0) member = entry.member;
    const bool others = std::any_of(list_.members.begin(), list_.members.end(),
                                    [&](const ListedMember& one) TERRACE_REQUIRES(look_mutex_) {
                                      return one.id != id && !one.leaving && missing_.count(one.id) == 0;
                                    });
    if (listed != nullptr && !others)
      return refuse(
          ErrorCode::invalid_argument,
          where + " is the last member that stays; let the space grow first, or release it as a whole");
  }
  if (id == 0) {
    TERRACE_RETURN_IF_ERROR(check_has_left(where));
  } else {
    const auto leave = [&](MemberList& list) -> Status {
      for (ListedMember& one : list.members) one.leaving = one.leaving || one.id == id;
      return {};
    };
    if (member != nullptr) {
      TERRACE_RETURN_IF_ERROR(edit(leave, nullptr));
      wait_for_looks();
      TERRACE_RETURN_IF_ERROR(move_blocks(*member, &shrunk));
    }
    const auto go = [&](MemberList& list) -> Status {
      std::erase_if(list.members, [&](const ListedMember& one) { return one.id == id; });
      return {};
    };
    TERRACE_RETURN_IF_ERROR(edit(go, nullptr));
    member.reset();
  }
  const uint64_t now_ns = clock_.now_ns();
  shrunk.holders = wait_for_holders(where, wait_ns > UINT64_MAX - now_ns ? UINT64_MAX : now_ns + wait_ns);
  return shrunk;
}

// For who says it again: what is there was a member.
Status JoinedSpace::check_has_left(const std::string& where) {
  uint64_t space = 0;
  {
    const MutexLock look_lock(look_mutex_);
    space = list_.space;
  }
  if (options_.open && space != 0) {
    const Result<KvMemberMemory> memory = options_.open(where);
    const auto there = memory.ok() ? attach_member(memory->bytes, {.tends_itself = false})
                                   : Result<std::unique_ptr<MemberKvSpace>>(memory.error());
    const std::optional<MemberList> list = there.ok() ? list_in(**there) : std::nullopt;
    if (list && list->space == space) return {};
  }
  return refuse(ErrorCode::not_found, where + " is no member of it");
}

}  // namespace terrace::kv
