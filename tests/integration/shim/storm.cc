// SPDX-License-Identifier: Apache-2.0
// storm SECONDS SEED [KIND...]: what a process does to its allocator at the edges, all at once, while other
// threads use it: threads that come and go in every way, forks from any thread, children that end in every way,
// and blocks that are handed from thread to thread.
//
// Every block has a pattern that whoever frees it checks. Prints how often each kind ran, one "kind N" a line;
// "torn N" blocks had other bytes than were written, and "children N" ended otherwise than they should: both
// must be 0.
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace {

std::atomic<bool> stop{false};
std::atomic<uint64_t> torn{0}, bad_children{0};
uint64_t seed = 1;

struct Random {
  uint64_t state;
  uint64_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
  }
  uint64_t below(uint64_t end) { return next() % end; }
};

// A block, its length and its pattern in its first bytes.
struct Block {
  uint64_t bytes, mark;
};

unsigned char* fill_begin(Block* block) {
  return reinterpret_cast<unsigned char*>(block + 1);
}

Block* make(Random& random, size_t most) {
  const size_t bytes = sizeof(Block) + random.below(most);
  void* at = nullptr;
  switch (random.below(5)) {
    case 0: at = calloc(1, bytes); break;
    case 1:
      if (posix_memalign(&at, size_t{16} << random.below(9), bytes) != 0) at = nullptr;
      break;
    case 2: at = realloc(malloc(1 + random.below(bytes)), bytes); break;
    default: at = malloc(bytes);
  }
  if (at == nullptr) return nullptr;
  auto* block = static_cast<Block*>(at);
  *block = {bytes, random.next()};
  memset(fill_begin(block), static_cast<int>(block->mark & 0xff), bytes - sizeof(Block));
  return block;
}

void drop(Block* block) {
  if (block == nullptr) return;
  const auto wanted = static_cast<unsigned char>(block->mark & 0xff);
  const unsigned char* at = fill_begin(block);
  const size_t bytes = block->bytes - sizeof(Block);
  // Both ends and some of the middle: reading all of it would be most of what this program does.
  bool whole = malloc_usable_size(block) >= block->bytes;
  for (size_t i = 0; whole && i < bytes; i = i < 64 || i + 64 >= bytes ? i + 1 : i + 61)
    whole = at[i] == wanted;
  if (!whole) torn.fetch_add(1);
  free(block);
}

// Sizes of small blocks, of page runs, and of what is in between.
size_t any_size(Random& random) {
  const uint64_t draw = random.below(100);
  return draw < 80 ? 2000 : draw < 95 ? 40'000 : draw < 99 ? 300'000 : 4u << 20;
}

// Blocks that one thread makes and another frees.
constexpr int shelf_places = 64;
std::atomic<Block*> shelf[shelf_places];

void exchange_on_shelf(Random& random, Block* block) {
  drop(shelf[random.below(shelf_places)].exchange(block, std::memory_order_acq_rel));
}

// --- what a short thread does --------------------------------------------------------------------------------

void* does_nothing(void*) {
  return nullptr;
}
void* allocates_once(void* number) {
  Random random{reinterpret_cast<uintptr_t>(number)};
  drop(make(random, 4000));
  return nullptr;
}
void* only_frees(void* number) {
  Random random{reinterpret_cast<uintptr_t>(number)};
  exchange_on_shelf(random, nullptr);
  return nullptr;
}
void* only_large(void* number) {
  Random random{reinterpret_cast<uintptr_t>(number)};
  drop(make(random, 1u << 20));
  return nullptr;
}
void* leaves_by_pthread_exit(void* number) {
  allocates_once(number);
  pthread_exit(nullptr);
}
struct WithDestructor {
  Block* block = nullptr;
  ~WithDestructor() {
    drop(block);
    Random random{reinterpret_cast<uintptr_t>(this)};
    drop(make(random, 3000));
  }
};
void* has_thread_local(void* number) {
  static thread_local WithDestructor mine;
  Random random{reinterpret_cast<uintptr_t>(number)};
  mine.block = make(random, 3000);
  return nullptr;
}
// A key's destructor that sets its key again runs up to four times, before and after the allocator's own.
pthread_key_t again_key;
void again(void* rounds) {
  Random random{reinterpret_cast<uintptr_t>(&rounds) | 1};
  drop(make(random, 3000));
  exchange_on_shelf(random, make(random, 500));
  if (const auto left = reinterpret_cast<uintptr_t>(rounds); left > 1)
    pthread_setspecific(again_key, reinterpret_cast<void*>(left - 1));
}
void* has_key(void* number) {
  pthread_setspecific(again_key, reinterpret_cast<void*>(1 + reinterpret_cast<uintptr_t>(number) % 4));
  return reinterpret_cast<uintptr_t>(number) % 2 == 0 ? nullptr : allocates_once(number);
}
void* waits_to_be_cancelled(void* number) {
  allocates_once(number);
  for (;;) {
    pthread_testcancel();
    sched_yield();
  }
}

