// SPDX-License-Identifier: Apache-2.0
#include "daemon/event_loop/scrubber.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/base/units.h"
#include "daemon/log/log.h"

namespace terrace::daemon {

bool passing_failure(const Status& status) {
  if (status.ok()) return false;
  const int os_errno = status.error().os_errno;
  return os_errno == EMFILE || os_errno == ENFILE || os_errno == ENOMEM || os_errno == EINTR ||
         os_errno == EAGAIN;
}

Scrubber::Scrubber(Objects& memory, Worker& worker, const Clock& clock, kj::Timer& timer, uint64_t bytes_per_s,
                   Reports reports, kj::TaskSet& tasks, uint64_t piece_bytes)
    : memory_(memory),
      worker_(worker),
      clock_(clock),
      timer_(timer),
      bytes_per_s_(bytes_per_s),
      piece_bytes_(piece_bytes),
      reports_(std::move(reports)),
      tasks_(tasks) {}

void Scrubber::add(ScrubObject job, uint64_t granule_bytes) {
  const uint64_t bytes = job.bytes;
  counters_.queued_bytes += bytes;
  const uint64_t to_erase = memory_.erases_in_place(job.object) ? bytes : 0;
  jobs_.push_back(Job{std::move(job), granule_bytes, to_erase, clock_.now_ns()});
  run_next();
}

void Scrubber::reconsider() {
  run_next();
}

void Scrubber::clear() {
  jobs_.clear();
  counters_.queued_bytes = 0;
  running_ = false;
  ++generation_;
}

// The smallest of those that somebody waits for, else the oldest.
std::list<Scrubber::Job>::iterator Scrubber::choose() {
  auto chosen = jobs_.end();
  for (auto at = jobs_.begin(); at != jobs_.end(); ++at) {
    if (!reports_.is_urgent(at->object.pool)) continue;
    if (chosen == jobs_.end() || at->left_bytes < chosen->left_bytes) chosen = at;
  }
  return chosen;
}

// A loop, not a recursion: ten thousand small leases may end in one turn.
void Scrubber::run_next() {
  if (looping_) return;
  looping_ = true;
  while (!running_ && !jobs_.empty()) {
    auto job = choose();
    const bool urgent = job != jobs_.end();
    if (!urgent) job = jobs_.begin();
    const uint64_t now_ns = clock_.now_ns();
    if (now_ns < retry_ns_) {
      wait_until(retry_ns_);
      break;
    }
    if (job->left_bytes == 0) {
      remove_object(job);
    } else if (!urgent && bytes_per_s_ != 0 && now_ns < next_allowed_ns_) {
      wait_until(next_allowed_ns_);
      break;
    } else {
      erase_piece(job);
    }
  }
  looping_ = false;
}

// Whole granules from the end; the last piece of a lease is freed with the lease itself.
void Scrubber::erase_piece(std::list<Job>::iterator job) {
  const uint64_t piece = std::max(piece_bytes_ / job->granule_bytes, uint64_t{1}) * job->granule_bytes;
  const uint64_t bytes = std::min(piece, job->left_bytes);
  const uint64_t offset = job->left_bytes - bytes;
  running_ = true;
  if (bytes_per_s_ != 0) {
    const double seconds = static_cast<double>(bytes) / static_cast<double>(bytes_per_s_);
    next_allowed_ns_ = clock_.now_ns() + static_cast<uint64_t>(seconds * static_cast<double>(ns_per_s));
  }
  tasks_.add(worker_
                 .run([this, name = job->object.object, extents = job->object.extents, offset,
                       bytes]() -> Status { return memory_.erase(name, extents, offset, bytes); })
                 .then([this, job, bytes, generation = generation_](Status status) {
                   piece_done(generation, job, bytes, std::move(status));
                 }));
}

void Scrubber::piece_done(uint64_t generation, std::list<Job>::iterator job, uint64_t bytes, Status status) {
  if (generation != generation_) return;  // forgotten meanwhile
  running_ = false;
  if (!status.ok()) {
    end(job, std::move(status));
    run_next();
    return;
  }
  job->left_bytes -= bytes;
  counters_.scrubbed_bytes += bytes;
  counters_.queued_bytes -= bytes;
  job->object.bytes -= bytes;
  if (job->left_bytes > 0) {
    reports_.advanced(job->object.lease, bytes / job->granule_bytes);
  }
  run_next();
}

void Scrubber::remove_object(std::list<Job>::iterator job) {
  const auto remove = [this, name = job->object.object]() -> Status {
    const auto scrubbed = memory_.scrub(name);
    if (!scrubbed.ok()) return scrubbed.error();
    return {};
  };
  if (memory_.quick(job->object.object, job->object.bytes)) {
    Status status = remove();
    end(job, std::move(status));
    return;
  }
  running_ = true;
  tasks_.add(worker_.run(remove).then([this, job, generation = generation_](Status status) {
    if (generation != generation_) return;
    running_ = false;
    end(job, std::move(status));
    run_next();
  }));
}

void Scrubber::end(std::list<Job>::iterator job, Status status) {
  if (passing_failure(status)) {
    log::warn("trying again in a second: {}", status.error().to_string());
    retry_ns_ = clock_.now_ns() + ns_per_s;
    return;
  }
  const ScrubObject done = std::move(job->object);
  const uint64_t took_ns = clock_.now_ns() - job->added_ns;
  counters_.queued_bytes -= done.bytes;
  if (status.ok()) counters_.scrubbed_bytes += done.bytes;
  jobs_.erase(job);
  reports_.finished(done, std::move(status), took_ns);
}

void Scrubber::wait_until(uint64_t at_ns) {
  if (woken_for_ns_ == at_ns) return;
  woken_for_ns_ = at_ns;
  const uint64_t now_ns = clock_.now_ns();
  const uint64_t wait_ns = at_ns > now_ns ? at_ns - now_ns : 0;
  tasks_.add(timer_.afterDelay(static_cast<int64_t>(wait_ns) * kj::NANOSECONDS).then([this, at_ns] {
    if (woken_for_ns_ == at_ns) woken_for_ns_ = 0;
    run_next();
  }));
}

}  // namespace terrace::daemon
