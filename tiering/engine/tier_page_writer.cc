// SPDX-License-Identifier: Apache-2.0
#include "tiering/engine/tier_page_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

namespace terrace::tiering {
namespace {

using layout::TierRange;

constexpr uint64_t page_file_bytes =
    layout::tier_cells_offset + uint64_t{layout::tier_ranges_max} * layout::tier_cells_max;

std::atomic<bool> page_taken{false};

// Field 22 of /proc/self/stat: when the process started, in clock ticks since boot. The name in field 2 may
// hold anything, a closing parenthesis included.
uint64_t start_ticks() {
  char text[1024];
  int fd = ::open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t got = ::read(fd, text, sizeof(text) - 1);
  ::close(fd);
  if (got <= 0) return 0;
  text[got] = 0;
  const char* at = strrchr(text, ')');
  for (int field = 2; at != nullptr && field < 22; ++field) at = strchr(at + 1, ' ');
  return at == nullptr ? 0 : strtoull(at, nullptr, 10);
}

// The directory is this uid's alone, whoever made it first.
bool own_directory(const char* path) {
  if (::mkdir(path, 0700) != 0 && errno != EEXIST) return false;
  struct stat status {};
  return ::lstat(path, &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() &&
         (status.st_mode & 077) == 0;
}

void program_name(char* name, size_t size) {
  int fd = ::open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
  ssize_t got = fd < 0 ? 0 : ::read(fd, name, size - 1);
  if (fd >= 0) ::close(fd);
  if (got < 0) got = 0;
  name[got] = 0;
  if (got > 0 && name[got - 1] == '\n') name[got - 1] = 0;
  for (char* at = name; *at != 0; ++at)
    if (*at < ' ' || *at > '~') *at = '?';
}

uint8_t cell_of(float heat) {
  if (heat <= 0) return 0;
  uint32_t bits = 0;
  memcpy(&bits, &heat, sizeof(bits));
  const int log2 = static_cast<int>(bits >> 23) - 127;  // of the float's exponent
  return static_cast<uint8_t>(std::clamp(log2 + 1, 1, 31));
}

template <typename Value>
Value load(const Value& place) {
  return std::atomic_ref<Value>(const_cast<Value&>(place)).load(std::memory_order_relaxed);
}

// Of several granules of a cell the hottest is shown.
void draw_cells(RangeState& range, uint64_t now_ns) {
  std::span<Granule> granules = range.memory->granules();
  for (uint64_t cell = 0; cell < range.page.cell_count; ++cell) {
    uint64_t granule = cell * range.page.granules_per_cell;
    const uint64_t end = std::min<uint64_t>(granule + range.page.granules_per_cell, granules.size());
    uint8_t value = 0;
    for (; granule < end; ++granule) {
      uint8_t one = cell_of(heat_at(granules[granule], range.policy_memory, now_ns));
      one |= static_cast<uint8_t>(static_cast<uint8_t>(granules[granule].residency)
                                  << layout::cell_residency_shift);
      if (granules[granule].busy != 0) one |= layout::cell_busy;
      if ((one & layout::cell_heat_mask) >= (value & layout::cell_heat_mask)) value = one;
    }
    range.cells[cell] = value;
  }
}

void count_copies(RangeState& range, uint64_t now_ns) {
  if (now_ns < range.shown_ns + 1'000'000'000) return;
  const uint64_t bytes = range.copied_bytes - range.copied_shown_bytes;
  range.page.copy_mib_per_s = static_cast<uint32_t>(static_cast<double>(bytes) * 1e9 /
                                                    static_cast<double>(now_ns - range.shown_ns) / (1 << 20));
  range.copied_shown_bytes = range.copied_bytes;
  range.shown_ns = now_ns;
}

}  // namespace

bool TierPageWriter::open() {
  if (page_taken.exchange(true)) return false;
  if (make()) return true;
  page_taken.store(false);
  return false;
}

bool TierPageWriter::make() {
  char directory[64];
  snprintf(directory, sizeof(directory), "%s%u", layout::tier_page_directory,
           static_cast<unsigned>(::geteuid()));
  if (!own_directory(directory)) return false;
  snprintf(path_, sizeof(path_), "%s/%d", directory, static_cast<int>(::getpid()));
  ::unlink(path_);  // of an earlier process of this number
  int fd = ::open(path_, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  void* at = MAP_FAILED;
  if (fd >= 0 && ::ftruncate(fd, static_cast<off_t>(page_file_bytes)) == 0)
    at = ::mmap(nullptr, page_file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (fd >= 0) ::close(fd);
  // Where /dev/shm is full the first store would end the process: its memory is asked for now.
  if (at == MAP_FAILED || ::madvise(at, page_file_bytes, MADV_DONTFORK) != 0 ||
      ::madvise(at, layout::tier_cells_offset, MADV_POPULATE_WRITE) != 0) {
    if (at != MAP_FAILED) ::munmap(at, page_file_bytes);
    if (fd >= 0) ::unlink(path_);
    path_[0] = 0;
    return false;
  }
  page_ = static_cast<layout::TierPage*>(at);
  bytes_ = page_file_bytes;
  page_->version = layout::tier_page_version;
  page_->range_count = layout::tier_ranges_max;
  page_->file_bytes = page_file_bytes;
  page_->pid = static_cast<uint32_t>(::getpid());
  page_->start_ticks = start_ticks();
  program_name(page_->program, sizeof(page_->program));
  // release: pairs with TierPageFile::open()
  std::atomic_ref<uint32_t>(page_->magic).store(layout::tier_page_magic, std::memory_order_release);
  return true;
}

void TierPageWriter::forget_in_child() {
  if (page_ == nullptr) return;
  page_ = nullptr;
  page_taken.store(false);
}

void TierPageWriter::close() {
  if (page_ == nullptr) return;
  ::unlink(path_);
  ::munmap(page_, bytes_);
  page_ = nullptr;
  page_taken.store(false);
}

bool TierPageWriter::show(RangeState& range, uint32_t index) {
  if (page_ == nullptr) return false;
  auto* shown =
      reinterpret_cast<TierRange*>(reinterpret_cast<char*>(page_) + layout::tier_ranges_offset) + index;
  range.page.cells_offset = layout::tier_cells_offset + uint64_t{index} * layout::tier_cells_max;
  range.page.granules_per_cell =
      (range.memory->granule_count() + layout::tier_cells_max - 1) / layout::tier_cells_max;
  range.page.cell_count =
      (range.memory->granule_count() + range.page.granules_per_cell - 1) / range.page.granules_per_cell;
  range.cells = reinterpret_cast<uint8_t*>(page_) + range.page.cells_offset;
  const uintptr_t cells = reinterpret_cast<uintptr_t>(range.cells), first_page = cells & ~uintptr_t{4095};
  if (::madvise(reinterpret_cast<void*>(first_page), cells + range.page.cell_count - first_page,
                MADV_POPULATE_WRITE) != 0)
    return false;
  const uint32_t state = range.page.state;
  range.page.request = range.page.applied = load(shown->request);  // a request for an earlier range is nobody's
  range.page.state = static_cast<uint32_t>(layout::TierState::absent);
  memcpy(static_cast<void*>(shown), &range.page, sizeof(TierRange));
  range.page.state = state;
  // release: pairs with TierPageFile::copy_words()
  std::atomic_ref<uint32_t>(shown->state).store(state, std::memory_order_release);
  range.shown = shown;
  return true;
}

void TierPageWriter::hide(RangeState& range) {
  if (range.shown != nullptr)
    // release: pairs with TierPageFile::copy_words()
    std::atomic_ref<uint32_t>(range.shown->state)
        .store(static_cast<uint32_t>(layout::TierState::absent), std::memory_order_release);
  range.shown = nullptr;
}

// All but the requests, word by word: a reader may see numbers of two rounds, never half a number.
void TierPageWriter::publish(RangeState& range, uint64_t copy_bytes_per_s_max, uint64_t now_ns) {
  const TieredMemory& memory = *range.memory;
  TierRange& page = range.page;
  page.ddr_bytes = memory.ddr_granules() * memory.granule_bytes();
  page.cxl_bytes = memory.cxl_granules() * memory.granule_bytes();
  page.copy_bytes_per_s_max = copy_bytes_per_s_max;
  const double all = range.ddr_accesses + range.cxl_accesses;
  page.ddr_hit_permille = all > 0 ? static_cast<uint32_t>(1000 * range.ddr_accesses / all) : 0;
  count_copies(range, now_ns);
  if (range.shown == nullptr) return;
  const auto* from = reinterpret_cast<const uint64_t*>(&page);
  auto* to = reinterpret_cast<uint64_t*>(range.shown);
  for (size_t word = 0; word < offsetof(TierRange, request) / sizeof(uint64_t); ++word)
    std::atomic_ref<uint64_t>(to[word]).store(from[word], std::memory_order_relaxed);
  draw_cells(range, now_ns);
}

std::optional<TierRequest> TierPageWriter::asked(const RangeState& range) const {
  if (range.shown == nullptr) return std::nullopt;
  TierRange& from = *range.shown;
  TierRequest request;
  // acquire: pairs with TierPageFile::store()
  request.number = std::atomic_ref<uint32_t>(from.request).load(std::memory_order_acquire);
  if (request.number == range.page.applied) return std::nullopt;
  memcpy(request.policy, from.wanted_policy, sizeof(request.policy));
  request.policy[sizeof(request.policy) - 1] = 0;
  const uint64_t ddr = load(from.wanted_ddr_bytes_max), copy = load(from.wanted_copy_bytes_per_s_max);
  if (ddr != UINT64_MAX) request.ddr_bytes_max = ddr;
  if (copy != UINT64_MAX) request.copy_bytes_per_s_max = copy;
  request.paused = load(from.wanted_paused) != 0;
  return request;
}

void TierPageWriter::answer(RangeState& range, const TierRequest& request, layout::TierAnswer answer) {
  TierRange& shown = *range.shown;
  range.page.applied = request.number;
  std::atomic_ref<uint32_t>(shown.answer).store(static_cast<uint32_t>(answer), std::memory_order_relaxed);
  // release: pairs with TierPageFile::load()
  std::atomic_ref<uint32_t>(shown.applied).store(request.number, std::memory_order_release);
}

}  // namespace terrace::tiering
