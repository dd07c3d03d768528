// SPDX-License-Identifier: Apache-2.0
// JoinedSpace: its begin and end, and what it is asked about itself.
#include "libclient/kv/joined/joined_space.h"

#include <system_error>

#include "core/base/signals_blocked.h"

namespace terrace {

Result<std::unique_ptr<JoinedKvSpace>> JoinedKvSpace::attach(KvMemberMemory first, const std::string& where,
                                                             KvMembersOptions options) {
  auto space = std::make_unique<kv::JoinedSpace>(where, std::move(options));
  TERRACE_RETURN_IF_ERROR(space->begin(std::move(first)));
  return std::unique_ptr<JoinedKvSpace>(std::move(space));
}

namespace kv {

Error JoinedSpace::refuse(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = "JoinedKvSpace", .detail = "KV space: " + std::move(detail)};
}

Status JoinedSpace::begin(KvMemberMemory first) {
  {
    const MutexLock lock(look_mutex_);
    owns_ = first.ownership != nullptr;
    TERRACE_ASSIGN_OR_RETURN(auto member, map_member(where_, std::move(first)));
    const std::optional<MemberList> list = list_in(*member->space);
    if (list) {
      learn(*list);
      member->id = list->self;
    }
    publish({{.member = std::move(member), .salt = list ? list->self : 0}});
    look_now();
    if (set_held_->size() == 0) {
      std::string others;
      for (const ListedMember& one : list_.members) others += (others.empty() ? "" : ", ") + one.where;
      return refuse(ErrorCode::not_found,
                    "this member has left its space, and none of those that stay could be opened: " + others);
    }
  }
  start_looking();
  return {};
}

JoinedSpace::~JoinedSpace() {
  if (forked()) {
    (void)looker_.release();  // it is the parent's
    return;
  }
  if (looker_ == nullptr) return;
  {
    const MutexLock lock(looker_->mutex);
    looker_->ends = true;
  }
  looker_->wakes.notify_all();
  looker_->thread.join();
}

void JoinedSpace::start_looking() {
  if (!options_.attach.tends_itself) return;
  const SignalsBlocked blocked;
  auto looker = std::make_unique<Looker>();
  const auto body = [this, pause = std::chrono::nanoseconds(options_.look_ns), &state = *looker] {
    for (;;) {
      {
        const MutexLock lock(state.mutex);
        if (!state.ends) state.wakes.wait_for(state.mutex, pause);
        if (state.ends) return;
      }
      look();
    }
  };
  try {
    looker->thread = std::thread(body);
    looker_ = std::move(looker);
  } catch (const std::system_error&) {
    // No thread to be had: as with tends_itself = false.
  }
}

void JoinedSpace::tend() {
  if (forked()) return;
  {
    const Pass pass(gate_);
    for (const Entry& entry : current()) entry.space().tend();
  }
  if (looker_ == nullptr && clock_.now_ns() >= look_at_ns_.load(std::memory_order_relaxed)) look();
}

bool JoinedSpace::lost_by(const Entry& entry, const Error& error) const {
  if (error.code != ErrorCode::lease_expired) return false;
  if (!entry.member->lost.exchange(true, std::memory_order_relaxed))
    members_lost_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

Error JoinedSpace::all_lost() const {
  return Error{.code = ErrorCode::lease_expired,
               .where = "JoinedKvSpace",
               .detail = "KV space: the memory of all its members is gone"};
}

std::optional<uint32_t> JoinedSpace::part() const {
  const Pass pass(gate_);
  for (const Entry& entry : current())
    if (const auto part = entry.space().part()) return part;
  return std::nullopt;
}

// It serves as long as one member does.
Status JoinedSpace::health() const {
  const Pass pass(gate_);
  Status worst = all_lost();
  for (const Entry& entry : current()) {
    if (entry.member->lost.load(std::memory_order_relaxed)) continue;
    Status health = entry.space().health();
    if (health.ok()) return health;
    (void)lost_by(entry, health.error());
    worst = std::move(health);
  }
  return worst;
}

}  // namespace kv
}  // namespace terrace
