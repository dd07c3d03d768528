// SPDX-License-Identifier: Apache-2.0
#include "tiering/migration/tiered_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/futex.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <new>

#include "core/base/check.h"
#include "tiering/migration/copy.h"

namespace terrace::tiering {
namespace {

constexpr uint32_t mappings_otherwise = 65530;  // the kernel's default of vm.max_map_count

// Of all ranges of this process.
constinit std::atomic<uint32_t> process_mappings{0};

void futex_wait(std::atomic<uint32_t>* word, uint32_t value) {
  ::syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>* word, int how_many) {
  ::syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, how_many, nullptr, nullptr, 0);
}

uint32_t max_map_count() {
  char text[32] = {};
  int fd = ::open("/proc/sys/vm/max_map_count", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return mappings_otherwise;
  ssize_t got = ::read(fd, text, sizeof(text) - 1);
  ::close(fd);
  const long value = got > 0 ? strtol(text, nullptr, 10) : 0;
  return value > 0 && value <= INT32_MAX ? static_cast<uint32_t>(value) : mappings_otherwise;
}

constexpr uint64_t huge_bytes = 2u << 20;
// After a move that met a pin: 10 ms, twice as long each time, up to 10 s.
constexpr uint64_t put_off_ms = 10, put_off_tries_max = 10;
constexpr int madv_collapse = 25;  // Linux 6.1; newer than Debian 12's headers

// On a huge page's boundary, so that a granule of a file in huge pages is one translation here, too.
char* map_alias(int fd, uint64_t bytes, bool huge) {
  void* reserved =
      ::mmap(nullptr, bytes + huge_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  const uintptr_t start = reinterpret_cast<uintptr_t>(reserved);
  const uintptr_t aligned = (start + huge_bytes - 1) & ~(huge_bytes - 1);
  if (aligned > start) ::munmap(reserved, aligned - start);
  ::munmap(reinterpret_cast<void*>(aligned + bytes), start + huge_bytes - aligned);
  auto* at = reinterpret_cast<char*>(aligned);
  if (::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) == at) {
    if (huge) ::madvise(at, bytes, MADV_HUGEPAGE);  // a wish
    if (::madvise(at, bytes, MADV_DONTFORK) == 0) return at;
  }
  const int failed = errno;
  ::munmap(at, bytes);
  errno = failed;
  return nullptr;
}

// A device's pages cannot be asked for pins. Its node lies in a tmpfs, too.
bool is_shared_memory(int fd) {
  struct stat file {};
  struct statfs system {};
  return ::fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && ::fstatfs(fd, &system) == 0 &&
         system.f_type == TMPFS_MAGIC;
}

constexpr size_t round_to_page(size_t bytes) {
  return (bytes + 4095) & ~size_t{4095};
}

}  // namespace

void MoveLock::enter() {
  uint32_t free = 0;
  // acquire: both pair with leave()
  if (state_.compare_exchange_strong(free, 1, std::memory_order_acquire)) return;
  while (state_.exchange(2, std::memory_order_acquire) != 0) futex_wait(&state_, 2);
}

bool MoveLock::try_enter() {
  uint32_t free = 0;
  return state_.compare_exchange_strong(free, 1, std::memory_order_acquire);  // acquire: pairs with leave()
}

void MoveLock::leave() {
  // release: pairs with both entries.
  if (state_.exchange(0, std::memory_order_release) == 2) futex_wake(&state_, 1);
}

int TieredMemory::open(const TieredMemoryOptions& options) {
  if (options.bytes == 0 || options.granule_bytes < 4096 || options.bytes % options.granule_bytes != 0 ||
      (options.granule_bytes & (options.granule_bytes - 1)) != 0 ||
      reinterpret_cast<uintptr_t>(options.base) % options.granule_bytes != 0 ||
      options.bytes / options.granule_bytes >= slot_none)
    return EINVAL;
  const bool on_nodes = options.ddr_node >= 0 && options.cxl_node >= 0;
  if (!on_nodes && (options.ddr_node >= 0 || options.cxl_node >= 0)) return EINVAL;
  if (on_nodes && options.ddr_fd < 0) return EBADF;
  const auto count = static_cast<uint32_t>(options.bytes / options.granule_bytes);
  const size_t granules = round_to_page(count * sizeof(Granule));
  const size_t words = round_to_page(count * sizeof(uint32_t));
  const size_t put_offs = round_to_page(count * sizeof(PutOff));
  table_bytes_ = granules + 3 * words + put_offs;
  void* table = ::mmap(nullptr, table_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (table == MAP_FAILED) return errno;
  const bool aliased = options.ddr_fd >= 0 && !on_nodes;  // the kernel moves no page with two mappings
  char* alias =
      aliased ? map_alias(options.ddr_fd, options.bytes, options.granule_bytes >= huge_bytes) : nullptr;
  if (aliased && alias == nullptr) {
    const int failed = errno;
    ::munmap(table, table_bytes_);
    return failed;
  }
  auto* at = static_cast<char*>(table);
  granules_ = new (at) Granule[count];  // in place
  holds_ = reinterpret_cast<std::atomic<uint32_t>*>(at + granules);
  slots_ = reinterpret_cast<uint32_t*>(at + granules + words);
  scratch_ = reinterpret_cast<uint32_t*>(at + granules + 2 * words);
  put_offs_ = new (at + granules + 3 * words) PutOff[count];  // in place
  memset(slots_, 0xff, count * sizeof(uint32_t));
  base_ = options.base;
  granule_bytes_ = options.granule_bytes;
  count_ = count;
  ddr_fd_ = options.ddr_fd;
  ddr_alias_ = alias;
  ddr_node_ = options.ddr_node;
  cxl_node_ = options.cxl_node;
  node_calls_ = options.node_calls;
  join_pages_ = options.join_pages && granule_bytes_ >= huge_bytes;
  process_mappings_max_ = max_map_count() / 4;
  mappings_max_ = options.mappings_max != 0 ? options.mappings_max : process_mappings_max_;
  return 0;
}

void TieredMemory::close() {
  if (granules_ == nullptr) return;
  for (Segment& segment : segments_) {
    if (segment.alias != nullptr) ::munmap(segment.alias, uint64_t{segment.slots} * granule_bytes_);
    segment = {};
  }
  if (ddr_alias_ != nullptr) ::munmap(ddr_alias_, bytes());
  if (slot_bits_ != nullptr) ::munmap(slot_bits_, slot_bits_bytes_);
  ::munmap(granules_, table_bytes_);
  process_mappings.fetch_sub(mappings_, std::memory_order_relaxed);
  granules_ = nullptr;
  ddr_alias_ = nullptr;
  slot_bits_ = nullptr;
  slot_bits_bytes_ = 0;
  count_ = segment_count_ = closing_ = slot_count_ = slots_used_ = next_slot_ = 0;
  ddr_granules_ = cxl_granules_ = mappings_ = 0;
}

int TieredMemory::add_segment(int fd, uint64_t bytes, uint32_t index) {
  const auto slots = static_cast<uint32_t>(bytes / granule_bytes_);
  if (index == segment_next) index = segment_count_;
  if (index >= tier_segments_max || slots == 0 || on_nodes() || segments_[index].alias != nullptr)
    return EINVAL;
  Segment& segment = segments_[index];
  // The numbers that a segment of this index had serve again where there are enough.
  const bool again = slots <= segment.numbers;
  const size_t bits_bytes = round_to_page((slot_count_ + (again ? 0 : slots) + 63) / 64 * sizeof(uint64_t));
  if (bits_bytes > slot_bits_bytes_) {
    void* bits = ::mmap(nullptr, bits_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bits == MAP_FAILED) return errno;
    if (slot_bits_ != nullptr) {
      memcpy(bits, slot_bits_, slot_bits_bytes_);
      ::munmap(slot_bits_, slot_bits_bytes_);
    }
    slot_bits_ = static_cast<uint64_t*>(bits);
    slot_bits_bytes_ = bits_bytes;
  }
  char* alias = map_alias(fd, uint64_t{slots} * granule_bytes_, granule_bytes_ >= huge_bytes);
  if (alias == nullptr) return errno;
  if (!again) {
    segment.first_slot = slot_count_;
    segment.numbers = slots;
    slot_count_ += slots;
  }
  segment.fd = fd;
  segment.alias = alias;
  segment.slots = slots;
  segment.can_be_asked = is_shared_memory(fd);
  if (again)
    for (uint32_t slot = segment.first_slot; slot < segment.first_slot + slots; ++slot) set_slot(slot, false);
  if (index >= segment_count_) segment_count_ = index + 1;
  return 0;
}

void TieredMemory::close_segment(uint32_t index) {
  Segment& segment = segments_[index];
  TERRACE_CHECK(segment.alias != nullptr && !segment.closing, "closing what is no segment");
  for (uint32_t slot = segment.first_slot; slot < segment.first_slot + segment.slots; ++slot)
    if (!slot_used(slot)) set_slot(slot, true);
  segment.closing = true;
  ++closing_;
}

void TieredMemory::drop_segment(uint32_t index) {
  Segment& segment = segments_[index];
  TERRACE_CHECK(segment.closing && segment_granules(index) == 0, "dropping a segment that has granules");
  ::munmap(segment.alias, uint64_t{segment.slots} * granule_bytes_);
  segment.fd = -1;
  segment.alias = nullptr;
  segment.slots = 0;
  segment.closing = false;
  --closing_;
}

uint32_t TieredMemory::segment_granule(uint32_t index, uint32_t from) const {
  const Segment& segment = segments_[index];
  uint32_t granule = from;
  while (granule < count_ && !(granules_[granule].residency == Residency::cxl &&
                               slots_[granule] - segment.first_slot < segment.slots))
    ++granule;
  return granule;
}

uint32_t TieredMemory::segment_granules(uint32_t index) const {
  uint32_t found = 0;
  for (uint32_t granule = segment_granule(index, 0); granule < count_;
       granule = segment_granule(index, granule + 1))
    ++found;
  return found;
}

uint32_t TieredMemory::segment_of(uint32_t slot) const {
  uint32_t index = 0;
  while (index < segment_count_ && slot - segments_[index].first_slot >= segments_[index].slots) ++index;
  return index;
}

TieredMemory::Place TieredMemory::place(uint32_t granule) const {
  const uint32_t slot = slots_[granule], index = segment_of(slot);
  TERRACE_CHECK(index < segment_count_, "T1: no such CXL slot");
  return {.segment = index, .offset = uint64_t{slot - segments_[index].first_slot} * granule_bytes_};
}

// A slot that becomes free in a segment that is closing stays used: nobody gets it.
void TieredMemory::set_slot(uint32_t slot, bool used) {
  const uint64_t bit = uint64_t{1} << slot % 64;
  TERRACE_CHECK(slot < slot_count_ && slot_used(slot) != used,
                "T1: a CXL slot given twice, or given back twice");
  if (closing_ > 0 && !used && segments_[segment_of(slot)].closing) return;
  slot_bits_[slot / 64] ^= bit;
  slots_used_ += used ? 1 : -1;
}

void TieredMemory::set_residency(uint32_t granule, Residency residency, uint32_t slot) {
  Granule& record = granules_[granule];
  if (record.residency == Residency::ddr) --ddr_granules_;
  if (record.residency == Residency::cxl) {
    --cxl_granules_;
    if (!on_nodes()) set_slot(slots_[granule], false);
  }
  if (residency == Residency::none) record = Granule{};
  if (residency == Residency::ddr) ++ddr_granules_;
  if (residency == Residency::cxl) {
    ++cxl_granules_;
    if (!on_nodes()) {
      set_slot(slot, true);
      slots_[granule] = slot;
    }
  }
  // The slot of a granule that rises stays noted: it is the first choice when it sinks again.
  __atomic_store_n(reinterpret_cast<uint8_t*>(&record.residency), static_cast<uint8_t>(residency),
                   __ATOMIC_RELAXED);
}

bool TieredMemory::joined(uint32_t left) const {
  const Residency a = granules_[left].residency, b = granules_[left + 1].residency;
  if (on_nodes()) return (a == Residency::none) == (b == Residency::none);
  if (a != b) return false;
  if (a != Residency::cxl) return true;
  return slots_[left] + 1 == slots_[left + 1] && segment_end(slots_[left]) != slots_[left + 1];
}

// Of the granules [first, first + count) and the borders to their neighbours.
uint32_t TieredMemory::count_mappings(uint32_t first, uint32_t count) const {
  uint32_t borders = 0;
  const uint32_t from = first == 0 ? 0 : first - 1;
  const uint32_t to = first + count == count_ ? count_ - 1 : first + count;
  for (uint32_t left = from; left < to; ++left) borders += joined(left) ? 0 : 1;
  return borders;
}

void TieredMemory::note_mappings(uint32_t first, uint32_t count, uint32_t before) {
  const uint32_t more = count_mappings(first, count) - before;  // modulo 2^32: less is more here
  mappings_ += more;
  process_mappings.fetch_add(more, std::memory_order_relaxed);
}

void TieredMemory::adopt(uint32_t first, uint32_t count, Residency residency, uint32_t segment,
                         uint32_t segment_slot) {
  TERRACE_CHECK(first <= count_ && count <= count_ - first, "granules outside the range");
  const uint32_t before = count_mappings(first, count);
  const bool in_slots = residency == Residency::cxl && !on_nodes();
  if (on_nodes() && residency != Residency::none)
    prefer_node(*node_calls_, node_part(first, count), node_of(residency));  // a wish
  for (uint32_t i = 0; i < count; ++i)
    set_residency(first + i, residency,
                  in_slots ? segments_[segment].first_slot + segment_slot + i : slot_none);
  note_mappings(first, count, before);
}

Backing TieredMemory::ddr_backing(uint32_t granule) const {
  const uint64_t offset = uint64_t{granule} * granule_bytes_;
  char* alias = ddr_alias_ == nullptr ? nullptr : ddr_alias_ + offset;
  return {.fd = ddr_fd_, .offset = offset, .alias = alias, .huge = granule_bytes_ >= huge_bytes};
}

Backing TieredMemory::slot_backing(uint32_t slot) const {
  const uint32_t index = segment_of(slot);
  if (index == segment_count_) check_failed("slot", __FILE__, __LINE__, "T1: no such CXL slot");
  const Segment& segment = segments_[index];
  const uint64_t offset = uint64_t{slot - segment.first_slot} * granule_bytes_;
  return {.fd = segment.fd,
          .offset = offset,
          .alias = segment.alias + offset,
          .huge = granule_bytes_ >= huge_bytes};
}

char* TieredMemory::alias(uint32_t granule) const {
  const Residency where = residency(granule);
  if (on_nodes() || where == Residency::none) return nullptr;
  return where == Residency::ddr ? ddr_backing(granule).alias : slot_backing(slots_[granule]).alias;
}

uint32_t TieredMemory::segment_end(uint32_t slot) const {
  const uint32_t index = segment_of(slot);
  return index == segment_count_ ? 0 : segments_[index].first_slot + segments_[index].slots;
}

// How many slots from `slot` on are free, in one segment, at most `count`.
uint32_t TieredMemory::free_run_at(uint32_t slot, uint32_t count) const {
  const uint32_t end = segment_end(slot);
  uint32_t run = 0;
  while (run < count && slot + run < end && !slot_used(slot + run)) ++run;
  return run;
}

// Neighbouring slots for a run of granules, the best place first: where the neighbours' mappings go on, where
// the granule was before, then the next free ones. slot_none: none.
uint32_t TieredMemory::find_slots(uint32_t first, uint32_t count, uint32_t* got) {
  uint32_t wanted[2] = {slot_none, slots_[first]};
  if (first > 0 && granules_[first - 1].residency == Residency::cxl) wanted[0] = slots_[first - 1] + 1;
  for (uint32_t slot : wanted) {
    if (slot >= slot_count_) continue;
    *got = free_run_at(slot, count);
    if (*got > 0) return slot;
  }
  if (free_slots() == 0) return slot_none;
  uint32_t best = slot_none;
  *got = 0;
  // From where the last search ended: one pass, the first place that is long enough, else the longest of some.
  uint32_t looked_at = 0;
  for (uint32_t step = 0; step < slot_count_ && looked_at < 64; ++step) {
    uint32_t slot = (next_slot_ + step) % slot_count_;
    if (slot_used(slot)) continue;
    const uint32_t run = free_run_at(slot, count);
    ++looked_at;
    if (run > *got) {
      *got = run;
      best = slot;
    }
    if (run == count) break;
    step += run - 1;
  }
  if (best != slot_none) next_slot_ = (best + *got) % slot_count_;
  return best;
}

int TieredMemory::map(uint32_t first, uint32_t count, Residency residency) {
  if (on_nodes() && count > 0)
    if (const int failed = prefer_node(*node_calls_, node_part(first, count), node_of(residency)); failed != 0)
      return failed;
  const bool in_slots = residency == Residency::cxl && !on_nodes();
  while (count > 0) {
    uint32_t run = count;
    uint32_t slot = slot_none;
    if (in_slots) {
      slot = find_slots(first, count, &run);
      if (slot == slot_none) return ENOSPC;
    }
    const Backing backing = in_slots ? slot_backing(slot) : ddr_backing(first);
    char* at = base_ + uint64_t{first} * granule_bytes_;
    if (!map_backing(at, run * granule_bytes_, backing)) return errno;
    // A huge page of several granules would move them all.
    if (on_nodes() && granule_bytes_ < huge_bytes) ::madvise(at, run * granule_bytes_, MADV_NOHUGEPAGE);
    const uint32_t before = count_mappings(first, run);
    for (uint32_t i = 0; i < run; ++i) set_residency(first + i, residency, slot + i);
    note_mappings(first, run, before);
    first += run;
    count -= run;
  }
  return 0;
}

void TieredMemory::forget(uint32_t first, uint32_t count, bool keep_slots) {
  const uint32_t before = count_mappings(first, count);
  for (uint32_t granule = first; granule < first + count; ++granule) {
    Granule& record = granules_[granule];
    const bool in_file =
        record.residency == Residency::ddr || (record.residency == Residency::cxl && on_nodes());
    if (in_file && !keep_slots) punch(granule, 1);
    if (record.residency == Residency::cxl && keep_slots && !on_nodes()) {
      // Somebody may read it still: the slot is never given again.
      --cxl_granules_;
      record.residency = Residency::none;
    }
    set_residency(granule, Residency::none, slot_none);
  }
  note_mappings(first, count, before);
}

bool TieredMemory::begin_move(uint32_t granule) {
  uint32_t nobody = 0;
  // acquire: pairs with unhold(): what a holder did before is done.
  return holds_[granule].compare_exchange_strong(nobody, moving, std::memory_order_acquire);
}

void TieredMemory::end_move(uint32_t granule) {
  // A waiter may have marked the word; nobody else changes it while it moves. release: pairs with hold(), which
  // sees the mapping (it would anyway: mmap is a barrier).
  const uint32_t was = holds_[granule].exchange(0, std::memory_order_release);
  if (was != moving) futex_wake(&holds_[granule], INT32_MAX);
}

void TieredMemory::hold(uint32_t first, uint32_t count) {
  for (uint32_t granule = first; granule < first + count; ++granule) {
    std::atomic<uint32_t>& word = holds_[granule];
    uint32_t now = word.load(std::memory_order_relaxed);
    for (;;) {
      if ((now & moving) == 0) {
        // acquire: pairs with end_move()
        if (word.compare_exchange_weak(now, now + 1, std::memory_order_acquire)) break;
        continue;
      }
      // moving + 1: somebody waits.
      if (now == moving && !word.compare_exchange_weak(now, moving + 1, std::memory_order_relaxed)) continue;
      futex_wait(&word, moving + 1);
      now = word.load(std::memory_order_relaxed);
    }
  }
}

void TieredMemory::unhold(uint32_t first, uint32_t count) {
  for (uint32_t granule = first; granule < first + count; ++granule) {
    // release: pairs with begin_move()
    const uint32_t was = holds_[granule].fetch_sub(1, std::memory_order_release);
    TERRACE_CHECK((was & ~moving) != 0 && (was & moving) == 0, "a granule let go that nobody held");
  }
}

uint32_t TieredMemory::prepare_ddr(uint32_t first, uint32_t count) {
  if (on_nodes()) return count;
  for (uint32_t granule = first; granule < first + count; ++granule) {
    if (residency(granule) != Residency::cxl) continue;
    char* alias = ddr_backing(granule).alias;
    // A copy into a hole that cannot be filled would end the process.
    if (::madvise(alias, granule_bytes_, MADV_POPULATE_WRITE) != 0) {
      give_prepared_back(granule, 1);
      return granule - first;
    }
    if (join_pages_) ::madvise(alias, granule_bytes_, madv_collapse);  // a wish
    drop_from_caches(alias, granule_bytes_);
  }
  return count;
}

void TieredMemory::give_prepared_back(uint32_t first, uint32_t count) {
  if (on_nodes()) return;  // nothing was prepared, and what is in the file there is the granules' bytes
  for (uint32_t granule = first; granule < first + count; ++granule)
    if (residency(granule) != Residency::ddr) punch(granule, 1);
}

void TieredMemory::punch(uint32_t first, uint32_t count) {
  ::fallocate(ddr_fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(ddr_backing(first).offset), static_cast<off_t>(count * granule_bytes_));
}

void TieredMemory::abandon() {
  ddr_alias_ = nullptr;
  segment_count_ = 0;
}

// By how much a move of the run would change the number of kernel mappings. Inside it stays one mapping.
int TieredMemory::mappings_more(uint32_t first, uint32_t count, Residency to, uint32_t slot) const {
  auto joins = [&](uint32_t neighbour, uint32_t slot_here, uint32_t slot_there) {
    if (granules_[neighbour].residency != to) return false;
    if (to != Residency::cxl) return true;
    return slots_[neighbour] == slot_there && segment_end(slot_here) == segment_end(slot_there);
  };
  int more = 0;
  if (first > 0) more += (joins(first - 1, slot, slot - 1) ? 0 : 1) - (joined(first - 1) ? 0 : 1);
  const uint32_t last = first + count - 1;
  if (last + 1 < count_)
    more += (joins(last + 1, slot + count - 1, slot + count) ? 0 : 1) - (joined(last) ? 0 : 1);
  return more;
}

bool TieredMemory::can_be_asked(uint32_t first, Residency to, uint32_t slot) const {
  if (granule_bytes_ % huge_bytes != 0) return false;
  if (residency(first) == Residency::cxl && !segments_[segment_of(slots_[first])].can_be_asked) return false;
  // From where it goes it must be able to come back.
  return to != Residency::cxl || segments_[segment_of(slot)].can_be_asked;
}

MoveReport TieredMemory::not_proved(uint32_t first, uint32_t count, Pins pins) {
  for (uint32_t granule = first; granule < first + count; ++granule) {
    PutOff& put_off = put_offs_[granule];
    if (pins == Pins::unknown) put_off.tries = put_off_tries_max;
    put_off.until_ms = monotonic_ns() / 1'000'000 + (put_off_ms << put_off.tries);
    if (put_off.tries < put_off_tries_max) ++put_off.tries;
  }
  MoveReport report;
  report.result = pins == Pins::unknown ? MoveResult::unproven : MoveResult::pinned;
  report.os_errno = EBUSY;
  return report;
}

// The kernel gives huge pages there again.
void TieredMemory::empty_slots(uint32_t slot, uint32_t count) {
  const Backing backing = slot_backing(slot);
  ::fallocate(backing.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(backing.offset),
              static_cast<off_t>(count * granule_bytes_));
}

MoveReport TieredMemory::move_run(Mover& mover, uint32_t first, uint32_t count, Residency to, uint32_t slot) {
  MoveReport report;
  const uint32_t before = count_mappings(first, count);
  if (const int more = mappings_more(first, count, to, slot);
      more > 0 && (mappings_ + static_cast<uint32_t>(more) > mappings_max_ ||
                   process_mappings.load(std::memory_order_relaxed) + static_cast<uint32_t>(more) >
                       process_mappings_max_)) {
    report.result = MoveResult::no_mappings;
    return report;
  }
  if (mover.proves() && !can_be_asked(first, to, slot)) return not_proved(first, count, Pins::unknown);
  char* at = base_ + uint64_t{first} * granule_bytes_;
  const uint64_t bytes = uint64_t{count} * granule_bytes_;
  // The aliases have their translations before anybody waits: with small pages the copy would else take 512
  // faults for each 2 MiB (6 ms instead of 0.3). What cannot be had, memory or a lease that is fenced by now,
  // is an error here and would be a signal there.
  const bool down = to == Residency::cxl;
  const bool from_file = residency(first) == Residency::ddr;
  const Backing source = from_file ? ddr_backing(first) : slot_backing(slots_[first]);
  const Backing target = down ? slot_backing(slot) : ddr_backing(first);
  if (::madvise(source.alias, bytes, MADV_POPULATE_READ) != 0 ||
      ::madvise(target.alias, bytes, MADV_POPULATE_WRITE) != 0) {
    report.os_errno = errno;
    report.result = MoveResult::no_memory;
    return report;
  }
  bool joined = false;
  if (mover.proves())
    if (const Pins pins = mover.pins().prepare(source.alias, bytes, &joined); pins != Pins::none)
      return not_proved(first, count, pins);
  int failed = 0;
  if (down)
    failed = mover.demote(at, bytes, source, target, &report.times);
  else
    failed = mover.promote(at, bytes, source, target, &report.times);
  if (report.times.pins != Pins::none) {
    const MoveTimes times = report.times;
    report = not_proved(first, count, times.pins);
    report.times = times;
    return report;
  }
  if (failed != 0) {
    report.os_errno = failed;
    report.result = report.times.lost                      ? MoveResult::lost
                    : failed == ENOMEM || failed == ENOSPC ? MoveResult::no_memory
                                                           : MoveResult::refused;
    return report;
  }
  const uint32_t source_slot = slots_[first];
  for (uint32_t i = 0; i < count; ++i) {
    set_residency(first + i, to, slot + i);
    put_offs_[first + i] = {};
  }
  note_mappings(first, count, before);
  if (from_file)
    punch(first, count);
  else if (mover.proves() && !joined)
    empty_slots(source_slot, count);  // the question has split its huge pages
  report.result = MoveResult::done;
  report.granules = count;
  return report;
}

NodePart TieredMemory::node_part(uint32_t first, uint32_t count) const {
  const uint64_t offset = uint64_t{first} * granule_bytes_;
  return {.at = base_ + offset,
          .bytes = count * granule_bytes_,
          .fd = ddr_fd_,
          .offset = offset,
          .granule_bytes = granule_bytes_};
}

// Small granules go together, up to a huge page's size, since each call costs the kernel far more than 64 KiB
// of copying; one by one where that fails.
MoveReport TieredMemory::move_between_nodes(uint32_t first, uint32_t count, Residency to) {
  MoveReport report;
  const Residency from = residency(first);
  auto together = static_cast<uint32_t>(granule_bytes_ < huge_bytes ? huge_bytes / granule_bytes_ : 1);
  while (report.granules < count) {
    const uint32_t begin = first + report.granules;
    uint32_t run = 0;
    while (run < together && report.granules + run < count && residency(begin + run) == from &&
           begin_move(begin + run))
      ++run;
    report.os_errno = EBUSY;
    if (run == 0) break;
    MoveTimes times;
    report.os_errno = move_to_node(*node_calls_, node_part(begin, run), node_of(from), node_of(to), &times);
    for (uint32_t i = 0; i < run; ++i) {
      if (report.os_errno == 0) set_residency(begin + i, to, slot_none);
      end_move(begin + i);
    }
    report.times.stall_ns += times.stall_ns;
    report.times.copy_ns += times.copy_ns;
    if (report.os_errno == 0)
      report.granules += run;
    else if (run == 1)
      break;
    else
      together = 1;
  }
  report.result = report.granules > 0         ? MoveResult::done
                  : report.os_errno == EBUSY  ? MoveResult::held
                  : report.os_errno == ENOMEM ? MoveResult::no_memory
                                              : MoveResult::refused;
  return report;
}

MoveReport TieredMemory::move(Mover& mover, uint32_t first, uint32_t count, Residency to) {
  MoveReport report;
  const Residency from = residency(first);
  if (from == to || from == Residency::none || to == Residency::none || count == 0) return report;
  if (on_nodes()) return move_between_nodes(first, count, to);
  const auto longest = static_cast<uint32_t>(mover.run_bytes_max() / granule_bytes_);
  uint32_t run = 1, slot = slot_none;
  // Neighbours that lie in the same tier, and in neighbouring slots.
  while (run < count && run < longest && residency(first + run) == from &&
         (from == Residency::ddr || joined(first + run - 1)))
    ++run;
  if (to == Residency::cxl) {
    uint32_t got = 0;
    slot = find_slots(first, run, &got);
    if (slot == slot_none) {
      report.result = MoveResult::no_slot;
      return report;
    }
    run = got;
  }
  uint32_t begun = 0;
  while (begun < run && begin_move(first + begun)) ++begun;
  if (begun == 0) {
    report.result = MoveResult::held;
    return report;
  }
  report = move_run(mover, first, begun, to, slot);
  for (uint32_t i = 0; i < begun; ++i) end_move(first + i);
  return report;
}

MoveReport TieredMemory::change_slot(Mover& mover, uint32_t granule) {
  MoveReport report;
  if (residency(granule) != Residency::cxl || on_nodes()) return report;
  uint32_t got = 0;
  const uint32_t slot = find_slots(granule, 1, &got);
  if (slot == slot_none) {
    report.result = MoveResult::no_slot;
    return report;
  }
  if (!begin_move(granule)) {
    report.result = MoveResult::held;
    return report;
  }
  report = move_run(mover, granule, 1, Residency::cxl, slot);
  end_move(granule);
  return report;
}

MoveReport TieredMemory::fold(Mover& mover, uint32_t granule) {
  MoveReport report;
  if (residency(granule) == Residency::none || on_nodes()) return report;
  if (!begin_move(granule)) {
    report.result = MoveResult::held;
    return report;
  }
  const Backing file =
      residency(granule) == Residency::ddr ? ddr_backing(granule) : slot_backing(slots_[granule]);
  // As in move_run(); holes of the file that were first written after the fork are filled here.
  if (::madvise(file.alias, granule_bytes_, MADV_POPULATE_WRITE) != 0)
    report.os_errno = errno;
  else
    report.os_errno =
        mover.fold(base_ + uint64_t{granule} * granule_bytes_, granule_bytes_, file, &report.times);
  end_move(granule);
  report.result = report.os_errno == 0        ? MoveResult::done
                  : report.os_errno == ENOMEM ? MoveResult::no_memory
                                              : MoveResult::refused;
  report.granules = report.os_errno == 0 ? 1 : 0;
  return report;
}

const char* TieredMemory::check_all() const {
  uint32_t ddr = 0, cxl = 0, used = 0, borders = 0;
  for (uint32_t slot = 0; slot < slot_count_; ++slot) used += slot_used(slot) ? 1 : 0;
  for (uint32_t granule = 0; granule < count_; ++granule) {
    ddr += granules_[granule].residency == Residency::ddr ? 1 : 0;
    if (granules_[granule].residency == Residency::cxl) {
      ++cxl;
      if (!on_nodes() && (slots_[granule] >= slot_count_ || !slot_used(slots_[granule])))
        return "T1: a CXL granule without its slot";
      for (uint32_t other = granule + 1; other < count_ && !on_nodes(); ++other)
        if (granules_[other].residency == Residency::cxl && slots_[other] == slots_[granule])
          return "T1: two granules in one slot";
    }
    if (granule + 1 < count_ && !joined(granule)) ++borders;
  }
  if (used != slots_used_ || (cxl > used && !on_nodes())) return "T1: the count of used slots is wrong";
  if (ddr != ddr_granules_ || cxl != cxl_granules_) return "the counts of granules are wrong";
  if (borders != mappings_) return "T3: the count of mappings is wrong";
  return nullptr;
}

}  // namespace terrace::tiering
