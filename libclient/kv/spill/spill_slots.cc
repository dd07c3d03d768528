// SPDX-License-Identifier: Apache-2.0
// SpillFolder: slots, their locks and their indexes.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/base/signals_blocked.h"
#include "core/os/patient_lock.h"
#include "libclient/kv/spill/spill_folder.h"

namespace terrace::kv {

namespace {

bool has_index_header(int fd, const layout::SpillIndexHeader& wanted) {
  layout::SpillIndexHeader header{};
  return ::pread(fd, &header, sizeof header, 0) == sizeof header &&
         std::memcmp(&header, &wanted, sizeof header) == 0;
}

}  // namespace

std::string SpillFolder::index_name(uint32_t slot) const {
  char name[32];
  std::snprintf(name, sizeof name, "kv-spill.%02u.index", slot);
  return name;
}

SlotIndex* SpillFolder::index(uint32_t slot) {
  // acquire: pairs with map_index()
  SlotIndex* const mapped = slots_[slot].index.load(std::memory_order_acquire);
  if (mapped != nullptr) return mapped;
  const uint64_t epoch = map_->epoch(slot);
  if (epoch == 0) return nullptr;
  const MutexLock lock(mutex_);
  Slot& at = slots_[slot];
  if (at.held == nullptr && at.failed_epoch != epoch && !map_index(slot)) at.failed_epoch = epoch;
  return at.held.get();
}

// As another process made it, and may be making it.
bool SpillFolder::map_index(uint32_t slot) {
  Slot& at = slots_[slot];
  if (!at.file.valid()) {
    Result<UniqueFd> file = open_file(index_name(slot), O_RDWR);
    if (!file.ok()) return false;
    at.file = std::move(*file);
  }
  struct stat status {};
  if (::fstat(at.file.get(), &status) != 0 || static_cast<uint64_t>(status.st_size) < geometry_.index_bytes() ||
      !has_index_header(at.file.get(), spill_index_header(geometry_, slot)))
    return false;
  Result<os::MemoryMap> memory = os::MemoryMap::reserve(geometry_.index_bytes(), os::page_bytes());
  if (!memory.ok() || !os::map_file_at(memory->bytes(), 0, geometry_.index_bytes(), at.file.get(), 0,
                                       os::Protection::read_write)
                           .ok())
    return false;
  at.memory = std::move(*memory);
  at.held = std::make_unique<SlotIndex>(at.memory.data() + layout::spill_page_bytes, geometry_, slot);
  at.index.store(at.held.get(), std::memory_order_release);  // release: pairs with index()
  return true;
}

// Under its lock. One of this map stays as it is, with its blocks.
Status SpillFolder::make_index(uint32_t slot, int fd) {
  constexpr char where[] = "KvSpill::open";
  const layout::SpillIndexHeader header = spill_index_header(geometry_, slot);
  struct stat status {};
  if (::fstat(fd, &status) != 0) return os_error(errno, where, "KV spill: " + path(index_name(slot)));
  if (static_cast<uint64_t>(status.st_size) == geometry_.index_bytes() && has_index_header(fd, header))
    return {};
  if (::ftruncate(fd, 0) != 0) return os_error(errno, where, "KV spill: " + path(index_name(slot)));
  if (Status given = give_file_length(fd, geometry_.index_bytes(), path(index_name(slot))); !given.ok()) {
    (void)!::ftruncate(fd, 0);
    return given;
  }
  if (::pwrite(fd, &header, sizeof header, 0) != sizeof header)
    return os_error(errno, where, "KV spill: " + path(index_name(slot)) + " cannot be written");
  return {};
}

Result<std::optional<uint32_t>> SpillFolder::take_slot() {
  const SignalsBlocked blocked;
  const uint32_t used = map_->slots_used();
  for (uint32_t slot = 0; slot < layout::spill_slots; ++slot) {
    const MutexLock lock(mutex_);
    Slot& at = slots_[slot];
    if (!at.file.valid()) {
      TERRACE_ASSIGN_OR_RETURN(at.file, open_file(index_name(slot), O_RDWR | O_CREAT));
    }
    if (::flock(at.file.get(), LOCK_EX | LOCK_NB) != 0) continue;
    Status made = make_index(slot, at.file.get());
    if (made.ok() && at.held == nullptr && !map_index(slot))
      made = Error{.code = ErrorCode::out_of_memory,
                   .where = "KvSpill::open",
                   .detail = "KV spill: " + path(index_name(slot)) + " cannot be mapped"};
    if (!made.ok()) {
      (void)::flock(at.file.get(), LOCK_UN);
      return std::move(made).error();
    }
    layout::SpillSlot* const line = map_->slot(slot);
    map_->store(&line->pid, static_cast<uint64_t>(::getpid()));
    map_->store(&line->wants_ms, 0);
    map_->store(&line->open, 1);
    map_->store(&line->epoch, map_->epoch(slot) + 1);
    if (slot >= used) map_->set_slot_used(slot);
    return std::optional(slot);
  }
  return std::optional<uint32_t>();
}

void SpillFolder::leave_slot(uint32_t slot) {
  map_->store(&map_->slot(slot)->wants_ms, 0);
  map_->store(&map_->slot(slot)->open, 0);
  unlock_slot(slot);
}

bool SpillFolder::lock_slot(uint32_t slot) {
  if (index(slot) == nullptr) return false;
  const MutexLock lock(mutex_);
  return ::flock(slots_[slot].file.get(), LOCK_EX | LOCK_NB) == 0;
}

void SpillFolder::unlock_slot(uint32_t slot) {
  const MutexLock lock(mutex_);
  (void)::flock(slots_[slot].file.get(), LOCK_UN);
}

}  // namespace terrace::kv
