// SPDX-License-Identifier: Apache-2.0
// What mmap gives a program, wherever it comes from: mapping_cases NAME ARGUMENT... Exit 0: it behaves as
// private anonymous memory does. Run plainly as well: the kernel says what is right.
//
//   model SEED OPERATIONS THREADS [number]   random calls on mappings beside a model that knows each page's
//                                            bytes and protection; `number`: by syscall()
//   cycles ROUNDS                            the same memory, mapped and unmapped in all orders
//   grown MIB                                one mapping that mremap makes longer a MiB at a time
//   busy_heap                                maps while other threads hold the heap, forks and handlers come
//   futures                                  after mlockall(MCL_FUTURE) and userfaultfd nothing is served
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace {

constexpr size_t page = 4096;
constexpr size_t words = page / sizeof(uint64_t);
constexpr int plain = PROT_READ | PROT_WRITE;
constexpr uint64_t file_stamp = 0x0f11e0f11e0f11e;
constexpr size_t file_pages = 64;

bool by_number = false;
int pattern_file = -1;

[[noreturn]] void wrong(const char* what, const void* at = nullptr) {
  fprintf(stderr, "mapping_cases[%d]: %s at %p (%s)\n", static_cast<int>(getpid()), what, at, strerror(errno));
  _exit(1);
}

// ---- the calls, by name or by number

char* map(void* at, size_t bytes, int protection, int flags, int fd = -1) {
  void* made = by_number ? reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, fd, 0L))
                         : mmap(at, bytes, protection, flags, fd, 0);
  return made == MAP_FAILED ? nullptr : static_cast<char*>(made);
}
void unmap(void* at, size_t bytes) {
  if ((by_number ? static_cast<int>(syscall(SYS_munmap, at, bytes)) : munmap(at, bytes)) != 0)
    wrong("munmap", at);
}
char* remap(void* at, size_t bytes, size_t new_bytes, int flags, void* to = nullptr) {
  void* made = by_number ? reinterpret_cast<void*>(syscall(SYS_mremap, at, bytes, new_bytes, flags, to))
                         : mremap(at, bytes, new_bytes, flags, to);
  return made == MAP_FAILED ? nullptr : static_cast<char*>(made);
}
int advise(void* at, size_t bytes, int advice) {
  return by_number ? static_cast<int>(syscall(SYS_madvise, at, bytes, advice)) : madvise(at, bytes, advice);
}
int protect(void* at, size_t bytes, int protection) {
  return by_number ? static_cast<int>(syscall(SYS_mprotect, at, bytes, protection))
                   : mprotect(at, bytes, protection);
}

char* new_map(size_t bytes) {
  char* at = map(nullptr, bytes, plain, MAP_PRIVATE | MAP_ANONYMOUS);
  if (at == nullptr) wrong("mmap");
  return at;
}

// ---- pages

void fill(char* at, uint64_t stamp) {
  auto* to = reinterpret_cast<volatile uint64_t*>(at);
  for (size_t i = 0; i < words; i += 1) to[i] = stamp;
}

bool holds(const char* at, uint64_t stamp) {
  const auto* from = reinterpret_cast<const volatile uint64_t*>(at);
  for (size_t i = 0; i < words; ++i)
    if (from[i] != stamp) return false;
  return true;
}

thread_local sigjmp_buf after_fault;
thread_local volatile bool expects_fault = false;

void on_fault(int number, siginfo_t* about, void*) {
  if (expects_fault) siglongjmp(after_fault, 1);
  dprintf(STDERR_FILENO, "mapping_cases[%d]: a fault where none was expected, at %p (code %d)\n",
          static_cast<int>(getpid()), about->si_addr, about->si_code);
  signal(number, SIG_DFL);
  raise(number);
}

bool faults(char* at, bool store) {
  bool fault = true;
  expects_fault = true;
  if (sigsetjmp(after_fault, 1) == 0) {
    volatile char* one = at;
    const char value = *one;
    if (store) *one = value;
    fault = false;
  }
  expects_fault = false;
  return fault;
}

// ---- the model

struct Page {
  uint64_t stamp = 0;
  uint64_t below = 0;  // what is there after MADV_DONTNEED
  int protection = plain;
  bool may_be_dropped = false;  // MADV_FREE
};

class Model {
 public:
  explicit Model(uint64_t seed, bool forks) : random_(seed), forks_(forks) {}

