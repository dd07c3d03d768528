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

std::vector<uint64_t> Loop::handles_of(LeaseId id) const {
  std::vector<uint64_t> handles;
  for (const auto& [handle, held] : held_)
    if (held.facts.id == id) handles.push_back(handle);
  return handles;
}

// Resolves with what the manager says of this lease. Rejects only when the connection breaks.
kj::Promise<Status> Loop::attach_again(uint64_t handle) {
  constexpr const char* where = "Session: attaching a lease again";
  const auto found = held_.find(handle);
  if (found == held_.end()) return Status{};
  auto call = connection_->session.attachRequest();
  call.setLease(found->second.facts.id.value);
  call.setAccess(access_to_wire(found->second.facts.access));
  return call.send().then([this, handle](capnp::Response<rpc::TenantSession::AttachResults>&& reply) -> Status {
    const auto held = held_.find(handle);
    if (held == held_.end()) return {};  // its last caller let go meanwhile
    const LeaseFacts facts = held->second.facts;
    Error error = error_from_wire(reply.getError(), where);
    const auto info = reply.getInfo();
    if (error.code == ErrorCode::ok && info.getEpoch() != facts.epoch.value) {
      error = {ErrorCode::lease_expired, 0, where,
               "lease " + std::to_string(facts.id.value) + " was granted anew under another epoch"};
    }
    if (error.code == ErrorCode::ok) {
      held->second.capability = reply.getLease();
      if (info.getPhase() == rpc::LeasePhase::REVOKING)
        on_revoking(facts.id, 0, text_from_wire(info.getReason()));
      return {};
    }
    const bool gone = error.code == ErrorCode::not_found || error.code == ErrorCode::lease_expired ||
                      error.code == ErrorCode::lease_revoked;
    if (gone) lose(facts.id, error);
    return error;
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
  const auto held = held_.find(handle);
  if (held == held_.end())
    return Found(Error{ErrorCode::lease_expired, 0, where, "the lease is no longer held"});
  if (held->second.capability.has_value()) return Found(*held->second.capability);
  return attach_again(handle).then([this, handle, where](Status status) -> Found {
    if (!status.ok()) return std::move(status).error();
    const auto again = held_.find(handle);
    if (again == held_.end() || !again->second.capability.has_value())
      return Error{ErrorCode::lease_expired, 0, where, "the lease is no longer held"};
    return *again->second.capability;
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
  std::optional<kj::TimePoint> due;
  for (const auto& [handle, held] : held_)
    if (held.ttl_ns != 0 && (!due.has_value() || held.renew_at < *due)) due = held.renew_at;
  if (!ready_ || !due.has_value()) return kj::mv(changed.promise);
  return timer_.atTime(*due).exclusiveJoin(kj::mv(changed.promise));
}

// When one lease is due all are renewed, in one call and one commit of the manager; of more leases than a call
// may name, those that are due first. The others stay due, so that the next turn takes them.
kj::Promise<void> Loop::renew_held() {
  std::set<std::pair<kj::TimePoint, uint64_t>> by_time;
  uint64_t ttl_ns_min = options_.call_timeout_ns * 3;
  for (const auto& [handle, held] : held_) {
    if (held.ttl_ns == 0 || held.releasing) continue;
    ttl_ns_min = std::min(ttl_ns_min, held.ttl_ns);
    by_time.emplace(held.renew_at, held.facts.id.value);
  }
  if (by_time.empty() || by_time.begin()->first > timer_.now() || !ready_) return kj::READY_NOW;
  std::set<uint64_t> ids;
  for (const auto& [renew_at, id] : by_time) {
    ids.insert(id);
    if (ids.size() == limits::leases_per_page_max) break;
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
  for (auto& [handle, held] : held_) {
    if (held.ttl_ns == 0 || ids.count(held.facts.id.value) == 0) continue;
    const uint64_t wait_ns = result.ok() ? held.ttl_ns / 3 : std::min(renewal_retry_ns, held.ttl_ns / 10);
    held.renew_at = timer_.now() + wait_ns * kj::NANOSECONDS;
  }
  if (!result.ok()) {
    last_error_ = result.error();
    return;
  }
  for (const auto& [id, error] : *result) note_error(LeaseId{id}, error);
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
  const auto handles = handles_of(id);
  // The manager tells while an attach is still on its way here; hold() asks for what it said.
  if (handles.empty() && early_grace_ns_.size() < early_notices_max) early_grace_ns_[id] = grace_ns;
  for (const uint64_t handle : handles) {
    const Held& held = held_.at(handle);
    const auto lease = held.handle.lock();
    if (lease == nullptr || held.releasing) continue;
    news = lease->change(LeaseState::revoking, {ErrorCode::lease_revoked, 0, "Lease", reason}) || news;
  }
  if (news)
    notify({.lease = id, .state = LeaseState::revoking, .grace_ns = grace_ns, .reason = std::move(reason)});
}

// The manager's reason for a lapse is the one word "expired"; any other is an operator's, or another process's
// that released the lease.
void Loop::on_fenced(LeaseId id, std::string reason) {
  early_grace_ns_.erase(id);
  const ErrorCode code = reason == "expired" ? ErrorCode::lease_expired : ErrorCode::lease_revoked;
  lose(id, {code, 0, "Lease", std::move(reason)});
}

void Loop::lose(LeaseId id, Error why, bool tell) {
  bool news = false;
  for (const uint64_t handle : handles_of(id)) {
    const Held& held = held_.at(handle);
    const auto lease = held.handle.lock();
    const bool releasing = held.releasing;
    held_.erase(handle);
    if (lease == nullptr) continue;
    news = (lease->change(LeaseState::lost, why) && !releasing) || news;
  }
  if (news && tell)
    notify({.lease = id, .state = LeaseState::lost, .grace_ns = 0, .reason = std::move(why.detail)});
}

void Loop::notify(const LeaseNotice& notice) noexcept {
  const std::lock_guard lock(state_->handler_mutex);
  if (state_->handler) state_->handler(notice);
}

}  // namespace terrace::client
