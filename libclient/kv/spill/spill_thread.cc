// SPDX-License-Identifier: Apache-2.0
// SpillStore: the thread that writes, and reads ahead.
//
//   a write   hash; place in the segment that is filled; frame to the disk; only then the record
//   a full segment, or a full disk: first all that is in flight comes back, then another segment is begun
#include <algorithm>
#include <cerrno>

#include "libclient/kv/spill/spill_store.h"

namespace terrace::kv {

namespace {

constexpr auto idle = std::chrono::milliseconds(200);
constexpr uint64_t tend_every_ms = 100;
constexpr uint64_t no_room_pause_ns = 50'000'000;
constexpr uint64_t failure_pause_ns = 1'000'000'000;

}  // namespace

void SpillStore::run() {
  if (log_ != nullptr) {
    const os::LossyAccesses accesses;
    log_->recover();
  }
  for (;;) {
    const os::LossyAccesses accesses;
    if (!wait_for_work()) return;
    if (lost_.load(std::memory_order_relaxed)) drop_queued();
    start_requests();
    if (in_flight_ != 0) finish_requests();
    tend();
    // An index that was cut off has no blocks; without the map nobody knows what is whose.
    if (const void* const lost = os::LossyAccesses::lost_address();
        lost != nullptr && folder_->map().covers(lost))
      lost_ = true;
  }
}

// false: the end, and nothing is left to be done.
bool SpillStore::wait_for_work() {
  const MutexLock lock(mutex_);
  if (in_flight_ != 0) return true;
  if (queue_.empty() && ahead_queue_.empty() && !ends_) (void)work_.wait_for(mutex_, idle);
  return !(ends_ && queue_.empty() && ahead_queue_.empty());
}

void SpillStore::start_requests() {
  while (in_flight_ < options_.queue_depth && !disk_full_)
    if (!start_read() && !start_write()) return;
  if (disk_full_ && in_flight_ == 0) {
    log_->disk_full(spill_now_ms());
    disk_full_ = false;
  }
}

bool SpillStore::start_read() {
  std::shared_ptr<Ahead> ahead;
  {
    const MutexLock lock(mutex_);
    if (ahead_queue_.empty()) return false;
    ahead = std::move(ahead_queue_.front());
    ahead_queue_.pop_front();
    ahead->state = Ahead::State::reading;
  }
  ahead->frame = buffers_.take(ahead->block.frame_bytes);
  if (ahead->frame == nullptr || !is_current(ahead->block)) {
    finish_ahead(ahead, ENOMEM);
    return true;
  }
  auto request = std::make_unique<Request>();
  request->offset = ahead->block.offset;
  request->bytes = ahead->block.frame_bytes;
  request->memory = ahead->frame.get();
  request->ahead = std::move(ahead);
  ++in_flight_;
  hand_over(request.release());
  return true;
}

bool SpillStore::start_write() {
  std::shared_ptr<SpillWrite> write;
  bool cancelled = false;
  {
    const MutexLock lock(mutex_);
    if (queue_.empty()) return false;
    write = queue_.front();
    cancelled = write->cancelled;
  }
  const auto next = [&] {
    const MutexLock lock(mutex_);
    queue_.pop_front();
  };
  if (cancelled || find(write->block.key) || write->block.is_expired(spill_now_s())) {
    if (!cancelled) SpillCounts::add(counts_.there_already);
    next();
    done_with(*write);
    return true;
  }
  if (!write->hashed) {
    const std::optional<uint64_t> hash =
        frame_hash(write->block, {write->frame.get(), write->block.frame_bytes});
    write->hashed = hash.has_value();
    write->placed = write->block;
    write->placed.hash = hash.value_or(0);
  }
  const std::optional<uint64_t> offset = write->hashed ? log_->reserve(write->block.frame_bytes) : std::nullopt;
  if (write->hashed && !offset) {
    if (in_flight_ != 0) return false;  // all of it comes back first
    fill_another_segment();
    return true;
  }
  next();
  if (!write->hashed) {  // its names went while they were copied
    SpillCounts::add(counts_.dropped);
    done_with(*write);
    return true;
  }
  auto request = std::make_unique<Request>();
  write->placed.offset = request->offset = *offset;
  request->bytes = write->block.frame_bytes;
  request->memory = write->frame.get();
  request->write = std::move(write);
  ++in_flight_;
  hand_over(request.release());
  return true;
}

// What is worth it is written on first. Without a segment the next block is dropped, and puts are for a while.
void SpillStore::fill_another_segment() {
  std::vector<KeptFrame> kept;
  const bool there_is = log_->next_segment(spill_now_ms(), &kept);
  const MutexLock lock(mutex_);
  for (auto one = kept.rbegin(); one != kept.rend(); ++one) {
    auto write = std::make_shared<SpillWrite>();
    write->block = write->placed = one->block;
    write->frame = std::move(one->frame);
    write->token = one->token;
    write->uses = one->uses;
    write->hashed = true;
    if (!waiting_.emplace(write->block.key.low, write).second) continue;
    write->number = next_number_++;
    unfinished_.insert(write->number);
    queued_bytes_ += write->block.frame_bytes;
    queue_.push_front(std::move(write));
  }
  waiting_count_.store(waiting_.size(), std::memory_order_relaxed);
  if (there_is) return;
  const std::shared_ptr<SpillWrite> dropped = std::move(queue_.front());
  queue_.pop_front();
  pause_writes(no_room_pause_ns);
  SpillCounts::add(counts_.dropped);
  const MutexUnlock unlock(mutex_);
  done_with(*dropped);
}

void SpillStore::hand_over(Request* request) {
  const uint64_t rest = request->bytes - request->done_bytes, offset = request->offset + request->done_bytes;
  std::byte* const memory = request->memory + request->done_bytes;
  if (request->write != nullptr)
    queue_io_->write(folder_->data(), memory, rest, offset, request);
  else
    queue_io_->read(folder_->data(), memory, rest, offset, request);
}

void SpillStore::finish_requests() {
  std::vector<IoQueue::Done> done;
  if (const int os_errno = queue_io_->wait(&done); os_errno != 0) note_error(os_errno, "io_uring_enter");
  for (const IoQueue::Done& one : done) finish(static_cast<Request*>(one.tag), one.result);
}

void SpillStore::finish(Request* of, int64_t result) {
  std::unique_ptr<Request> request(of);
  const bool refused_direct = result == -EINVAL && folder_->direct();
  if (refused_direct) folder_->give_up_direct(EINVAL);
  if (result > 0) request->done_bytes += static_cast<uint64_t>(result);
  const bool goes_on = result > 0 && request->done_bytes < request->bytes && result % 512 == 0;
  if (refused_direct || result == -EINTR || result == -EAGAIN || goes_on) {
    hand_over(request.release());
    return;
  }
  --in_flight_;
  const int os_errno = result < 0 ? static_cast<int>(-result) : request->done_bytes < request->bytes ? EIO : 0;
  if (request->write != nullptr)
    finish_write(request->write, os_errno);
  else
    finish_ahead(request->ahead, os_errno);
}

void SpillStore::finish_write(const std::shared_ptr<SpillWrite>& write, int os_errno) {
  if (os_errno != 0) {
    note_error(os_errno, "writing " + folder_->path("kv-spill.data"));
    SpillCounts::add(counts_.write_errors);
    SpillCounts::add(counts_.dropped);
    if (os_errno == ENOSPC || os_errno == EDQUOT || os_errno == EFBIG)
      disk_full_ = true;
    else
      pause_writes(failure_pause_ns);
    done_with(*write);
    return;
  }
  // Who erases counts first and looks then; here it is the other way round, so one of the two sees it.
  SpillMap& map = folder_->map();
  if (map.token(write->block.key) == write->token) {
    if (log_->publish(&write->placed, write->uses)) {
      coherence::CoherentMemory().full_barrier(coherence::Step::none);
      if (map.token(write->block.key) != write->token) folder_->index(log_->slot())->remove(write->placed);
      SpillCounts::add(counts_.written);
      SpillCounts::add(counts_.written_bytes, write->block.bytes);
    } else {
      SpillCounts::add(counts_.there_already);
    }
  } else {
    SpillCounts::add(counts_.dropped);
  }
  done_with(*write);
}

void SpillStore::done_with(const SpillWrite& write) {
  {
    const MutexLock lock(mutex_);
    const auto found = waiting_.find(write.block.key.low);
    if (found != waiting_.end() && found->second.get() == &write) waiting_.erase(found);
    waiting_count_.store(waiting_.size(), std::memory_order_relaxed);
    unfinished_.erase(write.number);
    queued_bytes_ -= write.block.frame_bytes;
  }
  done_.notify_all();
}

void SpillStore::finish_ahead(const std::shared_ptr<Ahead>& ahead, int os_errno) {
  if (os_errno != 0 && os_errno != ENOMEM) {
    note_error(os_errno, "reading " + folder_->path("kv-spill.data"));
    SpillCounts::add(counts_.read_errors);
  }
  {
    const MutexLock lock(mutex_);
    ahead->state = os_errno == 0 ? Ahead::State::ready : Ahead::State::failed;
  }
  done_.notify_all();
}

void SpillStore::drop_queued() {
  std::deque<std::shared_ptr<SpillWrite>> queued;
  {
    const MutexLock lock(mutex_);
    queued.swap(queue_);
  }
  SpillCounts::add(counts_.dropped, queued.size());
  for (const auto& write : queued) done_with(*write);
}

void SpillStore::tend() {
  const uint64_t now_ms = spill_now_ms();
  if (now_ms < tends_at_ms_ || lost_.load(std::memory_order_relaxed)) return;
  tends_at_ms_ = now_ms + tend_every_ms;
  if (log_ != nullptr)
    log_->give_if_asked(now_ms);
  else
    take_slot_later();
}

// All slots were owned when the folder was opened.
void SpillStore::take_slot_later() {
  constexpr uint64_t every_ms = 2'000;
  const uint64_t now_ms = spill_now_ms();
  if (!options_.puts || now_ms < takes_slot_at_ms_) return;
  takes_slot_at_ms_ = now_ms + every_ms;
  const auto slot = folder_->take_slot();
  if (!slot.ok() || !*slot) return;
  log_ = std::make_unique<SegmentLog>(*folder_, buffers_, counts_, **slot);
  log_->recover();
  slot_ = static_cast<int32_t>(**slot);
}

}  // namespace terrace::kv
