// SPDX-License-Identifier: Apache-2.0
// JoinedSpace: writing lists of members, and growing by one.
//
//   one list          what a crash leaves
//   put under the key of generation G mod 2                     the older list, or both, of which the newer counts
//   the other key's, which is older, is erased                  both
//
// All members have a copy, and any of them tells the others: holders that own a part of a member with an older one write
// the newer one there (repair_lists()).
//
// Who edits has a block of member_edit_key in its part of each member meanwhile (lock_lists()), which counts as long as it lives.
// Where that fails, a list of the same generation under the same key, or a newer one, makes it begin anew from that.
#include <algorithm>
#include <thread>

#include "core/base/prng.h"
#include "core/os/fault_guard.h"
#include "libclient/kv/joined/joined_space.h"
#include "libclient/kv/kv_base.h"

namespace terrace::kv {
namespace {

constexpr uint64_t edit_wait_ns = 30'000'000'000;
constexpr uint64_t write_wait_ns = 2'000'000'000;

uint64_t random_id() {
  return std::max<uint64_t>(1, secure_random_u64());
}

bool is_blank(std::span<const std::byte> memory) {
  const std::span<const std::byte> begin = memory.first(std::min<size_t>(memory.size(), 4096));
  bool blank = false;
  const auto look = [&] {
    blank = std::all_of(begin.begin(), begin.end(), [](std::byte byte) { return byte == std::byte{0}; });
  };
  return os::guarded({begin}, look) && blank;
}

}  // namespace

// Two who edit wait for each other's part at times: each does meanwhile what others ask of it, also without a thread for that.
Status JoinedSpace::erase_list(MemberKvSpace& space, size_t slot) {
  constexpr uint64_t slice_ns = 10'000'000;
  const uint64_t end_ns = clock_.now_ns() + write_wait_ns;
  for (;;) {
    Status erased = space.erase(KvSpaceBase::own_name_space(), member_list_key(slot), slice_ns);
    if (erased.ok() || erased.error().code != ErrorCode::busy || clock_.now_ns() >= end_ns) return erased;
    for (const Entry& entry : *set_held_) entry.space().tend();
  }
}

// Errors    already_exists  another edit was there first; others of put() and erase()
Status JoinedSpace::write_list(MemberKvSpace& space, MemberList list, uint64_t self) {
  const KvNamespace& own = KvSpaceBase::own_name_space();
  list.self = self;
  const size_t slot = list.generation % 2;
  const std::optional<MemberList> there = list_in_slot(space, slot);
  const bool is_it = there && there->generation == list.generation && there->edit == list.edit;
  if (there && there->space == list.space && !is_it && !list.is_newer_than(*there))
    return refuse(ErrorCode::already_exists, "another change of the list of members was first");
  if (!is_it) {
    // One that was left there, by who died between the two steps.
    const Status left = erase_list(space, slot);
    if (!left.ok() && left.error().code != ErrorCode::not_found) return left;
    const std::string text = text_of(list);
    TERRACE_RETURN_IF_ERROR(space.put(own, {.key = member_list_key(slot),
                                            .bytes = std::as_bytes(std::span(text.data(), text.size())),
                                            .options = {.wait_ns = write_wait_ns, .checksum = true}}));
  }
  (void)erase_list(space, 1 - slot);  // it is older: it counts no longer
  return {};
}

// In every member that has a part for it: who sees another one there gives way. Each puts before it looks, so of two at once
// one at least sees the other. What the dead left does not count.
// Errors    already_exists  another one is editing; busy  no member has a part for it
Status JoinedSpace::lock_lists(std::vector<Entry>* locked) {
  const KvNamespace& own = KvSpaceBase::own_name_space();
  const std::byte mark{1};
  std::optional<Error> why;
  for (const Entry& entry : *set_held_) {
    MemberKvSpace& space = entry.space();
    const auto put = [&] {
      return space.put(own, {.key = member_edit_key,
                             .bytes = std::span(&mark, 1),
                             .options = {.wait_ns = write_wait_ns, .checksum = true}});
    };
    Status done = put();
    if (!done.ok() && done.error().code == ErrorCode::already_exists && !space.other_has_own(member_edit_key)) {
      (void)space.erase(own, member_edit_key, write_wait_ns);
      done = put();
    }
    if (done.ok()) locked->push_back(entry);
    if (done.ok() ? space.other_has_own(member_edit_key) : done.error().code == ErrorCode::already_exists)
      return refuse(ErrorCode::already_exists, "another holder changes its list of members now");
    if (!done.ok() && !lost_by(entry, done.error())) {
      why = done.error();
      why->detail += " (the list of members, in " + entry.member->where + ")";
    }
  }
  if (locked->empty()) return why ? std::move(*why) : all_lost();
  return {};
}

void JoinedSpace::unlock_lists(const std::vector<Entry>& locked) {
  for (const Entry& entry : locked)
    (void)entry.space().erase(KvSpaceBase::own_name_space(), member_edit_key, write_wait_ns);
}

Status JoinedSpace::edit(const Change& change, Member* fresh) {
  const uint64_t end_ns = clock_.now_ns() + edit_wait_ns;
  for (;;) {
    Status done;
    {
      const MutexLock lock(look_mutex_);
      look_now();
      std::vector<Entry> locked;
      done = lock_lists(&locked);
      if (done.ok()) done = edit_locked(change, fresh);
      unlock_lists(locked);
    }
    if (done.ok() || done.error().code != ErrorCode::already_exists) return done;
    if (clock_.now_ns() >= end_ns)
      return refuse(ErrorCode::busy,
                    "its list of members is being changed all the time, or who changes it is stopped");
    std::this_thread::sleep_for(std::chrono::milliseconds(5 + random_id() % 50));
    tend_members();
  }
}

Status JoinedSpace::edit_locked(const Change& change, Member* fresh) {
  look_now();
  if (set_held_->size() == 0) return all_lost();
  MemberList next = list_;
  const uint64_t first_id = random_id();
  if (next.generation == 0) {
    TERRACE_RETURN_IF_ERROR(check_where(where_));
    next.space = random_id();
    next.members = {{.id = first_id, .where = where_}};
  }
  TERRACE_RETURN_IF_ERROR(change(next));
  ++next.generation;
  next.edit = random_id();
  if (fresh != nullptr) TERRACE_RETURN_IF_ERROR(write_list(*fresh->space, next, fresh->id));
  bool written = false;
  std::optional<Error> why;
  for (const Entry& entry : *set_held_) {
    const uint64_t id = entry.member->id != 0 ? entry.member->id.load() : first_id;
    const Status put = write_list(entry.space(), next, id);
    written = written || put.ok();
    if (put.ok() || lost_by(entry, put.error())) continue;
    if (put.error().code == ErrorCode::already_exists) return put;
    why = put.error();
    why->detail += " (the list of members, in " + entry.member->where + ")";
  }
  if (!written) return why ? std::move(*why) : all_lost();
  look_now();
  if (list_.generation == next.generation && list_.edit == next.edit) return {};
  return refuse(ErrorCode::already_exists, "another change of the list of members was first");
}

// A member that is not one yet: empty, formatted as the others are.
Result<std::shared_ptr<Member>> JoinedSpace::new_member(const std::string& where) {
  if (!options_.open)
    return refuse(ErrorCode::invalid_argument, "this holder was not told how to open other members");
  KvFormatOptions as_others;
  {
    const Pass pass(gate_);
    const MemberSet& set = current();
    if (set.size() == 0) return all_lost();
    TERRACE_ASSIGN_OR_RETURN(as_others, format_options_of(set[0].member->memory.bytes));
  }
  TERRACE_ASSIGN_OR_RETURN(KvMemberMemory memory, options_.open(where));
  Result<std::shared_ptr<Member>> there = map_member(where, memory);
  bool formats = !there.ok() && there.error().code == ErrorCode::not_found;
  if (formats && !is_blank(memory.bytes))
    return refuse(ErrorCode::already_exists,
                  where + " has bytes of something else; empty it, or give other memory");
  if (!there.ok() && !formats) return there;
  if (there.ok()) {
    const std::optional<MemberList> list = list_in(*(*there)->space);
    TERRACE_ASSIGN_OR_RETURN(const KvStat stat, (*there)->space->stat());
    uint64_t space = 0;
    {
      const MutexLock lock(look_mutex_);
      space = list_.space;
    }
    if (list && list->space == space && list->find(list->self) != nullptr) {
      (*there)->id = list->self;  // a growth that was broken off
      return there;
    }
    if (list ? list->space != space : stat.blocks != 0)
      return refuse(ErrorCode::already_exists,
                    where + " has a KV space of its own, with " + std::to_string(stat.blocks) +
                        " blocks; flush it and format it with --force, or give other memory");
    // It left. What it had then may have been erased since.
    if (list && (*there)->space->other_holders() != 0)
      return refuse(ErrorCode::busy, where + " has left this space, and holders still have it; try again");
    formats = list.has_value();
    if (formats) there = Error{.code = ErrorCode::not_found, .where = "JoinedKvSpace", .detail = ""};
  }
  if (formats) {
    if (memory.ownership != nullptr) as_others.ownership = memory.ownership->kind();
    as_others.lease_epoch = memory.lease_epoch;
    TERRACE_RETURN_IF_ERROR(KvSpace::format(memory.bytes, as_others));
    there = map_member(where, std::move(memory));
  }
  if (there.ok()) (*there)->id = random_id();
  return there;
}

// That of the others, of their generation: one that is set meanwhile is newer.
Status JoinedSpace::give_policy(Member& fresh) {
  const Pass pass(gate_);
  std::optional<PolicyText> of_others = newest_policy(current());
  const std::optional<PolicyText> there = fresh.space->policy_text();
  if (!of_others || !there || of_others->policy == there->policy) return {};
  if (!of_others->is_newer_than(*there))
    of_others->generation = next_policy_generation(there->generation, KvSpaceBase::now_unix_ms());
  return fresh.space->put_policy(*of_others, write_wait_ns);
}

Status JoinedSpace::grow(const std::string& where) {
  if (forked()) return refuse(ErrorCode::unavailable, "it belongs to the process that forked this one");
  TERRACE_RETURN_IF_ERROR(check_where(where));
  const MutexLock lock(edit_mutex_);
  bool is_member = false;
  {
    const MutexLock look_lock(look_mutex_);
    look_now();
    const ListedMember* const listed = list_.find(where);
    is_member = list_.generation == 0 ? where == where_ : listed != nullptr && missing_.count(listed->id) == 0;
  }
  std::shared_ptr<Member> fresh;
  if (!is_member) {
    TERRACE_ASSIGN_OR_RETURN(fresh, new_member(where));
    TERRACE_RETURN_IF_ERROR(give_policy(*fresh));
  }
  const auto add = [&](MemberList& list) -> Status {
    // Also where it was lost: it is another one now.
    std::erase_if(list.members, [&](const ListedMember& one) {
      return fresh != nullptr && one.where == where && one.id != fresh->id;
    });
    for (ListedMember& one : list.members)
      if (one.where == where || (fresh != nullptr && one.id == fresh->id)) {
        one.leaving = false;
        return {};
      }
    if (list.members.size() >= kv_members_max)
      return refuse(ErrorCode::limit_exceeded,
                    "a space has at most " + std::to_string(kv_members_max) + " members");
    list.members.push_back({.id = fresh->id, .where = where});
    return {};
  };
  return edit(add, fresh.get());
}

}  // namespace terrace::kv
