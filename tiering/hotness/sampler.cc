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

#include "tiering/policy/numbers.h"

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
constexpr float far_off = 3;                        // from the share of touched granules that is aimed at
constexpr uint8_t touched_small = 1, touched_huge = 2;
constexpr float unwatched_learns = 0.125f;
constexpr float unwatched_max = 0.95f;  // what zaps and faults themselves take is of that order
constexpr uint64_t wait_ns_max = 1'000'000'000;
constexpr uint64_t gap_ns_max = 2'000'000'000;
constexpr uint64_t cost_share = 150;         // less than a hundredth of a processor: moves cost, too
constexpr uint64_t refault_huge_ns = 1'500;  // what a touched granule costs the program
constexpr uint64_t refault_window_ns = 4'000;

constexpr uint64_t turn_again_ns =
    50'000;  // others have the locks in between; each time twice as long, so often:
constexpr uint32_t turns_max = 12;
constexpr uint64_t again_ns_min = 1'000'000, again_ns_max = 250'000'000;  // a look that came too early
constexpr uint64_t switch_ns =
    5'000;  // of the CPU time of a program that shares this processor, for each sleep

uint64_t own_cpu_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

}  // namespace

int Sampler::open(TieredMemory* memory, RunTime* run_time) {
  memory_ = memory;
  run_time_ = run_time;
  wait_ns_ = 1'000'000;
  short_wait_ns_ = wait_ns_min;
  long_wait_ns_ = wait_ns_max;
  gap_ns_ = gap_ns_min_;
  seen_ = next_sharp_ = 0;
  whole_ = searching_ = beside_ = true;
  timed_ = false;
  const size_t touched = (memory->granule_count() + 4095) & ~size_t{4095};
  table_bytes_ = touched * (1 + 5 * sizeof(float) + sizeof(uint64_t) + sizeof(RateEstimate)) +
                 regions_max * sizeof(ScanRegion);
  void* table = ::mmap(nullptr, table_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (table == MAP_FAILED) return errno;
  touched_ = static_cast<uint8_t*>(table);
  seen_ns_ = reinterpret_cast<uint64_t*>(touched_ + touched);
  auto* rates = reinterpret_cast<RateEstimate*>(seen_ns_ + touched);
  rates_.open({rates, memory->granule_count()});
  exposed_ns_ = reinterpret_cast<float*>(rates + touched);
  zapped_after_ns_ = exposed_ns_ + touched;
  first_touch_ns_ = zapped_after_ns_ + touched;
  stood_ns_ = first_touch_ns_ + touched;
  unwatched_ = stood_ns_ + touched;
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
  rates_ = {};
  begun_ = false;
}

RunTime::Reading Sampler::read() {
  if (run_time_ != nullptr) return run_time_->read();
  const uint64_t now_ns = monotonic_ns();
  return {.wall_ns = now_ns, .cpu_ns = now_ns};
}

uint64_t Sampler::program_now_ns(uint64_t now_ns) {
  return run_time_ != nullptr ? run_time_->now_ns() : now_ns;
}

float Sampler::times_seen() const {
  const uint32_t count = memory_->ddr_granules() + memory_->cxl_granules();
  return static_cast<float>(seen_) / static_cast<float>(std::max(count, 1u));
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
    // Where the program stood for a part of the time, most of that was before it ran.
    const float after = std::max(first - stood_ns_[granule], 0.0f);
    const float now = touched ? 1 - std::min(after / exposed, 1.0f) : 0;
    unwatched += unwatched_learns * (now - unwatched);
  }
  return exposed * (1 - std::min(unwatched, unwatched_max));
}

