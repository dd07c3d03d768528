// SPDX-License-Identifier: Apache-2.0
// Cases of the large-object heap that need the real pages under it. Each prints "ok" and exits 0, or says what
// is wrong and exits 1.
//   shim_large_cases scattered|kept|leases|rounds|steps|small MIB|full MIB|trim|too_long|returning
//
// scattered  --ddr 64M and nothing else: a request that fits what is free in total is served, wherever that
//            lies.
// kept       --ddr 256M: pages that stay for the next request never show their old bytes, and go back when
//            asked.
// leases     --ddr 0 --cxl 512M: leases of which nothing is in use go back, and come again as one that is long
//            enough.
// rounds     --ddr 0 --cxl 512M: a program that frees all it has in each round keeps its leases.
// steps      whole heap, --ddr 256M: small blocks leave room for large ones.
// small      whole heap, one tier of MIB or two: memory of freed small blocks serves large ones, at once.
// full       the same: all of it is used up, and then malloc says ENOMEM, in old threads and new ones.
// trim       256M: malloc_trim says 1 when something went back, else 0.
// too_long   64M: a request that is longer than the window.
// returning  --ddr 16M --cxl 512M: leases come and go while threads use the rest, the engine moves and the
//            program forks.
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr size_t mib = 1u << 20;

[[noreturn]] void fail(const char* what) {
  printf("%s\n", what);
  exit(1);
}

void fill(char* at, size_t bytes, unsigned seed) {
  for (size_t i = 0; i < bytes; i += 512) at[i] = static_cast<char>(seed + i / 512 + 1);
}

bool holds(const char* at, size_t bytes, unsigned seed) {
  for (size_t i = 0; i < bytes; i += 512)
    if (at[i] != static_cast<char>(seed + i / 512 + 1)) return false;
  return true;
}

bool is_zero(const char* at, size_t bytes) {
  return at[0] == 0 && memcmp(at, at + 1, bytes - 1) == 0;
}

size_t resident_bytes() {
  FILE* file = fopen("/proc/self/statm", "r");
  unsigned long total = 0, pages = 0;
  if (file == nullptr || fscanf(file, "%lu %lu", &total, &pages) != 2) fail("no /proc/self/statm");
  fclose(file);
  return pages * 4096;
}

void scattered() {
  constexpr size_t small = 64 * 1024;
  std::vector<char*> blocks;
  blocks.reserve(2048);  // 16 KiB: not the window's
  while (char* block = static_cast<char*>(malloc(small))) {
    fill(block, small, static_cast<unsigned>(blocks.size()));
    blocks.push_back(block);
  }
  // Where the whole heap is in the budget, what small blocks have outside of it serves some of these in the
  // end.
  const bool whole = dlsym(RTLD_DEFAULT, "mallocx") != nullptr;
  if (blocks.size() * small < 64 * mib || blocks.size() * small > (whole ? 68 : 64) * mib)
    fail((std::to_string(blocks.size()) + " blocks of 64 KiB in a budget of 64 MiB").c_str());
  for (size_t i = 1; i < blocks.size(); i += 2) free(blocks[i]);
  // 32 MiB are free now, in pieces of 64 KiB.
  auto* large = static_cast<char*>(malloc(24 * mib));
  auto* zeroed = static_cast<char*>(calloc(8, mib));
  if (large == nullptr || zeroed == nullptr) fail("a request that fits the free bytes was refused");
  if (!is_zero(zeroed, 8 * mib)) fail("calloc's memory is not zero");
  if (!whole && malloc(small) != nullptr) fail("more was handed out than the budget");
  fill(large, 24 * mib, 7);
  for (size_t i = 0; i < blocks.size(); i += 2)
    if (!holds(blocks[i], small, static_cast<unsigned>(i))) fail("another block's bytes changed");
  if (!holds(large, 24 * mib, 7)) fail("the large block's bytes changed");
  free(large);
  free(zeroed);
  for (size_t i = 0; i < blocks.size(); i += 2) free(blocks[i]);
  auto* all = static_cast<char*>(calloc(64, mib));
  if (all == nullptr || !is_zero(all, 64 * mib)) fail("all of the budget as one block");
  free(all);
}