  void run(size_t operations) {
    for (size_t i = 0; i < operations; ++i) {
      step();
      if (i % 512 == 511) check_all();
      if (forks_ && i % 256 == 255) in_child();
    }
    check_all();
    while (!pages_.empty()) {
      char* at = pages_.begin()->first;
      drop(at, run_at(at));
    }
    for (auto& block : blocks_) free(block.first);
  }

 private:
  using Pages = std::map<char*, Page>;

  size_t below(size_t limit) { return random_() % limit; }
  uint64_t stamp() { return random_() | 1; }

  // Pages from `at` on, side by side.
  size_t run_at(char* at) const {
    size_t count = 0;
    for (auto one = pages_.find(at); one != pages_.end() && one->first == at + count * page; ++one) ++count;
    return count;
  }

  struct Range {
    char* at;
    size_t pages;
  };
  // A random stretch of pages that are there; over the ends of mappings, too.
  Range some(size_t pages_max) {
    if (pages_.empty()) return {nullptr, 0};
    auto one = pages_.lower_bound(low_ + below(static_cast<size_t>(high_ - low_) / page + 1) * page);
    if (one == pages_.end()) one = pages_.begin();
    size_t count = run_at(one->first);
    const size_t most = 1 + below(pages_max);
    return {one->first, count < most ? count : most};
  }
  Range some_plain(size_t pages_max) {
    Range range = some(pages_max);
    for (size_t i = 0; i < range.pages; ++i) {
      const Page& one = pages_[range.at + i * page];
      if (one.protection != plain || one.below != 0) range.pages = i;
    }
    return range;
  }
  template <typename Visit>
  void each(Range range, Visit visit) {
    auto one = pages_.find(range.at);
    for (size_t i = 0; i < range.pages; ++i, ++one) visit(one->first, one->second);
  }

  void add(char* at, size_t count, const Page& what) {
    for (size_t i = 0; i < count; ++i)
      if (!pages_.emplace(at + i * page, what).second) wrong("mmap gave what is in use", at);
    if (low_ == nullptr || at < low_) low_ = at;
    if (at + count * page > high_) high_ = at + count * page;
  }
  void forget(char* at, size_t count) {
    for (size_t i = 0; i < count; ++i) pages_.erase(at + i * page);
  }
  void drop(char* at, size_t count) {
    forget(at, count);
    unmap(at, count * page);
    // Nobody has mapped anything since: not there is not there.
    if (!forks_ && below(4) == 0) unmap(at, count * page);
  }

  void check(char* at, Page& one) {
    if (one.protection == PROT_NONE) return;
    if (holds(at, one.stamp)) return;
    if (!one.may_be_dropped || !holds(at, one.below)) wrong("a page has other bytes", at);
    one.stamp = one.below;
  }
  void check_all() {
    for (auto& one : pages_) check(one.first, one.second);
    for (auto& block : blocks_)
      for (size_t i = 0; i < block.second.first; i += words)
        if (block.first[i] != block.second.second) wrong("a block of malloc has other bytes", block.first + i);
  }
  void store(char* at, Page& one) {
    if (one.protection != plain) return;
    one.stamp = stamp();
    one.may_be_dropped = false;
    fill(at, one.stamp);
  }

  void fresh() {
    const size_t count = below(4) == 0 ? 512 * (1 + below(3)) : 16 + below(700);
    if (pages_.size() + count > pages_max_) return;
    char* at = new_map(count * page);
    add(at, count, {});
    each({at, count}, [&](char* where, Page& one) { check(where, one); });
    for (size_t i = 0; i < count; i += 1 + below(5)) store(at + i * page, pages_[at + i * page]);
  }

  // Twice as much, of which an aligned half stays, as allocators do it.
  void aligned() {
    const size_t count = 512;
    if (pages_.size() + 2 * count > pages_max_) return;
    char* at = new_map(2 * count * page);
    const size_t over = reinterpret_cast<uintptr_t>(at) % (count * page) / page;
    const size_t head = over == 0 ? 0 : count - over;
    if (head > 0) unmap(at, head * page);
    unmap(at + (head + count) * page, (count - head) * page);
    add(at + head * page, count, {});
    each({at + head * page, count}, [&](char* where, Page& one) { store(where, one); });
  }