void Sampler::begin(uint64_t now_ns) {
  choose_window();
  present_bytes_ = huge_bytes_ = 0;
  begun_ns_ = now_ns;
  const uint64_t begun_cpu_ns = own_cpu_ns();
  due_ns_ = wait_ns_;
  turns_ = zaps_ = 0;
  idle_ = false;
  short_ = wait_ns_ <= groups_wait_ns_max;
  leave_out(0, memory_->granule_count());
  in_groups_ = short_ && sweep_groups();
  if (in_groups_) {
    look_sharper();
  } else {
    beside_ = false;
    zap_all();
  }
  work_ns_ = own_cpu_ns() - begun_cpu_ns;
  begun_ = true;
}

void Sampler::zap_all() {
  begun_ns_ = monotonic_ns();
  zap(0, memory_->granule_count());
  ++zaps_;
  zapped_by_all_ = read();
  zapped_ = short_ ? read_exactly() : zapped_by_all_;
  zapped_ns_ = zapped_.wall_ns;
  zapped_watch_ = run_time_ != nullptr ? run_time_->watch() : 0;
  note_zap(0, memory_->granule_count(), begun_ns_, zapped_ns_);
}

// The look of a sweep that was not done in groups. False: too early.
bool Sampler::look_at_all(uint64_t* waited_ns) {
  RunTime::Reading now;
  uint64_t ran_ns = 0;
  if (short_) {
    if (!wait_for_turn(&now, &ran_ns)) {
      const uint64_t first_ns = idle_ ? again_ns_min : turn_again_ns;
      due_ns_ = std::min(first_ns << std::min(turns_++, turns_max), again_ns_max);
      return false;
    }
  } else {
    now = read();
    ran_ns = RunTime::between(zapped_, now);
    if (run_time_ != nullptr && ran_ns * enough_of_wait < wait_ns_) {
      // Each time twice as long: a program that does nothing is not to be looked at all the time.
      due_ns_ =
          std::min(std::max(wait_ns_ - ran_ns, again_ns_min) << std::min(turns_++, turns_max), again_ns_max);
      return false;
    }
  }
  const uint32_t count = memory_->granule_count();
  look(0, count);
  const uint64_t looked_ns = monotonic_ns();
  *waited_ns = now.wall_ns - zapped_ns_;
  const uint64_t stood_ns = *waited_ns - ran_ns;
  const bool ran = stood_ns * 4 < *waited_ns;  // while this thread zaps and looks
  if (short_ && !ran) ran_ns -= std::min(switch_ns, ran_ns / 2);
  expose(0, count, ran ? zapped_ns_ - begun_ns_ : 0, ran_ns, ran ? looked_ns - now.wall_ns : 0);
  if (timed_) std::fill(stood_ns_, stood_ns_ + count, static_cast<float>(stood_ns));
  return true;
}

// What this sweep tells of a granule. `now_ns`: by the clock of policies.
void Sampler::note(uint32_t granule, PolicyMemory& policy, uint64_t now_ns) {
  Granule& facts = memory_->granules()[granule];
  const float watched_ns = watched(granule);
  const uint64_t before_ns = seen_ns_[granule];
  seen_ns_[granule] = now_ns;
  if (touched_[granule] == 0) return;
  // One access or more while it was exposed. A window stands for the whole granule, unless one page is all of
  // it.
  const float period_ns = before_ns == 0 ? 0 : static_cast<float>(now_ns - std::min(before_ns, now_ns));
  float each = std::max(period_ns / std::max(watched_ns, 1.0f), 1.0f);
  if (!whole_ && touched_[granule] == touched_small)
    each *= static_cast<float>(memory_->granule_bytes()) / static_cast<float>(window_bytes);
  terrace::tiering::note_access(facts, policy, now_ns, each);
}

