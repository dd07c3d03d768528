// SPDX-License-Identifier: Apache-2.0
#include "libclient/replicas/table.h"

namespace terrace {

Error replica_error(ErrorCode code, const char* where, const SharedTensor& tensor, const std::string& text) {
  return {code, 0, where, "tensor " + quoted_name(tensor.name()) + text};
}

LocalReplica::Table::Table(TensorSpace& space, const LocalReplicasOptions& options)
    : space_(space),
      wait_ns_(options.wait_ns),
      ahead_bytes_asked_(options.prefetch_bytes_max),
      cache_(options.budget_bytes, [this](Entry& entry) TERRACE_REQUIRES(mutex_) { forget_ahead(entry); }) {}

Status LocalReplica::Table::usable(const SharedTensor& tensor, const char* where) const {
  if (forked())
    return Error{ErrorCode::unavailable, 0, where,
                 "the replicas belong to the process that forked this one; attach again and make others"};
  if (tensor.identity().memory == nullptr)
    return Error{ErrorCode::invalid_argument, 0, where, "a tensor that was neither created nor opened"};
  if (tensor.bytes() == 0) return replica_error(ErrorCode::invalid_argument, where, tensor, " has no bytes");
  return {};
}

// Whether there is a replica to give out. `waited`: the mutex was let go meanwhile; look again.
Result<LocalReplica::Table::Found> LocalReplica::Table::look(const SharedTensor& tensor, Cache::Freed& freed) {
  const std::shared_ptr<Entry> found = cache_.find(tensor.identity());
  if (found == nullptr) return Found::absent;
  const Entry& entry = *found;
  if (entry.copying) {
    changed_.wait(mutex_);
    return Found::waited;
  }
  const uint64_t version = entry.version;
  if (entry.modified) {
    // While it is written back, its own publication may be what it sees.
    if (version == 0 || entry.writing || good(tensor, version)) return Found::current;
    return replica_error(ErrorCode::busy, "LocalReplicas::fetch", tensor,
                         " was modified in tier ddr since version " + std::to_string(version) + " (" +
                             std::to_string(entry.bytes) +
                             " bytes), and another version was published since: discard one of them");
  }
  if (good(tensor, version)) return Found::current;
  ++counts_.stale;
  cache_.unlist(*found, freed);
  return Found::absent;
}

Result<LocalReplica> LocalReplica::Table::fetch(const SharedTensor& tensor) {
  constexpr const char* where = "LocalReplicas::fetch";
  TERRACE_RETURN_IF_ERROR(usable(tensor, where));
  Cache::Freed freed;
  ReleasableMutexLock lock(mutex_);
  for (;;) {
    TERRACE_ASSIGN_OR_RETURN(const Found found, look(tensor, freed));
    if (found == Found::waited) continue;
    if (found == Found::current) {
      std::shared_ptr<Entry> entry = cache_.find(tensor.identity());
      ++counts_.hits;
      use(*entry);
      return pin(std::move(entry));
    }
    TERRACE_ASSIGN_OR_RETURN(const bool reserved, reserve(tensor, Patience::waits_for_room, where, freed));
    if (reserved) break;
  }
  TERRACE_ASSIGN_OR_RETURN(const std::shared_ptr<Entry> entry, enter(tensor, where, freed));
  ++counts_.misses;
  LocalReplica replica(shared_from_this(), entry);
  Status copied = copy_in(entry, wait_ns_, freed);
  if (copied.ok()) return replica;
  lock.unlock();  // which letting `replica` go takes
  return std::move(copied).error();
}

// Lists a new entry for room that was made, pinned.
Result<std::shared_ptr<LocalReplica::Entry>> LocalReplica::Table::enter(const SharedTensor& tensor,
                                                                        const char* where,
                                                                        Cache::Freed& freed) {
  auto entry = std::make_shared<Entry>();
  entry->tensor = tensor;
  entry->bytes = tensor.bytes();
  entry->buffer = freed.take(entry->bytes);
  if (entry->buffer == nullptr)
    entry->buffer.reset(static_cast<std::byte*>(std::aligned_alloc(64, (entry->bytes + 63) / 64 * 64)));
  if (entry->buffer == nullptr)
    return replica_error(ErrorCode::out_of_memory, where, tensor,
                         ": this process got no " + std::to_string(entry->bytes) + " bytes for tier ddr");
  cache_.insert(entry);
  cache_.pin(*entry);
  return entry;
}

// Copies the newest version. An entry that could not be filled is not listed afterwards.
Status LocalReplica::Table::copy_in(const std::shared_ptr<Entry>& entry, uint64_t wait_ns,
                                    Cache::Freed& freed) {
  cache_.set_copying(*entry, true);
  const Result<uint64_t> version = [&]() TERRACE_REQUIRES(mutex_) {
    const MutexUnlock unlocked(mutex_);
    return space_.read(entry->tensor, entry->span(), 0, wait_ns);
  }();
  cache_.set_copying(*entry, false);
  changed_.notify_all();
  if (version.ok()) {
    entry->version = *version;
    counts_.copied_bytes += entry->bytes;
    return {};
  }
  ++counts_.failed;
  if (entry->listed) cache_.unlist(*entry, freed);
  return version.error();
}

Result<LocalReplica> LocalReplica::Table::overwrite(const SharedTensor& tensor) {
  constexpr const char* where = "LocalReplicas::overwrite";
  TERRACE_RETURN_IF_ERROR(usable(tensor, where));
  if (space_.part() != tensor.part())
    return replica_error(ErrorCode::permission_denied, where, tensor,
                         " is in part " + std::to_string(tensor.part()) + ", which is not this holder's");
  Cache::Freed freed;
  const MutexLock lock(mutex_);
  for (;;) {
    if (const std::shared_ptr<Entry> found = cache_.find(tensor.identity())) {
      const Entry& entry = *found;
      if (entry.modified || entry.pins > (entry.copying ? 1 : 0))
        return replica_error(ErrorCode::busy, where, tensor,
                             entry.modified ? " was modified already: write it back or discard it"
                                            : " is in use in this process: let its replicas go");
      if (entry.copying) {
        changed_.wait(mutex_);
        continue;
      }
      cache_.unlist(*found, freed);
    }
    TERRACE_ASSIGN_OR_RETURN(const bool reserved, reserve(tensor, Patience::waits_for_room, where, freed));
    if (reserved) break;
  }
  TERRACE_ASSIGN_OR_RETURN(const std::shared_ptr<Entry> entry, enter(tensor, where, freed));
  cache_.set_modified(*entry, true);
  return LocalReplica(shared_from_this(), entry);
}

Result<std::span<std::byte>> LocalReplica::Table::modify(const LocalReplica& replica, bool already) {
  constexpr const char* where = "LocalReplicas::mark_modified";
  Entry& entry = *replica.entry_;
  TERRACE_RETURN_IF_ERROR(usable(entry.tensor, where));
  if (space_.part() != entry.tensor.part())
    return replica_error(ErrorCode::permission_denied, where, entry.tensor,
                         " is in part " + std::to_string(entry.tensor.part()) + ", which is not this holder's");
  const MutexLock lock(mutex_);
  if (entry.writing) return replica_error(ErrorCode::busy, where, entry.tensor, " is being written back");
  if (!entry.listed)
    return replica_error(ErrorCode::cancelled, where, entry.tensor,
                         " has a newer version, or its replica was discarded: fetch it again");
  if (already && !entry.modified)
    return replica_error(ErrorCode::invalid_argument, where, entry.tensor, " is not modified");
  if (!already && entry.pins > 1)
    return replica_error(ErrorCode::busy, where, entry.tensor,
                         " is in use elsewhere in this process: let its other replicas go");
  cache_.set_modified(entry, true);
  return entry.span();
}

// Over version `base`, and no other (0: over any). Another thread of this holder may publish, past the
// replicas, between a look at the version and the write; so a tensor of two slots is looked at again once
// nobody else can write it. That write is then given up, which gives the content that is there a greater
// number. The content of one slot would be lost with it: there the look in front has to do.
Result<uint64_t> LocalReplica::Table::publish(Entry& entry, uint64_t base) {
  const SharedTensor& tensor = entry.tensor;
  const auto another = [&] {
    return replica_error(
        ErrorCode::busy, "LocalReplicas::write_back", tensor,
        " was modified since version " + std::to_string(base) + ", and is another by now: discard one of them");
  };
  TERRACE_RETURN_IF_ERROR(space_.health());
  if (base == 0) return space_.publish(tensor, entry.span(), wait_ns_);
  if (!space_.is_current(tensor, base)) return another();
  if (!tensor.double_buffered()) return space_.publish(tensor, entry.span(), wait_ns_);
  TERRACE_ASSIGN_OR_RETURN(TensorWrite writing, space_.write(tensor, wait_ns_));
  if (!space_.is_current(tensor, base)) return another();
  TERRACE_RETURN_IF_ERROR(writing.fill(entry.span()));
  const uint64_t version = writing.publish();
  if (version == 0) TERRACE_RETURN_IF_ERROR(space_.health());
  return version;
}

Result<uint64_t> LocalReplica::Table::write_back(const LocalReplica& replica) {
  constexpr const char* where = "LocalReplicas::write_back";
  const std::shared_ptr<Entry> entry = replica.entry_;
  TERRACE_RETURN_IF_ERROR(usable(entry->tensor, where));
  Cache::Freed freed;
  ReleasableMutexLock lock(mutex_);
  if (entry->writing)
    return replica_error(ErrorCode::busy, where, entry->tensor, " is being written back already");
  if (!entry->listed || !entry->modified)
    return replica_error(ErrorCode::invalid_argument, where, entry->tensor, " has no modified replica");
  cache_.set_writing(*entry, true);
  const uint64_t base = entry->version;
  lock.unlock();
  Result<uint64_t> published = publish(*entry, base);
  lock.lock();
  cache_.set_writing(*entry, false);
  if (published.ok()) {
    counts_.written_back_bytes += entry->bytes;
    cache_.set_modified(*entry, false);
    entry->version = *published;
  }
  cache_.settle(*entry, freed);
  return published;
}

void LocalReplica::Table::discard(const SharedTensor& tensor) {
  if (forked()) return;
  Cache::Freed freed;
  const MutexLock lock(mutex_);
  if (const std::shared_ptr<Entry> found = cache_.find(tensor.identity())) cache_.unlist(*found, freed);
}

ReplicaState LocalReplica::Table::state(const SharedTensor& tensor) {
  if (forked()) return ReplicaState::invalid;
  const MutexLock lock(mutex_);
  const std::shared_ptr<Entry> entry = cache_.find(tensor.identity());
  if (entry == nullptr) return ReplicaState::invalid;
  if (entry->modified) return ReplicaState::modified;
  return !entry->copying && good(tensor, entry->version) ? ReplicaState::shared : ReplicaState::invalid;
}

void LocalReplica::Table::set_budget(uint64_t bytes) {
  if (forked()) return;
  Cache::Freed freed;
  const MutexLock lock(mutex_);
  cache_.set_budget(bytes, freed);
  ahead_wakes_.notify_all();
}

LocalReplicaStats LocalReplica::Table::stats() const {
  if (forked()) return {};
  const MutexLock lock(mutex_);
  LocalReplicaStats stats = counts_;
  cache_.add_to(stats);
  stats.prefetch_pending = ahead_list_.size() - ahead_next_;
  return stats;
}

}  // namespace terrace