  void protect_some() {
    static constexpr int kinds[] = {PROT_NONE, PROT_READ, plain, plain, plain, PROT_READ | PROT_EXEC};
    const Range range = some(300);
    const int kind = kinds[below(6)];
    if (protect(range.at, range.pages * page, kind) != 0) wrong("mprotect", range.at);
    each(range, [&](char*, Page& one) { one.protection = kind; });
    if (forks_ || range.pages == 0) return;
    if (faults(range.at, false) != (kind == PROT_NONE) || faults(range.at, true) != (kind != plain))
      wrong("a protection does not hold", range.at);
  }

  void advise_some() {
    static constexpr int kinds[] = {MADV_DONTNEED, MADV_DONTNEED, MADV_DONTNEED,   MADV_FREE,
                                    MADV_HUGEPAGE, MADV_WILLNEED, MADV_NOHUGEPAGE, MADV_COLD};
    const Range range = some(600);
    const int kind = kinds[below(8)];
    const int result = advise(range.at, range.pages * page, kind);
    bool files = false;
    each(range, [&](char*, Page& one) { files = files || one.below != 0; });
    if (result != 0 && !(kind == MADV_FREE && files)) wrong("madvise", range.at);
    each(range, [&](char*, Page& one) {
      if (kind == MADV_DONTNEED) one.stamp = one.below, one.may_be_dropped = false;
      if (kind == MADV_FREE) one.may_be_dropped = true;
    });
  }

  void lock_some() {
    const Range range = some_plain(64);
    if (range.pages == 0) return;
    if (mlock(range.at, range.pages * page) != 0) return;  // RLIMIT_MEMLOCK
    if (munlock(range.at, range.pages * page) != 0) wrong("munlock", range.at);
  }

  void look_at_some() {
    const Range range = some(256);
    std::vector<unsigned char> there(range.pages);
    if (mincore(range.at, range.pages * page, there.data()) != 0) wrong("mincore", range.at);
    if (msync(range.at, range.pages * page, MS_ASYNC) != 0) wrong("msync", range.at);
  }

  void remap_some() {
    Range range = some(400);
    for (size_t i = 0; i < range.pages; ++i)
      if (pages_[range.at + i * page].below != 0) range.pages = i;  // a file's
    if (range.pages == 0 || pages_.size() + 2 * range.pages > pages_max_) return;
    const size_t kind = below(5);
    size_t new_pages = kind == 0 ? 1 + below(range.pages) : kind == 1 ? range.pages + below(200) : range.pages;
    int flags = MREMAP_MAYMOVE;
    char* to = nullptr;
    if (kind == 2) flags |= 4;  // MREMAP_DONTUNMAP
    if (kind == 3) {
      to = new_map(range.pages * page);
      flags |= MREMAP_FIXED;
    }
    std::vector<Page> had;
    each(range, [&](char*, Page& one) { had.push_back(one); });
    char* at = remap(range.at, range.pages * page, new_pages * page, flags, to);
    if (at == nullptr) {
      // The range is of more than one of the kernel's mappings. A place that was to be taken may be gone, and another
      // thread's by now: it is left.
      if (errno != EFAULT && errno != EINVAL) wrong("mremap", range.at);
      return;
    }
    if (to != nullptr && at != to) wrong("mremap to a fixed place", at);
    if (kind == 2) {
      each(range, [&](char*, Page& one) { one = {.protection = one.protection}; });
      add(at, range.pages, {});
    } else {
      forget(range.at, range.pages);
      add(at, new_pages, {.protection = had.back().protection});
    }
    for (size_t i = 0; i < new_pages && i < had.size(); ++i) pages_[at + i * page] = had[i];
    each({at, new_pages}, [&](char* where, Page& one) { check(where, one); });
    if (forks_) return;
    for (char* where : {at, at + (new_pages - 1) * page, kind == 2 ? range.at : at}) {
      const int kind_there = pages_[where].protection;
      if (faults(where, false) != (kind_there == PROT_NONE) || faults(where, true) != (kind_there != plain))
        wrong("mremap lost a protection", where);
    }
  }

  void put_over() {
    const Range range = some(100);
    const size_t kind = below(4);
    Page made;
    if (kind == 0) made.protection = PROT_NONE;
    size_t count = range.pages;
    if (kind == 1) {
      made.stamp = made.below = file_stamp;
      if (count > file_pages) count = file_pages;
    }
    if (count == 0) return;
    const int flags = MAP_PRIVATE | MAP_FIXED | (kind == 1 ? 0 : MAP_ANONYMOUS);
    // Also what was given back just now, with nothing in between.
    if (kind == 2 && !forks_) unmap(range.at, count * page);
    if (map(range.at, count * page, made.protection, flags, kind == 1 ? pattern_file : -1) != range.at)
      wrong("mmap to a fixed place", range.at);
    each({range.at, count}, [&](char* where, Page& one) {
      one = made;
      check(where, one);
    });
  }

