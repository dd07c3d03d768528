// SPDX-License-Identifier: Apache-2.0
// Pins of the replica table, and where its buffers come from.
#include "libclient/device/replica_table.h"

namespace terrace {

Replica Replica::Table::pin(std::shared_ptr<Entry> entry) {
  cache_.pin(*entry);
  return Replica(shared_from_this(), std::move(entry));
}

Replica Replica::Table::pin_again(const std::shared_ptr<Entry>& entry) {
  const MutexLock lock(mutex_);
  return pin(entry);
}

void Replica::Table::unpin(Entry& entry) {
  if (forked()) return;
  Cache::Freed freed;
  const MutexLock lock(mutex_);
  cache_.unpin(entry, freed);
}

// Of what was stale or is evicted a buffer of the very size is used again: the driver's free and allocate wait
// for the device.
Result<std::shared_ptr<DeviceBuffer>> Replica::Table::make_buffer(const ReplicaSource& source,
                                                                  Cache::Freed& freed) {
  const uint64_t bytes = source.bytes.size(), budget_bytes = cache_.sum().budget;
  if (auto stale = freed.take(bytes); stale != nullptr) return stale;
  const uint64_t short_bytes = bytes > budget_bytes ? bytes - budget_bytes : cache_.make_room(bytes, freed);
  const std::string text = "tensor " + std::to_string(source.id) + " ";
  if (short_bytes > 0)
    return Error{ErrorCode::capacity_exhausted, 0, "DeviceReplicas::fetch",
                 text + quoted_name(source.name) + " " + cache_.sum().no_room_text("hbm", bytes, short_bytes)};
  while (true) {
    if (auto same = freed.take(bytes); same != nullptr) return same;
    freed.clear();  // before allocating
    auto buffer = device_->allocate(bytes, source.name);
    if (buffer.ok() || buffer.error().code != ErrorCode::capacity_exhausted) return buffer;
    // The device may have less than the budget says: others use it too.
    if (cache_.evict_one(freed)) continue;
    Error error = std::move(buffer).error();  // of the device: names what it was asked for
    error.detail = text + error.detail + "; " + cache_.sum().in_use_text();
    return error;
  }
}

}  // namespace terrace
