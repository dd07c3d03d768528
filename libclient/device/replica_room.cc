// Pins, evictions and room of the replica table.
#include <algorithm>
#include <iterator>

#include "libclient/device/replica_table.h"

namespace terrace {

Replica Replica::Table::pin(const std::shared_ptr<Entry>& entry) {
  if (entry->pins++ == 0) pinned_bytes_ += entry->bytes;
  return Replica(shared_from_this(), entry);
}

Replica Replica::Table::pin_again(const std::shared_ptr<Entry>& entry) {
  const std::lock_guard lock(mutex_);
  return pin(entry);
}

void Replica::Table::unpin(Entry& entry) {
  if (forked()) return;
  Buffers dead;
  const std::lock_guard lock(mutex_);
  if (--entry.pins != 0) return;
  pinned_bytes_ -= entry.bytes;
  release_if_unused(entry, dead);
  trim(dead);
}

bool Replica::Table::evictable(const Entry& entry) const {
  return entry.listed && !entry.modified && !entry.copying && !entry.writing && entry.pins == 0;
}

// Takes the entry out of the table. Returns its buffer when nobody uses it and it has the wanted size. Who took
// Replica::buffer() may have a copy of it under way, although the Replica is gone.
std::shared_ptr<DeviceBuffer> Replica::Table::unlist(Order::iterator place, uint64_t wanted_bytes,
                                                     Buffers& dead) {
  const std::shared_ptr<Entry> entry = *place;
  entries_.erase(entry->id);
  order_.erase(place);
  entry->listed = false;
  if (entry->modified) modified_bytes_ -= entry->bytes;
  entry->modified = false;
  if (entry->bytes == wanted_bytes && entry->pins == 0 && !entry->copying && !entry->writing &&
      entry->buffer.use_count() == 1) {
    // acquire: pairs with the release of the last users' shared_ptrs.
    std::atomic_thread_fence(std::memory_order_acquire);
    resident_bytes_ -= entry->bytes;
    return std::move(entry->buffer);
  }
  release_if_unused(*entry, dead);
  return nullptr;
}

// D4
void Replica::Table::release_if_unused(Entry& entry, Buffers& dead) {
  if (entry.listed || entry.pins != 0 || entry.copying || entry.writing || entry.buffer == nullptr) return;
  resident_bytes_ -= entry.bytes;
  dead.push_back(std::move(entry.buffer));
  entry.buffer = nullptr;
}

std::shared_ptr<DeviceBuffer> Replica::Table::evict(Order::iterator place, uint64_t wanted_bytes,
                                                    Buffers& dead) {
  ++counts_.evicted;
  counts_.evicted_bytes += (*place)->bytes;
  return unlist(place, wanted_bytes, dead);
}

// Evicts what was not used for longest until the source fits into the budget; nothing, if that is not enough.
// Of what is evicted a buffer of the very size is used again: the driver's free and allocate wait for the
// device.
Status Replica::Table::make_room(const ReplicaSource& source, std::shared_ptr<DeviceBuffer>& reused,
                                 Buffers& dead) {
  const uint64_t bytes = source.bytes.size();
  if (bytes > budget_bytes_) return no_room(source, bytes - budget_bytes_);
  const uint64_t allowed_bytes = budget_bytes_ - bytes;  // resident beside it
  if (resident_bytes_ <= allowed_bytes) return {};
  uint64_t owed_bytes = resident_bytes_ - allowed_bytes;
  std::vector<Order::iterator> victims;
  for (auto place = order_.end(); place != order_.begin() && owed_bytes > 0;) {
    --place;
    if (!evictable(**place)) continue;
    victims.push_back(place);
    owed_bytes -= std::min(owed_bytes, (*place)->bytes);
  }
  if (owed_bytes > 0) return no_room(source, owed_bytes);
  for (const Order::iterator victim : victims) {
    std::shared_ptr<DeviceBuffer> buffer = evict(victim, reused == nullptr ? bytes : 0, dead);
    if (buffer != nullptr) reused = std::move(buffer);
  }
  dead.clear();  // before allocating
  return {};
}

// The device may have less than the budget says: others use it too.
Result<std::shared_ptr<DeviceBuffer>> Replica::Table::allocate(const ReplicaSource& source) {
  Buffers dead;
  while (true) {
    auto buffer = device_->allocate(source.bytes.size(), source.name);
    if (buffer.ok() || buffer.error().code != ErrorCode::capacity_exhausted) return buffer;
    auto last = std::find_if(order_.rbegin(), order_.rend(),
                             [this](const std::shared_ptr<Entry>& entry) { return evictable(*entry); });
    if (last == order_.rend()) {
      Error error = std::move(buffer).error();  // of the device: names what it was asked for
      error.detail = "tensor " + std::to_string(source.id) + " " + error.detail + "; " + in_use_text();
      return error;
    }
    if (auto same = evict(std::prev(last.base()), source.bytes.size(), dead); same != nullptr) return same;
    dead.clear();
  }
}

void Replica::Table::trim(Buffers& dead) {
  for (auto place = order_.end(); place != order_.begin() && resident_bytes_ > budget_bytes_;) {
    --place;
    if (!evictable(**place)) continue;
    const auto victim = place++;
    evict(victim, 0, dead);
  }
}

Error Replica::Table::no_room(const ReplicaSource& source, uint64_t short_bytes) const {
  return {ErrorCode::capacity_exhausted, 0, "DeviceReplicas::fetch",
          "tensor " + std::to_string(source.id) + " " + quoted_name(source.name) + " needs " +
              std::to_string(source.bytes.size()) + " bytes in tier hbm, " + std::to_string(short_bytes) +
              " short: " + in_use_text() + "; let replicas go, write modified ones back, or raise the budget"};
}

std::string Replica::Table::in_use_text() const {
  return "of a budget of " + std::to_string(budget_bytes_) + " bytes " + std::to_string(resident_bytes_) +
         " are in use (pinned " + std::to_string(pinned_bytes_) + ", modified " +
         std::to_string(modified_bytes_) + ", being copied " + std::to_string(moving_bytes_) + ")";
}

}  // namespace terrace
