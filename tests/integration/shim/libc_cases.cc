// SPDX-License-Identifier: Apache-2.0
// What a program may expect of glibc's malloc beside its interface: forks in signal handlers, forks beside
// streams, errno, wrong frees that end the process. libc_cases NAME [ARGUMENT]; exit 0: as with plain
// glibc.
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace {

const char* argument = "";

[[noreturn]] void wrong(const char* what) {
  dprintf(2, "libc_cases[%d]: %s (errno %d)\n", static_cast<int>(getpid()), what, errno);
  _exit(1);
}

// ---- forks in signal handlers

struct Kept {
  unsigned char* at;
  size_t bytes;
};
constexpr size_t kept_count = 40;
Kept kept[kept_count];  // large ones are in leases

void keep_blocks() {
  for (size_t i = 0; i < kept_count; ++i) {
    kept[i].bytes = i % 2 == 0 ? 300'000 + 7000 * i : 100 + i;
    kept[i].at = static_cast<unsigned char*>(malloc(kept[i].bytes));
    memset(kept[i].at, static_cast<int>(i + 1), kept[i].bytes);
  }
}

// Reads and writes: both are the child's own matter.
bool kept_are_whole() {
  for (size_t i = 0; i < kept_count; ++i)
    for (size_t at = 0; at < kept[i].bytes; at += 997) {
      if (kept[i].at[at] != i + 1) return false;
      kept[i].at[at] = static_cast<unsigned char>(i + 1);
    }
  return true;
}

void scribble_on_kept() {
  for (const Kept& block : kept)
    for (size_t at = 0; at < block.bytes; at += 997) block.at[at] = 0xee;
}

void reap(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) wrong("waitpid");
  if (status != 0) wrong("a handler's child failed");
}

void allocate_and_check(std::vector<unsigned char*>& blocks, unsigned& seed, int count) {
  for (int i = 0; i < count; ++i) {
    unsigned char*& block = blocks[rand_r(&seed) % blocks.size()];
    if (block != nullptr && block[0] != static_cast<unsigned char>(1 + (&block - blocks.data()) % 200))
      wrong("a block has changed");
    free(block);
    const size_t bytes = rand_r(&seed) % 3 == 0 ? 65'536 + rand_r(&seed) % 700'000 : 1 + rand_r(&seed) % 70'000;
    block = static_cast<unsigned char*>(malloc(bytes));
    if (block == nullptr) wrong("no memory");
    block[0] = block[bytes - 1] = static_cast<unsigned char>(1 + (&block - blocks.data()) % 200);
  }
}

volatile sig_atomic_t handled = 0;
int handled_most = 0;
bool goes_on = false;  // the child comes back from the handler
pid_t first_process = 0;

void start_timer() {
  itimerval once{};
  once.it_value.tv_usec = 200 + handled % 17 * 53;
  setitimer(ITIMER_REAL, &once, nullptr);
}

void fork_and_wait(int) {
  const int saved = errno;
  if (getpid() != first_process) return;
  const pid_t pid = fork();
  if (pid < 0) wrong("fork in a handler");
  if (pid == 0) {
    if (!kept_are_whole()) _exit(2);
    scribble_on_kept();
    if (!goes_on) _exit(0);
    handled = handled_most;
    errno = saved;
    return;
  }
  reap(pid);
  if (!kept_are_whole()) wrong("the child's stores are seen here");
  handled = handled + 1;
  if (handled < handled_most) start_timer();
  errno = saved;
}

// One thread: its malloc, free and fork are interrupted anywhere.
void fork_in_handlers() {
  keep_blocks();
  first_process = getpid();
  goes_on = strcmp(argument, "goes_on") == 0;
  handled_most = 30;
  struct sigaction action {};
  action.sa_handler = fork_and_wait;
  sigaction(SIGALRM, &action, nullptr);
  std::vector<unsigned char*> blocks(50);
  unsigned seed = 7;
  start_timer();
  while (handled < handled_most) {
    allocate_and_check(blocks, seed, 20);
    if (strcmp(argument, "forks") != 0 || getpid() != first_process || handled % 4 == 3) continue;
    const pid_t pid = fork();
    if (pid < 0) wrong("fork");
    if (pid == 0) {
      if (getpid() != first_process) handled = handled_most;
      allocate_and_check(blocks, seed, 5);
      _exit(kept_are_whole() ? 0 : 3);
    }
    reap(pid);
  }
  if (getpid() == first_process) return;
  // What the handler's fork interrupted went on; so does the rest.
  allocate_and_check(blocks, seed, 200);
  for (unsigned char* block : blocks) free(block);
  _exit(0);
}

