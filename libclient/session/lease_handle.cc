// SPDX-License-Identifier: Apache-2.0
#include "libclient/session/lease_handle.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "libclient/session/loop.h"

namespace terrace::client {

LeaseHandle::LeaseHandle(const LeaseFacts& facts, uint64_t handle, UniqueFd fd,
                         std::shared_ptr<Mailbox> mailbox)
    : id_(facts.id),
      access_(facts.access),
      on_fence_(facts.on_fence),
      handle_(handle),
      fd_(std::move(fd)),
      mailbox_(std::move(mailbox)),
      epoch_(facts.epoch.value),
      bytes_(facts.bytes) {}

LeaseHandle::~LeaseHandle() {
  // Refused once the session is closed: then nothing is remembered there any more.
  mailbox_->post([handle = handle_](Loop& loop) { loop.forget(handle); });
}

bool LeaseHandle::change(LeaseState state, Error why) {
  const MutexLock lock(mutex_);
  if (state_.load(std::memory_order_relaxed) >= state) return false;
  why_ = std::move(why);
  state_.store(state, std::memory_order_release);  // release: pairs with state()
  return true;
}

Status LeaseHandle::adopt(int fd, LeaseEpoch epoch, uint64_t bytes) {
  // EBUSY: another thread is in the middle of an open() that got this number in the kernel's table.
  while (::dup3(fd, fd_.get(), O_CLOEXEC) < 0)
    if (errno != EINTR && errno != EBUSY)
      return os_error(errno, "Lease", "cannot take over the new descriptor of a lease");
  bytes_.store(bytes, std::memory_order_release);  // release: pairs with bytes(), and below with epoch()
  epoch_.store(epoch.value, std::memory_order_release);
  return {};
}

Status LeaseHandle::check_not_lost(const char* where) const {
  if (state() != LeaseState::lost) return {};
  const MutexLock lock(mutex_);
  Error error = why_;
  error.where = where;
  if (error.code != ErrorCode::lease_revoked) error.code = ErrorCode::lease_expired;
  return error;
}

Status LeaseHandle::check_writable(const char* where) const {
  TERRACE_RETURN_IF_ERROR(check_not_lost(where));
  if (access_ == LeaseAccess::read_write) return {};
  return Error{ErrorCode::permission_denied, 0, where,
               "lease " + std::to_string(id_.value) + " is attached read-only here; only a writer may do this"};
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

Result<LeaseInfo> LeaseHandle::resize(uint64_t bytes) {
  TERRACE_RETURN_IF_ERROR(check_writable("Lease::resize"));
  return ask<LeaseInfo>(*mailbox_, "Lease::resize", [handle = handle_, bytes](Loop& loop, auto answer) {
    loop.resize(handle, bytes, std::move(answer));
  });
}

Status LeaseHandle::transfer(const std::string& tenant, const std::string& host) {
  TERRACE_RETURN_IF_ERROR(check_writable("Lease::transfer"));
  return ask<void>(*mailbox_, "Lease::transfer", [handle = handle_, tenant, host](Loop& loop, auto answer) {
    loop.transfer(handle, tenant, host, std::move(answer));
  });
}

Status LeaseHandle::withdraw_offer() {
  TERRACE_RETURN_IF_ERROR(check_writable("Lease::withdraw_offer"));
  return ask<void>(*mailbox_, "Lease::withdraw_offer", [handle = handle_](Loop& loop, auto answer) {
    loop.withdraw_offer(handle, std::move(answer));
  });
}

Result<std::string> LeaseHandle::open_path(std::optional<uint32_t> user) {
  TERRACE_RETURN_IF_ERROR(check_not_lost("Lease::open_path"));
  return ask<std::string>(*mailbox_, "Lease::open_path", [handle = handle_, user](Loop& loop, auto answer) {
    loop.open_path(handle, user, std::move(answer));
  });
}

Result<std::unique_ptr<LeaseMove>> LeaseHandle::begin_move() {
  TERRACE_RETURN_IF_ERROR(check_writable("Lease::begin_move"));
  return ask<std::unique_ptr<LeaseMove>>(
      *mailbox_, "Lease::begin_move",
      [handle = handle_](Loop& loop, auto answer) { loop.begin_move(handle, std::move(answer)); });
}

Result<uint64_t> LeaseHandle::claim_part(uint32_t part, uint64_t last_epoch, uint64_t key) {
  TERRACE_RETURN_IF_ERROR(check_writable("Lease::claim_part"));
  return ask<uint64_t>(*mailbox_, "Lease::claim_part",
                       [handle = handle_, claim = PartClaim{part, last_epoch, key}](Loop& loop, auto answer) {
                         loop.claim_part(handle, claim, std::move(answer));
                       });
}

Status LeaseHandle::release_part(uint32_t part, uint64_t epoch) {
  if (state() == LeaseState::lost) return {};  // nobody owns anything of it any more
  return ask<void>(*mailbox_, "Lease::release_part", [handle = handle_, part, epoch](Loop& loop, auto answer) {
    loop.release_part(handle, part, epoch, std::move(answer));
  });
}

Result<bool> LeaseHandle::part_is_dead(uint32_t part, uint64_t epoch) {
  TERRACE_RETURN_IF_ERROR(check_not_lost("Lease::part_is_dead"));
  return ask<bool>(*mailbox_, "Lease::part_is_dead", [handle = handle_, part, epoch](Loop& loop, auto answer) {
    loop.part_is_dead(handle, part, epoch, std::move(answer));
  });
}

}  // namespace terrace::client
