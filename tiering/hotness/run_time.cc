// SPDX-License-Identifier: Apache-2.0
#include "tiering/hotness/run_time.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "tiering/migration/engine_threads.h"
#include "tiering/migration/mover.h"

namespace terrace::tiering {
namespace {

// The clocks of other threads may be some ticks late: what they are late is not lost for the clock of policies.
constexpr uint64_t ahead_ns_max = 20'000'000;
constexpr uint64_t look_every_ns = 250'000'000;
constexpr uint64_t look_cost_share = 1000;  // a thousandth of a processor for looking

struct DirectoryEntry {
  uint64_t inode;
  int64_t next;
  uint16_t bytes;
  uint8_t type;
  char name[1];  // as long as it is
};

uint64_t process_cpu_ns() {
  timespec time{};
  if (::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) != 0) return 0;
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

}  // namespace

void RunTime::open(ReadCpuTime read_cpu, void* owner) {
  read_ = read_cpu;
  owner_ = owner;
  thread_count_ = watched_count_ = 0;
  look_due_ns_ = ahead_ns_ = 0;
  last_ = {};
  last_ = read();
  now_ns_ = last_.wall_ns;
}

// Asking for a thread's clock brings the kernel's account of it up to date, in that of the process as well.
uint64_t RunTime::program_cpu_ns() const {
  if (read_ != nullptr) return read_(owner_);
  for (uint32_t i = 0; i < watched_count_; ++i) thread_cpu_ns(watched_[i]);
  const uint64_t ours = engine_threads_cpu_ns(), all = process_cpu_ns();
  return all > ours ? all - ours : 0;
}

RunTime::Reading RunTime::read() {
  Reading now;
  now.cpu_ns = std::max(program_cpu_ns(), last_.cpu_ns);
  now.wall_ns = monotonic_ns();
  return now;
}

RunTime::Reading RunTime::read_exactly() const {
  Reading now;
  if (read_ != nullptr || watched_count_ == 0)
    now.cpu_ns = program_cpu_ns();
  else
    for (uint32_t i = 0; i < watched_count_; ++i) now.cpu_ns += thread_cpu_ns(watched_[i]);
  now.wall_ns = monotonic_ns();
  return now;
}

uint64_t RunTime::between(const Reading& from, const Reading& to) {
  const uint64_t passed = to.wall_ns - std::min(from.wall_ns, to.wall_ns);
  return std::min(passed, to.cpu_ns - std::min(from.cpu_ns, to.cpu_ns));
}

uint64_t RunTime::now_ns(const Reading& reading) {
  if (reading.wall_ns <= last_.wall_ns) return now_ns_;
  const uint64_t passed = reading.wall_ns - last_.wall_ns;
  ahead_ns_ += reading.cpu_ns - std::min(last_.cpu_ns, reading.cpu_ns);
  const uint64_t ran = std::min(ahead_ns_, passed);
  now_ns_ += ran;
  ahead_ns_ = std::min(ahead_ns_ - ran, ahead_ns_max);
  last_ = reading;
  return now_ns_;
}

uint64_t RunTime::at_ns(uint64_t wall_ns) const {
  const uint64_t ago = last_.wall_ns - std::min(wall_ns, last_.wall_ns);
  return now_ns_ - std::min(now_ns_, ago);
}

// Into `threads`, at most threads_max: the kernel lists them in the order of their birth.
uint32_t RunTime::list_threads(Thread* threads) const {
  const int list = ::open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (list < 0) return 0;
  uint32_t count = 0;
  alignas(DirectoryEntry) char entries[4096];
  for (long got; count < threads_max && (got = ::syscall(SYS_getdents64, list, entries, sizeof(entries))) > 0;)
    for (long at = 0; at < got && count < threads_max;) {
      const auto* entry = reinterpret_cast<const DirectoryEntry*>(entries + at);
      at += entry->bytes;
      if (entry->name[0] < '1' || entry->name[0] > '9') continue;
      threads[count].id = static_cast<int>(::strtol(entry->name, nullptr, 10));
      threads[count].cpu_ns = thread_cpu_ns(threads[count].id);
      ++count;
    }
  ::close(list);
  return count;
}

// The threads that ran most since the last look, the busiest first.
struct RunTime::Busiest {
  uint64_t ran_ns[watched_max] = {};
  int ids[watched_max] = {};
  uint32_t count = 0;

  void note(int id, uint64_t ran) {
    uint32_t at = count;
    while (at > 0 && ran_ns[at - 1] < ran) --at;
    if (at == watched_max) return;
    if (count < watched_max) ++count;
    for (uint32_t i = count - 1; i > at; --i) {
      ran_ns[i] = ran_ns[i - 1];
      ids[i] = ids[i - 1];
    }
    ran_ns[at] = ran;
    ids[at] = id;
  }
};

// Both lists are in the order of births: who was there is found from one place to the next.
void RunTime::look_for_threads(uint64_t wall_ns) {
  if (read_ != nullptr || wall_ns < look_due_ns_) return;
  Thread now[threads_max];
  const uint32_t count = list_threads(now);
  const auto self = static_cast<int>(::syscall(SYS_gettid));
  Busiest busiest;
  for (uint32_t i = 0, before = 0; i < count; ++i) {
    uint32_t same = before;
    while (same < thread_count_ && threads_[same].id != now[i].id) ++same;
    uint64_t ran = now[i].cpu_ns;
    if (same < thread_count_) {
      ran -= std::min(ran, threads_[same].cpu_ns);
      before = same + 1;
    }
    if (ran > 0 && now[i].id != self) busiest.note(now[i].id, ran);
  }
  // In the order of their numbers: which of two is busier changes often.
  std::sort(busiest.ids, busiest.ids + busiest.count);
  if (busiest.count != watched_count_ || !std::equal(watched_, watched_ + watched_count_, busiest.ids))
    ++watch_;
  std::copy_n(busiest.ids, busiest.count, watched_);
  watched_count_ = busiest.count;
  std::copy_n(now, count, threads_);
  thread_count_ = count;
  const uint64_t cost_ns = monotonic_ns() - std::min(wall_ns, monotonic_ns());
  look_due_ns_ = wall_ns + std::max(look_every_ns, cost_ns * look_cost_share);
}

}  // namespace terrace::tiering
