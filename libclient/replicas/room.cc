// Pins, evictions and room of the table of local replicas.
#include <algorithm>

#include "libclient/replicas/table.h"

namespace terrace {

LocalReplica LocalReplica::Table::pin(const std::shared_ptr<Entry>& entry) {
  if (entry->pins++ == 0) pinned_bytes_ += entry->bytes;
  return LocalReplica(shared_from_this(), entry);
}

void LocalReplica::Table::unpin(Entry& entry) {
  if (forked()) return;
  Buffers dead;
  const std::lock_guard lock(mutex_);
  unpin_locked(entry, dead);
}

void LocalReplica::Table::unpin_locked(Entry& entry, Buffers& dead) {
  if (--entry.pins != 0) return;
  pinned_bytes_ -= entry.bytes;
  release_if_unused(entry, dead);
  trim(dead);
}

// It is used now: the last to go, and room for another one to be copied ahead.
void LocalReplica::Table::use(Order::iterator place) {
  Entry& entry = **place;
  if (entry.ahead != 0) ++counts_.hits_ahead;
  forget_ahead(entry);
  entry.wanted = 0;
  order_.splice(order_.begin(), order_, place);
}

void LocalReplica::Table::forget_ahead(Entry& entry) {
  if (entry.ahead != 0 && entry.ahead == ahead_number_) {
    ahead_bytes_ -= entry.bytes;
    ahead_wakes_.notify_one();
  }
  entry.ahead = 0;
}

void LocalReplica::Table::unlist(Order::iterator place, Buffers& dead) {
  const std::shared_ptr<Entry> entry = *place;
  forget_ahead(*entry);
  if (entry->modified) modified_bytes_ -= entry->bytes;
  entry->modified = false;
  entry->listed = false;
  entries_.erase(entry->tensor.identity());
  order_.erase(place);
  release_if_unused(*entry, dead);
}

void LocalReplica::Table::release_if_unused(Entry& entry, Buffers& dead) {
  if (entry.listed || entry.pins != 0 || entry.buffer.at == nullptr) return;  // L4
  resident_bytes_ -= entry.bytes;
  dead.push_back(std::move(entry.buffer));
}

bool LocalReplica::Table::evictable(const Entry& entry) const {
  return entry.pins == 0 && !entry.modified && !entry.copying && !entry.writing;  // L2
}

void LocalReplica::Table::evict(Order::iterator place, Buffers& dead) {
  ++counts_.evicted;
  counts_.evicted_bytes += (*place)->bytes;
  unlist(place, dead);
}

// Takes room for a tensor, from what was used least recently; from nobody when that would not be enough. What
// is copied ahead does not take it from its own list: that would go through a long list and leave its end.
// false: the mutex was let go while a copy came to its end, so look again.
Result<bool> LocalReplica::Table::reserve(const SharedTensor& tensor, Patience patience, const char* where,
                                          Lock& lock, Buffers& dead) {
  const uint64_t wanted_bytes = resident_bytes_ + tensor.bytes();
  uint64_t owed_bytes = wanted_bytes > budget_bytes_ ? wanted_bytes - budget_bytes_ : 0;
  std::vector<Order::iterator> victims;
  for (auto place = order_.end(); place != order_.begin() && owed_bytes > 0;) {
    --place;
    if (!evictable(**place)) continue;
    if (patience == Patience::at_once && (*place)->wanted == ahead_number_) continue;
    victims.push_back(place);
    owed_bytes -= std::min(owed_bytes, (*place)->bytes);
  }
  if (owed_bytes > 0) {
    // What is copied ahead can go as soon as it is there.
    const bool may_come = copying_ahead_ > 0 && tensor.bytes() <= budget_bytes_;
    if (patience == Patience::at_once || !may_come) return no_room(tensor, owed_bytes, where);
    changed_.wait(lock);
    return false;
  }
  for (const Order::iterator victim : victims) evict(victim, dead);
  resident_bytes_ += tensor.bytes();
  return true;
}

void LocalReplica::Table::trim(Buffers& dead) {
  for (auto place = order_.end(); place != order_.begin() && resident_bytes_ > budget_bytes_;) {
    --place;
    if (!evictable(**place)) continue;
    const auto victim = place++;
    evict(victim, dead);
  }
}

Error LocalReplica::Table::no_room(const SharedTensor& tensor, uint64_t short_bytes, const char* where) const {
  return replica_error(
      ErrorCode::capacity_exhausted, where, tensor,
      " needs " + std::to_string(tensor.bytes()) + " bytes in tier ddr, " + std::to_string(short_bytes) +
          " short: of a budget of " + std::to_string(budget_bytes_) + " bytes " +
          std::to_string(resident_bytes_) + " are in use (pinned " + std::to_string(pinned_bytes_) +
          ", modified " + std::to_string(modified_bytes_) + ", being copied " + std::to_string(copying_bytes_) +
          "); let replicas go, write modified ones back, or raise the budget");
}

}  // namespace terrace