void bare_fork_and_wait(int) {
  const int saved = errno;
  const pid_t pid = _Fork();
  if (pid < 0) wrong("_Fork in a handler");
  if (pid == 0) _exit(kept_are_whole() ? 0 : 2);
  reap(pid);
  handled = handled + 1;
  errno = saved;
}

// Beside other threads _Fork is what a handler may call.
void bare_fork_in_handlers() {
  keep_blocks();
  struct sigaction action {};
  action.sa_handler = bare_fork_and_wait;
  sigaction(SIGUSR1, &action, nullptr);
  const pthread_t self = pthread_self();
  // A fork beside threads that write takes a second or more where others have the processors.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  const auto wants_more = [end] {
    return handled < 5 || (handled < 40 && std::chrono::steady_clock::now() < end);
  };
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&stop, self, i, wants_more] {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_BLOCK, &all, nullptr);
      std::vector<unsigned char*> blocks(20);
      unsigned seed = static_cast<unsigned>(i);
      while (!stop) {
        // Sent without end, each would meet the handler of the one before: the thread itself got no turn.
        if (i == 0 && wants_more()) pthread_kill(self, SIGUSR1);
        allocate_and_check(blocks, seed, i == 0 ? 1 : 10);
      }
      for (unsigned char* block : blocks) free(block);
    });
  std::vector<unsigned char*> blocks(50);
  unsigned seed = 7;
  while (wants_more()) allocate_and_check(blocks, seed, 1);
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

// ---- forks beside streams

void fork_beside_streams() {
  char name[] = "/tmp/terrace-streams-XXXXXX";
  const int file = mkstemp(name);
  const std::string line(50'000, 'x');
  if (file < 0 || write(file, (line + "\n").data(), line.size() + 1) != static_cast<ssize_t>(line.size() + 1))
    wrong("a file");
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      FILE* stream = fopen(name, "r");
      while (!stop) {
        rewind(stream);
        char* text = nullptr;
        size_t room = 0;
        if (getline(&text, &room, stream) != static_cast<ssize_t>(line.size() + 1)) wrong("getline");
        free(text);
        usleep(100);
      }
      fclose(stream);
    });
  threads.emplace_back([&] {
    while (!stop)
      // Not all the time: who has the list of streams would have it again before the others.
      if (fflush(nullptr) != 0 || usleep(100) != 0) wrong("fflush");
  });
  for (int round = 0; round < 40; ++round) {
    const pid_t pid = fork();
    if (pid < 0) wrong("fork");
    if (pid == 0) {
      // The child's streams and heap are free: POSIX does not promise it, glibc does.
      FILE* stream = fopen(name, "r");
      char text[100];
      if (stream == nullptr || fgets(text, sizeof(text), stream) == nullptr || fflush(nullptr) != 0) _exit(1);
      fclose(stream);
      free(malloc(1000));
      _exit(0);
    }
    reap(pid);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  unlink(name);
}

// ---- free

