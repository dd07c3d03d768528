// fork over leased memory: who sees whose stores. One case a run: fork_cases NAME. Exit 0: as POSIX has it.
// Every block is large enough to live in the window (min-size 4096) and the DDR budget is tiny, so that most of
// them are leased memory.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <malloc.h>
#include <pthread.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr size_t block_bytes = 256u << 10;
constexpr int block_count = 100;  // 25 MiB

[[noreturn]] void wrong(const char* what) {
  fprintf(stderr, "fork_cases[%d]: %s\n", static_cast<int>(getpid()), what);
  _exit(1);
}

using Blocks = std::vector<unsigned char*>;

Blocks make_blocks(unsigned char value) {
  Blocks blocks;
  for (int i = 0; i < block_count; ++i) {
    auto* block = static_cast<unsigned char*>(malloc(block_bytes));
    if (block == nullptr) wrong("no memory");
    memset(block, value + i % 7, block_bytes);
    blocks.push_back(block);
  }
  return blocks;
}

void check_blocks(const Blocks& blocks, unsigned char value, const char* what) {
  for (size_t i = 0; i < blocks.size(); ++i)
    for (size_t at = 0; at < block_bytes; at += 512)
      if (blocks[i][at] != static_cast<unsigned char>(value + i % 7)) wrong(what);
}

void store_all(const Blocks& blocks, unsigned char value) {
  for (size_t i = 0; i < blocks.size(); ++i) memset(blocks[i], value + static_cast<int>(i % 7), block_bytes);
}

// Allocates, checks that calloc is zero, frees; what a round has freed serves the next one.
void churn(unsigned char value, int rounds = 3) {
  for (int round = 0; round < rounds; ++round) {
    Blocks more = make_blocks(value);
    check_blocks(more, value, "own new block is wrong");
    for (unsigned char* block : more) free(block);
    auto* zeros = static_cast<unsigned char*>(calloc(1, 8u << 20));
    if (zeros == nullptr) wrong("no memory for calloc");
    for (size_t at = 0; at < 8u << 20; at += 256)
      if (zeros[at] != 0) wrong("calloc is not zero");
    memset(zeros, value, 8u << 20);
    free(zeros);
  }
}

struct Pipe {
  int ends[2];
  Pipe() {
    if (pipe(ends) != 0) wrong("pipe");
  }
  void tell() {
    if (write(ends[1], "x", 1) != 1) wrong("tell");
  }
  void hear() {
    char byte;
    if (read(ends[0], &byte, 1) != 1) wrong("the other side ended");
  }
};

void reap(pid_t pid) {
  int status = 0;
  if (waitpid(pid, &status, 0) != pid || status != 0) wrong("the child failed");
}

void both_sides() {
  Blocks blocks = make_blocks(1);
  Pipe to_child, to_parent;
  pid_t pid = fork();
  if (pid < 0) wrong("fork failed");
  if (pid == 0) {
    check_blocks(blocks, 1, "the child does not see what was before the fork");
    to_parent.tell();
    to_child.hear();  // the parent has stored
    check_blocks(blocks, 1, "the child sees the parent's later stores");
    store_all(blocks, 50);
    churn(60);
    check_blocks(blocks, 50, "the child lost its own stores");
    for (unsigned char* block : blocks) free(block);
    churn(70);
    _exit(0);
  }
  to_parent.hear();
  store_all(blocks, 100);
  to_child.tell();
  churn(110);
  reap(pid);
  check_blocks(blocks, 100, "the parent sees the child's stores");
  for (unsigned char* block : blocks) free(block);
  churn(120);
}

void without_leases() {
  // Run with a budget of one lease, which the parent has: the child lives on the window's free ranges, the same
  // addresses that the parent goes on using as leased memory.
  Blocks blocks = make_blocks(1);
  Blocks parents, childs;
  Pipe to_child, to_parent;
  pid_t pid = fork();
  if (pid < 0) wrong("fork failed");
  if (pid == 0) {
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < 30; ++i) {
        childs.push_back(static_cast<unsigned char*>(calloc(1, block_bytes)));
        if (childs.back() == nullptr) wrong("the child has no memory");
        for (size_t at = 0; at < block_bytes; at += 64)
          if (childs.back()[at] != 0) wrong("calloc is not zero");
      }
      store_all(childs, 60);
      to_parent.tell();
      to_child.hear();
      check_blocks(childs, 60, "the child's new blocks hold the parent's stores");
      for (unsigned char* block : childs) free(block);
      childs.clear();
    }
    check_blocks(blocks, 1, "the child lost its inheritance");
    _exit(0);
  }
  for (int round = 0; round < 3; ++round) {
    to_parent.hear();
    for (int i = 0; i < 30; ++i) {
      parents.push_back(static_cast<unsigned char*>(malloc(block_bytes)));
      if (parents.back() == nullptr) wrong("the parent has no memory");
    }
    store_all(parents, 120);
    to_child.tell();
    check_blocks(parents, 120, "the parent's new blocks hold the child's stores");
    for (unsigned char* block : parents) free(block);
    parents.clear();
  }
  reap(pid);
  check_blocks(blocks, 1, "the parent sees the child's stores");
}

