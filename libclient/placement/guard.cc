// SPDX-License-Identifier: Apache-2.0
// Guards: noting what is used, and waiting for what is missing.
#include <algorithm>
#include <utility>

#include "core/base/units.h"
#include "libclient/placement/core.h"

namespace terrace {

using placement::OpenGuard;

ReadGuard::ReadGuard(std::unique_ptr<OpenGuard> open) : open_(std::move(open)) {}
ReadGuard::ReadGuard(ReadGuard&&) noexcept = default;
ReadGuard& ReadGuard::operator=(ReadGuard&&) noexcept = default;
ReadGuard::~ReadGuard() = default;
std::span<const std::byte> ReadGuard::bytes() const {
  return open_ == nullptr ? std::span<const std::byte>() : open_->bytes;
}
void ReadGuard::close() {
  open_.reset();
}

WriteGuard::WriteGuard(std::unique_ptr<OpenGuard> open) : open_(std::move(open)) {}
WriteGuard::WriteGuard(WriteGuard&&) noexcept = default;
WriteGuard& WriteGuard::operator=(WriteGuard&&) noexcept = default;
WriteGuard::~WriteGuard() = default;
std::span<std::byte> WriteGuard::bytes() const {
  return open_ == nullptr ? std::span<std::byte>() : open_->bytes;
}
void WriteGuard::close() {
  open_.reset();
}

namespace placement {

OpenGuard::~OpenGuard() {
  if (entered || told_device) storage->core->close(*this);
}

Result<std::unique_ptr<OpenGuard>> Core::open(const std::shared_ptr<Storage>& storage,
                                              std::span<std::byte> bytes, bool write,
                                              const GuardOptions& options) {
  TERRACE_RETURN_IF_ERROR(check_leases());
  auto guard = std::make_unique<OpenGuard>();
  guard->storage = storage;
  guard->bytes = bytes;
  guard->run = run_of(bytes);
  guard->writes = write;
  if (storage->replica != nullptr) {
    TERRACE_RETURN_IF_ERROR(device_->host_opens(*storage->replica, write));
    guard->told_device = true;
  }
  bool note = false;  // the range's policy wants to know while it decides
  {
    const MutexLock lock(mutex_);
    note_use(*storage, write);
    ++counts_.guards;
    if (guard->run.count == 0) return guard;
    const GuardWait wait = options.wait.value_or(guard_wait_);
    // What is streamed is not worth copying ahead of use, but for those who compute from DDR only.
    if (step_aware_ && (wait == GuardWait::always || !is_streamed(facts_of(*storage))))
      guard->ticket = learner_.opened(guard->run.first, guard->run.count);
    guard->index = open_.size();
    open_.push_back(guard.get());
    guard->entered = true;
    note = !following_;
    if (following_) {
      note_work();
      if (wait == GuardWait::always || (wait == GuardWait::by_cost && pays_to_wait(costs_, facts_of(*storage))))
        wait_for_ddr(*storage, guard->run);
    }
    guard->holds = options.hold;  // behind the wait: until then its bytes may come
  }
  if (note) range_->note_access(bytes, 1);
  if (options.hold) {
    auto hold = range_->hold(bytes);  // waits for a copy at most
    if (!hold.ok()) return hold.error();
    guard->hold = std::move(*hold);
  }
  return guard;
}

void Core::close(OpenGuard& guard) {
  if (in_child()) {  // not this process's locks: its copy of the hold is kept for ever
    new Hold(std::move(guard.hold));
    return;
  }
  guard.hold.release();
  if (guard.told_device) device_->host_closed(*guard.storage->replica, guard.writes);
  if (!guard.entered) return;
  const MutexLock lock(mutex_);
  if (guard.ticket != OpenGuard::not_in_order) learner_.closed(guard.ticket);
  open_[guard.index] = open_.back();
  open_[guard.index]->index = guard.index;
  open_.pop_back();
  if (following_) note_work();
}

// Until the run is in DDR, or nobody can bring it there, or it takes longer than the copies that are missing.
void Core::wait_for_ddr(Storage& storage, Run run) {
  const uint32_t absent = awaited(run);
  if (absent == 0) return;
  // In and, to make room, out; twice that, since the machine has other work; and the batch that is under way.
  const double copies = 4.0 * absent + 2.0 * batch_granules_;
  const auto begin = std::chrono::steady_clock::now();
  const auto longest =
      std::chrono::milliseconds(50) +
      Nanoseconds(static_cast<int64_t>(copies * static_cast<double>(granule_bytes_) / copy_rate() * 1e9));
  Waiter waiter{.run = run};
  waiters_.push_back(&waiter);
  note_work();
  while (!stopping_ && following_ && !waiter.given_up && awaited(run) > 0)
    if (guards_wake_.wait_until(mutex_, begin + longest) == std::cv_status::timeout) break;
  std::erase(waiters_, &waiter);
  const auto waited = static_cast<uint64_t>((std::chrono::steady_clock::now() - begin) / Nanoseconds(1));
  ++counts_.guard_waits;
  counts_.guard_wait_ns += waited;
  if (missing(run) > 0) ++counts_.guard_waits_given_up;
  ++storage.waits;
  storage.wait_ns += waited;
}

}  // namespace placement
}  // namespace terrace