  void allocate_some() {
    if (blocks_.size() > 40 || (!blocks_.empty() && below(2) == 0)) {
      const size_t which = below(blocks_.size());
      free(blocks_[which].first);
      blocks_[which] = blocks_.back();
      return blocks_.pop_back();
    }
    const size_t count = 1 + below(40'000);
    auto* block = static_cast<uint64_t*>(malloc(count * sizeof(uint64_t)));
    if (block == nullptr) return;
    const uint64_t value = stamp();
    for (size_t i = 0; i < count; ++i) block[i] = value;
    blocks_.push_back({block, {count, value}});
  }

  void in_child() {
    const pid_t pid = fork();
    if (pid < 0) wrong("fork");
    if (pid > 0) {
      int status = 0;
      if (waitpid(pid, &status, 0) != pid || status != 0) wrong("a child");
      return check_all();
    }
    forks_ = false;
    check_all();
    for (int i = 0; i < 200; ++i) step();
    check_all();
    _exit(0);
  }

  void step() {
    const size_t kind = below(100);
    if (kind < 10) return fresh();
    if (kind < 13) return aligned();
    if (kind < 24) {
      const Range range = some(900);
      if (range.pages > 0) drop(range.at, range.pages);
      return;
    }
    if (pages_.empty()) return;
    if (kind < 30) return protect_some();
    if (kind < 42) return advise_some();
    if (kind < 50) return remap_some();
    if (kind < 54) return put_over();
    if (kind < 58) return lock_some();
    if (kind < 60) return look_at_some();
    if (kind < 72) return allocate_some();
    const Range range = some(kind < 90 ? 60 : 500);
    each(range, [&](char* where, Page& one) {
      check(where, one);
      store(where, one);
    });
  }

  static constexpr size_t pages_max_ = 24'000;
  std::mt19937_64 random_;
  bool forks_;  // and threads: nobody else's mapping may be expected not to come
  Pages pages_;
  char *low_ = nullptr, *high_ = nullptr;
  std::vector<std::pair<uint64_t*, std::pair<size_t, uint64_t>>> blocks_;
};

int model(char** arguments) {
  const uint64_t seed = strtoull(arguments[0], nullptr, 10);
  const size_t operations = strtoull(arguments[1], nullptr, 10), threads = strtoull(arguments[2], nullptr, 10);
  by_number = arguments[3] != nullptr && strcmp(arguments[3], "number") == 0;
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_NODEFER | SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
  if (threads <= 1) {
    Model(seed, false).run(operations);
    return 0;
  }
  std::vector<std::thread> all;
  for (size_t i = 0; i < threads; ++i) all.emplace_back([=] { Model(seed * 1000 + i, true).run(operations); });
  for (std::thread& one : all) one.join();
  return 0;
}

// ---- the others

int cycles(char** arguments) {
  constexpr size_t mib = 1 << 20, length = 8 * mib;
  const int rounds = atoi(arguments[0]);
  const auto must_be_zero = [](const char* at, size_t bytes) {
    for (size_t i = 0; i < bytes; i += page)
      if (!holds(at + i, 0)) wrong("a new mapping has old bytes", at + i);
  };
  for (int round = 0; round < rounds; ++round) {
    char* one = new_map(length);
    char* two = new_map(length);
    must_be_zero(one, length);
    must_be_zero(two, length);
    memset(one, 1, length);
    memset(two, 2, length);
    switch (round % 4) {
      case 0: unmap(one, length), unmap(two, length); break;
      case 1:  // from the middle outwards
        for (size_t i = 0; i < 4; ++i) unmap(one + (3 - i) * mib, mib), unmap(one + (4 + i) * mib, mib);
        unmap(two + mib, length - 2 * mib), unmap(two, mib), unmap(two + length - mib, mib);
        break;
      case 2:  // over parts that are gone
        unmap(one + 2 * mib, mib), unmap(one, length);
        unmap(two, mib), unmap(two, length);
        break;
      default:  // both at once where they lie side by side
        if (one + length == two)
          unmap(one, 2 * length);
        else if (two + length == one)
          unmap(two, 2 * length);
        else
          unmap(one, length), unmap(two, length);
    }
  }
  return 0;
}

int grown(char** arguments) {
  constexpr size_t mib = 1 << 20;
  const size_t most = strtoull(arguments[0], nullptr, 10);
  char* at = new_map(mib);
  for (size_t i = 0; i < most; ++i) {
    for (size_t j = 0; j < mib; j += page) {
      if (!holds(at + i * mib + j, 0)) wrong("a grown part has old bytes", at + i * mib + j);
      fill(at + i * mib + j, i * mib + j + 1);
    }
    at = remap(at, (i + 1) * mib, (i + 2) * mib, MREMAP_MAYMOVE);
    if (at == nullptr) wrong("mremap");
  }
  for (size_t i = 0; i < most * mib; i += page)
    if (!holds(at + i, i + 1)) wrong("mremap lost bytes", at + i);
  unmap(at, (most + 1) * mib);
  return 0;
}

std::atomic<bool> stop_all{false};
std::atomic<int> stopped{0};
constexpr int stop_signal = SIGUSR1, go_signal = SIGUSR2;

void stop_here(int) {
  sigset_t all;
  sigfillset(&all);
  sigdelset(&all, go_signal);
  stopped.fetch_add(1);
  sigsuspend(&all);
  stopped.fetch_sub(1);
}
void go_on(int) {}

// A collector: all other threads are stopped wherever they are, in malloc too, and mappings come and go
// meanwhile.
int busy_heap(char**) {
  struct sigaction action {};
  sigfillset(&action.sa_mask);
  action.sa_handler = stop_here;
  sigaction(stop_signal, &action, nullptr);
  action.sa_handler = go_on;
  sigaction(go_signal, &action, nullptr);
  std::vector<std::thread> others;
  for (int i = 0; i < 3; ++i)
    others.emplace_back([i] {
      std::mt19937_64 random(static_cast<uint64_t>(i));
      while (!stop_all.load()) {
        const size_t bytes = 65'536 + random() % 1'000'000;
        auto* block = static_cast<char*>(malloc(bytes));
        if (block != nullptr) block[bytes / 2] = 1;
        free(block);
      }
    });
  constexpr size_t length = 2 << 20;
  char* kept = new_map(length);
  // Three threads have to be scheduled twice a round: a machine with thirty others at work takes a second for that.
  const auto enough = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (int round = 0; round < 150 && (round < 10 || std::chrono::steady_clock::now() < enough); ++round) {
    for (std::thread& one : others) pthread_kill(one.native_handle(), stop_signal);
    while (stopped.load() != 3) usleep(100);
    char* at = new_map(length);
    at[0] = 1;
    if (advise(kept, length, MADV_DONTNEED) != 0) wrong("madvise");
    unmap(kept, length);
    kept = at;
    for (std::thread& one : others) pthread_kill(one.native_handle(), go_signal);
    while (stopped.load() != 0) usleep(100);
  }
  stop_all.store(true);
  for (std::thread& one : others) one.join();
  return 0;
}

// In the order of addresses: new mappings of plain memory lie where no mapping was served.
int futures(char** arguments) {
  if (strcmp(arguments[0], "lock") == 0) {
    if (mlockall(MCL_FUTURE) != 0) return 77;
  } else if (strcmp(arguments[0], "faults") == 0) {
    if (syscall(SYS_userfaultfd, O_CLOEXEC) < 0) return 77;
  }
  for (int i = 0; i < 10; ++i) memset(new_map(4 << 20), i, 4 << 20);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  pattern_file = memfd_create("pattern", MFD_CLOEXEC);
  std::vector<uint64_t> pattern(file_pages * words, file_stamp);
  if (write(pattern_file, pattern.data(), file_pages * page) != static_cast<ssize_t>(file_pages * page))
    wrong("write");
  struct Case {
    const char* name;
    int (*run)(char**);
    int arguments;
  };
  constexpr Case cases[] = {{"model", model, 3},
                            {"cycles", cycles, 1},
                            {"grown", grown, 1},
                            {"busy_heap", busy_heap, 0},
                            {"futures", futures, 1}};
  for (const Case& one : cases)
    if (argc >= 2 + one.arguments && strcmp(argv[1], one.name) == 0) return one.run(argv + 2);
  for (const Case& one : cases) puts(one.name);
  return argc == 1 ? 0 : 2;
}