void untouched_pages() {
  // Pages that only one side ever writes, in both directions, and blocks freed by the parent meanwhile.
  Blocks blocks = make_blocks(3);
  Pipe to_child;
  pid_t pid = fork();
  if (pid < 0) wrong("fork failed");
  if (pid == 0) {
    to_child.hear();
    check_blocks(blocks, 3, "the child's view changed after the parent freed and reused memory");
    _exit(0);
  }
  for (unsigned char* block : blocks) free(block);
  churn(90);
  churn(91);
  to_child.tell();
  reap(pid);
}

void grandchildren() {
  Blocks blocks = make_blocks(5);
  pid_t pid = fork();
  if (pid == 0) {
    Blocks more = make_blocks(20);  // the child's own leases
    Pipe ready;
    pid_t inner = fork();
    if (inner == 0) {
      check_blocks(blocks, 5, "the grandchild lost the first generation");
      check_blocks(more, 20, "the grandchild lost the second generation");
      store_all(blocks, 30);
      store_all(more, 40);
      churn(50);
      ready.tell();
      check_blocks(blocks, 30, "grandchild, own stores");
      check_blocks(more, 40, "grandchild, own stores");
      _exit(0);
    }
    if (inner < 0) wrong("second fork failed");
    ready.hear();
    check_blocks(blocks, 5, "the child sees the grandchild's stores (first)");
    check_blocks(more, 20, "the child sees the grandchild's stores (second)");
    store_all(more, 60);
    reap(inner);
    check_blocks(more, 60, "child, own stores");
    _exit(0);
  }
  if (pid < 0) wrong("fork failed");
  store_all(blocks, 8);
  reap(pid);
  check_blocks(blocks, 8, "the parent sees stores of its descendants");
}

