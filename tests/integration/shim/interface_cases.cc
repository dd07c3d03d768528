// SPDX-License-Identifier: Apache-2.0
// The interface of malloc and of C++'s operators, as a program sees it: what is returned, errno, alignment,
// contents. Prints one line a question and knows no answers: posix_test.py runs it plainly and under each
// library, and the outputs must be the same. Nothing is printed that is each allocator's own business, as
// usable sizes are.
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <new>
#include <stdexcept>
#include <string>
#include <vector>

extern "C" {
void free_sized(void* block, size_t bytes) __attribute__((weak));
void free_aligned_sized(void* block, size_t alignment, size_t bytes) __attribute__((weak));
}

namespace {

constexpr int untouched = 77;
constexpr size_t sizes[] = {0,
                            1,
                            7,
                            8,
                            9,
                            24,
                            100,
                            1000,
                            4095,
                            4096,
                            4097,
                            16383,
                            20000,
                            65535,
                            65536,
                            65537,
                            100'000,
                            500'000,
                            1 << 20,
                            (1 << 20) + 1,
                            3 << 20,
                            8 << 20,
                            (8 << 20) + 4096,
                            20 << 20};

// Only what may be compared: a block or none, its alignment as asked for, errno.
void show(const char* what, const void* block, size_t alignment = 16) {
  const int now = errno;
  if (block == nullptr)
    printf("%s: null errno %d\n", what, now);
  else
    printf("%s: block %s errno %d\n", what,
           reinterpret_cast<uintptr_t>(block) % alignment == 0 ? "aligned" : "NOT ALIGNED", now);
  errno = untouched;
}

void show_number(const char* what, long number) {
  const int now = errno;
  printf("%s: %ld errno %d\n", what, number, now);
  errno = untouched;
}

bool holds(const void* block, size_t bytes, unsigned char value) {
  const auto* at = static_cast<const unsigned char*>(block);
  for (size_t i = 0; i < bytes; ++i)
    if (at[i] != value) return false;
  return true;
}

void zero_sizes() {
  errno = untouched;
  void* first = malloc(0);
  show("malloc(0)", first);
  void* second = malloc(0);
  show_number("malloc(0) twice differ", first != second);
  free(first);
  free(second);
  show("calloc(0, 5)", first = calloc(0, 5));
  free(first);
  show("calloc(5, 0)", first = calloc(5, 0));
  free(first);
  show("calloc(0, SIZE_MAX)", first = calloc(0, SIZE_MAX));
  free(first);
  show("realloc(null, 0)", first = realloc(nullptr, 0));
  show("realloc(of 0, 0)", realloc(first, 0));
  for (size_t bytes : sizes) {
    first = malloc(bytes);
    show("realloc(block, 0)", realloc(first, 0));
  }
  show("reallocarray(null, 0, 0)", first = reallocarray(nullptr, 0, 0));
  show("reallocarray(block, 0, 8)", reallocarray(first, 0, 8));
  show_number("malloc_usable_size(null)", static_cast<long>(malloc_usable_size(nullptr)));
  free(nullptr);
  show_number("free(null)", 0);
}

void too_much() {
  errno = untouched;
  show("malloc(SIZE_MAX)", malloc(SIZE_MAX));
  show("malloc(SIZE_MAX - 100)", malloc(SIZE_MAX - 100));
  show("malloc(PTRDIFF_MAX)", malloc(PTRDIFF_MAX));
  show("malloc(PTRDIFF_MAX + 1)", malloc(size_t{PTRDIFF_MAX} + 1));
  show("malloc(2^50)", malloc(size_t{1} << 50));
  show("calloc(SIZE_MAX, SIZE_MAX)", calloc(SIZE_MAX, SIZE_MAX));
  show("calloc(SIZE_MAX / 2, 3)", calloc(SIZE_MAX / 2, 3));
  show("calloc(2^33, 2^33)", calloc(size_t{1} << 33, size_t{1} << 33));
  show("calloc(1, PTRDIFF_MAX)", calloc(1, PTRDIFF_MAX));
  for (size_t bytes : {size_t{10}, size_t{5000}, size_t{100'000}, size_t{4} << 20}) {
    auto* block = static_cast<unsigned char*>(malloc(bytes));
    memset(block, 9, bytes);
    errno = untouched;
    show("realloc(block, SIZE_MAX)", realloc(block, SIZE_MAX));
    show("realloc(block, PTRDIFF_MAX)", realloc(block, PTRDIFF_MAX));
    show("realloc(block, 2^50)", realloc(block, size_t{1} << 50));
    show("reallocarray(block, 2^33, 2^33)", reallocarray(block, size_t{1} << 33, size_t{1} << 33));
    show("reallocarray(block, SIZE_MAX, 2)", reallocarray(block, SIZE_MAX, 2));
    show_number("the block is as it was", holds(block, bytes, 9));
    free(block);
  }
  show("valloc(SIZE_MAX)", valloc(SIZE_MAX));
  show("valloc(PTRDIFF_MAX)", valloc(PTRDIFF_MAX));
  show("pvalloc(SIZE_MAX)", pvalloc(SIZE_MAX));
  show("pvalloc(SIZE_MAX - 5000)", pvalloc(SIZE_MAX - 5000));
  show("memalign(16, SIZE_MAX)", memalign(16, SIZE_MAX));
  show("memalign(4096, PTRDIFF_MAX)", memalign(4096, PTRDIFF_MAX));
  show("memalign(2^62, 8)", memalign(size_t{1} << 62, 8));
  show("memalign(2^63, 8)", memalign(size_t{1} << 63, 8));
  show("memalign(2^63 + 1, 8)", memalign((size_t{1} << 63) + 1, 8));
  show("memalign(2^63 + 1, 2^20)", memalign((size_t{1} << 63) + 1, 1 << 20));
  show("aligned_alloc(64, SIZE_MAX - 63)", aligned_alloc(64, SIZE_MAX - 63));
  show("aligned_alloc(2^40, 2^20)", aligned_alloc(size_t{1} << 50, 1 << 20));
}

void alignments() {
  errno = untouched;
  auto* const before = reinterpret_cast<void*>(uintptr_t{0x1234});
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{100}, size_t{5000}, size_t{70'000}, size_t{3} << 20})
    for (size_t alignment :
         {size_t{0},       size_t{1},       size_t{2},    size_t{3},     size_t{4},
          size_t{7},       size_t{8},       size_t{12},   size_t{16},    size_t{24},
          size_t{48},      size_t{64},      size_t{4096}, size_t{12288}, size_t{65536},
          size_t{1} << 20, size_t{4} << 20, SIZE_MAX,     SIZE_MAX - 7,  (size_t{1} << 63) + 8}) {
      void* block = before;
      const int result = posix_memalign(&block, alignment, bytes);
      const size_t at = reinterpret_cast<uintptr_t>(block);
      printf("posix_memalign(%zu, %zu): %d %s errno %d\n", alignment, bytes, result,
             block == before       ? "untouched"
             : at % alignment == 0 ? "aligned"
                                   : "NOT ALIGNED",
             errno);
      errno = untouched;
      if (block != before) {
        memset(block, 1, bytes);
        free(block);
      }
    }
  void* block = before;
  show_number("posix_memalign(64, SIZE_MAX)", posix_memalign(&block, 64, SIZE_MAX));
  show_number("posix_memalign(64, PTRDIFF_MAX)", posix_memalign(&block, 64, PTRDIFF_MAX));
  show_number("posix_memalign(64, 2^50)", posix_memalign(&block, 64, size_t{1} << 50));
  show_number("posix_memalign(2^62, 2^62)", posix_memalign(&block, size_t{1} << 62, size_t{1} << 62));
  show_number("its pointer is untouched", block == before);
  for (size_t bytes : sizes)
    for (size_t alignment : {size_t{0}, size_t{1}, size_t{3}, size_t{8}, size_t{16}, size_t{32}, size_t{48},
                             size_t{100}, size_t{4096}, size_t{5000}, size_t{1} << 16, size_t{1} << 21}) {
      size_t power = 16;
      while (power < alignment) power <<= 1;
      show("memalign", block = memalign(alignment, bytes), power);
      if (block != nullptr && malloc_usable_size(block) < bytes) puts("too short");
      free(block);
      show("aligned_alloc", block = aligned_alloc(alignment, bytes), power);
      free(block);
    }
  for (size_t bytes : sizes) {
    show("malloc", block = malloc(bytes));
    if (malloc_usable_size(block) < bytes) puts("too short");
    free(block);
    show("valloc", block = valloc(bytes), 4096);
    free(block);
    show("pvalloc", block = pvalloc(bytes), 4096);
    if (malloc_usable_size(block) < (bytes + 4095) / 4096 * 4096) puts("too short");
    free(block);
  }
  bool aligned = true;
  std::vector<void*> all;
  for (size_t bytes = 1; bytes < 6000; bytes += 3) {
    all.push_back(malloc(bytes));
    aligned = aligned && reinterpret_cast<uintptr_t>(all.back()) % 16 == 0;
  }
  for (void* one : all) free(one);
  printf("all blocks are aligned to 16: %d\n", aligned);
}

void contents() {
  for (size_t bytes : sizes) {  // what was freed just now must not show
    auto* block = static_cast<unsigned char*>(malloc(bytes));
    memset(block, 0xee, bytes);
    free(block);
    block = static_cast<unsigned char*>(calloc(bytes, 1));
    printf("calloc(%zu) is zero: %d\n", bytes, holds(block, bytes, 0));
    free(block);
  }
  for (size_t from : sizes)
    for (size_t to : sizes) {
      if (from == 0 || to == 0) continue;
      auto* block = static_cast<unsigned char*>(malloc(from));
      memset(block, static_cast<int>(from % 251), from);
      errno = untouched;
      auto* moved = static_cast<unsigned char*>(realloc(block, to));
      const bool kept = holds(moved, from < to ? from : to, static_cast<unsigned char>(from % 251));
      printf("realloc(%zu, %zu): %s errno %d\n", from, to, kept ? "kept" : "LOST", errno);
      memset(moved, 1, to);
      free(moved);
    }
  char* text = strdup("text");
  char* made = nullptr;
  if (asprintf(&made, "%s %d", text, 5) != 6) puts("asprintf");
  printf("%s %s\n", text, made);
  free(text);
  free(made);
}

void errors_are_kept() {
  for (size_t bytes : sizes) {
    void* block = malloc(bytes);
    errno = untouched;
    free(block);
    show_number("free", 0);
  }
  for (size_t bytes : {size_t{24}, size_t{24} << 20}) {
    void* block = malloc(bytes);
    errno = untouched;
    if (free_sized != nullptr)
      free_sized(block, bytes);
    else
      free(block);
    block = aligned_alloc(64, bytes);
    if (free_aligned_sized != nullptr)
      free_aligned_sized(block, 64, bytes);
    else
      free(block);
    show_number("free_sized, free_aligned_sized", 0);
  }
}

void figures() {
  const struct mallinfo2 before = mallinfo2();
  std::vector<void*> blocks;
  for (int i = 0; i < 2000; ++i) blocks.push_back(malloc(1000));
  const struct mallinfo2 now = mallinfo2();
  printf("mallinfo2 counts small blocks: %d\n", now.uordblks >= before.uordblks + 2'000'000);
  printf("mallinfo2 knows what it has: %d\n", now.arena + now.hblkhd >= now.uordblks);
  for (void* block : blocks) free(block);
  char* text = nullptr;
  size_t length = 0;
  FILE* stream = open_memstream(&text, &length);
  errno = untouched;
  show_number("malloc_info(0)", malloc_info(0, stream));
  show_number("malloc_info(1)", malloc_info(1, stream));
  fclose(stream);
  constexpr const char* begins = "<malloc version=\"1\">\n<heap nr=\"0\">\n";
  constexpr const char* ends = "</malloc>\n";
  printf("malloc_info: begins %d ends %d total %d system %d\n", strncmp(text, begins, strlen(begins)) == 0,
         length > strlen(ends) && strcmp(text + length - strlen(ends), ends) == 0,
         strstr(text, "<total type=\"mmap\" count=\"") != nullptr,
         strstr(text, "<system type=\"current\" size=\"") != nullptr);
  free(text);
  printf("mallopt(M_MMAP_THRESHOLD): %d\n", mallopt(M_MMAP_THRESHOLD, 1 << 20));
  printf("malloc_trim: %d\n", malloc_trim(0) >= 0);
}

// ---- C++

int handler_calls = 0;
void count_handler() {
  if (++handler_calls == 3) std::set_new_handler(nullptr);
}
void throwing_handler() {
  throw std::runtime_error("from the handler");
}

template <typename Make>
void show_new(const char* what, Make make) {
  handler_calls = 0;
  std::set_new_handler(count_handler);
  try {
    void* block = make();
    printf("%s: %s, handler %d\n", what, block == nullptr ? "null" : "block", handler_calls);
  } catch (const std::bad_alloc&) {
    printf("%s: bad_alloc, handler %d\n", what, handler_calls);
  }
  std::set_new_handler(throwing_handler);
  try {
    void* block = make();
    printf("%s: %s\n", what, block == nullptr ? "null" : "block");
  } catch (const std::exception& error) {
    printf("%s: %s\n", what, error.what());
  }
  std::set_new_handler(nullptr);
}

void operators() {
  volatile size_t huge = size_t{1} << 50;
  volatile size_t largest = SIZE_MAX;
  constexpr auto wide = std::align_val_t{256};
  show_new("new", [&] { return ::operator new(huge); });
  show_new("new[]", [&] { return ::operator new[](huge); });
  show_new("new nothrow", [&] { return ::operator new(huge, std::nothrow); });
  show_new("new[] nothrow", [&] { return ::operator new[](huge, std::nothrow); });
  show_new("new aligned", [&] { return ::operator new(huge, wide); });
  show_new("new[] aligned", [&] { return ::operator new[](huge, wide); });
  show_new("new aligned nothrow", [&] { return ::operator new(huge, wide, std::nothrow); });
  show_new("new[] aligned nothrow", [&] { return ::operator new[](huge, wide, std::nothrow); });
  show_new("new of SIZE_MAX", [&] { return ::operator new(largest); });
  show_new("new aligned of SIZE_MAX", [&] { return ::operator new(largest, wide); });
  try {
    volatile int negative = -1;
    delete[] new int[static_cast<size_t>(negative)];
  } catch (const std::bad_array_new_length&) {
    puts("a negative length: bad_array_new_length");
  }
  for (size_t bytes : sizes) {
    show("operator new", ::operator new(bytes));
    void* block = ::operator new(bytes);
    ::operator delete(block);
    ::operator delete(block = ::operator new(bytes), bytes);
    ::operator delete[](block = ::operator new[](bytes));
    ::operator delete[](block = ::operator new[](bytes), bytes);
    ::operator delete(block = ::operator new(bytes, std::nothrow), std::nothrow);
    ::operator delete[](block = ::operator new[](bytes, std::nothrow), std::nothrow);
    for (size_t alignment : {size_t{16}, size_t{64}, size_t{4096}, size_t{1} << 20}) {
      const auto align = std::align_val_t{alignment};
      show("operator new aligned", block = ::operator new(bytes, align), alignment);
      ::operator delete(block, align);
      ::operator delete(block = ::operator new(bytes, align), bytes, align);
      ::operator delete[](block = ::operator new[](bytes, align), align);
      ::operator delete[](block = ::operator new[](bytes, align), bytes, align);
      ::operator delete(block = ::operator new(bytes, align, std::nothrow), align, std::nothrow);
      ::operator delete[](block = ::operator new[](bytes, align, std::nothrow), align, std::nothrow);
    }
    errno = untouched;
  }
  ::operator delete(nullptr);
  struct alignas(128) Wide {
    char bytes[300];
  };
  std::vector<Wide> wides(100);
  printf("a vector of 128-aligned: %d\n", reinterpret_cast<uintptr_t>(wides.data()) % 128 == 0);
  // A block of one interface may be freed by the other's plain function: so with glibc, and so here.
  free(::operator new(100'000));
  ::operator delete(malloc(100));
}

}  // namespace

int main() {
  zero_sizes();
  too_much();
  alignments();
  contents();
  errors_are_kept();
  figures();
  operators();
  return 0;
}