// Rates learn from each bit; what was exposed too short a time is left out.
SweepResult Sampler::count() {
  SweepResult result;
  for (uint32_t granule = 0; granule < memory_->granule_count(); ++granule) {
    if (!is_sampled(granule)) {  // without memory, or not looked at: what comes next is not of all that time
      seen_ns_[granule] = 0;
      if (memory_->residency(granule) == Residency::none) rates_.forget(granule);
      continue;
    }
    if (exposed_ns_[granule] < 0) {
      ++result.dropped;
      continue;
    }
    const bool touched = touched_[granule] != 0;
    ++result.seen;
    rates_.note(granule, touched, exposed_ns_[granule] * 1e-9f);
    if (!touched) continue;
    ++result.touched;
    if (memory_->residency(granule) == Residency::cxl) ++result.cxl_touched;
  }
  return result;
}

SweepResult Sampler::finish(PolicyMemory& policy, uint64_t now_ns, float aim) {
  const uint64_t begun_cpu_ns = own_cpu_ns();
  uint64_t waited_ns = wait_ns_;
  if (!in_groups_ && !look_at_all(&waited_ns)) {
    work_ns_ += own_cpu_ns() - begun_cpu_ns;
    SweepResult unfinished;
    unfinished.finished = false;
    return unfinished;
  }
  begun_ = false;
  SweepResult result = count();
  result.wait_ns = waited_ns;
  // What finds too many touched while the wait is looked for tells nobody from the others.
  const float share = static_cast<float>(result.touched) / static_cast<float>(std::max(result.seen, 1u));
  if (!searching_ || share <= aim * 1.25f) {
    const uint64_t program_ns = program_now_ns(now_ns);
    for (uint32_t granule = 0; granule < memory_->granule_count(); ++granule)
      if (is_sampled(granule) && exposed_ns_[granule] >= 0) note(granule, policy, program_ns);
    seen_ += result.seen;
  }
  result.cost_ns = work_ns_ + (own_cpu_ns() - begun_cpu_ns);
  adapt(result, aim);
  // How the memory is mapped may change at any time, as with moves into huge pages.
  if (present_bytes_ > 0)
    whole_ = memory_->granule_bytes() <= window_bytes || huge_bytes_ >= present_bytes_ / 2;
  return result;
}

void Sampler::adapt(const SweepResult& result, float aim) {
  const uint64_t program_ns = result.touched * (whole_ ? refault_huge_ns : refault_window_ns);
  gap_ns_ = std::clamp((result.cost_ns + program_ns) * cost_share, gap_ns_min_, gap_ns_max);
  // Of a small part of the granules: too few to go by.
  if (result.seen != 0 && result.seen >= result.dropped) {
    const float share = static_cast<float>(result.touched) / static_cast<float>(result.seen);
    // So far off that steps would take long: it is looked for again, on that side.
    if (!searching_ && share > aim * far_off && wait_ns_ > wait_ns_min) {
      searching_ = true;
      short_wait_ns_ = wait_ns_min;
    } else if (!searching_ && share * far_off < aim && wait_ns_ < wait_ns_max) {
      searching_ = true;
      long_wait_ns_ = wait_ns_max;
    }
    if (searching_)
      bisect(share, aim);
    else if (share > aim * 1.25f)
      wait_ns_ = std::max(wait_ns_min, wait_ns_ - wait_ns_ / 3);
    else if (share < aim * 0.8f)
      wait_ns_ = std::min(wait_ns_max, wait_ns_ + wait_ns_ / 2);
  }
  if (gap_ns_ < wait_ns_) gap_ns_ = wait_ns_;
}

// To the middle, by octaves, of what is left, until few steps by thirds are.
void Sampler::bisect(float share, float aim) {
  if (share > aim * 1.25f)
    long_wait_ns_ = wait_ns_;
  else if (share < aim * 0.8f)
    short_wait_ns_ = wait_ns_;
  else
    searching_ = false;
  if (long_wait_ns_ < 2 * short_wait_ns_) searching_ = false;
  if (!searching_) return;
  const float product = static_cast<float>(short_wait_ns_) * static_cast<float>(long_wait_ns_);
  wait_ns_ = std::clamp(static_cast<uint64_t>(root_of(product)), wait_ns_min, wait_ns_max);
}

}  // namespace terrace::tiering
