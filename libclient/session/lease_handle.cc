#include "libclient/session/lease_handle.h"

#include <utility>

#include "libclient/session/loop.h"

namespace terrace::client {

LeaseHandle::LeaseHandle(const LeaseFacts& facts, uint64_t handle, UniqueFd fd,
                         std::shared_ptr<Mailbox> mailbox)
    : facts_(facts), handle_(handle), fd_(std::move(fd)), mailbox_(std::move(mailbox)) {}

LeaseHandle::~LeaseHandle() {
  // Refused once the session is closed: then nothing is remembered there any more.
  mailbox_->post([handle = handle_](Loop& loop) { loop.forget(handle); });
}

bool LeaseHandle::change(LeaseState state, Error why) {
  const std::lock_guard lock(mutex_);
  if (state_.load(std::memory_order_relaxed) >= state) return false;
  why_ = std::move(why);
  state_.store(state, std::memory_order_release);
  return true;
}

Status LeaseHandle::check_not_lost(const char* where) const {
  if (state() != LeaseState::lost) return {};
  const std::lock_guard lock(mutex_);
  Error error = why_;
  error.where = where;
  if (error.code != ErrorCode::lease_revoked) error.code = ErrorCode::lease_expired;
  return error;
}

Result<LeaseInfo> LeaseHandle::info() {
  TERRACE_RETURN_IF_ERROR(check_not_lost("Lease::info"));
  return ask<LeaseInfo>(*mailbox_, "Lease::info",
                        [handle = handle_](Loop& loop, auto answer) { loop.info(handle, std::move(answer)); });
}

Status LeaseHandle::renew(uint64_t ttl_ns) {
  TERRACE_RETURN_IF_ERROR(check_not_lost("Lease::renew"));
  return ask<void>(*mailbox_, "Lease::renew", [handle = handle_, ttl_ns](Loop& loop, auto answer) {
    loop.renew(handle, ttl_ns, std::move(answer));
  });
}

Status LeaseHandle::release() {
  if (state() == LeaseState::lost) return {};  // the memory is back already
  return ask<void>(*mailbox_, "Lease::release",
                   [handle = handle_](Loop& loop, auto answer) { loop.release(handle, std::move(answer)); });
}

Status LeaseHandle::report_usage(const UsageReport& usage) {
  TERRACE_RETURN_IF_ERROR(check_not_lost("Lease::report_usage"));
  return ask<void>(*mailbox_, "Lease::report_usage", [handle = handle_, usage](Loop& loop, auto answer) {
    loop.report_usage(handle, usage, std::move(answer));
  });
}

}  // namespace terrace::client
