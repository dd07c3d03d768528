// SPDX-License-Identifier: Apache-2.0
#include "tiering/range/frozen_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "core/base/units.h"
#include "tiering/range/lossy_copy.h"

namespace terrace {
namespace {

std::string kernel_says(const char* what, int os_errno) {
  return os_error(os_errno, "TieredRange::freeze", what).to_string();
}

}  // namespace

FrozenMemory::FrozenMemory(tiering::TieredMemory& memory, std::atomic<bool>& busy)
    : memory_(memory), busy_(busy), granule_bytes_(memory.granule_bytes()), process_(::getpid()) {}

FrozenMemory::~FrozenMemory() {
  if (::getpid() != process_) {  // a child of fork has neither the reader nor the memory
    userfault_.abandon();
    return;
  }
  std::vector<Granule*> gone;
  {
    const MutexLock lock(mutex_);
    for (Granule& granule : granules_) {
      wait_for_claim(granule);
      if (granule.state == State::gone) continue;
      granule.state = State::gone;
      gone.push_back(&granule);
    }
  }
  let_go(gone);
  userfault_.stop();
  for (const Part& part : room_held_) memory_.unhold(part.first, part.count);
  busy_.store(false, std::memory_order_release);  // release: pairs with TieredRange::freeze()
}

FrozenMemory::Granule* FrozenMemory::find(uint32_t number) {
  const auto at =
      std::lower_bound(granules_.begin(), granules_.end(), number,
                       [](const Granule& granule, uint32_t wanted) { return granule.number < wanted; });
  return at != granules_.end() && at->number == number ? &*at : nullptr;
}

// Calls each(granule's number, offset in it, bytes) for what `part` covers, in order.
template <typename Each>
void FrozenMemory::for_each_piece(std::span<const std::byte> part, Each each) const {
  auto offset = static_cast<uint64_t>(reinterpret_cast<const char*>(part.data()) - memory_.base());
  for (uint64_t left = part.size(); left > 0;) {
    const uint64_t within = offset % granule_bytes_, bytes = std::min(left, granule_bytes_ - within);
    each(static_cast<uint32_t>(offset / granule_bytes_), within, bytes);
    offset += bytes;
    left -= bytes;
  }
}

void FrozenMemory::collect(std::span<const std::span<const std::byte>> parts,
                           std::span<const std::span<std::byte>> room) {
  std::vector<std::pair<uint32_t, uint64_t>> pieces;
  for (const auto part : parts)
    for_each_piece(part,
                   [&](uint32_t number, uint64_t, uint64_t bytes) { pieces.emplace_back(number, bytes); });
  std::sort(pieces.begin(), pieces.end());
  for (const auto& piece : pieces) {
    if (granules_.empty() || granules_.back().number != piece.first) {
      granules_.emplace_back();
      granules_.back().number = piece.first;
    }
    granules_.back().bytes_left += piece.second;
  }
  status_.bytes = granules_.size() * granule_bytes_;
  for (const std::span<std::byte> memory : room) {
    auto* at = reinterpret_cast<char*>(memory.data());
    for (uint64_t offset = 0; offset + granule_bytes_ <= memory.size(); offset += granule_bytes_)
      free_slots_.push_back(at + offset);
    if (at >= memory_.base() && at < memory_.base() + memory_.bytes()) {
      const auto first = static_cast<uint32_t>(static_cast<uint64_t>(at - memory_.base()) / granule_bytes_);
      const auto end = static_cast<uint32_t>(
          (static_cast<uint64_t>(at - memory_.base()) + memory.size() - 1) / granule_bytes_ + 1);
      memory_.hold(first, end - first);
      room_held_.push_back({first, end - first});
    }
  }
  status_.room_bytes = free_slots_.size() * granule_bytes_;
}

// Run after run; what the kernel does not protect is left for copy_rest().
void FrozenMemory::protect(const std::string& why_not) {
  for (Granule& granule : granules_) {
    memory_.hold(granule.number, 1);
    granule.held = true;
    granule.live = memory_.alias(granule.number);
    if (granule.live == nullptr) granule.live = base_of(granule);
  }
  if (!userfault_.started()) {
    const MutexLock lock(mutex_);
    status_.reason = why_not;
    return;
  }
  for (size_t first = 0; first < granules_.size();) {
    size_t end = first + 1;
    while (end < granules_.size() && granules_[end].number == granules_[end - 1].number + 1 &&
           memory_.residency(granules_[end].number) == memory_.residency(granules_[first].number))
      ++end;
    char* at = base_of(granules_[first]);
    const uint64_t bytes = (end - first) * granule_bytes_;
    int failed = userfault_.register_write_protect(at, bytes);
    {
      // Before the protection: the reader resolves stores to others' bytes of these granules from then on.
      const MutexLock lock(mutex_);
      for (size_t i = first; i < end; ++i) granules_[i].registered = failed == 0;
    }
    if (failed == 0 && userfault_.write_protect(at, bytes, true) != 0)
      for (size_t i = first; i < end; ++i)
        if (const int refused = protect_one(granules_[i]); refused != 0) failed = refused;
    if (failed != 0) {
      const MutexLock lock(mutex_);
      status_.reason = kernel_says("granules cannot be write-protected", failed);
    }
    first = end;
  }
}

// Of a run that was not protected as a whole, as when stores come to what others have in a granule of it: only
// what stays unprotected alone is copied at once.
int FrozenMemory::protect_one(Granule& granule) {
  {
    const MutexLock lock(mutex_);
    if (granule.state != State::live) return 0;
  }
  // Not claimed: the reader goes on with the stores that this makes wait.
  const int failed = userfault_.write_protect(base_of(granule), granule_bytes_, true);
  if (failed == 0) return 0;
  ReleasableMutexLock lock(mutex_);
  wait_for_claim(granule);
  if (granule.state != State::live) return 0;
  granule.claimed = true;
  granule.registered = false;
  lock.unlock();
  if (userfault_.unregister(base_of(granule), granule_bytes_) != 0) unprotect(granule);
  lock.lock();
  granule.claimed = false;
  unclaimed_.notify_all();
  return failed;
}

Status FrozenMemory::copy_rest() {
  uint64_t wanted = 0;
  for (const Granule& granule : granules_) wanted += granule.registered ? 0 : granule_bytes_;
  if (const SnapshotStatus now = status(); wanted > now.room_bytes)
    return Error{ErrorCode::capacity_exhausted, 0, "TieredRange::freeze",
                 format_size(wanted) + " must be copied at once (" + now.reason + "); the room is " +
                     format_size(wanted - now.room_bytes) + " short"};
  for (Granule& granule : granules_)
    if (!granule.registered) TERRACE_RETURN_IF_ERROR(copy_now(granule));
  return {};
}

Status FrozenMemory::copy_now(Granule& granule) {
  ReleasableMutexLock lock(mutex_);
  // The reader takes slots by now, for stores to what is protected already, and may be at this one.
  wait_for_claim(granule);
  if (granule.state != State::live) return {};
  if (free_slots_.empty())
    return Error{ErrorCode::capacity_exhausted, 0, "TieredRange::freeze",
                 "the program stored to what is being frozen, and the room is used up"};
  char* const slot = free_slots_.back();
  free_slots_.pop_back();
  granule.claimed = true;
  lock.unlock();
  const bool there = copy_unless_lost(slot, granule.live, granule_bytes_);
  lock.lock();
  granule.claimed = false;
  unclaimed_.notify_all();
  if (!there)
    return Error{ErrorCode::lease_expired, 0, "TieredRange::freeze",
                 "a lease behind what is to be frozen, or behind the room, is lost"};
  granule.copy = slot;
  granule.state = State::aside;
  granule.waiting = false;
  status_.copied_at_once_bytes += granule_bytes_;
  return {};
}

Status FrozenMemory::freeze(std::span<const std::span<const std::byte>> parts,
                            std::span<const std::span<std::byte>> room, int userfault_device,
                            const std::string& why_not) {
  const uint64_t begin_ns = tiering::monotonic_ns();
  collect(parts, room);
  std::string why = why_not;
  if (why.empty())
    if (const int failed = userfault_.start(userfault_device, on_fault, this); failed != 0)
      why = kernel_says("no userfaultfd", failed);
  protect(why);
  TERRACE_RETURN_IF_ERROR(copy_rest());
  const MutexLock lock(mutex_);
  status_.freeze_ns = tiering::monotonic_ns() - begin_ns;
  return {};
}

void FrozenMemory::on_fault(void* self, uint64_t address) {
  static_cast<FrozenMemory*>(self)->resolve(address);
}

// On the reader's thread: a store waits. Who has the granule claimed waits for no store, so it may be waited
// for.
void FrozenMemory::resolve(uint64_t address) {
  const uint64_t offset = address - reinterpret_cast<uintptr_t>(memory_.base());
  Granule* granule = find(static_cast<uint32_t>(offset / granule_bytes_));
  if (granule == nullptr) return;
  ReleasableMutexLock lock(mutex_);
  wait_for_claim(*granule);
  if (granule->state == State::gone || !granule->registered) {
    lock.unlock();
    userfault_.wake(base_of(*granule), granule_bytes_);
    return;
  }
  char* slot = nullptr;
  if (granule->state == State::live) {
    if (free_slots_.empty()) {
      granule->waiting = true;
      ++status_.waits_for_room;
      return;
    }
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  granule->claimed = true;
  lock.unlock();
  save(*granule, slot);
}

// Of a claimed granule; nullptr: it is aside already. Then it may be protected nevertheless: freeze() protects
// whole runs, and again where a store had come to a granule of the run meanwhile.
void FrozenMemory::save(Granule& granule, char* slot) {
  if (slot != nullptr) {
    const bool there = copy_unless_lost(slot, granule.live, granule_bytes_);
    const MutexLock lock(mutex_);
    granule.copy = slot;
    granule.state = there ? State::aside : State::lost;
    granule.waiting = false;
    if (there) status_.copied_bytes += granule_bytes_;
  }
  // Behind the change of state, so that whoever read the live bytes until then finds it out.
  unprotect(granule);
  const MutexLock lock(mutex_);
  granule.claimed = false;
  unclaimed_.notify_all();
}

// Wakes who waits, too, also where the kernel refuses: they fault again.
void FrozenMemory::unprotect(Granule& granule) {
  char* const at = base_of(granule);
  if (userfault_.write_protect(at, granule_bytes_, false) != 0) userfault_.wake(at, granule_bytes_);
}

std::vector<std::span<const std::byte>> FrozenMemory::view(std::span<const std::byte> part) const {
  // acquire: pairs with save(), which changes the state before unprotect() lets a store through. The reads
  // before this look stay before it.
  std::atomic_thread_fence(std::memory_order_acquire);
  std::vector<std::span<const std::byte>> places;
  const MutexLock lock(mutex_);
  for_each_piece(part, [&](uint32_t number, uint64_t within, uint64_t bytes) {
    const Granule* granule = find(number);
    TERRACE_CHECK(granule != nullptr && granule->state != State::gone, "a look at what is not frozen");
    const char* at = granule->state == State::aside ? granule->copy : granule->live;
    const auto* place =
        granule->state == State::lost ? nullptr : reinterpret_cast<const std::byte*>(at) + within;
    places.push_back({place, bytes});
  });
  return places;
}

void FrozenMemory::release(std::span<const std::byte> part) {
  std::vector<Granule*> gone, saving;
  std::vector<char*> slots;
  {
    const MutexLock lock(mutex_);
    for_each_piece(part, [&](uint32_t number, uint64_t, uint64_t bytes) TERRACE_REQUIRES(mutex_) {
      Granule* granule = find(number);
      TERRACE_CHECK(granule != nullptr && granule->bytes_left >= bytes, "released what is not frozen");
      granule->bytes_left -= bytes;
      if (granule->bytes_left > 0) return;
      wait_for_claim(*granule);
      if (granule->state == State::aside) free_slots_.push_back(granule->copy);
      granule->state = State::gone;
      granule->waiting = false;
      status_.released_bytes += granule_bytes_;
      gone.push_back(granule);
    });
    // Stores that waited for room have it now.
    for (Granule& granule : granules_) {
      if (free_slots_.empty() || status_.waits_for_room == 0) break;
      if (!granule.waiting || granule.claimed || granule.state != State::live) continue;
      granule.claimed = true;
      saving.push_back(&granule);
      slots.push_back(free_slots_.back());
      free_slots_.pop_back();
    }
  }
  for (size_t i = 0; i < saving.size(); ++i) save(*saving[i], slots[i]);
  let_go(gone);
}

void FrozenMemory::let_go(std::vector<Granule*>& gone) {
  for (size_t first = 0; first < gone.size();) {
    size_t end = first + 1;
    while (end < gone.size() && gone[end]->number == gone[end - 1]->number + 1 &&
           gone[end]->registered == gone[first]->registered)
      ++end;
    char* at = base_of(*gone[first]);
    const uint64_t bytes = (end - first) * granule_bytes_;
    // Takes the protection away and wakes who waits. Where it fails (no memory for another mapping) it stays
    // registered until the userfaultfd is closed, but nothing is protected.
    if (gone[first]->registered) {
      if (userfault_.unregister(at, bytes) != 0) userfault_.write_protect(at, bytes, false);
      // Translations only: the protection split them into small ones, which the kernel may join now.
      ::madvise(at, bytes, MADV_DONTNEED);
    }
    for (; first < end; ++first) {
      if (gone[first]->held) memory_.unhold(gone[first]->number, 1);
      gone[first]->held = false;
    }
  }
}

SnapshotStatus FrozenMemory::status() const {
  const MutexLock lock(mutex_);
  return status_;
}

}  // namespace terrace
