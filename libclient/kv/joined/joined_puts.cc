// SPDX-License-Identifier: Apache-2.0
// JoinedSpace: putting blocks. First free room, in the member that the key prefers or another one; then the worst
// blocks of the first member that this process has a part of.
//
// A process that has a part of one member takes one of another only where two are without an owner, and gives it back
// when there is none left (give_parts()): so each process gets one as long as there is one.
#include "libclient/kv/joined/joined_space.h"

namespace terrace::kv {

bool JoinedSpace::may_put_into(const MemberSet& set, const Entry& entry, uint64_t now_ns) const {
  constexpr uint32_t leaves_one = 2;
  Member& member = *entry.member;
  if (entry.leaving || member.lost.load(std::memory_order_relaxed)) return false;
  if (member.has_part()) return true;
  if (now_ns < member.no_part_until_ns.load(std::memory_order_relaxed)) return false;
  const bool has_another =
      std::any_of(set.begin(), set.end(), [](const Entry& other) { return other.member->has_part(); });
  return !has_another || member.spare_parts.load(std::memory_order_relaxed) >= leaves_one;
}

// Nothing: another member may do it. `why`: the error to give if none does.
template <typename Begin>
std::optional<Result<KvWrite>> JoinedSpace::try_to_begin(const MemberSet&, const Entry& entry, Begin begin,
                                                         std::optional<Error>* why) {
  constexpr uint64_t no_part_ns = 1'000'000'000, full_ns = 10'000'000;
  Result<KvWrite> writing = begin(entry.space());
  if (writing.ok()) return writing;
  const Error& error = writing.error();
  if (lost_by(entry, error)) return std::nullopt;
  const uint64_t now_ns = clock_.now_ns();
  switch (error.code) {
    case ErrorCode::busy:
      entry.member->no_part_until_ns.store(now_ns + no_part_ns, std::memory_order_relaxed);
      break;
    case ErrorCode::capacity_exhausted:
      entry.member->full_until_ns.store(now_ns + full_ns, std::memory_order_relaxed);
      break;
    case ErrorCode::limit_exceeded: break;  // of this member: its blocks, or its share of a budget
    default: return writing;
  }
  // No room, now, says more than no part.
  if (!*why || (*why)->code == ErrorCode::busy) *why = error;
  return std::nullopt;
}

Result<KvWrite> JoinedSpace::begin_put(const KvNamespace& name_space, std::string_view key, uint64_t bytes,
                                       const KvPutOptions& options) {
  uint64_t waited_ns = 0;
  return begin(name_space, key, bytes, options, &waited_ns);
}

Result<KvWrite> JoinedSpace::begin(const KvNamespace& name_space, std::string_view key, uint64_t bytes,
                                   const KvPutOptions& options, uint64_t* waited_ns) {
  const Pass pass(gate_);
  const MemberSet& set = current();
  if (set.alone()) {
    Result<KvWrite> writing = set[0].space().begin_put(name_space, key, bytes, options);
    if (!writing.ok()) (void)lost_by(set[0], writing.error());
    return writing;
  }
  if (set.size() == 0) return all_lost();
  bool there = false;
  TERRACE_RETURN_IF_ERROR(exists(name_space, std::span(&key, 1), std::span(&there, 1)));
  if (there)
    return Error{.code = ErrorCode::already_exists, .where = "KvSpace", .detail = "the block is there already"};
  const size_t preferred = set.preferred(key_of(name_space, key));
  const uint64_t now_ns = clock_.now_ns();
  std::optional<Error> why;
  for (size_t step = 0; step < set.size(); ++step) {
    const Entry& entry = set[set.behind(preferred, step)];
    if (!may_put_into(set, entry, now_ns) ||
        now_ns < entry.member->full_until_ns.load(std::memory_order_relaxed))
      continue;
    auto writing = try_to_begin(
        set, entry,
        [&](MemberKvSpace& space) { return space.begin_put_in_free_room(name_space, key, bytes, options); },
        &why);
    if (writing) return std::move(*writing);
  }
  KvPutOptions waits = options;
  waits.wait_ns -= std::min(waits.wait_ns, *waited_ns);
  for (size_t step = 0; step < set.size(); ++step) {
    const Entry& entry = set[set.behind(preferred, step)];
    if (!may_put_into(set, entry, now_ns)) continue;
    const uint64_t begin_ns = clock_.now_ns();
    auto writing = try_to_begin(
        set, entry, [&](MemberKvSpace& space) { return space.begin_put(name_space, key, bytes, waits); }, &why);
    if (waits.wait_ns != 0) *waited_ns += clock_.now_ns() - begin_ns;
    if (writing) return std::move(*writing);
    if (waits.wait_ns == 0) refused_twice_.fetch_add(1, std::memory_order_relaxed);
    waits.wait_ns = 0;
  }
  if (why) return std::move(*why);
  const bool any = std::any_of(set.begin(), set.end(), [](const Entry& entry) { return !entry.member->lost; });
  if (!any) return all_lost();
  return refuse(ErrorCode::busy,
                "none of its members has a part for this holder now; end another holder that puts, or "
                "let it grow by a member");
}

Status JoinedSpace::put(const KvNamespace& name_space, const KvPut& put) {
  {
    const Pass pass(gate_);
    const MemberSet& set = current();
    if (set.alone()) {
      Status done = set[0].space().put(name_space, put);
      if (!done.ok()) (void)lost_by(set[0], done.error());
      return done;
    }
  }
  uint64_t waited_ns = 0;
  return put_one(name_space, put, &waited_ns);
}

Status JoinedSpace::put_one(const KvNamespace& name_space, const KvPut& put, uint64_t* waited_ns) {
  for (;;) {
    TERRACE_ASSIGN_OR_RETURN(KvWrite writing,
                             begin(name_space, put.key, put.bytes.size(), put.options, waited_ns));
    Status done = writing.fill(put.bytes);
    if (done.ok()) done = writing.publish();
    // Its member's memory went in between, which health() finds out: another one takes it.
    if (done.ok() || done.error().code != ErrorCode::lease_expired || !find_lost() || !health().ok())
      return done;
  }
}

// Whether a member is lost that was not known to be.
bool JoinedSpace::find_lost() {
  const Pass pass(gate_);
  bool any = false;
  for (const Entry& entry : current()) {
    if (entry.member->lost.load(std::memory_order_relaxed)) continue;
    const Status health = entry.space().health();
    any = (!health.ok() && lost_by(entry, health.error())) || any;
  }
  return any;
}

std::vector<Status> JoinedSpace::put_many(const KvNamespace& name_space, std::span<const KvPut> puts) {
  {
    const Pass pass(gate_);
    const MemberSet& set = current();
    if (set.alone()) {
      std::vector<Status> done = set[0].space().put_many(name_space, puts);
      for (const Status& one : done)
        if (!one.ok()) (void)lost_by(set[0], one.error());
      return done;
    }
  }
  std::vector<Status> results;
  results.reserve(puts.size());
  uint64_t waited_ns = 0;
  for (const KvPut& one : puts) results.push_back(put_one(name_space, one, &waited_ns));
  return results;
}

}  // namespace terrace::kv
