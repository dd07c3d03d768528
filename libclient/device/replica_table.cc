// SPDX-License-Identifier: Apache-2.0
#include "libclient/device/replica_table.h"

namespace terrace {
namespace {

std::string tensor_text(std::string_view name, uint64_t id) {
  return "tensor " + std::to_string(id) + " " + quoted_name(name);
}

// What went wrong with a copy, and of which tensor.
Status told_of(Status copied, std::string_view name, uint64_t id, const char* where_to) {
  if (copied.ok()) return copied;
  Error error = std::move(copied).error();
  error.detail = tensor_text(name, id) + " was not copied " + where_to + ": " + error.detail;
  return error;
}

Error refused(ErrorCode code, const char* where, std::string text) {
  return {code, 0, where, std::move(text)};
}

}  // namespace

Status Replica::Table::start() {
  TERRACE_ASSIGN_OR_RETURN(up_, device_->make_stream());
  TERRACE_ASSIGN_OR_RETURN(down_, device_->make_stream());
  return {};
}

Status Replica::Table::usable(const char* where) const {
  if (!forked()) return {};
  return refused(ErrorCode::unavailable, where,
                 "the replicas belong to the process that forked this one; make a device and others here");
}

void Replica::Table::close() {
  if (forked()) {  // the table stays: its copies and their threads are the parent's
    (void)new std::shared_ptr<Table>(shared_from_this());
    return;
  }
  up_.reset();  // their last copies take the mutex
  down_.reset();
  Cache::Freed freed;
  const MutexLock lock(mutex_);
  cache_.clear(freed);
}

Result<Replica> Replica::Table::fetch(const ReplicaSource& source, uint64_t version) {
  TERRACE_RETURN_IF_ERROR(usable("DeviceReplicas::fetch"));
  if (source.bytes.empty()) {
    return refused(ErrorCode::invalid_argument, "DeviceReplicas::fetch",
                   tensor_text(source.name, source.id) + " has no bytes");
  }
  Cache::Freed freed;
  const MutexLock lock(mutex_);
  if (std::shared_ptr<Entry> found = cache_.find(source.id)) {
    if (found->version == version && found->bytes == source.bytes.size()) {
      ++counts_.hits;
      cache_.use(*found);
      return pin(std::move(found));
    }
    TERRACE_RETURN_IF_ERROR(check_stale(*found, source, version));
    ++counts_.stale;
    cache_.unlist(*found, freed);
  }
  TERRACE_ASSIGN_OR_RETURN(std::shared_ptr<DeviceBuffer> buffer, make_buffer(source, freed));
  auto entry = std::make_shared<Entry>();
  entry->id = source.id;
  entry->name = source.name;
  entry->version = version;
  entry->bytes = source.bytes.size();
  entry->buffer = std::move(buffer);
  TERRACE_RETURN_IF_ERROR(begin_upload(entry, source));
  ++counts_.misses;
  cache_.insert(entry);
  return pin(std::move(entry));
}

// Whether another version than the asked one may go.
Status Replica::Table::check_stale(const Entry& entry, const ReplicaSource& source, uint64_t version) const {
  constexpr const char* where = "DeviceReplicas::fetch";
  const uint64_t here = entry.version;
  const std::string text = tensor_text(source.name, source.id);
  if (version == here) {
    return refused(ErrorCode::invalid_argument, where,
                   text + " has " + std::to_string(entry.bytes) + " bytes at version " + std::to_string(here) +
                       ", not " + std::to_string(source.bytes.size()) + ": two tensors under one id?");
  }
  if (version < here) {
    return refused(ErrorCode::invalid_argument, where,
                   text + " is at version " + std::to_string(here) + " in tier hbm, newer than the asked " +
                       std::to_string(version) + ": acquire it again");
  }
  if (entry.modified) {
    return refused(ErrorCode::busy, where,
                   text + " was modified in tier hbm since version " + std::to_string(here) + " (" +
                       std::to_string(entry.bytes) + " bytes), and on the host, now at version " +
                       std::to_string(version) + ": write it back or discard it");
  }
  return {};
}

Status Replica::Table::begin_upload(const std::shared_ptr<Entry>& entry, const ReplicaSource& source) {
  const uint64_t version = entry->version;
  Result<DeviceEvent> event = up_->upload(
      entry->buffer, 0, source.bytes, [this, entry, version, version_now = source.version_now](Status copied) {
        const bool moved_on = copied.ok() && version_now && version_now() != version;
        return uploaded(entry, std::move(copied), moved_on);
      });
  if (!event.ok()) return std::move(event).error();
  entry->ready = std::move(*event);
  cache_.set_copying(*entry, true);
  return {};
}

Status Replica::Table::uploaded(const std::shared_ptr<Entry>& entry, Status copied, bool moved_on) {
  Cache::Freed freed;
  const MutexLock lock(mutex_);
  cache_.set_copying(*entry, false);
  if (copied.ok() && !moved_on) {
    counts_.uploaded_bytes += entry->bytes;
  } else {
    ++(moved_on ? counts_.refused : counts_.failed);
    if (entry->listed) cache_.unlist(*entry, freed);  // D1
  }
  cache_.settle(*entry, freed);
  if (!moved_on) return told_of(std::move(copied), entry->name, entry->id, "to tier hbm");
  return refused(ErrorCode::busy, "DeviceReplicas::fetch",
                 tensor_text(entry->name, entry->id) + " was written on the host while its version " +
                     std::to_string(entry->version) + " was copied: acquire it and fetch again");
}

Status Replica::Table::mark_modified(const Replica& replica) {
  TERRACE_RETURN_IF_ERROR(usable("DeviceReplicas::mark_modified"));
  constexpr const char* where = "DeviceReplicas::mark_modified";
  const MutexLock lock(mutex_);
  Entry& entry = *replica.entry_;
  const std::string text = tensor_text(entry.name, entry.id);
  if (entry.copying) return refused(ErrorCode::busy, where, text + " is still being copied: wait for ready()");
  if (entry.writing) return refused(ErrorCode::busy, where, text + " is being written back");
  if (!entry.listed) {
    return refused(
        ErrorCode::cancelled, where,
        text + " is no longer the replica of its tensor: the host has a newer version, or it was discarded");
  }
  cache_.set_modified(entry, true);
  return {};
}

Result<DeviceEvent> Replica::Table::write_back(const Replica& replica, std::span<std::byte> to,
                                               uint64_t new_version) {
  TERRACE_RETURN_IF_ERROR(usable("DeviceReplicas::write_back"));
  constexpr const char* where = "DeviceReplicas::write_back";
  const MutexLock lock(mutex_);
  const std::shared_ptr<Entry>& entry = replica.entry_;
  const std::string text = tensor_text(entry->name, entry->id);
  if (entry->writing) return refused(ErrorCode::busy, where, text + " is being written back already");
  if (!entry->listed || !entry->modified) {
    return refused(ErrorCode::invalid_argument, where, text + " has no modified replica to write back");
  }
  if (to.size() != entry->bytes || new_version <= entry->version) {
    return refused(ErrorCode::invalid_argument, where,
                   text + " has " + std::to_string(entry->bytes) + " bytes at version " +
                       std::to_string(entry->version) + ": not written back to " + std::to_string(to.size()) +
                       " bytes as version " + std::to_string(new_version));
  }
  Result<DeviceEvent> event =
      down_->download(to, entry->buffer, 0, [this, kept = entry, new_version](Status copied) {
        return written(kept, std::move(copied), new_version);
      });
  if (!event.ok()) return event;
  cache_.set_writing(*entry, true);
  return event;
}

Status Replica::Table::written(const std::shared_ptr<Entry>& entry, Status copied, uint64_t new_version) {
  Cache::Freed freed;
  const MutexLock lock(mutex_);
  cache_.set_writing(*entry, false);
  if (copied.ok()) {
    counts_.written_back_bytes += entry->bytes;
    if (entry->modified) entry->version = new_version;  // not discarded meanwhile
    cache_.set_modified(*entry, false);
  }
  cache_.settle(*entry, freed);
  return told_of(std::move(copied), entry->name, entry->id, "back from tier hbm");
}

Status Replica::Table::invalidate(uint64_t id, uint64_t version_now) {
  TERRACE_RETURN_IF_ERROR(usable("DeviceReplicas::invalidate"));
  Cache::Freed freed;
  const MutexLock lock(mutex_);
  const std::shared_ptr<Entry> entry = cache_.find(id);
  if (entry == nullptr) return {};
  const uint64_t here = entry->version;
  if (here >= version_now) return {};
  if (entry->modified) {
    return refused(ErrorCode::busy, "DeviceReplicas::invalidate",
                   tensor_text(entry->name, id) + " was modified in tier hbm since version " +
                       std::to_string(here) + ", and the host is at " + std::to_string(version_now) +
                       ": write it back or discard it");
  }
  cache_.unlist(*entry, freed);
  return {};
}

void Replica::Table::discard(uint64_t id) {
  if (forked()) return;
  Cache::Freed freed;
  const MutexLock lock(mutex_);
  if (const std::shared_ptr<Entry> found = cache_.find(id)) cache_.unlist(*found, freed);
}

ReplicaState Replica::Table::state(uint64_t id, uint64_t version) const {
  if (forked()) return ReplicaState::invalid;
  const MutexLock lock(mutex_);
  const std::shared_ptr<Entry> entry = cache_.find(id);
  if (entry == nullptr) return ReplicaState::invalid;
  if (entry->modified) return ReplicaState::modified;
  return entry->version == version && !entry->copying ? ReplicaState::shared : ReplicaState::invalid;
}

void Replica::Table::set_budget(uint64_t bytes) {
  if (forked()) return;
  Cache::Freed freed;
  const MutexLock lock(mutex_);
  cache_.set_budget(bytes, freed);
}

ReplicaStats Replica::Table::stats() const {
  if (forked()) return {};
  const MutexLock lock(mutex_);
  ReplicaStats stats = counts_;
  cache_.add_to(stats);
  return stats;
}

}  // namespace terrace
