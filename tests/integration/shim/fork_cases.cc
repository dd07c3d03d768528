// fork over leased memory: who sees whose stores. One case a run: fork_cases NAME. Exit 0: as POSIX has it.
// Every block is large enough to live in the window (min-size 4096) and the DDR budget is tiny, so that most of
// them are leased memory.
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

namespace {

constexpr size_t block_bytes = 256u << 10;
constexpr int block_count = 200;  // 50 MiB

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

// Allocates, checks that calloc is zero, frees.
void churn(unsigned char value) {
  for (int round = 0; round < 3; ++round) {
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

void allocate_until_stopped(unsigned seed, bool* failed) {
  while (!stop) {
    size_t bytes = 4096 + rand_r(&seed) % 300'000;
    auto* block = static_cast<unsigned char*>(malloc(bytes));
    if (block == nullptr) {
      *failed = true;
      return;
    }
    memset(block, static_cast<int>(seed), bytes);
    for (size_t at = 0; at < bytes; at += 997)
      if (block[at] != static_cast<unsigned char>(seed)) *failed = true;
    free(block);
  }
}

void with_threads() {
  Blocks blocks = make_blocks(4);
  bool failed[3] = {};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 3; ++i) threads.emplace_back(allocate_until_stopped, i + 1, &failed[i]);
  for (int round = 0; round < 20; ++round) {
    pid_t pid = fork();
    if (pid < 0) wrong("fork failed");
    if (pid == 0) {
      check_blocks(blocks, 4, "child among threads");
      churn(30);
      store_all(blocks, 99);
      _exit(0);
    }
    reap(pid);
    check_blocks(blocks, 4, "parent among threads");
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  for (bool one : failed)
    if (one) wrong("a thread lost memory or contents while others forked");
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

void use_library(bool* failed) {
  while (!stop) {
    pthread_mutex_lock(&library_mutex);
    auto* block = static_cast<unsigned char*>(malloc(150'000));
    if (block == nullptr) *failed = true;
    if (block != nullptr) memset(block, 1, 150'000);
    free(block);
    pthread_mutex_unlock(&library_mutex);
  }
}

void handlers() {
  pthread_atfork(lock_library, unlock_library, unlock_library);
  Blocks blocks = make_blocks(4);
  bool failed[2] = {};
  std::thread first(use_library, &failed[0]), second(use_library, &failed[1]);
  for (int round = 0; round < 25; ++round) {
    pid_t pid = fork();
    if (pid < 0) wrong("fork failed");
    if (pid == 0) {
      check_blocks(blocks, 4, "child after handlers");
      churn(20);
      _exit(0);
    }
    reap(pid);
  }
  stop = true;
  first.join();
  second.join();
  if (failed[0] || failed[1]) wrong("no memory in a thread");
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
  // A raw clone gets no leased memory at all: SIGSEGV there instead of shared stores.
  Blocks blocks = make_blocks(6);
  auto* last = blocks.back();  // past the DDR budget
  pid_t pid = static_cast<pid_t>(syscall(SYS_fork));
  if (pid == 0) {
    *last = 99;
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV) wrong("a raw fork reached leased memory");
  check_blocks(blocks, 6, "a raw fork's child changed the parent's memory");
}

void enter_empty_root() {
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