constexpr struct {
  void* (*run)(void*);
  bool cancelled;
} short_threads[] = {{does_nothing, false},
                     {allocates_once, false},
                     {only_frees, false},
                     {only_large, false},
                     {has_key, false},
                     {has_thread_local, false},
                     {leaves_by_pthread_exit, false},
                     {waits_to_be_cancelled, true}};

// --- kinds ---------------------------------------------------------------------------------------------------

uint64_t threads_come_and_go(Random& random) {
  uint64_t count = 0;
  pthread_attr_t detached;
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  while (!stop.load()) {
    const auto& one = short_threads[random.below(sizeof(short_threads) / sizeof(short_threads[0]))];
    pthread_t thread;
    const bool alone = !one.cancelled && random.below(4) == 0;
    auto* number = reinterpret_cast<void*>(random.next() | 1);
    if (pthread_create(&thread, alone ? &detached : nullptr, one.run, number) != 0) continue;
    if (one.cancelled) pthread_cancel(thread);
    if (!alone) pthread_join(thread, nullptr);
    ++count;
  }
  return count;
}

// They never allocate: the C library frees for them when they end, and that is all.
uint64_t idle_threads_come_and_go(Random&) {
  uint64_t count = 0;
  pthread_t thread;
  for (; !stop.load(); ++count)
    if (pthread_create(&thread, nullptr, does_nothing, nullptr) == 0) pthread_join(thread, nullptr);
  return count;
}

uint64_t blocks_come_and_go(Random& random) {
  constexpr int places = 128;
  Block* mine[places] = {};
  uint64_t count = 0;
  for (; !stop.load(); ++count) {
    Block*& place = mine[random.below(places)];
    if (random.below(8) == 0) {
      exchange_on_shelf(random, place);
    } else {
      drop(place);
    }
    place = make(random, any_size(random));
  }
  for (Block* block : mine) drop(block);
  return count;
}

