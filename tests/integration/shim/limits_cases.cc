// SPDX-License-Identifier: Apache-2.0
// A program that gets no more memory: limits_cases BYTES_LEAST [as MIB | away MS]. Small and large blocks until
// malloc fails; then everything that allocates fails in its own way, nothing crashes, no block has changed, and
// what is freed can be had again. `as`: under RLIMIT_AS. `away`: waits first, until the supervisor's session is
// gone. Last argument: the library's min-size, below which it does not serve.
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr size_t beyond = 1'000'000'000;  // of what any run here has

[[noreturn]] void wrong(const char* what) {
  fprintf(stderr, "limits_cases: %s (%s)\n", what, strerror(errno));
  _exit(1);
}

struct Block {
  Block* next;
  size_t bytes;
};

unsigned char value_of(const Block* block) {
  return static_cast<unsigned char>(block->bytes * 31 + reinterpret_cast<uintptr_t>(block) / 16);
}

struct List {
  Block* first = nullptr;
  size_t bytes = 0, count = 0;

  bool add(size_t wanted) {
    errno = 0;
    auto* block = static_cast<Block*>(malloc(wanted));
    if (block == nullptr) {
      if (errno != ENOMEM) wrong("malloc fails without ENOMEM");
      return false;
    }
    *block = {first, wanted};
    memset(block + 1, value_of(block), wanted - sizeof(Block));
    first = block;
    bytes += wanted;
    ++count;
    return true;
  }
  void drop(size_t how_many) {
    while (first != nullptr && how_many-- > 0) {
      Block* block = first;
      first = block->next;
      const auto* at = reinterpret_cast<unsigned char*>(block + 1);
      for (size_t i = 0; i < block->bytes - sizeof(Block); ++i)
        if (at[i] != value_of(block)) wrong("a block changed");
      free(block);
      --count;
    }
  }
};

void everything_fails() {
  errno = 0;
  if (calloc(1000, beyond / 1000) != nullptr || errno != ENOMEM) wrong("calloc");
  void* block = nullptr;
  if (posix_memalign(&block, 4096, beyond) != ENOMEM) wrong("posix_memalign");
  if (aligned_alloc(4096, beyond) != nullptr) wrong("aligned_alloc");
  if (::operator new(beyond, std::nothrow) != nullptr) wrong("new(nothrow)");
  static int handled;
  handled = 0;
  std::set_new_handler([] {
    if (++handled == 2) std::set_new_handler(nullptr);
  });
  try {
    ::operator delete(::operator new(beyond));
    wrong("new has memory");
  } catch (const std::bad_alloc&) {
    if (handled != 2) wrong("the new-handler was not called");
  }
  try {
    std::vector<std::string> texts;
    for (;;) texts.emplace_back(5000, 'x');
  } catch (const std::bad_alloc&) {
  }
  try {
    std::map<int, std::string> many;
    for (int i = 0;; ++i) many[i] = std::string(static_cast<size_t>(i % 3000), 'y');
  } catch (const std::bad_alloc&) {
  }
  // Of the C library: whatever it says, it says it.
  if (FILE* file = fopen("/proc/self/status", "r"); file != nullptr) {
    char* line = nullptr;
    size_t room = 0;
    while (getline(&line, &room, file) > 0) {
    }
    free(line);
    fclose(file);
  }
  char* text = nullptr;
  if (asprintf(&text, "%0200000d", 1) >= 0) free(text);
  try {
    std::thread([] { free(malloc(100'000)); }).join();
  } catch (const std::exception&) {
  }
}

void grow_in_vain() {
  auto* block = static_cast<unsigned char*>(malloc(3000));
  if (block == nullptr) return;
  memset(block, 7, 3000);
  errno = 0;
  if (realloc(block, beyond) != nullptr) wrong("realloc has memory");
  if (errno != ENOMEM) wrong("realloc fails without ENOMEM");
  for (size_t i = 0; i < 3000; ++i)
    if (block[i] != 7) wrong("realloc in vain changed the block");
  free(block);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const size_t least = strtoull(argv[1], nullptr, 10);
  if (argc > 3 && strcmp(argv[2], "as") == 0) {
    const rlimit limit{strtoull(argv[3], nullptr, 10) << 20, RLIM_INFINITY};
    if (setrlimit(RLIMIT_AS, &limit) != 0) wrong("setrlimit");
  }
  if (argc > 3 && strcmp(argv[2], "away") == 0) {
    List some;
    for (int i = 0; i < 100; ++i) some.add(100'000);
    usleep(static_cast<useconds_t>(atoi(argv[3])) * 1000);
    some.drop(SIZE_MAX);
  }
  const size_t smallest = argc > 4 ? strtoull(argv[4], nullptr, 10) : 24;  // the library's min-size
  for (int round = 0; round < 3; ++round) {
    List lists[4];
    std::vector<std::thread> threads;
    threads.reserve(4);
    std::atomic<size_t> total{0};
    const size_t from = size_t{32} << (round * 8);
    for (List& list : lists)
      threads.emplace_back([&list, &total, from, smallest] {
        for (size_t bytes = from < smallest ? smallest : from; bytes >= smallest;)
          if (!list.add(bytes)) bytes /= 2;
        total += list.bytes;
      });
    for (std::thread& thread : threads) thread.join();
    if (total < least) {
      fprintf(stderr, "round %d: %zu bytes\n", round, total.load());
      wrong("there should have been more memory");
    }
    if (smallest == 24) everything_fails();
    grow_in_vain();
    for (List& list : lists) list.drop(list.count / 2);
    for (List& list : lists) list.drop(SIZE_MAX);
  }
  puts("well");
  return 0;
}
