// SPDX-License-Identifier: Apache-2.0
#include "tiering/hotness/run_time.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
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
constexpr uint64_t look_every_ns_max = 5'000'000'000;

struct DirectoryEntry {
  uint64_t inode;
  int64_t next;
  uint16_t bytes;
  uint8_t type;
  char name[1];  // as long as it is
};

uint64_t cpu_ns_of(clockid_t clock) {
  timespec time{};
  if (::clock_gettime(clock, &time) != 0) return 0;
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

// "R" of /proc/self/task/ID/stat, behind the name, which may have brackets in it.
bool is_runnable(int thread) {
  char path[64] = "/proc/self/task/";
  size_t length = strlen(path);
  char digits[16];
  size_t count = 0;
  for (int left = thread; left > 0 && count < sizeof(digits); left /= 10)
    digits[count++] = static_cast<char>('0' + left % 10);
  while (count > 0) path[length++] = digits[--count];
  memcpy(path + length, "/stat", sizeof("/stat"));
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char text[128];
  const ssize_t bytes = ::read(fd, text, sizeof(text));
  ::close(fd);
  for (ssize_t at = bytes - 3; at > 0; --at)
    if (text[at] == ')') return text[at + 2] == 'R';
  return false;
}

}  // namespace

void RunTime::open(ReadCpuTime read_cpu, void* owner) {
  read_ = read_cpu;
  owner_ = owner;
  thread_count_ = watched_count_ = 0;
  look_due_ns_ = ahead_ns_ = 0;
  last_ = {};
  blind_ = read_cpu == nullptr && list_threads(threads_) == 0;
  last_ = read();
  now_ns_ = last_.wall_ns;
}

// Asking for a thread's clock brings the kernel's account of it up to date, in that of the process as well.
uint64_t RunTime::program_cpu_ns() const {
  if (read_ != nullptr) return read_(owner_);
  if (blind_) return monotonic_ns();
  for (uint32_t i = 0; i < watched_count_; ++i) thread_cpu_ns(watched_[i]);
  const uint64_t ours = engine_threads_cpu_ns(), all = cpu_ns_of(CLOCK_PROCESS_CPUTIME_ID);
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

bool RunTime::wants_to_run() const {
  if (read_ != nullptr || blind_) return true;
  for (uint32_t i = 0; i < watched_count_; ++i)
    if (is_runnable(watched_[i])) return true;
  return false;
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
uint32_t RunTime::list_threads(Thread* threads) {
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
  if (read_ != nullptr || blind_ || wall_ns < look_due_ns_) return;
  const uint64_t begun_ns = cpu_ns_of(CLOCK_THREAD_CPUTIME_ID);
  look_due_ns_ = wall_ns + look_every_ns;
  Thread now[threads_max];
  const uint32_t count = list_threads(now);
  if (count == 0) return;  // no descriptor now: those that were watched still are
  Busiest busiest;
  for (uint32_t i = 0, before = 0; i < count; ++i) {
    uint32_t same = before;
    while (same < thread_count_ && threads_[same].id != now[i].id) ++same;
    uint64_t ran = now[i].cpu_ns;
    if (same < thread_count_) {
      ran -= std::min(ran, threads_[same].cpu_ns);
      before = same + 1;
    }
    if (ran > 0 && !is_engine_thread(now[i].id)) busiest.note(now[i].id, ran);
  }
  // In the order of their numbers: which of two is busier changes often.
  std::sort(busiest.ids, busiest.ids + busiest.count);
  if (busiest.count != watched_count_ || !std::equal(watched_, watched_ + watched_count_, busiest.ids))
    ++watch_;
  std::copy_n(busiest.ids, busiest.count, watched_);
  watched_count_ = busiest.count;
  std::copy_n(now, count, threads_);
  thread_count_ = count;
  const uint64_t cost_ns = cpu_ns_of(CLOCK_THREAD_CPUTIME_ID) - begun_ns;
  look_due_ns_ = wall_ns + std::clamp(cost_ns * look_cost_share, look_every_ns, look_every_ns_max);
}

}  // namespace terrace::tiering