void child_of(Random& random) {
  switch (random.below(6)) {
    case 0: _exit(0);
    case 1:
      for (int i = 0; i < 50; ++i) drop(make(random, any_size(random)));
      _exit(torn.load() == 0 ? 0 : 3);
    case 2: {
      pthread_t thread;
      for (int i = 0; i < 3; ++i)
        if (pthread_create(&thread, nullptr, allocates_once, reinterpret_cast<void*>(random.next() | 1)) == 0)
          pthread_join(thread, nullptr);
      _exit(torn.load() == 0 ? 0 : 3);
    }
    case 3: execl("/bin/true", "true", nullptr); _exit(4);
    case 4: {
      const pid_t grandchild = fork();
      if (grandchild == 0) _exit(0);
      int status = 1;
      if (grandchild > 0) waitpid(grandchild, &status, 0);
      _exit(grandchild > 0 && status == 0 ? 0 : 5);
    }
    default: drop(make(random, 100'000)); quick_exit(0);
  }
}

uint64_t forks_all_the_time(Random& random) {
  uint64_t count = 0;
  while (!stop.load()) {
    Random of_child{random.next() | 1};
    const pid_t child = fork();
    if (child == 0) child_of(of_child);
    if (child < 0) continue;  // no memory, or too many processes, for a moment
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) {
      fprintf(stderr, "storm: a child ended with status %#x\n", static_cast<unsigned>(status));
      bad_children.fetch_add(1);
    }
    ++count;
  }
  return count;
}

// glibc's own threads: they never allocate, and end when nothing was asked for a while.
uint64_t asynchronous_reads(Random& random) {
  const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  uint64_t count = 0;
  constexpr int lanes = 3;
  for (; file >= 0 && !stop.load(); ++count) {
    aiocb requests[lanes] = {};
    Block* blocks[lanes];
    for (int i = 0; i < lanes; ++i) {
      blocks[i] = make(random, 30'000);
      requests[i].aio_fildes = file;
      requests[i].aio_buf = blocks[i] == nullptr ? nullptr : fill_begin(blocks[i]);
      requests[i].aio_nbytes = blocks[i] == nullptr ? 0 : blocks[i]->bytes - sizeof(Block);
    }
    for (aiocb& request : requests)
      if (request.aio_nbytes != 0 && aio_read(&request) != 0) request.aio_nbytes = 0;
    for (int i = 0; i < lanes; ++i) {
      const aiocb* list[] = {&requests[i]};
      while (requests[i].aio_nbytes != 0 && aio_error(&requests[i]) == EINPROGRESS)
        aio_suspend(list, 1, nullptr);
      if (requests[i].aio_nbytes != 0) aio_return(&requests[i]);
      if (blocks[i] != nullptr)
        memset(fill_begin(blocks[i]), static_cast<int>(blocks[i]->mark & 0xff),
               blocks[i]->bytes - sizeof(Block));
      drop(blocks[i]);
    }
  }
  if (file >= 0) close(file);
  return count;
}

// A thread for each expiry, made and ended by glibc.
std::atomic<uint64_t> expiries{0};
void on_expiry(sigval) {
  Random random{expiries.fetch_add(1) * 2 + 1};
  drop(make(random, 2000));
}
uint64_t timers_that_start_threads(Random&) {
  sigevent how{};
  how.sigev_notify = SIGEV_THREAD;
  how.sigev_notify_function = on_expiry;
  timer_t timer;
  if (timer_create(CLOCK_MONOTONIC, &how, &timer) != 0) return 0;
  const itimerspec each = {{0, 2'000'000}, {0, 2'000'000}};
  timer_settime(timer, 0, &each, nullptr);
  while (!stop.load()) usleep(10'000);
  timer_delete(timer);
  return expiries.load();
}

// What asks for numbers of, and gives back, everything at once.
uint64_t questions(Random& random) {
  uint64_t count = 0;
  for (; !stop.load(); ++count) {
    switch (random.below(4)) {
      case 0: mallinfo2(); break;
      case 1: malloc_trim(0); break;
      default: drop(make(random, 200'000));
    }
    usleep(1000);
  }
  return count;
}

constexpr struct {
  const char* name;
  uint64_t (*run)(Random&);
  int threads;
} kinds[] = {{"threads", threads_come_and_go, 2}, {"idlers", idle_threads_come_and_go, 2},
             {"blocks", blocks_come_and_go, 3},   {"forks", forks_all_the_time, 2},
             {"aio", asynchronous_reads, 1},      {"timers", timers_that_start_threads, 1},
             {"questions", questions, 1}};
constexpr int kind_count = sizeof(kinds) / sizeof(kinds[0]);

std::atomic<uint64_t> counts[kind_count];

void* run_kind(void* number) {
  const auto kind = reinterpret_cast<uintptr_t>(number) % kind_count;
  Random random{(seed * 1'000'003 + reinterpret_cast<uintptr_t>(number)) * 0x9e3779b97f4a7c15u | 1};
  counts[kind].fetch_add(kinds[kind].run(random));
  return nullptr;
}

bool is_chosen(int argc, char** argv, const char* name) {
  for (int i = 3; i < argc; ++i)
    if (strcmp(argv[i], name) == 0) return true;
  return argc <= 3;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  seed = strtoull(argv[2], nullptr, 10);
  pthread_key_create(&again_key, again);
  pthread_t threads[32];
  int started = 0;
  for (int kind = 0; kind < kind_count; ++kind)
    for (int i = 0; is_chosen(argc, argv, kinds[kind].name) && i < kinds[kind].threads; ++i) {
      const auto number = static_cast<uintptr_t>(kind + i * kind_count);
      if (pthread_create(&threads[started], nullptr, run_kind, reinterpret_cast<void*>(number)) == 0) ++started;
    }
  const timespec span = {atoi(argv[1]), 0};
  nanosleep(&span, nullptr);
  stop.store(true);
  for (int i = 0; i < started; ++i) pthread_join(threads[i], nullptr);
  for (auto& place : shelf) drop(place.exchange(nullptr));
  for (int kind = 0; kind < kind_count; ++kind)
    if (is_chosen(argc, argv, kinds[kind].name))
      printf("%s %llu\n", kinds[kind].name, static_cast<unsigned long long>(counts[kind].load()));
  printf("torn %llu\nchildren %llu\n", static_cast<unsigned long long>(torn.load()),
         static_cast<unsigned long long>(bad_children.load()));
  return torn.load() == 0 && bad_children.load() == 0 ? 0 : 1;
}
