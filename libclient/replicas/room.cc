// SPDX-License-Identifier: Apache-2.0
// Pins, uses and room of the table of local replicas.
#include "libclient/replicas/table.h"

namespace terrace {

LocalReplica LocalReplica::Table::pin(std::shared_ptr<Entry> entry) {
  cache_.pin(*entry);
  return LocalReplica(shared_from_this(), std::move(entry));
}

void LocalReplica::Table::unpin(Entry& entry) {
  if (forked()) return;
  Cache::Freed freed;
  const MutexLock lock(mutex_);
  cache_.unpin(entry, freed);
}

// It is used now: the last to go, and room for another one to be copied ahead.
void LocalReplica::Table::use(Entry& entry) {
  if (entry.ahead != 0) ++counts_.hits_ahead;
  forget_ahead(entry);
  entry.wanted = 0;
  cache_.use(entry);
}

void LocalReplica::Table::forget_ahead(Entry& entry) {
  if (entry.ahead != 0 && entry.ahead == ahead_number_) {
    ahead_bytes_ -= entry.bytes;
    ahead_wakes_.notify_one();
  }
  entry.ahead = 0;
}

// Makes room for a tensor, from what was used least recently; from nobody when that would not be enough. What
// is copied ahead does not take it from its own list: that would go through a long list and leave its end.
// false: the mutex was let go while a copy came to its end, so look again.
Result<bool> LocalReplica::Table::reserve(const SharedTensor& tensor, Patience patience, const char* where,
                                          Cache::Freed& freed) {
  const auto of_this_list = [&](const Entry& entry) TERRACE_REQUIRES(mutex_) {
    return patience == Patience::at_once && entry.wanted == ahead_number_;
  };
  const uint64_t short_bytes = cache_.make_room(tensor.bytes(), freed, of_this_list);
  if (short_bytes == 0) return true;
  // What is copied ahead can go as soon as it is there.
  const bool may_come = copying_ahead_ > 0 && tensor.bytes() <= cache_.sum().budget;
  if (patience == Patience::at_once || !may_come)
    return replica_error(ErrorCode::capacity_exhausted, where, tensor,
                         " " + cache_.sum().no_room_text("ddr", tensor.bytes(), short_bytes));
  changed_.wait(mutex_);
  return false;
}

}  // namespace terrace
