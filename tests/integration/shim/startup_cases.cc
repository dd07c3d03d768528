// SPDX-License-Identifier: Apache-2.0
// The begin and the end of programs, threads and libraries, and children by other ways than fork: startup_cases
// NAME [ARGUMENT]. Exit 0: as without the preload library.
#include "tests/integration/shim/startup_library.h"

#include <dlfcn.h>
#include <linux/sched.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

extern char** environ;

namespace {

const char* argument = nullptr;

[[noreturn]] void wrong(const char* what) {
  fprintf(stderr, "startup_cases[%d]: %s\n", static_cast<int>(getpid()), what);
  _exit(1);
}

bool holds(const unsigned char* block, size_t bytes, unsigned char value) {
  for (size_t at = 0; at < bytes; ++at)
    if (block[at] != value) return false;
  return true;
}

unsigned char* make(size_t bytes, unsigned char value) {
  auto* block = static_cast<unsigned char*>(malloc(bytes));
  if (block == nullptr) wrong("no memory");
  memset(block, value, bytes);
  return block;
}

void constructors() {
  if (!library_is_well()) wrong("what a constructor allocated has changed");
  atexit([] { free(malloc(100'000)); });
  static std::string text(200'000, 'x');  // freed by a static destructor
}

struct Plugin {
  void* handle;
  explicit Plugin(int flags) : handle(dlopen(argument, flags)) { check(); }
  explicit Plugin(Lmid_t space) : handle(dlmopen(space, argument, RTLD_NOW | RTLD_LOCAL)) { check(); }
  void check() const {
    if (handle == nullptr) wrong(dlerror());
  }
  template <typename Function>
  Function* get(const char* name) const {
    auto* found = reinterpret_cast<Function*>(dlsym(handle, name));
    if (found == nullptr) wrong(dlerror());
    return found;
  }
};

void plugins() {
  for (int round = 0; round < 40; ++round) {
    Plugin plugin(RTLD_NOW | RTLD_LOCAL);
    auto* use_thread = plugin.get<void()>("library_use_thread");
    std::thread([&] { use_thread(); }).join();
    unsigned char* block =
        plugin.get<unsigned char*(size_t, unsigned char)>("library_make")(1000 << round % 12, 5);
    if (!plugin.get<bool()>("library_is_well")()) wrong("a plugin's memory has changed");
    if (dlclose(plugin.handle) != 0) wrong("dlclose");
    if (!holds(block, 1000 << round % 12, 5)) wrong("a block outlives the plugin that made it");
    free(block);
  }
}

void deepbind() {
  Plugin plugin(RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  auto* library_makes = plugin.get<unsigned char*(size_t, unsigned char)>("library_make");
  auto* library_drops = plugin.get<void(unsigned char*)>("library_drop");
  std::vector<unsigned char*> blocks;
  for (size_t bytes : {10u, 500u, 10'000u, 60'000u, 70'000u, 1'000'000u, 9'000'000u})
    for (int i = 0; i < 40; ++i) {
      unsigned char* block = library_makes(bytes, 3);
      if (malloc_usable_size(block) < bytes) wrong("usable size of a plugin's block");
      block = static_cast<unsigned char*>(realloc(block, bytes * 2));
      if (!holds(block, bytes, 3)) wrong("realloc of a plugin's block");
      free(block);
      free(library_makes(bytes, 4));
      library_drops(make(bytes, 5));
      blocks.push_back(library_makes(bytes, 6));
    }
  unsigned char* mine = make(5 << 20, 77);
  if (!plugin.get<bool(const unsigned char*, size_t, unsigned char)>("library_fork_reads")(mine, 5 << 20, 77))
    wrong("a plugin's child does not see the program's memory");
  if (!holds(mine, 5 << 20, 77)) wrong("a plugin's fork changed memory");
  for (unsigned char* block : blocks) {
    if (!holds(block, 10, 6)) wrong("a plugin's block changed");
    library_drops(block);
  }
}

void namespaces() {
  // A second C library with a malloc of its own, which the preload library is not in: it keeps to itself.
  for (int round = 0; round < 3; ++round) {
    Plugin plugin(Lmid_t{LM_ID_NEWLM});
    for (size_t bytes : {10u, 10'000u, 1'000'000u}) {
      unsigned char* block = plugin.get<unsigned char*(size_t, unsigned char)>("library_make")(bytes, 6);
      if (!holds(block, bytes, 6)) wrong("a namespace's block");
      plugin.get<void(unsigned char*)>("library_drop")(block);
    }
    free(malloc(1'000'000));
    dlclose(plugin.handle);
  }
}

// ---- threads that end

std::mutex inheritance_mutex;
std::vector<unsigned char*> inheritance;

void leave_and_inherit(size_t bytes) {
  unsigned char* other = nullptr;
  {
    std::lock_guard lock(inheritance_mutex);
    inheritance.push_back(make(bytes, 8));
    if (inheritance.size() > 40) {
      other = inheritance.front();
      inheritance.erase(inheritance.begin());
    }
  }
  if (other != nullptr && !holds(other, 16, 8)) wrong("another thread's block has changed");
  free(other);
}

struct Ending {
  unsigned char* block = nullptr;
  ~Ending() {
    if (!holds(block, 30'000, 4)) wrong("a thread's block has changed");
    free(block);
    leave_and_inherit(120'000);
  }
};
thread_local Ending ending;
pthread_key_t key;

void end_of_key(void* value) {
  // Runs after C++'s destructors, and again while it sets a value: memory is there to the last.
  const auto round = reinterpret_cast<uintptr_t>(value);
  leave_and_inherit(2000 * round);
  if (round < 4) pthread_setspecific(key, reinterpret_cast<void*>(round + 1));
}

void thread_ends() {
  pthread_key_create(&key, end_of_key);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 6; ++i)
      threads.emplace_back([] {
        pthread_setspecific(key, reinterpret_cast<void*>(uintptr_t{1}));
        ending.block = make(30'000, 4);
        library_use_thread();
        for (size_t bytes = 16; bytes < 400'000; bytes *= 3) leave_and_inherit(bytes);
      });
    for (std::thread& thread : threads) thread.join();
  }
  for (unsigned char* block : inheritance) free(block);
}

// ---- the end of a program whose threads allocate

void allocate_for_ever(unsigned seed) {
  std::vector<unsigned char*> kept(64);
  for (;;) {
    unsigned char*& block = kept[rand_r(&seed) % kept.size()];
    free(block);
    const size_t bytes = rand_r(&seed) % 4 == 0 ? 60'000 + rand_r(&seed) % 400'000 : rand_r(&seed) % 3000;
    block = static_cast<unsigned char*>(malloc(bytes));
    if (block != nullptr && bytes > 0) *block = 1;
  }
}

void end_now() {
  for (unsigned i = 0; i < 3; ++i) std::thread(allocate_for_ever, i + 1).detach();
  unsigned seed = static_cast<unsigned>(getpid());
  std::string text(100'000, 'x');
  usleep(rand_r(&seed) % 12'000);
  const std::string how = argument;
  if (how == "exit") exit(3);
  if (how == "_exit") _exit(3);
  if (how == "quick_exit") quick_exit(3);
  if (how == "abort") abort();
  if (how == "return") return;
  if (how == "exec") execl("/bin/sh", "sh", "-c", "exit 3", nullptr);
  pthread_exit(nullptr);
}

// Starts itself: each a process of its own, with its own start, threads and end.
void ends() {
  const int rounds = atoi(argument);
  const struct {
    const char* how;
    int status;
  } kinds[] = {{"exit", 3 << 8},   {"_exit", 3 << 8}, {"quick_exit", 3 << 8},
               {"abort", SIGABRT}, {"exec", 3 << 8},  {"return", 0}};
  for (int round = 0; round < rounds; ++round) {
    const auto& kind = kinds[static_cast<size_t>(round) % (sizeof(kinds) / sizeof(kinds[0]))];
    char self[] = "/proc/self/exe", name[] = "end_now";
    char* words[] = {self, name, const_cast<char*>(kind.how), nullptr};
    pid_t pid = 0;
    if (posix_spawn(&pid, self, nullptr, nullptr, words, environ) != 0) wrong("posix_spawn");
    int status = 0;
    for (int wait_ms = 0; waitpid(pid, &status, WNOHANG) == 0; ++wait_ms) {
      if (wait_ms == 30'000) {
        kill(pid, SIGKILL);
        wrong("a program that ends hangs");
      }
      usleep(1000);
    }
    if ((status & ~0x80) != kind.status) {
      fprintf(stderr, "round %d, %s: status %x\n", round, kind.how, status);
      wrong("a program ended otherwise");
    }
  }
}

// ---- fork in a handler

volatile sig_atomic_t handled = 0;

void arm_timer() {
  itimerval once{};
  once.it_value.tv_usec = 300 + handled % 13 * 97;
  setitimer(ITIMER_REAL, &once, nullptr);
}

void fork_in_handler(int) {
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  int status = 0;
  if (pid > 0) waitpid(pid, &status, 0);
  if (status != 0) wrong("a handler's child failed");
  handled = handled + 1;
  if (handled < 200) arm_timer();
}

void handlers_fork() {
  // One thread: malloc of small and large blocks is interrupted anywhere.
  struct sigaction action {};
  action.sa_handler = fork_in_handler;
  sigaction(SIGALRM, &action, nullptr);
  arm_timer();
  std::vector<unsigned char*> kept(200);
  unsigned seed = 1;
  while (handled < 200) {
    unsigned char*& block = kept[rand_r(&seed) % kept.size()];
    free(block);
    const size_t bytes = rand_r(&seed) % 8 == 0 ? 60'000 + rand_r(&seed) % 600'000 : 1 + rand_r(&seed) % 3000;
    block = make(bytes < 64 ? bytes : 64, 1);
    block = static_cast<unsigned char*>(realloc(block, bytes));
    if (block == nullptr || *block != 1) wrong("a block changed around a handler's fork");
  }
}

// ---- other children

void reap(pid_t pid, int expected = 0) {
  int status = 0;
  if (pid < 0 || waitpid(pid, &status, __WALL) != pid || status != expected) wrong("a child failed");
}

struct Shared {
  unsigned char* block;
  std::atomic<int> seen;
};

int store_in_parents_memory(void* shared) {
  auto* with = static_cast<Shared*>(shared);
  memset(with->block, 42, 200'000);
  with->seen = 1;
  return 0;
}

pid_t vfork_shell(char* const* words) {
  const pid_t pid = vfork();
  if (pid == 0) {
    execve(words[0], words, environ);
    _exit(1);
  }
  return pid;
}

void spawned() {
  std::vector<unsigned char*> blocks;
  for (int i = 0; i < 60; ++i) blocks.push_back(make(200'000, 7));
  char shell[] = "/bin/sh", option[] = "-c", script[] = "exit 5";
  char* words[] = {shell, option, script, nullptr};
  for (int round = 0; round < 30; ++round) {
    pid_t pid = vfork_shell(words);
    reap(pid, 5 << 8);
    if (posix_spawn(&pid, shell, nullptr, nullptr, words, environ) != 0) wrong("posix_spawn");
    reap(pid, 5 << 8);
  }
  if (system("exit 4") != 4 << 8) wrong("system");
  FILE* out = popen("echo hello", "r");
  char line[64] = {};
  if (out == nullptr || fgets(line, sizeof(line), out) == nullptr || strcmp(line, "hello\n") != 0)
    wrong("popen");
  pclose(out);
  // One address space: what the child stores is the parent's.
  auto* stack = static_cast<unsigned char*>(malloc(256 * 1024));
  Shared shared{blocks[10], {0}};
  reap(clone(store_in_parents_memory, stack + 256 * 1024, CLONE_VM | CLONE_VFORK | SIGCHLD, &shared));
  if (shared.seen != 1 || !holds(blocks[10], 200'000, 42)) wrong("CLONE_VM: the child's store is not seen");
  free(stack);
  for (size_t i = 0; i < blocks.size(); ++i)
    if (i != 10 && !holds(blocks[i], 200'000, 7)) wrong("a block changed");
}

int check_and_store(void* shared) {
  auto* with = static_cast<Shared*>(shared);
  for (int i = 0; i < 200; ++i) free(make(100 << i % 13, 9));
  if (!holds(with->block, 3 << 20, 21)) _exit(3);
  memset(with->block, 22, 3 << 20);
  usleep(20'000);
  return holds(with->block, 3 << 20, 22) ? 0 : 4;
}

// Children with memory of their own, made by clone as those who enter name spaces do it; its stack is malloc's.
void cloned() {
  std::vector<unsigned char*> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(make(3 << 20, 21));
  auto* stack = static_cast<unsigned char*>(malloc(256 * 1024));
  for (int round = 0; round < 4; ++round)
    for (unsigned char* block : {blocks[0], blocks[19]}) {
      Shared shared{block, {0}};
      const pid_t pid = clone(check_and_store, stack + 256 * 1024, SIGCHLD, &shared);
      if (!holds(block, 3 << 20, 21)) wrong("the parent sees a clone's stores");
      reap(pid);
      if (!holds(block, 3 << 20, 21)) wrong("the parent sees a clone's stores");
      // The same without a stack, by number.
      for (int way = 0; way < 3; ++way) {
        clone_args wanted{};
        wanted.exit_signal = SIGCHLD;
        const long made = way == 0   ? syscall(SYS_fork)
                          : way == 1 ? syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr)
                                     : syscall(SYS_clone3, &wanted, sizeof(wanted));
        if (made == 0) _exit(check_and_store(&shared));
        reap(static_cast<pid_t>(made));
        if (!holds(block, 3 << 20, 21)) wrong("the parent sees a raw clone's stores");
      }
      memset(block, 21, 3 << 20);
    }
  free(stack);
}

}  // namespace

int main(int argc, char** argv) {
  struct Case {
    const char* name;
    void (*run)();
  };
  constexpr Case cases[] = {{"constructors", constructors},
                            {"plugins", plugins},
                            {"deepbind", deepbind},
                            {"namespaces", namespaces},
                            {"thread_ends", thread_ends},
                            {"end_now", end_now},
                            {"ends", ends},
                            {"handlers_fork", handlers_fork},
                            {"spawned", spawned},
                            {"cloned", cloned}};
  if (argc > 2) argument = argv[2];
  for (const Case& one : cases)
    if (argc >= 2 && strcmp(argv[1], one.name) == 0) {
      one.run();
      return 0;
    }
  for (const Case& one : cases) puts(one.name);
  return argc == 1 ? 0 : 2;
}
