// SPDX-License-Identifier: Apache-2.0
// Sweeps with short waits: group after group, inside Sampler::begin().
#include <string.h>
#include <time.h>

#include <algorithm>

#include "tiering/hotness/sampler.h"

namespace terrace::tiering {
namespace {

constexpr uint64_t groups_ns_max = 10'000'000;  // a sweep takes about this at most
constexpr uint32_t group_granules_min = 16;
constexpr uint64_t zap_ns_guess = 1'200;     // of a granule
constexpr uint64_t spin_ns_max = 50'000;     // a sleep takes longer than that anyway
constexpr uint64_t turn_ns_max = 4'000'000;  // with locks held, until the program's turn comes
constexpr uint64_t sleep_ns_min = 20'000;
constexpr uint32_t polls_a_look = 16;     // whether it waits for a processor
constexpr uint32_t zaps_max = 4;          // of a sweep: then it is taken as long as it became
constexpr uint64_t too_long_ns = 50'000;  // beyond four waits: exposed so long that all are touched
constexpr uint32_t sharp_looks = 16;      // a sweep
constexpr float sharp_from = 1.5f;        // uses expected in a sweep's exposure
constexpr uint32_t sharp_misses_max = 3;
constexpr uint64_t sharp_ns_min = 500, sharp_ns_max = 30'000;

void sleep_ns(uint64_t ns) {
  const timespec time{.tv_sec = 0, .tv_nsec = static_cast<long>(ns)};
  ::nanosleep(&time, nullptr);
}

}  // namespace

RunTime::Reading Sampler::read_exactly() const {
  if (run_time_ != nullptr) return run_time_->read_exactly();
  const uint64_t now_ns = monotonic_ns();
  return {.wall_ns = now_ns, .cpu_ns = now_ns};
}

// Until the program has run for the wait, or patience ends.
RunTime::Reading Sampler::wait_until_ran(const RunTime::Reading& from, uint64_t patience_ns) {
  if (wait_ns_ > spin_ns_max) sleep_ns(wait_ns_ - spin_ns_max);
  for (;;) {
    const RunTime::Reading now = read_exactly();
    const uint64_t ran_ns = RunTime::between(from, now);
    if (ran_ns + ran_ns / 8 >= wait_ns_ || now.wall_ns - from.wall_ns >= patience_ns) return now;
  }
}

Sampler::Ran Sampler::sweep_group(uint32_t first, uint32_t last, uint64_t patience_ns) {
  const RunTime::Reading begin = read_exactly();
  zap(first, last);
  const RunTime::Reading zapped = read_exactly();
  note_zap(first, last, begin.wall_ns, zapped.wall_ns);
  const RunTime::Reading waited = wait_until_ran(zapped, patience_ns);
  look(first, last);
  const RunTime::Reading looked = read_exactly();
  const uint64_t ran_ns = RunTime::between(zapped, waited);
  if (ran_ns * enough_of_wait < wait_ns_) return Ran::too_short;
  if (ran_ns > 4 * wait_ns_ + too_long_ns) return Ran::too_long;
  expose(first, last, RunTime::between(begin, zapped), ran_ns, RunTime::between(waited, looked));
  if (timed_)
    std::fill(stood_ns_ + first, stood_ns_ + last,
              static_cast<float>(waited.wall_ns - zapped.wall_ns - ran_ns));
  return Ran::enough;
}

// Group after group: zap, wait, look. A group is so small that zapping it takes no longer than the wait, or as
// small as pays. False: the program does not run beside this thread.
bool Sampler::sweep_groups() {
  const uint32_t count = memory_->granule_count();
  uint32_t group = group_granules_min;
  const uint64_t each_ns = wait_ns_ + group_granules_min * zap_ns_guess;
  if (count / group * each_ns > groups_ns_max)
    group = static_cast<uint32_t>(count * each_ns / groups_ns_max + 1);
  beside_ = true;
  for (uint32_t first = 0; first < count;) {
    const uint32_t last = std::min(first + group, count);
    if (sweep_group(first, last, 2 * wait_ns_) == Ran::too_short) return false;
    first = last;
  }
  return true;
}

// By the watched threads' clocks, to the ns, and by the process' where others came to be watched, or none can be: of a thread that
// does not run now that is as exact.
uint64_t Sampler::ran_since_zap(RunTime::Reading* now) {
  *now = read_exactly();
  if (run_time_ == nullptr) return RunTime::between(zapped_, *now);
  const uint64_t watched_ns = run_time_->watch() == zapped_watch_ ? RunTime::between(zapped_, *now) : 0;
  return std::max(watched_ns, RunTime::between(zapped_by_all_, read()));
}

// A short wait for a program that shares this thread's processor, or has none now. Its turn comes seldom, and
// nothing is used meanwhile: so all granules wait for it together, however long, some milliseconds of it at a time, and not while
// nobody waits for a processor. False: it has not run enough yet.
bool Sampler::wait_for_turn(RunTime::Reading* now, uint64_t* ran_ns) {
  const uint64_t end_ns = monotonic_ns() + turn_ns_max;
  for (uint32_t polls = 0;; ++polls) {
    *ran_ns = ran_since_zap(now);
    if (*ran_ns > 4 * wait_ns_ + too_long_ns && zaps_ < zaps_max) {
      zap_all();
    } else if (*ran_ns + *ran_ns / 8 >= wait_ns_) {
      return true;
    }
    if (polls % polls_a_look == (turns_ == 0 ? polls_a_look - 1 : 0))
      idle_ = run_time_ != nullptr && !run_time_->wants_to_run();
    if (now->wall_ns >= end_ns || idle_) return false;
    sleep_ns(std::max(wait_ns_ - std::min(*ran_ns, wait_ns_), sleep_ns_min));
  }
}

// What is always touched may be used a little or very much. Each by itself can be exposed for some microseconds:
// some of them, others each sweep.
void Sampler::look_sharper() {
  const uint32_t count = memory_->granule_count();
  uint32_t looks = 0, misses = 0;
  for (uint32_t tried = 0; tried < count && looks < sharp_looks && misses < sharp_misses_max; ++tried) {
    next_sharp_ = next_sharp_ + 1 < count ? next_sharp_ + 1 : 0;
    const uint32_t granule = next_sharp_;
    if (!is_sampled(granule) || exposed_ns_[granule] <= 0 || touched_[granule] == 0 ||
        rates_.expected(granule, exposed_ns_[granule] * 1e-9f) < sharp_from)
      continue;
    ++looks;
    if (!look_sharper_at(granule)) ++misses;
  }
}

// For as long as the granule is used twice in, as it seems: that tells most. False: the program did not run.
bool Sampler::look_sharper_at(uint32_t granule) {
  const uint8_t touched = touched_[granule];
  const auto twice_ns = static_cast<uint64_t>(std::clamp(
      2e9f / rates_.expected(granule, 1), static_cast<float>(sharp_ns_min), static_cast<float>(sharp_ns_max)));
  const RunTime::Reading begin = read_exactly();
  zap(granule, granule + 1);
  const RunTime::Reading zapped = read_exactly();
  while (monotonic_ns() < begin.wall_ns + twice_ns) continue;
  const RunTime::Reading waited = read_exactly();
  look(granule, granule + 1);
  const RunTime::Reading looked = read_exactly();
  const bool found = touched_[granule] != 0;
  touched_[granule] = touched;  // as the sweep saw it
  if (RunTime::between(begin, looked) * 8 < looked.wall_ns - begin.wall_ns) return false;
  const uint64_t ran_ns = RunTime::between(zapped, waited) +
                          (RunTime::between(begin, zapped) + RunTime::between(waited, looked)) / 2;
  rates_.sharpen(granule, found, static_cast<float>(std::max(ran_ns, sharp_ns_min)) * 1e-9f);
  return true;
}

void Sampler::leave_out(uint32_t first, uint32_t last) {
  std::fill(exposed_ns_ + first, exposed_ns_ + last, -1.0f);
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

}  // namespace terrace::tiering