void kept() {
  for (size_t bytes : {mib, 8 * mib, 32 * mib, 100 * mib}) {
    for (int round = 0; round < 3; ++round) {
      auto* block = static_cast<char*>(malloc(bytes));
      if (block == nullptr) fail("no memory");
      fill(block, bytes, static_cast<unsigned>(round));
      free(block);
      // Not all of the old block, and a page that was never stored to.
      auto* zeroed = static_cast<char*>(calloc(1, bytes / 2 + 4096));
      if (zeroed == nullptr || !is_zero(zeroed, bytes / 2 + 4096)) fail("calloc showed old bytes");
      free(zeroed);
    }
  }
  std::vector<char*> blocks;
  blocks.reserve(64);
  for (int i = 0; i < 50; ++i) {
    blocks.push_back(static_cast<char*>(malloc(4 * mib)));
    fill(blocks.back(), 4 * mib, 1);
  }
  for (char* block : blocks) free(block);
  if (resident_bytes() > 256 * mib + 64 * mib)
    fail("more stays resident than the budget and what may lie free");
  malloc_trim(0);
  if (resident_bytes() > 40 * mib) fail("malloc_trim gave nothing back");
}

void take_and_free(size_t count, size_t bytes) {
  std::vector<char*> blocks;
  blocks.reserve(4096);  // 32 KiB: not the window's
  for (size_t i = 0; i < count; ++i) {
    auto* block = static_cast<char*>(calloc(1, bytes));
    if (block == nullptr) break;
    if (!is_zero(block, bytes)) fail("calloc's memory is not zero");
    fill(block, bytes, static_cast<unsigned>(i));
    blocks.push_back(block);
  }
  if (blocks.size() < count / 10 * 9) fail("the CXL budget was not usable");
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!holds(blocks[i], bytes, static_cast<unsigned>(i))) fail("a block's bytes changed");
    free(blocks[i]);
  }
}

void check_fork(char* block, size_t bytes, unsigned seed) {
  const pid_t child = fork();
  if (child == 0) {
    const bool same = holds(block, bytes, seed);
    fill(block, bytes, seed + 100);
    free(block);
    _exit(same ? 0 : 1);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) fail("the child saw other bytes");
  if (!holds(block, bytes, seed)) fail("the child's stores are seen here");
}

void leases() {
  for (unsigned round = 0; round < 3; ++round) {
    take_and_free(500, mib);
    auto* large = static_cast<char*>(calloc(400, mib));
    if (large == nullptr) fail("all leases are free, but no lease was long enough");
    if (!is_zero(large, 400 * mib)) fail("calloc's memory is not zero");
    fill(large, 400 * mib, round);
    if (round == 2) check_fork(large, 400 * mib, round);
    free(large);
  }
}

void rounds() {
  for (int round = 0; round < 12; ++round) take_and_free(300, mib);
}

// jemalloc's step of growth at this size is longer than what is left beside it.
void steps() {
  constexpr size_t small = 4096, small_bytes = 203 * mib, large = 9 * mib;
  for (size_t i = 0; i < small_bytes / small; ++i)
    if (malloc(small) == nullptr) fail("no memory for small blocks");
  size_t large_bytes = 0;
  while (malloc(large) != nullptr) large_bytes += large;
  if (large_bytes < 36 * mib) fail("small blocks were given more ahead than a part of what was free");
}

constexpr size_t pair_bytes = 1000;

// A list of blocks that lies in the blocks.
struct Chain {
  void** first = nullptr;
  size_t count = 0;

  bool add() {
    auto** block = static_cast<void**>(malloc(pair_bytes));
    if (block == nullptr) return false;
    memset(block, static_cast<int>(count), pair_bytes);
    *block = first;
    first = block;
    ++count;
    return true;
  }
  void clear() {
    while (first != nullptr) {
      auto** next = static_cast<void**>(*first);
      free(first);
      first = next;
    }
    count = 0;
  }
};

