// SPDX-License-Identifier: Apache-2.0
// Copying ahead: a thread of the table that works through the last list it was given.
#include <system_error>

#include "core/base/signals_blocked.h"
#include "libclient/replicas/table.h"

namespace terrace {

Status LocalReplica::Table::start() {
  try {
    const SignalsBlocked blocked;
    ahead_thread_ = std::make_unique<std::thread>([this] { work_ahead(); });
  } catch (const std::system_error& error) {
    return Error{ErrorCode::out_of_memory, error.code().value(), "LocalReplicas::make",
                 "no thread can be started to copy ahead"};
  }
  return {};
}

void LocalReplica::Table::close() {
  if (forked()) {
    // The child has no such thread to join, and destroying a condition waits for who waits at it: the table
    // stays.
    (void)new std::shared_ptr<Table>(shared_from_this());
    return;
  }
  {
    const MutexLock lock(mutex_);
    closing_ = true;
    ahead_wakes_.notify_all();
  }
  if (ahead_thread_ != nullptr) ahead_thread_->join();
  Cache::Freed freed;
  const MutexLock lock(mutex_);
  ahead_list_.clear();
  ahead_next_ = 0;
  cache_.clear(freed);
}

void LocalReplica::Table::prefetch(std::span<const SharedTensor> tensors) {
  if (forked()) return;
  std::vector<SharedTensor> list;
  list.reserve(tensors.size());
  for (const SharedTensor& tensor : tensors)
    if (tensor.identity().memory != nullptr && tensor.bytes() > 0) list.push_back(tensor);
  const MutexLock lock(mutex_);
  ahead_list_.swap(list);
  ahead_next_ = 0;
  ++ahead_number_;
  ahead_bytes_ = 0;
  ahead_wakes_.notify_one();
}

// At least one at a time, however large it is.
bool LocalReplica::Table::may_go_ahead() const {
  if (ahead_next_ == ahead_list_.size()) return false;
  const uint64_t limit_bytes = ahead_bytes_asked_ != 0 ? ahead_bytes_asked_ : cache_.sum().budget / 2;
  return ahead_bytes_ == 0 || ahead_bytes_ + ahead_list_[ahead_next_].bytes() <= limit_bytes;
}

void LocalReplica::Table::work_ahead() {
  const MutexLock lock(mutex_);
  for (;;) {
    ahead_wakes_.wait(mutex_, [this]() TERRACE_REQUIRES(mutex_) { return closing_ || may_go_ahead(); });
    if (closing_) return;
    const SharedTensor tensor = ahead_list_[ahead_next_++];
    Cache::Freed freed;
    copy_ahead(tensor, freed);
    const MutexUnlock unlocked(mutex_);
    freed.clear();
  }
}

void LocalReplica::Table::copy_ahead(const SharedTensor& tensor, Cache::Freed& freed) {
  if (const std::shared_ptr<Entry> found = cache_.find(tensor.identity())) {
    if (found->copying || found->modified || good(tensor, found->version)) {
      cache_.use(*found);  // wanted soon: not the next to go
      found->wanted = ahead_number_;
      return;
    }
    ++counts_.stale;
    cache_.unlist(*found, freed);
  }
  constexpr const char* where = "LocalReplicas::prefetch";
  const uint64_t list = ahead_number_;
  const Result<bool> reserved = reserve(tensor, Patience::at_once, where, freed);
  if (!reserved.ok()) {
    ++counts_.prefetch_dropped;
    return;
  }
  const Result<std::shared_ptr<Entry>> entered = enter(tensor, where, freed);
  if (!entered.ok()) {
    ++counts_.prefetch_dropped;
    return;
  }
  const std::shared_ptr<Entry>& entry = *entered;
  ++copying_ahead_;
  const Status copied = copy_in(entry, 0, freed);
  --copying_ahead_;
  if (copied.ok()) {
    ++counts_.prefetched;
    if (entry->listed) {
      entry->ahead = list;
      entry->wanted = list;
      if (list == ahead_number_) ahead_bytes_ += entry->bytes;
    }
  } else {
    ++counts_.prefetch_dropped;
  }
  cache_.unpin(*entry, freed);
}

}  // namespace terrace