void parent_first() {
  Blocks blocks = make_blocks(9);
  Pipe done;
  pid_t pid = fork();
  if (pid < 0) wrong("fork failed");
  if (pid != 0) _exit(0);  // whoever supervises waits for the child: its exit status is lost, its output is not
  usleep(700'000);         // long enough that the parent's leases would be released if nobody looked
  check_blocks(blocks, 9, "the orphan lost its memory");
  store_all(blocks, 10);
  churn(30);
  check_blocks(blocks, 10, "the orphan lost its stores");
  printf("orphan is well\n");
  fflush(stdout);
  _exit(0);
}

void daemonised() {
  Blocks blocks = make_blocks(9);
  if (daemon(1, 1) != 0) wrong("daemon failed");
  usleep(300'000);
  check_blocks(blocks, 9, "the daemon lost its memory");
  store_all(blocks, 10);
  churn(30);
  check_blocks(blocks, 10, "the daemon lost its stores");
  printf("daemon is well\n");
  fflush(stdout);
  _exit(0);
}

void on_terminal() {
  Blocks blocks = make_blocks(7);
  int controller = -1;
  pid_t pid = forkpty(&controller, nullptr, nullptr, nullptr);
  if (pid < 0) wrong("forkpty failed");
  if (pid == 0) {
    store_all(blocks, 70);
    check_blocks(blocks, 70, "forkpty child");
    _exit(isatty(0) ? 0 : 1);
  }
  reap(pid);
  check_blocks(blocks, 7, "forkpty: the parent sees the child's stores");
}

void repeatedly() {
  Blocks blocks = make_blocks(1);
  for (int round = 0; round < 20; ++round) {
    auto value = static_cast<unsigned char>(round * 8);
    store_all(blocks, value);
    for (int i = 0; i < 20; ++i) {  // some blocks are new in each generation
      size_t at = static_cast<size_t>(round * 17 + i * 7) % blocks.size();
      free(blocks[at]);
      blocks[at] = static_cast<unsigned char*>(malloc(block_bytes));
      memset(blocks[at], value + static_cast<int>(at % 7), block_bytes);
    }
    pid_t pid = fork();
    if (pid < 0) wrong("fork failed");
    if (pid == 0) {
      check_blocks(blocks, value, "child of a later round");
      store_all(blocks, static_cast<unsigned char>(value + 1));
      _exit(0);
    }
    if (round % 3 != 0) store_all(blocks, static_cast<unsigned char>(value + 2));
    reap(pid);
    check_blocks(blocks, round % 3 != 0 ? static_cast<unsigned char>(value + 2) : value,
                 "parent of a later round");
  }
}

std::atomic<bool> stop{false};

// How many of the blocks begin in a mapping that is shared: in a lease or the front's file.
int count_shared(const Blocks& blocks) {
  FILE* maps = fopen("/proc/self/maps", "r");
  if (maps == nullptr) wrong("no /proc/self/maps");
  int shared = 0;
  char line[512];
  while (fgets(line, sizeof(line), maps) != nullptr) {
    unsigned long from = 0, to = 0;
    char rights[8] = {};
    if (sscanf(line, "%lx-%lx %7s", &from, &to, rights) != 3 || rights[3] != 's') continue;
    for (unsigned char* block : blocks) {
      const auto at = reinterpret_cast<unsigned long>(block);
      shared += at >= from && at < to ? 1 : 0;
    }
  }
  fclose(maps);
  return shared;
}

bool wait_until_shared(const Blocks& blocks, int least) {
  for (int i = 0; i < 1000; ++i) {
    if (count_shared(blocks) >= least) return true;
    usleep(10'000);
  }
  return false;
}

// Private since the fork, shared again after the last child.
void folded() {
  Blocks blocks = make_blocks(1);
  const int before = count_shared(blocks);
  for (int round = 0; round < 4; ++round) {
    const auto value = static_cast<unsigned char>(16 * round + 1);
    store_all(blocks, value);
    Pipe to_child;
    pid_t pid = fork();
    if (pid < 0) wrong("fork failed");
    if (pid == 0) {
      pid_t inner = fork();
      if (inner == 0) {
        to_child.hear();
        check_blocks(blocks, value, "the grandchild sees what the parent folded");
        _exit(0);
      }
      if (round % 2 == 0) _exit(0);  // it is an orphan
      reap(inner);
      _exit(0);
    }
    for (size_t i = 0; i < blocks.size(); i += 2)
      memset(blocks[i], value + 100 + static_cast<int>(i % 7), block_bytes);
    if (round % 2 == 0) reap(pid);
    usleep(600'000);
    if (count_shared(blocks) > before / 2) wrong("folded while a child had the files");
    to_child.tell();
    if (round % 2 != 0) reap(pid);
    if (!wait_until_shared(blocks, before)) wrong("never folded");
    for (size_t i = 0; i < blocks.size(); ++i)
      for (size_t at = 0; at < block_bytes; at += 64)
        if (blocks[i][at] != static_cast<unsigned char>(value + (i % 2 == 0 ? 100 : 0) + i % 7))
          wrong("the fold changed bytes");
    churn(200);
  }
  for (unsigned char* block : blocks) free(block);
}

// Counters of one thread, one in every page of its blocks; each is what the thread last stored, always.
struct Counters {
  Blocks blocks;
  std::vector<uint64_t> expected;
  static constexpr size_t step = 4096;
  static constexpr size_t per_block = block_bytes / step;
  volatile uint64_t* at(size_t i) const {
    return reinterpret_cast<volatile uint64_t*>(blocks[i / per_block] + i % per_block * step + 64 * (i % 32));
  }
};

void count_until_stopped(Counters* mine, unsigned seed, std::atomic<uint64_t>* lost) {
  while (!stop) {
    const size_t i = static_cast<size_t>(rand_r(&seed)) % mine->expected.size();
    if (*mine->at(i) != mine->expected[i]) {
      ++*lost;
      mine->expected[i] = *mine->at(i);
    }
    *mine->at(i) = ++mine->expected[i];
    // Blocks that come and go: detached runs are given back while they are folded.
    if (seed % 4096 == 0) {
      auto* large = static_cast<unsigned char*>(malloc(3u << 20));
      if (large == nullptr) wrong("no memory");
      memset(large, static_cast<int>(seed), 3u << 20);
      for (size_t at = 0; at < 3u << 20; at += 997)
        if (large[at] != static_cast<unsigned char>(seed)) ++*lost;
      free(large);
    }
  }
}

// The child takes down every counter, and they must stay what they are, whatever the parent does; and every
// byte beside them must be what it was.
void watch_snapshot(const std::vector<Counters>& all, unsigned rest_us) {
  std::vector<uint64_t> first;
  for (const Counters& one : all)
    for (size_t i = 0; i < one.expected.size(); ++i) {
      const uint64_t value = *one.at(i);
      // The thread was between two of its steps, or in the middle of one.
      if (value + 1 - one.expected[i] > 2) wrong("the child's memory is not of one moment");
      first.push_back(value);
    }
  usleep(rest_us);
  size_t next = 0;
  for (const Counters& one : all)
    for (size_t i = 0; i < one.expected.size(); ++i)
      if (*one.at(i) != first[next++]) wrong("a child's memory changed under it");
}

void fold_torture() {
  constexpr int threads_count = 3;
  std::vector<Counters> all(threads_count);
  for (Counters& one : all) {
    for (int i = 0; i < 60; ++i) {
      one.blocks.push_back(static_cast<unsigned char*>(calloc(1, block_bytes)));
      if (one.blocks.back() == nullptr) wrong("no memory");
    }
    one.expected.resize(one.blocks.size() * Counters::per_block);
  }
  std::atomic<uint64_t> lost{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < threads_count; ++i) threads.emplace_back(count_until_stopped, &all[i], i + 1, &lost);
  const char* text = getenv("TERRACE_TEST_SECONDS");
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const long end = now.tv_sec + (text != nullptr ? atol(text) : 8);
  unsigned seed = 99;
  int forks = 0;
  std::vector<pid_t> children;
  for (; clock_gettime(CLOCK_MONOTONIC, &now) == 0 && now.tv_sec < end; ++forks) {
    pid_t pid = fork();
    if (pid < 0) wrong("fork failed");
    if (pid == 0) {
      if (rand_r(&seed) % 4 == 0 && fork() != 0) _exit(0);
      watch_snapshot(all, static_cast<unsigned>(rand_r(&seed)) % 60'000);
      _exit(0);
    }
    children.push_back(pid);
    // Now one child at a time, now some; and now and then time enough for a fold, or for a half of one.
    if (rand_r(&seed) % 3 != 0) {
      for (pid_t child : children) reap(child);
      children.clear();
    }
    usleep(static_cast<unsigned>(rand_r(&seed)) % 80'000);
  }
  for (pid_t child : children) reap(child);
  stop = true;
  for (std::thread& thread : threads) thread.join();
  if (lost != 0) wrong("a store was lost");
  for (const Counters& one : all)
    for (size_t b = 0; b < one.blocks.size(); ++b)
      for (size_t at = 0; at < block_bytes; ++at) {
        const size_t i = b * Counters::per_block + at / Counters::step;
        const auto* word = reinterpret_cast<const unsigned char*>(&one.expected[i]);
        const size_t within = at % Counters::step - 64 * (i % 32);
        if (one.blocks[b][at] != (within < 8 ? word[within] : 0)) wrong("a byte changed");
      }
  Blocks blocks;
  for (const Counters& one : all) blocks.insert(blocks.end(), one.blocks.begin(), one.blocks.end());
  if (!wait_until_shared(blocks, static_cast<int>(blocks.size()))) wrong("never folded");
  usleep(500'000);  // the engine goes on, and counts
  printf("%d forks\n", forks);
}

// Run with a window that is full: what a thread frees of the detached memory is what it gets again, and its
// pages were given back in between, perhaps in the middle of a fold.
void freed_while_folding() {
  constexpr size_t bytes = 1u << 20, step = 16 * 4096;
  constexpr int threads_count = 2;
  std::vector<Blocks> all(threads_count);
  int count = 0;
  for (void* block; (block = malloc(bytes)) != nullptr; ++count) {
    if (count == 1000) wrong("the window has no end");
    all[static_cast<size_t>(count % threads_count)].push_back(static_cast<unsigned char*>(block));
  }
  if (count < 20) wrong("no memory");
  // Under the whole heap what is served while the window is full may break up two free places.
  for (int i = 0; i < 8; ++i) {
    free(all[static_cast<size_t>(i % threads_count)].back());
    all[static_cast<size_t>(i % threads_count)].pop_back();
  }
  std::atomic<uint64_t> lost{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < threads_count; ++t)
    threads.emplace_back([&, t] {
      Blocks& mine = all[static_cast<size_t>(t)];
      std::vector<unsigned char> values(mine.size());
      unsigned seed = static_cast<unsigned>(t) + 7;
      while (!stop) {
        const auto i = static_cast<size_t>(rand_r(&seed)) % mine.size();
        free(mine[i]);
        void* again = nullptr;
        // The other thread may have this one's place, but not both.
        while ((again = malloc(bytes)) == nullptr) sched_yield();
        mine[i] = static_cast<unsigned char*>(again);
        const auto value = static_cast<unsigned char>(rand_r(&seed) | 1);
        // What was stored last time must have stayed until now, however long that is.
        values[i] = value;
        for (size_t at = 0; at < bytes; at += step) mine[i][at] = value;
        const size_t other = static_cast<size_t>(rand_r(&seed)) % mine.size();
        for (size_t at = 0; values[other] != 0 && at < bytes; at += step)
          if (mine[other][at] != values[other]) {
            ++lost;
            break;
          }
      }
    });
  for (int round = 0; round < 24; ++round) {
    pid_t pid = fork();
    if (pid < 0) wrong("fork failed");
    if (pid == 0) _exit(0);
    reap(pid);
    usleep(150'000);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  if (lost != 0) wrong("stores in reused memory were lost");
  sleep(2);  // for a fold on a slow machine: blocks of a moment when a fork was under way are not the window's
}

// One granule cannot be folded for long: the program's own userfaultfd has a page of it. Blocks of its
// neighbours are freed, allocated again and forked meanwhile.
void folding_blocked() {
  constexpr size_t bytes = 16u << 20;
  const long fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
  uffdio_api api = {.api = UFFD_API, .features = 0, .ioctls = 0};
  if (fd < 0 || ioctl(static_cast<int>(fd), UFFDIO_API, &api) != 0) wrong("no userfaultfd");
  auto* block = static_cast<unsigned char*>(malloc(bytes));
  if (block == nullptr) wrong("no memory");
  memset(block, 1, bytes);
  Pipe to_child;
  pid_t pid = fork();
  if (pid == 0) {
    to_child.hear();
    _exit(0);
  }
  memset(block, 2, bytes);
  const auto last = (reinterpret_cast<uintptr_t>(block) + bytes - 3 * 4096) & ~uintptr_t{4095};
  uffdio_register page = {.range = {last, 4096}, .mode = UFFDIO_REGISTER_MODE_MISSING, .ioctls = 0};
  if (ioctl(static_cast<int>(fd), UFFDIO_REGISTER, &page) != 0) wrong("UFFDIO_REGISTER failed");
  to_child.tell();
  reap(pid);
  Blocks granules;
  for (size_t at = 0; at < bytes; at += 2u << 20) granules.push_back(block + at);
  if (!wait_until_shared(granules, 6)) wrong("nothing was folded");
  usleep(600'000);  // some hundred passes that fail
  close(static_cast<int>(fd));
  for (int round = 0; round < 4; ++round) {
    free(block);
    Blocks others;
    unsigned char* again = nullptr;
    while ((again = static_cast<unsigned char*>(malloc(bytes))) != nullptr && again != block)
      others.push_back(again);
    for (unsigned char* other : others) free(other);
    if (again == nullptr) wrong("the block does not come again");
    const int value = 7 + round;
    memset(block, value, bytes);
    pid = fork();
    if (pid < 0) wrong("fork failed");
    for (size_t at = 0; at < bytes; at += 512)
      if (block[at] != value) wrong(pid == 0 ? "the child's bytes are lost" : "bytes are lost");
    if (pid == 0) _exit(0);
    reap(pid);
    usleep(20'000);
  }
}

// A fork each 200 ms: folding in between would only cost.
void forks_all_the_time() {
  Blocks blocks = make_blocks(3);
  const int before = count_shared(blocks);
  for (int round = 0; round < 12; ++round) {
    pid_t pid = fork();
    if (pid < 0) wrong("fork failed");
    if (pid == 0) _exit(0);
    reap(pid);
    store_all(blocks, static_cast<unsigned char>(round));
    usleep(200'000);
    if (count_shared(blocks) >= before) wrong("folded between two forks");
  }
  if (!wait_until_shared(blocks, before)) wrong("never folded");
}

// What a child filters, locks or protects ends with it.
void folded_after_careful_children() {
  Blocks blocks = make_blocks(5);
  const int before = count_shared(blocks);
  for (int what = 0; what < 4; ++what) {
    pid_t pid = fork();
    if (pid < 0) wrong("fork failed");
    if (pid == 0) {
      if (what == 0) mprotect(blocks[0], 4096, PROT_READ);
      if (what == 1) mlock(blocks[1], 4096);
      if (what == 2) mlockall(MCL_CURRENT);
      if (what == 3) prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
      if (what == 3) prctl(PR_SET_SECCOMP, 1, 0, 0, 0);
      syscall(SYS_exit, 0);
    }
    reap(pid);
    store_all(blocks, static_cast<unsigned char>(what));
    if (!wait_until_shared(blocks, before)) wrong("never folded");
    check_blocks(blocks, static_cast<unsigned char>(what), "after a careful child");
  }
}

// Threads that are at work before, in and after each fork, and rest while its child takes its time: who goes on all
// the while takes the processor from the child, for nothing.
class Workers {
 public:
  // `once` is given a seed of the thread's own; false where it found something wrong.
  Workers(unsigned count, bool (*once)(unsigned& seed)) : done_(count) {
    for (unsigned i = 0; i < count; ++i)
      threads_.emplace_back([this, i, once] {
        for (unsigned seed = i + 1; !stop; ++done_[i]) {
          while (rest_ && !stop) usleep(500);
          if (!once(seed)) failed_ = true;
        }
      });
  }
  // Until each of them has gone through its work `times` more.
  void work(unsigned times) {
    std::vector<unsigned> before(done_.begin(), done_.end());
    rest_ = false;
    for (size_t i = 0; i < done_.size(); ++i)
      while (done_[i] - before[i] < times) usleep(200);
  }
  void rest() { rest_ = true; }
  bool end() {
    stop = true;
    for (std::thread& thread : threads_) thread.join();
    return !failed_;
  }

 private:
  std::vector<std::atomic<unsigned>> done_;
  std::vector<std::thread> threads_;
  std::atomic<bool> rest_{false}, failed_{false};
};

bool allocate_and_check(unsigned& seed) {
  size_t bytes = 4096 + rand_r(&seed) % 300'000;
  auto* block = static_cast<unsigned char*>(malloc(bytes));
  if (block == nullptr) return false;
  bool well = true;
  memset(block, static_cast<int>(seed), bytes);
  for (size_t at = 0; at < bytes; at += 997)
    if (block[at] != static_cast<unsigned char>(seed)) well = false;
  free(block);
  return well;
}

void with_threads() {
  Blocks blocks = make_blocks(4);
  Workers workers(3, allocate_and_check);
  for (int round = 0; round < 40; ++round) {
    workers.work(20);
    pid_t pid = fork();
    if (pid < 0) wrong("fork failed");
    if (pid == 0) {
      check_blocks(blocks, 4, "child among threads");
      churn(30, round % 10 == 0 ? 3 : 1);
      store_all(blocks, 99);
      _exit(0);
    }
    workers.work(100);
    workers.rest();
    reap(pid);
    check_blocks(blocks, 4, "parent among threads");
  }
  if (!workers.end()) wrong("a thread lost memory or contents while others forked");
}

// A library whose fork handlers lock a mutex under which other threads allocate: must not deadlock.
pthread_mutex_t library_mutex = PTHREAD_MUTEX_INITIALIZER;
void lock_library() {
  pthread_mutex_lock(&library_mutex);
  free(malloc(100'000));
}
void unlock_library() {
  free(malloc(200'000));
  pthread_mutex_unlock(&library_mutex);
}

bool use_library(unsigned&) {
  pthread_mutex_lock(&library_mutex);
  auto* block = static_cast<unsigned char*>(malloc(150'000));
  if (block != nullptr) memset(block, 1, 150'000);
  free(block);
  pthread_mutex_unlock(&library_mutex);
  return block != nullptr;
}

void handlers() {
  pthread_atfork(lock_library, unlock_library, unlock_library);
  Blocks blocks = make_blocks(4);
  Workers workers(2, use_library);
  for (int round = 0; round < 25; ++round) {
    workers.work(20);
    pid_t pid = fork();
    if (pid < 0) wrong("fork failed");
    if (pid == 0) {
      check_blocks(blocks, 4, "child after handlers");
      churn(20, round % 5 == 0 ? 3 : 1);
      _exit(0);
    }
    workers.work(50);
    workers.rest();
    reap(pid);
  }
  if (!workers.end()) wrong("no memory in a thread");
  check_blocks(blocks, 4, "parent after handlers");
}

void storing_while_forking() {
  // A thread counts up in leased memory while others fork: no count may be lost by the switch. New blocks for
  // each round, since a range is switched once only.
  for (int round = 0; round < 12; ++round) {
    Blocks blocks = make_blocks(0);
    std::vector<uint64_t> start;
    for (unsigned char* block : blocks) start.push_back(*reinterpret_cast<uint64_t*>(block + 8192));
    std::atomic<uint64_t> done{0};
    stop = false;
    std::thread counter([&] {
      while (!stop) {
        for (unsigned char* block : blocks) ++*reinterpret_cast<uint64_t*>(block + 8192);
        ++done;
      }
    });
    while (done < 100) usleep(100);
    pid_t pid = fork();
    if (pid < 0) wrong("fork failed");
    if (pid == 0) {
      usleep(20'000);
      _exit(0);
    }
    reap(pid);
    stop = true;
    counter.join();
    for (size_t i = 0; i < blocks.size(); ++i)
      if (*reinterpret_cast<uint64_t*>(blocks[i] + 8192) - start[i] != done) wrong("a store was lost");
    for (unsigned char* block : blocks) free(block);
  }
}

void bare_fork() {
  Blocks blocks = make_blocks(6);
  pid_t pid = _Fork();
  if (pid < 0) wrong("_Fork failed");
  if (pid == 0) {
    store_all(blocks, 90);
    _exit(0);
  }
  reap(pid);
  check_blocks(blocks, 6, "_Fork: the parent sees the child's stores");
}

void advice() {
  Blocks blocks = make_blocks(2);
  for (int pass = 0; pass < 2; ++pass) {
    for (unsigned char* block : blocks)
      if (madvise(block + 4096, 8192, MADV_DONTNEED) != 0) wrong("madvise failed");
    for (size_t i = 0; i < blocks.size(); ++i) {
      for (size_t at = 0; at < 8192; at += 64)
        if (blocks[i][4096 + at] != 0) wrong("MADV_DONTNEED kept bytes");
      if (blocks[i][4095] == 0 || blocks[i][4096 + 8192] == 0) wrong("MADV_DONTNEED took too much");
      if (madvise(blocks[i] + 16384, 4096, MADV_FREE) != 0) wrong("MADV_FREE failed");
    }
    if (pass == 1) break;
    pid_t pid = fork();  // the same once more on detached pages
    if (pid == 0) {
      usleep(100'000);
      for (unsigned char* block : blocks)
        if (block[4095] == 0) wrong("child, madvise of the parent is seen");
      _exit(0);
    }
    store_all(blocks, 2);
    for (unsigned char* block : blocks)
      if (madvise(block + 4096, 8192, MADV_DONTNEED) != 0) wrong("madvise failed");
    reap(pid);
    store_all(blocks, 2);
  }
}

volatile sig_atomic_t handled = 0;

void arm_timer() {
  itimerval once{};
  once.it_value.tv_usec = 500 + handled % 7 * 311;
  setitimer(ITIMER_REAL, &once, nullptr);
}

void signal_handler(int) {
  // Not allowed by POSIX, and yet it must not hang: malloc and fork inside a handler.
  void* block = malloc(100'000);
  free(block);
  pid_t pid = fork();
  if (pid == 0) _exit(0);
  if (pid > 0) waitpid(pid, nullptr, 0);
  handled = handled + 1;
  if (handled < 150) arm_timer();
}

void in_signals() {
  struct sigaction action {};
  action.sa_handler = signal_handler;
  sigaction(SIGALRM, &action, nullptr);
  arm_timer();
  // Only large requests: glibc's own malloc would not survive this.
  for (size_t i = 0; handled < 150; ++i) {
    void* block = malloc(70'000 + i % 50 * 4096);
    if (block == nullptr) wrong("no memory");
    *static_cast<volatile char*>(block) = 1;
    free(block);
  }
}

// What a child drops or frees reads as zeros when it comes again, not as what the parent had there.
void dropped_in_child() {
  constexpr size_t count = 20'000, bytes = 900, large = 3 << 20;
  static char* blocks[count];
  auto* big = static_cast<char*>(aligned_alloc(4096, large));
  for (char*& block : blocks) memset(block = static_cast<char*>(malloc(bytes)), 0xee, bytes);
  memset(big, 0xee, large);
  pid_t pid = fork();
  if (pid == 0) {
    if (madvise(big, large, MADV_DONTNEED) != 0) wrong("madvise");
    for (size_t i = 0; i < large; ++i)
      if (big[i] != 0) wrong("dropped memory holds old bytes");
    for (char* block : blocks) free(block);
    malloc_trim(0);
    for (size_t i = 0; i < count; ++i) {
      auto* block = static_cast<char*>(calloc(1, bytes));
      for (size_t at = 0; at < bytes; ++at)
        if (block[at] != 0) wrong("calloc's memory is not zero");
    }
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  if (status != 0) wrong("the child found old bytes");
  for (size_t i = 0; i < large; ++i)
    if (big[i] != static_cast<char>(0xee)) wrong("the parent's memory changed");
}

void behind_our_back() {
  // A fork by an inline system call gets no leased memory at all: SIGSEGV there instead of shared stores.
  Blocks blocks = make_blocks(6);
  auto* last = blocks.back();  // past the DDR budget
  long pid = SYS_fork;
  __asm__ volatile("syscall" : "+a"(pid) : : "rcx", "r11", "memory");
  if (pid == 0) {
    *last = 99;
    _exit(0);
  }
  int status = 0;
  waitpid(static_cast<pid_t>(pid), &status, 0);
  if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV) wrong("a raw fork reached leased memory");
  check_blocks(blocks, 6, "a raw fork's child changed the parent's memory");
}

// Whether a thread of this process has a userfaultfd: the engine's has descriptors of its own.
bool engine_has_begun() {
  bool found = false;
  DIR* tasks = opendir("/proc/self/task");
  for (dirent* task = tasks == nullptr ? nullptr : readdir(tasks); task != nullptr; task = readdir(tasks)) {
    const std::string folder = std::string("/proc/self/task/") + task->d_name + "/fd/";
    DIR* open_files = opendir(folder.c_str());
    for (dirent* one = open_files == nullptr ? nullptr : readdir(open_files); one != nullptr;
         one = readdir(open_files)) {
      char target[64] = {};
      if (readlink((folder + one->d_name).c_str(), target, sizeof target - 1) > 0 &&
          strstr(target, "userfaultfd"))
        found = true;
    }
    if (open_files != nullptr) closedir(open_files);
  }
  if (tasks != nullptr) closedir(tasks);
  return found;
}

// One that is still starting would look for the supervisor from inside of the empty root, where fork may meet it.
void wait_for_engine() {
  const char* policy = getenv("TERRACE_TEST_POLICY");
  if (policy == nullptr || strcmp(policy, "static") == 0) return;
  for (int i = 0; i < 3000 && !engine_has_begun(); ++i) usleep(10'000);
  usleep(200'000);
}

void enter_empty_root() {
  wait_for_engine();
  char folder[] = "/tmp/terrace-empty-XXXXXX";
  int parent = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (parent < 0 || mkdtemp(folder) == nullptr || chroot(folder) != 0 || chdir("/") != 0) wrong("chroot");
  if (unlinkat(parent, strrchr(folder, '/') + 1, AT_REMOVEDIR) != 0) wrong("cannot remove the empty root");
  close(parent);
}

void after_chroot() {
  // The supervisor's socket cannot be reached any more; with one thread the switch is made by copying.
  Blocks blocks = make_blocks(1);
  enter_empty_root();
  pid_t pid = fork();
  if (pid < 0) wrong("fork failed after chroot");
  if (pid == 0) {
    store_all(blocks, 33);
    churn(44);
    _exit(0);
  }
  store_all(blocks, 80);
  reap(pid);
  check_blocks(blocks, 80, "after chroot: the parent sees the child's stores");
  churn(20);
  puts("copied");
}

void refused_with_threads() {
  // The same with a second thread that may be storing: fork must fail, and nothing may be shared. Where memory
  // migrates, the engine's thread still has the descriptors, and fork must succeed.
  const char* policy = getenv("TERRACE_TEST_POLICY");
  const bool migrates = policy != nullptr && strcmp(policy, "static") != 0;
  Blocks blocks = make_blocks(1);
  std::thread other([] {
    while (!stop) usleep(1000);
  });
  enter_empty_root();
  errno = 0;
  pid_t pid = fork();
  if (pid == 0) {
    store_all(blocks, 70);
    _exit(0);
  }
  if (migrates) {
    if (pid < 0) wrong("fork failed");
    store_all(blocks, 1);
    reap(pid);
  } else if (pid > 0 || errno != EAGAIN) {
    wrong("fork must fail with EAGAIN");
  }
  check_blocks(blocks, 1, "a fork after chroot changed memory");
  churn(20);
  stop = true;
  other.join();
}

rlimit limit_to(int resource, rlim_t value) {
  rlimit before{}, now{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &before) != 0) wrong("getrlimit");
  now = before;
  now.rlim_cur = value;
  if (setrlimit(static_cast<__rlimit_resource>(resource), &now) != 0) wrong("setrlimit");
  return before;
}

rlim_t data_bytes_now() {
  FILE* file = fopen("/proc/self/status", "r");
  char line[256];
  unsigned long kib = 0;
  while (file != nullptr && fgets(line, sizeof(line), file) != nullptr)
    if (sscanf(line, "VmData: %lu kB", &kib) == 1) break;
  if (file != nullptr) fclose(file);
  if (kib == 0) wrong("no VmData");
  return rlim_t{kib} << 10;
}

void refused_half_way() {
  // Neither a descriptor for the switch nor memory for the whole copy: the fork is refused, and what is stored
  // afterwards must outlive the next forks, by copy and by mapping.
  constexpr size_t large = 192u << 20;
  auto* block = static_cast<unsigned char*>(malloc(large));
  if (block == nullptr) wrong("no memory");
  auto fork_once = [&](unsigned char value, const char* what) {
    memset(block, value, large);
    pid_t pid = fork();
    if (pid < 0) wrong("fork failed");
    if (pid == 0) {
      for (size_t at = 0; at < large; at += 4096)
        if (block[at] != value) wrong(what);
      _exit(0);
    }
    reap(pid);
    for (size_t at = 0; at < large; at += 4096)
      if (block[at] != value) wrong(what);
  };
  memset(block, 1, large);
  rlimit data = limit_to(RLIMIT_DATA, data_bytes_now() + (100u << 20));
  rlimit files = limit_to(RLIMIT_NOFILE, 0);
  errno = 0;
  pid_t pid = fork();
  if (pid == 0) _exit(0);
  if (pid > 0 || errno != EAGAIN) wrong("fork must fail with EAGAIN");
  memset(block, 2, large);
  setrlimit(RLIMIT_NOFILE, &files);
  fork_once(2, "stores after a refused fork were lost (mapped)");

  auto* second = static_cast<unsigned char*>(malloc(large));
  if (second == nullptr) wrong("no memory");
  block = second;
  memset(block, 3, large);
  limit_to(RLIMIT_NOFILE, 0);
  if (fork() >= 0) wrong("fork must fail");
  setrlimit(RLIMIT_DATA, &data);
  fork_once(4, "stores after a refused fork were lost (copied)");
  setrlimit(RLIMIT_NOFILE, &files);
  fork_once(5, "stores after a copy were lost");
}

void no_descriptors() {
  // Everything is closed before the first large request, and again after it: nothing of ours breaks.
  for (int fd = 3; fd < 256; ++fd) close(fd);
  Blocks blocks = make_blocks(1);
  for (int fd = 3; fd < 256; ++fd)
    if (fcntl(fd, F_GETFD) != -1) wrong("a descriptor stays open in the program");
  for (int fd = 0; fd < 3; ++fd) close(fd);
  pid_t pid = fork();
  if (pid == 0) {
    store_all(blocks, 33);
    churn(44);
    _exit(0);
  }
  int status = 0;
  if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) _exit(3);
  for (size_t i = 0; i < blocks.size(); ++i)
    if (blocks[i][100] != static_cast<unsigned char>(1 + i % 7)) _exit(4);
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  struct Case {
    const char* name;
    void (*run)();
  };
  constexpr Case cases[] = {{"both_sides", both_sides},
                            {"without_leases", without_leases},
                            {"untouched_pages", untouched_pages},
                            {"grandchildren", grandchildren},
                            {"parent_first", parent_first},
                            {"daemonised", daemonised},
                            {"on_terminal", on_terminal},
                            {"repeatedly", repeatedly},
                            {"folded", folded},
                            {"fold_torture", fold_torture},
                            {"freed_while_folding", freed_while_folding},
                            {"folding_blocked", folding_blocked},
                            {"forks_all_the_time", forks_all_the_time},
                            {"folded_after_careful_children", folded_after_careful_children},
                            {"with_threads", with_threads},
                            {"handlers", handlers},
                            {"storing_while_forking", storing_while_forking},
                            {"bare_fork", bare_fork},
                            {"advice", advice},
                            {"in_signals", in_signals},
                            {"dropped_in_child", dropped_in_child},
                            {"behind_our_back", behind_our_back},
                            {"after_chroot", after_chroot},
                            {"refused_with_threads", refused_with_threads},
                            {"refused_half_way", refused_half_way},
                            {"no_descriptors", no_descriptors}};
  for (const Case& one : cases)
    if (argc == 2 && strcmp(argv[1], one.name) == 0) {
      one.run();
      return 0;
    }
  for (const Case& one : cases) puts(one.name);
  return argc == 1 ? 0 : 2;
}