// On a busy machine leases may be on their way back for longer than a request waits.
char* large_zeros(size_t bytes) {
  void* block = calloc(1, bytes);
  for (int i = 0; block == nullptr && i < 20; ++i) {
    usleep(250'000);
    block = calloc(1, bytes);
  }
  return static_cast<char*>(block);
}

void small_then_large(size_t budget) {
  for (unsigned round = 0; round < 3; ++round) {
    Chain all;
    while (all.count < budget / 10 * 8 / 1024 && all.add()) {
    }
    if (all.count < budget / 10 * 8 / 1024) fail("the budget is not usable for small blocks");
    all.clear();
    const size_t bytes = budget / 10 * 8;
    char* large = large_zeros(bytes);
    if (large == nullptr) fail("what small blocks had serves no large one");
    if (!is_zero(large, bytes)) fail("calloc's memory is not zero");
    fill(large, bytes, round);
    if (round == 2) check_fork(large, bytes, round);
    free(large);
  }
  // One block of each few hundred stays: no extent is free as a whole.
  Chain all, left;
  std::vector<char*> stay;
  stay.reserve(4096);
  const size_t count = budget / 10 * 8 / 1024;
  for (size_t i = 0; i < count; ++i) {
    if (i % 500 != 0) {
      if (!all.add()) fail("no memory");
      continue;
    }
    auto* block = static_cast<char*>(malloc(pair_bytes));
    if (block == nullptr) fail("no memory");
    fill(block, pair_bytes, static_cast<unsigned>(i));
    stay.push_back(block);
  }
  all.clear();
  std::vector<char*> large;
  large.reserve(8192);
  const size_t piece = 128 * 1024;
  while (large.size() < budget / 10 * 5 / piece) {
    auto* block = static_cast<char*>(malloc(piece));
    if (block == nullptr) fail("what lies between small blocks serves no large ones");
    fill(block, piece, static_cast<unsigned>(large.size()));
    large.push_back(block);
  }
  for (int i = 0; i < 1000; ++i)
    if (!left.add()) fail("no small blocks beside large ones");
  for (size_t i = 0; i < stay.size(); ++i)
    if (!holds(stay[i], pair_bytes, static_cast<unsigned>(i * 500))) fail("a small block's bytes changed");
  for (size_t i = 0; i < large.size(); ++i) {
    if (!holds(large[i], piece, static_cast<unsigned>(i))) fail("a large block's bytes changed");
    free(large[i]);
  }
  left.clear();
  for (char* block : stay) free(block);
}

void small(size_t tier) {
  small_then_large(tier);
  // Several arenas.
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([tier] {
      Chain all;
      while (all.count < tier / 5 / 1024)
        if (!all.add()) fail("no memory");
      all.clear();
    });
  for (std::thread& thread : threads) thread.join();
  char* large = large_zeros(tier / 10 * 7);
  if (large == nullptr) fail("what other threads freed serves no large block");
  fill(large, tier / 10 * 7, 1);
  free(large);
}

// Extents of which parts went back, with other arenas' extents in the gaps: none may be joined with its
// neighbour.
void borders(size_t tier) {
  constexpr unsigned threads = 4, rounds = 2, apart = 30;
  struct {
    std::vector<char*> stay;
    Chain all;
  } of[threads];
  for (auto& mine : of) mine.stay.reserve(tier / 1024 / apart + 1);  // at full memory it could not grow
  std::mutex turn;
  std::condition_variable passed;
  unsigned step = 0;  // whose turn it is; each thread has an arena of its own
  const auto work = [&](unsigned me) {
    auto& mine = of[me];
    if (step / threads % 2 == 0) {  // fills all there is, and keeps a block of each few hundred
      for (unsigned i = 0;; ++i) {
        if (i % apart != 0) {
          if (!mine.all.add()) break;
        } else if (auto* kept = static_cast<char*>(malloc(pair_bytes)); kept != nullptr) {
          fill(kept, pair_bytes, me);
          mine.stay.push_back(kept);
        } else {
          break;
        }
      }
      mine.all.clear();
    } else {
      for (char* kept : mine.stay) {
        if (!holds(kept, pair_bytes, me)) fail("a small block's bytes changed");
        free(kept);
      }
      mine.stay.clear();
      if (me + 1 < threads) return;
    }
    // More than there is: what is retained goes back, page by page, before it is refused.
    free(malloc(tier));
  };
  std::vector<std::thread> all;
  for (unsigned me = 0; me < threads; ++me)
    all.emplace_back([&, me] {
      std::unique_lock lock(turn);
      for (unsigned round = 0; round < 2 * rounds; ++round) {
        passed.wait(lock, [&] { return step % threads == me; });
        work(me);
        ++step;
        passed.notify_all();
      }
    });
  for (std::thread& thread : all) thread.join();
}

void full(size_t tier) {
  // Threads that are there before, and have not allocated yet.
  std::atomic<int> stage{0};
  std::atomic<int> done{0};
  const auto use = [&](int wait_for) {
    while (stage.load() < wait_for) usleep(1000);
    for (size_t bytes : {size_t{1}, size_t{100}, size_t{3000}, size_t{20000}, size_t{60000}, mib}) {
      errno = 0;
      void* block = malloc(bytes);
      if (block == nullptr && errno != ENOMEM) fail("no memory and no ENOMEM");
      void* again = realloc(block, bytes * 2);
      free(again != nullptr ? again : block);
      free(calloc(1, bytes));
      void* aligned = nullptr;
      const int failed = posix_memalign(&aligned, 4096, bytes);
      if (failed != 0 && failed != ENOMEM) fail("posix_memalign says something else than ENOMEM");
      if (failed == 0) free(aligned);
    }
    ++done;
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(use, 1);
  Chain all;
  std::vector<void*> large;
  large.reserve(65536);
  while (void* block = malloc(mib)) large.push_back(block);
  while (all.add()) {
  }
  for (size_t bytes = 65536; bytes >= 16; bytes /= 2)
    while (void* block = malloc(bytes)) {
      *static_cast<void**>(block) = all.first;
      all.first = static_cast<void**>(block);
    }
  stage = 1;
  for (std::thread& thread : threads) thread.join();
  if (done != 4) fail("a thread that was there before did not come through");
  all.clear();
  for (void* block : large) free(block);
  auto* again = static_cast<char*>(malloc(tier / 8 * 7));
  if (again == nullptr) fail("what was freed cannot be had again");
  free(again);
}

void trim() {
  malloc_trim(0);
  if (malloc_trim(0) != 0) fail("malloc_trim says that something went back where nothing was free");
  auto* large = static_cast<char*>(malloc(20 * mib));
  auto* fence = static_cast<char*>(malloc(mib));
  if (large == nullptr || fence == nullptr) fail("no memory");
  fill(large, 20 * mib, 1);
  free(large);
  if (malloc_trim(0) != 1) fail("malloc_trim says that nothing went back");
  if (malloc_trim(0) != 0) fail("malloc_trim says twice that the same went back");
  free(fence);
}

void too_long() {
  errno = 0;
  if (malloc(size_t{1} << 40) != nullptr || errno != ENOMEM) fail("1 TiB of 64 MiB");
  std::vector<void*> large;
  large.reserve(1024);
  while (void* block = malloc(mib)) large.push_back(block);
  for (void* block : large) free(block);
}

void use_and_drop(const std::atomic<bool>& stop, unsigned seed) {
  struct Block {
    char* at;
    size_t bytes;
    unsigned seed;
  };
  std::vector<Block> blocks;
  blocks.reserve(64);
  while (!stop) {
    // Much, then little: leases of which nothing is in use, and some in which little is.
    const size_t most = rand_r(&seed) % 4 == 0 ? 24 : 3;
    while (blocks.size() < most) {
      const size_t bytes = (1 + static_cast<size_t>(rand_r(&seed)) % 4) * mib;
      auto* at = static_cast<char*>(rand_r(&seed) % 2 == 0 ? malloc(bytes) : calloc(1, bytes));
      if (at == nullptr) break;
      blocks.push_back({at, bytes, static_cast<unsigned>(rand_r(&seed))});
      fill(at, bytes, blocks.back().seed);
    }
    while (blocks.size() > most / 3) {
      const size_t i = static_cast<size_t>(rand_r(&seed)) % blocks.size();
      if (!holds(blocks[i].at, blocks[i].bytes, blocks[i].seed)) fail("a block's bytes changed");
      free(blocks[i].at);
      blocks[i] = blocks.back();
      blocks.pop_back();
    }
    for (const Block& block : blocks)
      if (!holds(block.at, block.bytes, block.seed)) fail("a block's bytes changed");
  }
  for (const Block& block : blocks) free(block.at);
}

void returning() {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 3; ++i) threads.emplace_back([&stop, i] { use_and_drop(stop, i + 1); });
  for (int round = 0; round < 60; ++round) {
    usleep(50'000);
    if (round % 6 == 2) malloc_trim(0);
    if (round % 20 != 19) continue;
    const pid_t child = fork();
    if (child == 0) _exit(0);
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) fail("fork");
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  malloc_trim(0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "scattered") == 0)
    scattered();
  else if (argc == 2 && strcmp(argv[1], "kept") == 0)
    kept();
  else if (argc == 2 && strcmp(argv[1], "leases") == 0)
    leases();
  else if (argc == 2 && strcmp(argv[1], "rounds") == 0)
    rounds();
  else if (argc == 2 && strcmp(argv[1], "steps") == 0)
    steps();
  else if (argc == 3 && strcmp(argv[1], "small") == 0)
    small(strtoull(argv[2], nullptr, 10) * mib);
  else if (argc == 3 && strcmp(argv[1], "borders") == 0)
    borders(strtoull(argv[2], nullptr, 10) * mib);
  else if (argc == 3 && strcmp(argv[1], "full") == 0)
    full(strtoull(argv[2], nullptr, 10) * mib);
  else if (argc == 2 && strcmp(argv[1], "trim") == 0)
    trim();
  else if (argc == 2 && strcmp(argv[1], "too_long") == 0)
    too_long();
  else if (argc == 2 && strcmp(argv[1], "returning") == 0)
    returning();
  else
    return 2;
  printf("ok\n");
  return 0;
}
