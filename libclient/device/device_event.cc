// SPDX-License-Identifier: Apache-2.0
#include "libclient/device/device_event.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <chrono>

namespace terrace {
namespace {

Error in_child() {
  return {ErrorCode::unavailable, 0, "DeviceEvent",
          "the copy was under way in the process that forked this one, and cannot be waited for here"};
}

}  // namespace

void DeviceEvent::State::finish(Status status) {
  const MutexLock lock(mutex_);
  TERRACE_CHECK(!done(), "a device event is finished twice");
  if (!status.ok()) error_ = std::move(status).error();
  done_.store(true, std::memory_order_release);  // release: pairs with done()
  // Under the mutex: fd() sees either done_ or an event that is told here.
  if (fd_.valid()) ::eventfd_write(fd_.get(), 1);
  finished_.notify_all();
}

Status DeviceEvent::State::wait() {
  if (!done()) {
    if (forked()) return in_child();
    MutexLock lock(mutex_);
    finished_.wait(mutex_, [this] { return done(); });
  }
  return status();
}

Result<bool> DeviceEvent::State::wait_for(uint64_t timeout_ns) {
  if (!done()) {
    if (forked()) return in_child();
    // A wait of centuries must not overflow the clock.
    constexpr uint64_t longest_ns = uint64_t{1} << 61;
    const std::chrono::nanoseconds timeout(std::min(timeout_ns, longest_ns));
    MutexLock lock(mutex_);
    if (!finished_.wait_for(mutex_, timeout, [this] { return done(); })) return false;
  }
  TERRACE_RETURN_IF_ERROR(status());
  return true;
}

Result<int> DeviceEvent::State::fd() {
  if (!done() && forked()) return in_child();
  const MutexLock lock(mutex_);
  if (!fd_.valid()) {
    fd_.reset(::eventfd(done() ? 1 : 0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!fd_.valid()) {
      const int failed = errno;
      Error error = os_error(failed, "DeviceEvent::fd", "no descriptor for an event of a copy");
      if (failed == EMFILE || failed == ENFILE) error.code = ErrorCode::limit_exceeded;
      return error;
    }
  }
  return fd_.get();
}

bool DeviceEvent::done() const {
  return state_ == nullptr || state_->done();
}

Status DeviceEvent::wait() const {
  return state_ == nullptr ? Status() : state_->wait();
}

Result<bool> DeviceEvent::wait_for(uint64_t timeout_ns) const {
  if (state_ == nullptr) return true;
  return state_->wait_for(timeout_ns);
}

Result<int> DeviceEvent::fd() const {
  if (state_ != nullptr) return state_->fd();
  static const std::shared_ptr<State> finished = [] {
    auto made = std::make_shared<State>();
    made->finish({});
    return made;
  }();
  return finished->fd();
}

std::string_view device_kind_name(DeviceKind kind) {
  return kind == DeviceKind::cuda ? "cuda" : "emulated";
}

}  // namespace terrace
