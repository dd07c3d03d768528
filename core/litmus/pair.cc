// SPDX-License-Identifier: Apache-2.0
#include "core/litmus/pair.h"

#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>

#include "core/base/clock.h"
#include "core/base/sync/mutex.h"
#include "core/base/units.h"
#include "core/litmus/cached_memory.h"
#include "core/litmus/host_memory.h"
#include "core/litmus/side.h"
#include "core/os/fault_guard.h"

namespace terrace::litmus {
namespace {

// The `last` or first CPU that this thread may use: far apart where CPUs are numbered by socket. -1: it stays
// wherever it runs, as none can be chosen.
int pin_thread(bool last) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::pthread_getaffinity_np(::pthread_self(), sizeof allowed, &allowed) != 0) return -1;
  int chosen = -1;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed) && (last || chosen < 0)) chosen = cpu;
  if (chosen < 0) return -1;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(chosen, &one);
  return ::pthread_setaffinity_np(::pthread_self(), sizeof one, &one) == 0 ? chosen : -1;
}

struct Outcome {
  std::optional<Result<Report>> report;  // empty: cut off by a fault
  Report so_far;
  int cpu = -1;
};

// Of both sides' threads: waits for them, and tells them to give up when the run's time is over.
class Watch {
 public:
  Watch(const PairOptions& options, std::atomic<bool>& abandoned) : options_(options), abandoned_(abandoned) {}

  void side_ended() {
    const MutexLock lock(mutex_);
    ++ended_;
    changed_.notify_all();
  }
  // Returns when both sides are at their end, or were told so.
  void wait() {
    const uint64_t began_ns = SystemClock().now_ns();
    MutexLock lock(mutex_);
    while (ended_ < 2) {
      stopped_ = options_.stop != nullptr && options_.stop->load();
      late_ = options_.run_ns_max != 0 && SystemClock().now_ns() - began_ns >= options_.run_ns_max;
      if (stopped_ || late_) break;
      changed_.wait_for(mutex_, std::chrono::milliseconds(20));
    }
    if (stopped_ || late_) abandoned_ = true;
  }
  bool stopped() const { return stopped_; }
  bool late() const { return late_; }

 private:
  const PairOptions& options_;
  std::atomic<bool>& abandoned_;
  Mutex mutex_;
  ConditionVariable changed_;
  int ended_ TERRACE_GUARDED_BY(mutex_) = 0;
  bool stopped_ = false, late_ = false;
};

Error unavailable(std::string detail) {
  return Error{.code = ErrorCode::unavailable, .where = "litmus", .detail = std::move(detail)};
}

// A run whose time is over: what was seen until then stays seen.
Report cut_short(Report report, const PairOptions& options) {
  if (report.verdict != Verdict::not_coherent) {
    report.verdict = Verdict::inconclusive;
    report.note = "it was not done within " + std::to_string(options.run_ns_max / ns_per_s) +
                  " s: the machine is too busy, or the memory too slow for so many rounds";
  }
  return report;
}

// On one CPU the scheduler can show both sides at it at once, but every load and store went through one cache.
Report judged(Report report, const Outcome& first, const Outcome& second) {
  if (report.verdict == Verdict::coherent && first.cpu >= 0 && first.cpu == second.cpu) {
    report.verdict = Verdict::inconclusive;
    report.note = "both sides ran on CPU " + std::to_string(first.cpu) +
                  ", whose cache cannot disagree with itself: let the process use two CPUs";
  }
  return report;
}

template <typename Memory>
void play(Memory& memory, Region& region, const SideOptions& options, Outcome& outcome,
          std::atomic<bool>& abandoned) {
  outcome.cpu = pin_thread(options.role == Role::second);
  Side<Memory> side(memory, region, options);
  const bool whole = os::guarded([&] {
    const Status joined = side.join();
    outcome.report.emplace(joined.ok() ? side.run() : Result<Report>(joined.error()));
  });
  if (!whole) outcome.report.reset();
  outcome.so_far = side.so_far();
  if (!outcome.report.has_value() || !outcome.report->ok()) abandoned = true;
}

template <typename MakeMemory>
Result<Report> play_both(std::span<std::byte> first, std::span<std::byte> second, const PairOptions& options,
                         MakeMemory make) {
  std::atomic<bool> abandoned = false;
  Outcome outcomes[2];
  const auto side = [&](Role role, std::span<std::byte> view) {
    auto& region = *reinterpret_cast<Region*>(view.data());
    const auto memory = make(region, abandoned);
    const SideOptions own{role, options.rounds, secure_random_u64() | 1};
    play(*memory, region, own, outcomes[static_cast<size_t>(role)], abandoned);
  };
  Watch watch(options, abandoned);
  std::thread threads[2];
  try {
    threads[0] = std::thread([&] { side(Role::first, first), watch.side_ended(); });
    threads[1] = std::thread([&] { side(Role::second, second), watch.side_ended(); });
  } catch (const std::system_error& error) {
    abandoned = true;
    if (threads[0].joinable()) threads[0].join();
    return unavailable(std::string("no thread could be started for a side: ") + error.what());
  }
  watch.wait();
  for (std::thread& thread : threads) thread.join();
  for (const Outcome& outcome : outcomes)
    if (!outcome.report.has_value())
      return Error{
          .code = ErrorCode::io_error,
          .where = "litmus",
          .detail = "the memory failed under an access (SIGBUS): its device went, or it was taken away"};
  const bool done = outcomes[0].report->ok() && outcomes[1].report->ok();
  if (!done && watch.stopped()) return unavailable("the run was told to end before it was done");
  if (!done && watch.late()) {
    const bool other = outcomes[1].so_far.verdict == Verdict::not_coherent;
    return cut_short(std::move(outcomes[other ? 1 : 0].so_far), options);
  }
  // Of two errors the one that came first: the other side only heard of it.
  for (const Outcome& outcome : outcomes)
    if (!outcome.report->ok() && outcome.report->error().code != ErrorCode::unavailable)
      return outcome.report->error();
  for (const Outcome& outcome : outcomes)
    if (!outcome.report->ok()) return outcome.report->error();
  return judged(std::move(**outcomes[0].report), outcomes[0], outcomes[1]);
}

bool usable(std::span<std::byte> view) {
  return view.size() >= region_bytes && reinterpret_cast<uintptr_t>(view.data()) % 64 == 0;
}

}  // namespace

Result<Report> run_pair(std::span<std::byte> first, std::span<std::byte> second, const PairOptions& options) {
  if (!usable(first) || !usable(second) || options.rounds == 0 || options.rounds > rounds_max) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "litmus",
                 .detail = "a litmus run takes 1 to " + std::to_string(rounds_max) +
                           " rounds, and two views of " + std::to_string(region_bytes) + " bytes each"};
  }
  const uint64_t began_ns = SystemClock().now_ns();
  Result<Report> report =
      options.cached ? play_both(first, second, options,
                                 [&](Region& region, const std::atomic<bool>& abandoned) {
                                   return std::make_unique<CachedMemory>(
                                       region, HostMemory(options.patience_ns, &abandoned));
                                 })
                     : play_both(first, second, options, [&](Region&, const std::atomic<bool>& abandoned) {
                         return std::make_unique<HostMemory>(options.patience_ns, &abandoned);
                       });
  if (report.ok()) report->took_ns = SystemClock().now_ns() - began_ns;
  return report;
}

}  // namespace terrace::litmus
