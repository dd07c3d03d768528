// SPDX-License-Identifier: Apache-2.0
#include "libclient/session/notice_queue.h"

#include <errno.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/base/kernel_clock.h"
#include "core/base/signals_blocked.h"

namespace terrace::client {

Result<std::shared_ptr<NoticeQueue>> NoticeQueue::make() {
  UniqueFd readable(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!readable.valid()) return os_error(errno, "NoticeQueue::make", "cannot make an eventfd");
  return std::shared_ptr<NoticeQueue>(new NoticeQueue(std::move(readable)));
}

NoticeQueue::NoticeQueue(UniqueFd readable) : readable_(std::move(readable)), process_id_(::getpid()) {}

// After fork the mutex may be held, and the condition variables waited for, by threads that are not here.
bool NoticeQueue::own_process() const {
  return ::getpid() == process_id_;
}

// The manager repeats its wish for a move: one that waits says it already.
void NoticeQueue::post(LeaseNotice notice) {
  const MutexLock lock(mutex_);
  if (closed_) return;
  if (notice.move_requested && std::any_of(waiting_.begin(), waiting_.end(), [&notice](const Waiting& one) {
        return one.notice.lease == notice.lease && one.notice.move_requested;
      }))
    return;
  if (waiting_.size() >= notices_max) waiting_.pop_front();
  waiting_.push_back({std::move(notice), monotonic_ns()});
  show();
  if (handler_ == nullptr) return;
  start();
  wake_.notify_one();
}

// A thread that cannot be had now is tried again with the next notice.
void NoticeQueue::start() {
  if (thread_.joinable()) return;
  try {
    const SignalsBlocked blocked;
    thread_ = std::thread([self = shared_from_this()] { self->run(); });
  } catch (const std::system_error&) {
  }
}

void NoticeQueue::show() {
  const bool wanted = !closed_ && handler_ == nullptr && !waiting_.empty();
  if (wanted == std::exchange(shown_, wanted)) return;
  uint64_t count = 1;
  const ssize_t done =
      wanted ? ::write(readable_.get(), &count, sizeof count) : ::read(readable_.get(), &count, sizeof count);
  // EAGAIN: the program has read it, which says "nothing waits" too early and does no other harm.
  TERRACE_CHECK(done == sizeof count || errno == EAGAIN, "an eventfd refused to be set or cleared");
}

// The grace began when the manager told of it.
LeaseNotice NoticeQueue::take() {
  Waiting first = std::move(waiting_.front());
  waiting_.pop_front();
  show();
  const uint64_t waited_ns = monotonic_ns() - first.posted_ns;
  first.notice.grace_ns -= std::min(first.notice.grace_ns, waited_ns);
  return std::move(first.notice);
}

void NoticeQueue::run() noexcept {
  ::pthread_setname_np(::pthread_self(), "terrace-notices");
  ReleasableMutexLock lock(mutex_);
  while (true) {
    wake_.wait(mutex_, [this]() TERRACE_REQUIRES(mutex_) {
      return closed_ || (handler_ != nullptr && !waiting_.empty());
    });
    if (closed_) return;
    const LeaseNotice notice = take();
    auto handler = handler_;
    ++calls_begun_;
    lock.unlock();
    (*handler)(notice);
    handler.reset();  // what it captured goes here, without the lock
    lock.lock();
    ++calls_ended_;
    ended_.notify_all();
  }
}

void NoticeQueue::await_call() {
  if (thread_.get_id() == std::this_thread::get_id()) return;
  ended_.wait(mutex_,
              [this, begun = calls_begun_]() TERRACE_REQUIRES(mutex_) { return calls_ended_ >= begun; });
}

void NoticeQueue::set_handler(LeaseNoticeHandler handler) {
  if (!own_process()) return;
  std::shared_ptr<const LeaseNoticeHandler> next;
  if (handler) next = std::make_shared<const LeaseNoticeHandler>(std::move(handler));
  ReleasableMutexLock lock(mutex_);
  handler_.swap(next);
  show();
  if (handler_ != nullptr && !waiting_.empty()) {
    start();
    wake_.notify_one();
  }
  await_call();
  lock.unlock();  // the earlier handler goes without it
}

std::optional<LeaseNotice> NoticeQueue::next() {
  if (!own_process()) return std::nullopt;
  const MutexLock lock(mutex_);
  if (handler_ != nullptr || waiting_.empty()) return std::nullopt;
  return take();
}

void NoticeQueue::close() {
  std::shared_ptr<const LeaseNoticeHandler> last;
  std::thread thread;
  {
    const MutexLock lock(mutex_);
    closed_ = true;
    last = std::move(handler_);
    show();
    wake_.notify_all();
    ended_.notify_all();
    if (thread_.get_id() == std::this_thread::get_id()) {
      thread_.detach();  // it ends when the handler returns, and keeps this object until then
      return;
    }
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

}  // namespace terrace::client
