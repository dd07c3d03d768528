// SPDX-License-Identifier: Apache-2.0
// A program with operators new and delete of its own, over malloc, with a record in front of each block: they
// are called, by it and by the C++ library, and the preload library's are not. Exit 0: all were balanced.
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <atomic>
#include <map>
#include <new>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr uint64_t magic = 0x7465'7272'6163'6531;
std::atomic<long> made{0}, dropped{0};

struct Record {
  uint64_t magic;
  size_t bytes;
};

void* make(size_t bytes) {
  auto* record = static_cast<Record*>(malloc(sizeof(Record) + bytes));
  if (record == nullptr) throw std::bad_alloc();
  *record = {magic, bytes};
  ++made;
  return record + 1;
}

void drop(void* block) {
  if (block == nullptr) return;
  auto* record = static_cast<Record*>(block) - 1;
  if (record->magic != magic) abort();
  record->magic = 0;
  ++dropped;
  free(record);
}

}  // namespace

void* operator new(size_t bytes) {
  return make(bytes);
}
void* operator new[](size_t bytes) {
  return make(bytes);
}
void operator delete(void* block) noexcept {
  drop(block);
}
void operator delete[](void* block) noexcept {
  drop(block);
}
void operator delete(void* block, size_t) noexcept {
  drop(block);
}
void operator delete[](void* block, size_t) noexcept {
  drop(block);
}

int main() {
  const long before = made - dropped;
  const auto work = [] {
    std::map<std::string, std::vector<int>> table;
    for (int i = 0; i < 20'000; ++i) table["key " + std::to_string(i % 700) + " is long enough"].push_back(i);
    std::ostringstream text;  // the C++ library's own code allocates
    for (const auto& entry : table) text << entry.first << ' ' << entry.second.size() << '\n';
    if (text.str().size() < 10'000) abort();
    std::vector<std::string> large(40, std::string(300'000, 'x'));
  };
  std::thread first(work), second(work);
  first.join();
  second.join();
  try {
    throw std::bad_alloc();
  } catch (const std::bad_alloc&) {
  }
  const long kept = made - dropped - before;
  if (made < 3000 || kept > 100) {
    fprintf(stderr, "own_operators: made %ld, kept %ld\n", made.load(), kept);
    return 1;
  }
  return 0;
}
