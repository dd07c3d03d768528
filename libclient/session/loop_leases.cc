// SPDX-License-Identifier: Apache-2.0
// Loop: the leases held by this process: attached again after a reconnect, renewed in time, and lost.
#include <algorithm>
#include <utility>

#include "core/base/limits.h"
#include "core/base/units.h"
#include "libclient/session/loop.h"
#include "libclient/session/loop_templates.h"
#include "libclient/session/wire.h"

namespace terrace::client {
namespace {

using Failures = std::vector<std::pair<uint64_t, Error>>;

constexpr const char* renew_where = "Session: renewing leases";
constexpr uint64_t renewal_retry_ns = 1 * ns_per_s;
constexpr uint64_t renewal_timeout_ns_min = 1 * ns_per_s;
constexpr size_t early_notices_max = 1024;  // attaches on their way at once; more are told without a grace

}  // namespace

Error Loop::timeout_error(const char* where) const {
  std::string detail = "the manager at " + options_.socket_path + " did not answer in time";
  if (!ready_ && last_error_.code != ErrorCode::ok) detail += "; last: " + last_error_.detail;
  return {ErrorCode::unavailable, 0, where, std::move(detail)};
}

// Resolves with what the manager says of this lease. Rejects only when the connection breaks.
kj::Promise<Status> Loop::attach_again(uint64_t handle) {
  constexpr const char* where = "Session: attaching a lease again";
  const Held* found = held_.find(handle);
  if (found == nullptr) return Status{};
  auto call = connection_->session.attachRequest();
  call.setLease(found->facts.id.value);
  call.setAccess(static_cast<rpc::Access>(found->facts.access));
  call.setEndsWithHolders(found->ends_with_holders);
  agree_on_wire(found->facts.on_fence, call);
  return call.send().then(
      [this, handle](capnp::Response<rpc::TenantSession::AttachResults>&& reply) -> kj::Promise<Status> {
        const Held* held = held_.find(handle);
        if (held == nullptr) return Status{};  // its last caller let go meanwhile
        if (Error error = error_from_wire(reply.getError(), where); error.code != ErrorCode::ok) {
          if (says_gone(error)) lose(LeaseId{held->facts.id}, error);
          return Status(std::move(error));
        }
        return confirm(handle, reply.getInfo(), reply.getLease());
      });
}

// One after the other: a process with thousands of leases stays far below the manager's bound on outstanding
// calls. One that could not be attached for a passing reason is tried again when it is next used.
kj::Promise<void> Loop::attach_all_again(std::shared_ptr<std::vector<uint64_t>> handles, size_t next) {
  if (next == handles->size()) return kj::READY_NOW;
  auto attempt = attach_again((*handles)[next]);
  return timer_.timeoutAfter(options_.connect_timeout_ns * kj::NANOSECONDS, kj::mv(attempt))
      .then([this, handles, next](Status) { return attach_all_again(handles, next + 1); });
}

kj::Promise<Result<rpc::Lease::Client>> Loop::capability_of(uint64_t handle, const char* where) {
  using Found = Result<rpc::Lease::Client>;
  Held* held = held_.find(handle);
  if (held == nullptr) return Found(Error{ErrorCode::lease_expired, 0, where, "the lease is no longer held"});
  if (held->capability.has_value()) return Found(*held->capability);
  return attach_again(handle).then([this, handle, where](Status status) -> Found {
    if (!status.ok()) return std::move(status).error();
    Held* again = held_.find(handle);
    if (again == nullptr || !again->capability.has_value())
      return Error{ErrorCode::lease_expired, 0, where, "the lease is no longer held"};
    return *again->capability;
  });
}

// --- renewal --------------------------------------------------------------------------------------------

void Loop::wake_renewal() {
  if (renewal_.get() != nullptr) renewal_->fulfill();
}

kj::Promise<void> Loop::keep_renewing() {
  return wait_for_renewal().then([this] { return renew_held(); }).then([this] { return keep_renewing(); });
}

// Until the first lease is due, or something changed that may make one due earlier.
kj::Promise<void> Loop::wait_for_renewal() {
  auto changed = kj::newPromiseAndFulfiller<void>();
  renewal_ = kj::mv(changed.fulfiller);
  if (!ready_ || held_.due().empty()) return kj::mv(changed.promise);
  return timer_.atTime(held_.due().begin()->first).exclusiveJoin(kj::mv(changed.promise));
}

// When one lease is due all are renewed, in one call and one commit of the manager; of more leases than a call
// may name, those that are due first. The others stay due, so that the next turn takes them.
kj::Promise<void> Loop::renew_held() {
  const auto& due = held_.due();
  if (!ready_ || due.empty() || due.begin()->first > timer_.now()) return kj::READY_NOW;
  std::set<uint64_t> ids;
  uint64_t ttl_ns_min = options_.call_timeout_ns * 3;
  for (auto at = due.begin(); at != due.end() && ids.size() < limits::leases_per_page_max; ++at) {
    const LeaseFacts& facts = held_.find(at->second)->facts;
    ids.insert(facts.id.value);
    ttl_ns_min = std::min(ttl_ns_min, facts.ttl_ns);
  }
  const uint64_t generation = generation_;
  auto call = connection_->session.renewManyRequest();
  auto list = call.initLeases(static_cast<unsigned>(ids.size()));
  unsigned position = 0;
  for (const uint64_t id : ids) list.set(position++, id);
  auto sent =
      call.send().then([](capnp::Response<rpc::TenantSession::RenewManyResults>&& reply) -> Result<Failures> {
        TERRACE_RETURN_IF_ERROR(status_from_wire(reply.getError(), renew_where));
        Failures failures;
        for (const auto failure : reply.getFailed())
          failures.emplace_back(failure.getLease(), error_from_wire(failure.getError(), renew_where));
        return failures;
      });
  // A manager that leaves a renewal unanswered is as good as away: try a new connection.
  const uint64_t timeout_ns = std::max(renewal_timeout_ns_min, ttl_ns_min / 3);
  return timer_.timeoutAfter(timeout_ns * kj::NANOSECONDS, kj::mv(sent))
      .then([this, ids = std::move(ids)](Result<Failures> result) { finish_renewal(ids, std::move(result)); },
            [this, generation](kj::Exception&& exception) {
              last_error_ = error_from_kj(exception, renew_where);
              mark_broken(generation);
            });
}

void Loop::finish_renewal(const std::set<uint64_t>& ids, Result<Failures> result) {
  for (const uint64_t id : ids) {
    for (const uint64_t handle : held_.of(LeaseId{id})) {
      const uint64_t ttl_ns = held_.find(handle)->facts.ttl_ns;
      const uint64_t wait_ns = result.ok() ? ttl_ns / 3 : std::min(renewal_retry_ns, ttl_ns / 10);
      held_.renew_at(handle, timer_.now() + wait_ns * kj::NANOSECONDS);
    }
  }
  if (!result.ok()) {
    last_error_ = result.error();
    return;
  }
  for (const auto& [id, error] : *result) note_error(LeaseId{id}, error);
}

// The TTL belongs to the lease, whichever handle changed it. 0: unchanged.
void Loop::set_ttl(LeaseId id, uint64_t ttl_ns) {
  for (const uint64_t handle : held_.of(id)) {
    LeaseFacts& facts = held_.find(handle)->facts;
    if (ttl_ns != 0 && facts.ttl_ns != 0) facts.ttl_ns = ttl_ns;
    held_.renew_after_third(handle, timer_.now());
  }
  wake_renewal();
}

// --- news -----------------------------------------------------------------------------------------------

void Loop::note_error(LeaseId id, const Error& error) {
  if (error.code == ErrorCode::not_found || error.code == ErrorCode::lease_expired) {
    lose(id, error);
  } else if (error.code == ErrorCode::lease_revoked) {
    on_revoking(id, 0, error.detail);
  }
}

void Loop::on_revoking(LeaseId id, uint64_t grace_ns, std::string reason) {
  bool news = false;
  const auto handles = held_.of(id);
  // The manager tells while an attach is still on its way here; hold() asks for what it said.
  if (handles.empty() && early_grace_ns_.size() < early_notices_max) early_grace_ns_[id] = grace_ns;
  for (const uint64_t handle : handles) {
    const Held& held = *held_.find(handle);
    const auto lease = held.handle.lock();
    if (lease == nullptr || held.giving_up) continue;
    news = lease->change(LeaseState::revoking, {ErrorCode::lease_revoked, 0, "Lease", reason}) || news;
  }
  if (news) {
    notify({.lease = id,
            .state = LeaseState::revoking,
            .grace_ns = grace_ns,
            .reason = std::move(reason),
            .cause = LeaseCause::none,
            .move_requested = false});
  }
}

// A manager that names no cause is an older one: its reason for a lapse is the one word "expired"; any other is
// an operator's, or another process's that released the lease.
void Loop::on_fenced(LeaseId id, std::string reason, LeaseCause cause) {
  early_grace_ns_.erase(id);
  if (cause == LeaseCause::moved) {  // what it occupied before, or all that we have: the manager knows
    check_again(id);
    return;
  }
  const bool expired = cause == LeaseCause::none ? reason == "expired" : cause == LeaseCause::expired;
  lose(id, {expired ? ErrorCode::lease_expired : ErrorCode::lease_revoked, 0, "Lease", std::move(reason)}, true,
       cause);
}

void Loop::on_move_requested(LeaseId id, std::string reason) {
  if (unsettled_move(id) != nullptr) return;  // under way
  for (const uint64_t handle : held_.of(id)) {
    const Held& held = *held_.find(handle);
    const auto lease = held.handle.lock();
    if (lease == nullptr || held.giving_up || lease->state() != LeaseState::live) continue;
    notify({.lease = id,
            .state = LeaseState::live,
            .grace_ns = 0,
            .reason = std::move(reason),
            .cause = LeaseCause::none,
            .move_requested = true});
    return;
  }
}

void Loop::lose(LeaseId id, Error why, bool tell, LeaseCause cause) {
  bool news = false;
  for (const uint64_t handle : held_.of(id)) {
    const Held& held = *held_.find(handle);
    const auto lease = held.handle.lock();
    const bool giving_up = held.giving_up;
    held_.erase(handle);
    if (lease == nullptr) continue;
    news = (lease->change(LeaseState::lost, why) && !giving_up) || news;
  }
  end_moves(id, why);
  if (news && tell) {
    notify({.lease = id,
            .state = LeaseState::lost,
            .grace_ns = 0,
            .reason = std::move(why.detail),
            .cause = cause,
            .move_requested = false});
  }
}

void Loop::notify(const LeaseNotice& notice) noexcept {
  state_->notices->post(notice);
}

}  // namespace terrace::client
