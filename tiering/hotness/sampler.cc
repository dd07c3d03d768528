// SPDX-License-Identifier: Apache-2.0
#include "tiering/hotness/sampler.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

namespace terrace::tiering {
namespace {

// Of <linux/fs.h> since Linux 6.7; Debian 12's headers are older. The numbers are the kernel's interface.
struct ScanRegion {
  uint64_t start, end, categories;
};
struct ScanArgument {
  uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
  uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
static_assert(sizeof(ScanRegion) == 24 && sizeof(ScanArgument) == 96);
constexpr unsigned long pagemap_scan = _IOWR('f', 16, ScanArgument);
constexpr uint64_t page_is_present = 1u << 3;
constexpr uint64_t page_is_huge = 1u << 6;

constexpr size_t regions_max = 4096;
constexpr uint64_t window_bytes = 64 * 1024;
constexpr uint64_t wait_ns_min = 2'000;
constexpr uint64_t groups_wait_ns_max = 1'000'000;  // up to here a sweep goes group by group
constexpr uint64_t groups_ns_max = 10'000'000;      // and takes about this at most
constexpr uint32_t group_granules_min = 16;
constexpr uint64_t zap_ns_guess = 1'200;  // of a granule
constexpr uint64_t spin_ns_max = 50'000;  // a sleep takes longer than that anyway
constexpr uint8_t touched_small = 1, touched_huge = 2;
constexpr float unwatched_learns = 0.125f;
constexpr float unwatched_max = 0.95f;  // what zaps and faults themselves take is of that order
constexpr uint64_t wait_ns_max = 1'000'000'000;
constexpr uint64_t gap_ns_max = 2'000'000'000;
constexpr uint64_t cost_share = 100;         // a hundredth of a processor
constexpr uint64_t refault_huge_ns = 1'500;  // what a touched granule costs the program
constexpr uint64_t refault_window_ns = 4'000;

void wait(uint64_t ns) {
  const uint64_t end_ns = monotonic_ns() + ns;
  if (ns > spin_ns_max) {
    const timespec time{.tv_sec = 0, .tv_nsec = static_cast<long>(ns - spin_ns_max)};
    ::nanosleep(&time, nullptr);
  }
  while (monotonic_ns() < end_ns) continue;
}

}  // namespace

int Sampler::open(TieredMemory* memory) {
  memory_ = memory;
  wait_ns_ = 1'000'000;
  gap_ns_ = gap_ns_min_;
  last_begun_ns_ = 0;
  whole_ = true;
  timed_ = false;
  const size_t touched = (memory->granule_count() + 4095) & ~size_t{4095};
  const size_t exposed = touched * sizeof(float);
  table_bytes_ = touched + 4 * exposed + regions_max * sizeof(ScanRegion);
  void* table = ::mmap(nullptr, table_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (table == MAP_FAILED) return errno;
  touched_ = static_cast<uint8_t*>(table);
  exposed_ns_ = reinterpret_cast<float*>(touched_ + touched);
  zapped_after_ns_ = exposed_ns_ + touched;
  first_touch_ns_ = zapped_after_ns_ + touched;
  unwatched_ = first_touch_ns_ + touched;
  regions_ = unwatched_ + touched;
  pagemap_fd_ = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  uint64_t present = 0, huge = 0;
  int failed = pagemap_fd_ < 0 ? errno : 0;
  if (failed == 0 && !scan(memory->base(), memory->base() + memory->granule_bytes(), &present, &huge))
    failed = errno;
  if (failed != 0) close();
  return failed;
}

void Sampler::close() {
  if (pagemap_fd_ >= 0) ::close(pagemap_fd_);
  if (touched_ != nullptr) ::munmap(touched_, table_bytes_);
  pagemap_fd_ = -1;
  touched_ = nullptr;
  begun_ = false;
}

// Marks the granules in which something is present.
bool Sampler::scan(char* from, char* to, uint64_t* present_bytes, uint64_t* huge_bytes) {
  const uint64_t base = reinterpret_cast<uintptr_t>(memory_->base());
  const uint64_t end = reinterpret_cast<uintptr_t>(to);
  auto* regions = static_cast<ScanRegion*>(regions_);
  for (uint64_t at = reinterpret_cast<uintptr_t>(from); at < end;) {
    ScanArgument argument{};
    argument.size = sizeof(argument);
    argument.start = at;
    argument.end = end;
    argument.vec = reinterpret_cast<uintptr_t>(regions);
    argument.vec_len = regions_max;
    argument.category_mask = page_is_present;
    argument.return_mask = page_is_present | page_is_huge;
    const int found = ::ioctl(pagemap_fd_, pagemap_scan, &argument);
    if (found < 0) return false;
    for (int i = 0; i < found; ++i) {
      const ScanRegion& region = regions[i];
      *present_bytes += region.end - region.start;
      const bool is_huge = (region.categories & page_is_huge) != 0;
      const uint64_t first = (region.start - base) / memory_->granule_bytes();
      const uint64_t last = (region.end - 1 - base) / memory_->granule_bytes();
      memset(touched_ + first, is_huge ? touched_huge : touched_small, last - first + 1);
      if (is_huge) *huge_bytes += region.end - region.start;
    }
    if (argument.walk_end <= at) break;
    at = argument.walk_end;
  }
  return true;
}

// The windows are the same place in every granule, another one each sweep.
void Sampler::choose_window() {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  const uint64_t windows = memory_->granule_bytes() / window_bytes;
  window_offset_ = windows < 2 ? 0 : random_ % windows * window_bytes;
}

// Not held: those do not move, and what is held for good may have private pages in it, such as the program's
// own mappings, whose bytes this advice would destroy. (Whoever holds has the range's lock before it makes
// them.)
bool Sampler::is_sampled(uint32_t granule) const {
  return memory_->residency(granule) != Residency::none && !memory_->is_held(granule);
}

void Sampler::zap(uint32_t first, uint32_t last) {
  const uint64_t granule_bytes = memory_->granule_bytes();
  for (uint32_t granule = first; granule < last;) {
    if (!is_sampled(granule)) {
      ++granule;
      continue;
    }
    uint32_t end = granule + 1;
    while (whole_ && end < last && is_sampled(end)) ++end;
    char* at = memory_->base() + granule * granule_bytes + (whole_ ? 0 : window_offset_);
    const uint64_t bytes = whole_ ? (end - granule) * granule_bytes : std::min(window_bytes, granule_bytes);
    ::madvise(at, bytes, MADV_DONTNEED);
    granule = end;
  }
}

void Sampler::look(uint32_t first, uint32_t last) {
  const uint64_t granule_bytes = memory_->granule_bytes();
  memset(touched_ + first, 0, last - first);
  if (whole_) {
    scan(memory_->base() + first * granule_bytes, memory_->base() + last * granule_bytes, &present_bytes_,
         &huge_bytes_);
    return;
  }
  for (uint32_t granule = first; granule < last; ++granule) {
    if (memory_->residency(granule) == Residency::none) continue;
    char* at = memory_->base() + granule * granule_bytes + window_offset_;
    scan(at, at + std::min(window_bytes, granule_bytes), &present_bytes_, &huge_bytes_);
  }
}

// Group after group: zap, wait, look. A group is so small that zapping it takes no longer than the wait, or as
// small as pays.
void Sampler::sweep_groups() {
  const uint32_t count = memory_->granule_count();
  uint32_t group = group_granules_min;
  const uint64_t each_ns = wait_ns_ + group_granules_min * zap_ns_guess;
  if (count / group * each_ns > groups_ns_max)
    group = static_cast<uint32_t>(count * each_ns / groups_ns_max + 1);
  for (uint32_t first = 0; first < count; first += group) {
    const uint32_t last = std::min(first + group, count);
    const uint64_t begin_ns = monotonic_ns();
    zap(first, last);
    const uint64_t zapped_ns = monotonic_ns();
    note_zap(first, last, begin_ns, zapped_ns);
    wait(wait_ns_);
    const uint64_t waited_ns = monotonic_ns();
    look(first, last);
    const uint64_t looked_ns = monotonic_ns();
    expose(first, last, zapped_ns - begin_ns, waited_ns - zapped_ns, looked_ns - waited_ns);
    work_ns_ += zapped_ns - begin_ns + looked_ns - waited_ns;
  }
}

// How long each granule of a group was without its translation. Zapping and looking go through it in order, and
// take their time.
void Sampler::expose(uint32_t first, uint32_t last, uint64_t zap_ns, uint64_t wait_ns, uint64_t look_ns) {
  const auto zapping = static_cast<float>(zap_ns), waiting = static_cast<float>(wait_ns),
             looking = static_cast<float>(look_ns);
  const auto count = static_cast<float>(last - first);
  for (uint32_t granule = first; granule < last; ++granule) {
    const float place = static_cast<float>(granule - first) / count;
    exposed_ns_[granule] = waiting + zapping * (1 - place) + looking * place;
  }
}

// When each granule of a group lost its translation.
void Sampler::note_zap(uint32_t first, uint32_t last, uint64_t begin_ns, uint64_t end_ns) {
  if (!timed_) return;
  const auto before = static_cast<float>(begin_ns - std::min(begin_ns, begun_ns_));
  const float each = static_cast<float>(end_ns - begin_ns) / static_cast<float>(last - first);
  for (uint32_t granule = first; granule < last; ++granule) {
    zapped_after_ns_[granule] = before + each * static_cast<float>(granule - first);
    first_touch_ns_[granule] = -1;
  }
}

void Sampler::note_first_touch(uint32_t granule, uint64_t offset, uint64_t when_ns) {
  if (!timed_ || !begun_ || when_ns < begun_ns_) return;
  if (!whole_ && offset - window_offset_ >= window_bytes) return;
  const float after = static_cast<float>(when_ns - begun_ns_) - zapped_after_ns_[granule];
  float& first = first_touch_ns_[granule];
  if (after >= 0 && (first < 0 || after < first)) first = after;
}

// For how long a touch of the granule was waited for: its exposure, or where first touches are known the mean
// over the sweeps of the time up to there. Touches in that time are then an unbiased count of its accesses,
// however many of them come in one exposure.
float Sampler::watched(uint32_t granule) {
  const float exposed = std::max(exposed_ns_[granule], 1.0f);
  if (!timed_) return exposed;
  float& unwatched = unwatched_[granule];
  const bool touched = touched_[granule] != 0;
  const float first = first_touch_ns_[granule];
  // Touched without a fault that was told, as when the ring was full: nothing is learned.
  if (!touched || first >= 0) {
    const float now = touched ? 1 - std::min(first / exposed, 1.0f) : 0;
    unwatched += unwatched_learns * (now - unwatched);
  }
  return exposed * (1 - std::min(unwatched, unwatched_max));
}

void Sampler::begin(uint64_t now_ns) {
  choose_window();
  present_bytes_ = huge_bytes_ = work_ns_ = 0;
  begun_ns_ = now_ns;
  in_groups_ = wait_ns_ <= groups_wait_ns_max;
  if (in_groups_)
    sweep_groups();
  else
    zap(0, memory_->granule_count());
  zapped_ns_ = monotonic_ns();
  if (!in_groups_) note_zap(0, memory_->granule_count(), begun_ns_, zapped_ns_);
  begun_ = true;
}

SweepResult Sampler::finish(PolicyMemory& policy, uint64_t now_ns, float aim) {
  SweepResult result;
  begun_ = false;
  if (!in_groups_) {
    look(0, memory_->granule_count());
    const uint64_t looked_ns = monotonic_ns();
    expose(0, memory_->granule_count(), zapped_ns_ - begun_ns_, now_ns - std::min(now_ns, zapped_ns_),
           looked_ns - now_ns);
    work_ns_ = zapped_ns_ - begun_ns_ + looked_ns - now_ns;
  }
  result.wait_ns = in_groups_ ? wait_ns_ : now_ns - std::min(now_ns, zapped_ns_);
  const float period_ns = last_begun_ns_ == 0 ? 0 : static_cast<float>(begun_ns_ - last_begun_ns_);
  last_begun_ns_ = begun_ns_;
  const float windows = static_cast<float>(memory_->granule_bytes()) / static_cast<float>(window_bytes);
  std::span<Granule> granules = memory_->granules();
  for (uint32_t granule = 0; granule < granules.size(); ++granule) {
    const Residency residency = granules[granule].residency;
    if (!is_sampled(granule)) continue;
    ++result.seen;
    const float watched_ns = watched(granule);
    if (touched_[granule] == 0) continue;
    ++result.touched;
    // One access or more while it was exposed. A window stands for the whole granule, unless one page is all of
    // it.
    float each = std::max(period_ns / std::max(watched_ns, 1.0f), 1.0f);
    if (!whole_ && touched_[granule] == touched_small) each *= windows;
    (residency == Residency::ddr ? result.ddr_accesses : result.cxl_accesses) += static_cast<double>(each);
    terrace::tiering::note_access(granules[granule], policy, now_ns, each);
  }
  result.cost_ns = work_ns_ + (monotonic_ns() - now_ns);
  adapt(result, aim);
  // How the memory is mapped may change at any time, as with moves into huge pages.
  if (present_bytes_ > 0)
    whole_ = memory_->granule_bytes() <= window_bytes || huge_bytes_ >= present_bytes_ / 2;
  return result;
}

void Sampler::adapt(const SweepResult& result, float aim) {
  if (result.seen == 0) return;
  const float share = static_cast<float>(result.touched) / static_cast<float>(result.seen);
  if (share > aim * 1.25f)
    wait_ns_ = std::max(wait_ns_min, wait_ns_ - wait_ns_ / 3);
  else if (share < aim * 0.8f)
    wait_ns_ = std::min(wait_ns_max, wait_ns_ + wait_ns_ / 2);
  const uint64_t program_ns = result.touched * (whole_ ? refault_huge_ns : refault_window_ns);
  gap_ns_ = std::clamp((result.cost_ns + program_ns) * cost_share, gap_ns_min_, gap_ns_max);
  if (gap_ns_ < wait_ns_) gap_ns_ = wait_ns_;
}

}  // namespace terrace::tiering