// The program has put a mapping of its own over a block, and may have no more mappings.
void free_without_mappings() {
  constexpr size_t page = 4096, bytes = 16 << 20;
  auto* const block = static_cast<char*>(malloc(bytes));
  auto* const first = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(block) + page - 1) & ~(page - 1));
  memset(block, 5, bytes);
  char name[] = "/tmp/terrace-maps-XXXXXX";
  const int file = mkstemp(name);
  unlink(name);
  if (file < 0 || ftruncate(file, page) != 0) wrong("a file");
  // Two blocks' worth of a neighbourhood: its middle cannot be replaced without one mapping more.
  void* const own = mmap(first + page, bytes - 3 * page, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if (own != first + page) wrong("mmap");
  for (int i = 0; i < 70'000; ++i)
    if (mmap(nullptr, page, PROT_READ, i % 2 == 0 ? MAP_PRIVATE : MAP_SHARED, file, 0) == MAP_FAILED) break;
  errno = 1789;
  free(block);
  if (errno != 1789) wrong("free changed errno");
  for (int i = 0; i < 100; ++i) free(malloc(1000 * static_cast<size_t>(i)));
}

unsigned char a_global[256];
char* volatile hidden;  // from the compiler, which would warn

void free_wrongly() {
  const std::string what = argument;
  hidden = nullptr;
  if (what == "large_twice") {
    hidden = static_cast<char*>(malloc(1'000'000));
    free(hidden);
    free(hidden);
  } else if (what == "extent_twice") {
    hidden = static_cast<char*>(malloc(40'000));
    free(hidden);
    free(hidden);
  } else if (what == "inside_a_large_block") {
    hidden = static_cast<char*>(malloc(1'000'000));
    free(hidden + 4096);
  } else if (what == "odd") {
    hidden = static_cast<char*>(malloc(1'000'000));
    free(hidden + 64);
  } else if (what == "a_global") {
    hidden = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(a_global) + 15) & ~uintptr_t{15});
    free(hidden);
  } else if (what == "the_stack") {
    alignas(16) char local[64];
    hidden = local;
    free(hidden);
  } else if (what == "nowhere") {
    hidden = reinterpret_cast<char*>(uintptr_t{0x10});
    free(hidden);
  } else if (what == "slab_twice") {
    // Out of the thread's cache each time; then all others of its slab but one.
    constexpr size_t count = 4000;
    static char* volatile blocks[count];
    for (auto& block : blocks) block = static_cast<char*>(malloc(160));
    for (int time = 0; time < 2; ++time) {
      free(blocks[count / 2]);
      malloc_trim(0);
    }
    for (size_t i = 0; i < count; ++i)
      if (i != count / 2 && i != count / 2 + 1) free(blocks[i]);
    malloc_trim(0);
  }
  puts("not detected");
}

// ---- errno beside threads

std::atomic<bool> errno_changed{false};

// What succeeds leaves errno alone, also when a thread had to wait for another one on the way.
void call_all_of_malloc(unsigned seed) {
  constexpr size_t sizes[] = {24, 5000, 40'000, 300'000, 3'000'000, 9'000'000};
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  for (unsigned i = seed; std::chrono::steady_clock::now() < end && !errno_changed; ++i) {
    errno = 77;
    void* block = malloc(sizes[i % 6]);
    block = realloc(block, sizes[i * 7 / 3 % 6]);
    void* const zeros = calloc(1, sizes[i * 5 / 2 % 6]);
    void* const aligned = aligned_alloc(4096, 262'144);
    block = realloc(block, sizes[(i + 3) % 6] / 2);
    if (block == nullptr || zeros == nullptr || aligned == nullptr) wrong("no memory");
    free(aligned);
    free(block);
    free(zeros);
    if (errno != 77) errno_changed = true;
  }
}

void errno_beside_threads() {
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 6; ++i) threads.emplace_back(call_all_of_malloc, i);
  for (std::thread& thread : threads) thread.join();
  if (errno_changed) wrong("errno is not what it was");
}

// ---- what is asked

void numbers() {
  static char* blocks[3];
  for (size_t i = 0; i < 3; ++i) blocks[i] = static_cast<char*>(malloc(200'000 + i * 1'000'000));
  malloc_stats();
  if (argument[0] != 0) malloc_info(0, stdout);
  const struct mallinfo2 with = mallinfo2();
  for (char* block : blocks) free(block);
  const struct mallinfo2 without = mallinfo2();
  if (with.hblks < 3 || with.hblkhd < 3'600'000) wrong("mallinfo2 does not count large blocks");
  if (without.hblks + 3 != with.hblks || without.hblkhd + 3'600'000 > with.hblkhd)
    wrong("mallinfo2 counts large blocks that are gone");
  if (with.arena != with.uordblks + with.fordblks) wrong("mallinfo2: a sum");
  if (mallopt(M_MXFAST, 160) != 1 || mallopt(M_MXFAST, 161) != 0 || mallopt(M_MXFAST, -1) != 0 ||
      mallopt(M_ARENA_MAX, 400) != 1 || mallopt(-77, 1) != 1)
    wrong("mallopt");
}

}  // namespace

int main(int argc, char** argv) {
  struct Case {
    const char* name;
    void (*run)();
  };
  constexpr Case cases[] = {{"fork_in_handlers", fork_in_handlers},
                            {"bare_fork_in_handlers", bare_fork_in_handlers},
                            {"fork_beside_streams", fork_beside_streams},
                            {"free_without_mappings", free_without_mappings},
                            {"errno_beside_threads", errno_beside_threads},
                            {"free_wrongly", free_wrongly},
                            {"numbers", numbers}};
  if (argc > 2) argument = argv[2];
  for (const Case& one : cases)
    if (argc >= 2 && strcmp(argv[1], one.name) == 0) {
      one.run();
      return 0;
    }
  return 2;
}
