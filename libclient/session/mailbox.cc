// SPDX-License-Identifier: Apache-2.0
#include "libclient/session/mailbox.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

namespace terrace::client {

Result<std::shared_ptr<Mailbox>> Mailbox::make() {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return os_error(errno, "Mailbox::make", "cannot make an eventfd");
  return std::shared_ptr<Mailbox>(new Mailbox(std::move(wake)));
}

Mailbox::Mailbox(UniqueFd wake) : wake_(std::move(wake)), process_id_(::getpid()) {}

bool Mailbox::own_process() const {
  return ::getpid() == process_id_;
}

// The count can only overflow after 2^64 - 2 unread wake-ups, so the write does not fail.
void Mailbox::wake() {
  const uint64_t one = 1;
  const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  TERRACE_CHECK(written == sizeof one, "an eventfd refused a wake-up");
}

bool Mailbox::post(Job job) {
  if (!own_process()) return false;  // first: after fork the mutex may be held by a thread that is not here
  const MutexLock lock(mutex_);
  if (closed_) return false;
  jobs_.push_back(std::move(job));
  if (jobs_.size() == 1) wake();
  return true;
}

std::deque<Mailbox::Job> Mailbox::take() {
  const MutexLock lock(mutex_);
  uint64_t count = 0;
  // EAGAIN means that nothing was posted since: a spurious wake-up.
  if (::read(wake_.get(), &count, sizeof count) < 0)
    TERRACE_CHECK(errno == EAGAIN || errno == EINTR, "an eventfd cannot be read");
  return std::exchange(jobs_, {});
}

void Mailbox::close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  wake();
}

void Mailbox::set_owner_thread() {
  const MutexLock lock(mutex_);
  owner_ = std::this_thread::get_id();
}

bool Mailbox::on_owner_thread() const {
  if (!own_process()) return false;
  const MutexLock lock(mutex_);
  return owner_ == std::this_thread::get_id();
}

bool Mailbox::closed() const {
  const MutexLock lock(mutex_);
  return closed_;
}

}  // namespace terrace::client
