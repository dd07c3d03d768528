// SPDX-License-Identifier: Apache-2.0
// The program's own calls on memory of its heap: memory_cases NAME [number]. Exit 0: they mean what they mean
// on anonymous memory. Each case runs once on memory that mmap gave (what is right, the kernel says itself) and
// then on blocks of malloc, of which some lie in DDR and most in leased memory. `number`: by syscall() instead
// of the C library's functions.
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace {

constexpr size_t page = 4096;
constexpr size_t bytes = 3 << 20;  // of a block
constexpr int block_count = 16;

bool by_number = false;
const char* on = "mmap";

[[noreturn]] void wrong(const char* what) {
  fprintf(stderr, "memory_cases[%d], on memory of %s: %s (%s)\n", static_cast<int>(getpid()), on, what,
          strerror(errno));
  _exit(1);
}

// ---- the calls, by name or by number

int advise(void* at, size_t length, int advice) {
  return by_number ? static_cast<int>(syscall(SYS_madvise, at, length, advice)) : madvise(at, length, advice);
}
int protect(void* at, size_t length, int protection) {
  return by_number ? static_cast<int>(syscall(SYS_mprotect, at, length, protection))
                   : mprotect(at, length, protection);
}
int lock(void* at, size_t length) {
  return by_number ? static_cast<int>(syscall(SYS_mlock, at, length)) : mlock(at, length);
}
int unlock(void* at, size_t length) {
  return by_number ? static_cast<int>(syscall(SYS_munlock, at, length)) : munlock(at, length);
}
void* map(void* at, size_t length, int protection, int flags) {
  return by_number ? reinterpret_cast<void*>(syscall(SYS_mmap, at, length, protection, flags, -1, 0L))
                   : mmap(at, length, protection, flags, -1, 0);
}
int unmap(void* at, size_t length) {
  return by_number ? static_cast<int>(syscall(SYS_munmap, at, length)) : munmap(at, length);
}
void* remap(void* at, size_t length, size_t new_length, int flags, void* to = nullptr) {
  return by_number ? reinterpret_cast<void*>(syscall(SYS_mremap, at, length, new_length, flags, to))
                   : mremap(at, length, new_length, flags, to);
}

void must(int result, const char* what) {
  if (result != 0) wrong(what);
}

void must_fail(int result, int expected, const char* what) {
  if (result != -1 || errno != expected) wrong(what);
}

// ---- what memory holds

using Blocks = std::vector<unsigned char*>;

unsigned char value_of(size_t i) {
  return static_cast<unsigned char>(i % 200 + 1);
}

bool holds(const unsigned char* at, size_t length, unsigned char value) {
  for (size_t i = 0; i < length; ++i)
    if (at[i] != value) return false;
  return true;
}

// Time for migration, where there is one: a few hundred rounds.
void let_move() {
  usleep(150'000);
}

void check(const Blocks& blocks, const char* what) {
  for (size_t i = 0; i < blocks.size(); ++i)
    if (!holds(blocks[i], bytes, value_of(i))) wrong(what);
}

sigjmp_buf after_fault;
void jump(int) {
  siglongjmp(after_fault, 1);
}

bool faults(volatile unsigned char* at, bool store) {
  struct sigaction action {
  }, segv, bus;
  action.sa_handler = jump;
  sigaction(SIGSEGV, &action, &segv);
  sigaction(SIGBUS, &action, &bus);
  bool fault = false;
  if (sigsetjmp(after_fault, 1) == 0) {
    if (store)
      *at = *at;
    else
      static_cast<void>(*at);
  } else {
    fault = true;
  }
  sigaction(SIGSEGV, &segv, nullptr);
  sigaction(SIGBUS, &bus, nullptr);
  return fault;
}

template <typename Check>
void in_child(const char* what, Check good) {
  const pid_t pid = fork();
  if (pid < 0) wrong("fork");
  if (pid == 0) _exit(good() ? 0 : 1);
  int status = 0;
  if (waitpid(pid, &status, 0) != pid || status != 0) wrong(what);
}

// ---- cases

void dropped(Blocks& blocks) {
  for (int pass = 0; pass < 2; ++pass) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      unsigned char* at = blocks[i] + 5 * page;
      must(advise(at, 3 * page, MADV_DONTNEED), "MADV_DONTNEED");
      if (!holds(at, 3 * page, 0)) wrong("MADV_DONTNEED leaves bytes");
      if (!holds(at - 100, 100, value_of(i)) || !holds(at + 3 * page, 100, value_of(i)))
        wrong("MADV_DONTNEED took more");
      memset(at, value_of(i), 3 * page);
      must(advise(at, page + 1, MADV_DONTNEED), "MADV_DONTNEED of a part of a page");
      if (!holds(at, 2 * page, 0)) wrong("MADV_DONTNEED leaves bytes of the last page");
      memset(at, value_of(i), 2 * page);
      must(advise(at, 0, MADV_DONTNEED), "MADV_DONTNEED of nothing");
      must_fail(advise(at + 1, page, MADV_DONTNEED), EINVAL, "MADV_DONTNEED at an odd address");
      must_fail(advise(at, SIZE_MAX - 5000, MADV_DONTNEED), EINVAL, "MADV_DONTNEED of too much");
      must(advise(at, page, MADV_FREE), "MADV_FREE");
      if (!holds(at, page, 0) && !holds(at, page, value_of(i))) wrong("MADV_FREE");
      memset(at, value_of(i), page);
      must_fail(advise(at, page, MADV_REMOVE), EINVAL, "MADV_REMOVE is for shared files");
      must_fail(advise(at, page, 12345), EINVAL, "an advice that there is not");
      // Of memory that must not be read, or written.
      for (int protection : {PROT_NONE, PROT_READ}) {
        must(protect(at, page, protection), "mprotect");
        must(advise(at - page, 3 * page, MADV_DONTNEED), "MADV_DONTNEED of protected memory");
        if (!faults(at, true)) wrong("MADV_DONTNEED took a protection away");
        must(protect(at, page, PROT_READ | PROT_WRITE), "mprotect");
        if (!holds(at - page, 3 * page, 0)) wrong("MADV_DONTNEED leaves bytes of protected memory");
        memset(at - page, value_of(i), 3 * page);
      }
      // Of memory that is locked.
      must(lock(at, page), "mlock");
      must_fail(advise(at, page, MADV_DONTNEED), EINVAL, "MADV_DONTNEED of locked memory");
      must_fail(advise(at, page, MADV_FREE), EINVAL, "MADV_FREE of locked memory");
      if (!holds(at, page, value_of(i))) wrong("locked memory was dropped");
      must(unlock(at, page), "munlock");
      must(advise(at, page, MADV_DONTNEED), "MADV_DONTNEED after munlock");
      memset(at, value_of(i), page);
    }
    check(blocks, "a block changed");
    if (pass == 0)
      in_child("dropped, in a child", [&] {
        for (unsigned char* block : blocks) {
          must(advise(block, bytes, MADV_DONTNEED), "MADV_DONTNEED in a child");
          if (!holds(block, bytes, 0)) wrong("MADV_DONTNEED leaves bytes in a child");
        }
        return true;
      });
  }
}

void wishes(Blocks& blocks) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (int advice : {MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_COLD, MADV_PAGEOUT,
                       MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_MERGEABLE, MADV_UNMERGEABLE, MADV_POPULATE_READ,
                       MADV_POPULATE_WRITE, MADV_DONTDUMP, MADV_DODUMP}) {
      static int plain[64] = {};  // what anonymous memory answers, from the first turn
      const int result = advise(blocks[i], bytes, advice) == 0 ? -1 : errno;
      if (strcmp(on, "mmap") == 0)
        plain[advice] = result;
      else if (plain[advice] != result)
        fprintf(stderr, "advice %d: %s\n", advice, strerror(result)), wrong("an answer differs");
    }
    advise(blocks[i], bytes, MADV_COLLAPSE);  // may fail for lack of memory
  }
  let_move();
  check(blocks, "an advice changed memory");
}

void children(Blocks& blocks) {
  // Half of each kind, some across pages that nobody advised.
  const auto advise_all = [&](int unwanted, int wiped) {
    for (size_t i = 0; i < blocks.size(); ++i)
      must(advise(blocks[i] + 64 * page, 16 * page, i % 2 == 0 ? unwanted : wiped),
           "MADV_DONTFORK, MADV_WIPEONFORK");
  };
  const auto good_in_child = [&](bool advised) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      unsigned char* at = blocks[i] + 64 * page;
      if (!holds(blocks[i], 64 * page, value_of(i)) || !holds(at + 16 * page, bytes - 80 * page, value_of(i)))
        wrong("a child lost what nobody advised");
      if (!advised) {
        if (!holds(at, 16 * page, value_of(i))) wrong("a child lacks what it may have");
      } else if (i % 2 == 0) {
        if (!faults(at, false) || !faults(at + 16 * page - 1, false)) wrong("a child has what it must not");
      } else {
        if (!holds(at, 16 * page, 0)) wrong("a child sees what is to be wiped");
        memset(at, 99, 16 * page);
      }
    }
    return true;
  };
  advise_all(MADV_DONTFORK, MADV_WIPEONFORK);
  let_move();
  check(blocks, "an advice changed memory");
  in_child("first child", [&] {
    good_in_child(true);
    in_child("its child", [&] { return good_in_child(true); });
    // No mapping of its own may come to lie where it has none, and its heap goes on.
    for (int i = 0; i < 40; ++i) free(calloc(1, 100'000));
    return true;
  });
  check(blocks, "the parent's memory changed");
  for (size_t i = 0; i < blocks.size(); ++i) memset(blocks[i] + 64 * page, value_of(i), 16 * page);
  in_child("second child", [&] { return good_in_child(true); });
  advise_all(MADV_DOFORK, MADV_KEEPONFORK);
  // What has been one memory with the file must not be one with the child now.
  for (int round = 0; round < 2; ++round) {
    in_child("third child", [&] {
      good_in_child(false);
      for (unsigned char* block : blocks) memset(block, 55, bytes);
      usleep(100'000);
      for (unsigned char* block : blocks)
        if (!holds(block, bytes, 55)) wrong("a child sees the parent's stores");
      return true;
    });
    check(blocks, "the parent sees a child's stores");
    for (size_t i = 0; i < blocks.size(); ++i) memset(blocks[i], value_of(i), bytes);
  }
  must_fail(advise(blocks[0] + 1, page, MADV_DONTFORK), EINVAL, "an odd address");
}

// Counted, with the place: VmLck of this process.
long locked_kib() {
  FILE* file = fopen("/proc/self/status", "r");
  char line[256];
  long kib = -1;
  while (file != nullptr && fgets(line, sizeof(line), file) != nullptr)
    if (sscanf(line, "VmLck: %ld kB", &kib) == 1) break;
  if (file != nullptr) fclose(file);
  return kib;
}

// Protections and locks stay over moves and over forks, in the parent and (protections) in the child.
void kept(Blocks& blocks) {
  const auto good = [&](const char* what) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (faults(blocks[i] + 8 * page, false) || !faults(blocks[i] + 8 * page, true)) wrong(what);
      if (!faults(blocks[i] + 9 * page, false)) wrong(what);
      if (faults(blocks[i] + 7 * page, true) || faults(blocks[i] + 10 * page, true)) wrong(what);
      if (!holds(blocks[i], 9 * page, value_of(i)) || !holds(blocks[i] + 10 * page, page, value_of(i)))
        wrong(what);
    }
    return true;
  };
  const long before = locked_kib();
  for (unsigned char* block : blocks) {
    must(protect(block + 8 * page, page, PROT_READ), "mprotect");
    must(protect(block + 9 * page, page, PROT_NONE), "mprotect");
    must(lock(block + 20 * page, 2 * page), "mlock");
  }
  const long locks = before + static_cast<long>(blocks.size()) * 8;
  let_move();
  good("after moves");
  if (locked_kib() != locks) wrong("a lock was forgotten");
  for (int round = 0; round < 3; ++round) {
    in_child("protections in a child", [&] { return good("in a child") && locked_kib() == 0; });
    good("after a fork");
    if (locked_kib() != locks) wrong("a lock was forgotten by a fork");
    if (round == 1) let_move();
  }
  for (unsigned char* block : blocks) must(unlock(block + 20 * page, 2 * page), "munlock");
  if (locked_kib() != before) wrong("munlock");
  in_child("a child", [&] { return locked_kib() == 0; });
  if (locked_kib() != before) wrong("an old lock came again");
  for (size_t i = 0; i < blocks.size(); ++i) {
    must(protect(blocks[i] + 8 * page, 2 * page, PROT_READ | PROT_WRITE), "mprotect");
    if (!holds(blocks[i] + 9 * page, page, value_of(i))) wrong("what was protected has changed");
  }
  check(blocks, "a block changed");
  in_child("protections that are no more", [&] {
    for (unsigned char* block : blocks) memset(block, 3, bytes);
    return true;
  });
  // Freed as they are: what gets that memory next can use it.
  if (strcmp(on, "malloc") != 0) return;
  for (unsigned char* block : blocks) {
    must(protect(block, bytes, PROT_NONE), "mprotect");
    free(block);
  }
  for (unsigned char*& block : blocks) {
    block = static_cast<unsigned char*>(aligned_alloc(page, bytes));
    memset(block, 1, bytes);
  }
}

void looked_at(Blocks& blocks) {
  std::vector<unsigned char> there(bytes / page);
  for (unsigned char* block : blocks) {
    must(mincore(block, bytes, there.data()), "mincore");
    for (unsigned char one : there)
      if ((one & 1) == 0) wrong("mincore: a page in use is not there");
    must_fail(mincore(block + 1, bytes, there.data()), EINVAL, "mincore at an odd address");
    for (int flags : {MS_ASYNC, MS_SYNC, MS_ASYNC | MS_INVALIDATE}) must(msync(block, bytes, flags), "msync");
    must_fail(msync(block + 1, page, MS_SYNC), EINVAL, "msync at an odd address");
    must_fail(msync(block, page, MS_SYNC | MS_ASYNC), EINVAL, "msync both ways");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    must_fail(by_number ? static_cast<int>(syscall(SYS_remap_file_pages, block, page, 0, 1, 0))
                        : remap_file_pages(block, page, 0, 1, 0),
              EINVAL, "remap_file_pages is for shared files");
#pragma GCC diagnostic pop
  }
  check(blocks, "looking changed memory");
}

void executable(Blocks& blocks) {
  constexpr unsigned char code[] = {0xb8, 42, 0, 0, 0, 0xc3};  // mov eax, 42; ret
  for (unsigned char* block : blocks) {
    memcpy(block, code, sizeof(code));
    must(protect(block, page, PROT_READ | PROT_EXEC), "mprotect(PROT_EXEC)");
  }
  let_move();
  in_child("code in a child", [&] { return reinterpret_cast<int (*)()>(blocks[5])() == 42; });
  for (unsigned char* block : blocks) {
    if (reinterpret_cast<int (*)()>(block)() != 42) wrong("code");
    must(protect(block, page, PROT_READ | PROT_WRITE), "mprotect");
  }
}

// The program puts mappings of its own over a part of each block.
void own_mappings(Blocks& blocks) {
  const int file = memfd_create("own", 0);
  must(ftruncate(file, page), "ftruncate");
  for (size_t i = 0; i < blocks.size(); ++i) {
    unsigned char* at = blocks[i] + 30 * page;
    if (map(at, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED) != at) wrong("mmap");
    if (!holds(at, 4 * page, 0)) wrong("a new mapping is not zero");
    memset(at, 201, 4 * page);
    unsigned char* twice = blocks[i] + 40 * page;
    if (mmap(twice, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != twice)
      wrong("mmap of a file");
    if (map(at, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE) != MAP_FAILED ||
        errno != EEXIST)
      wrong("MAP_FIXED_NOREPLACE");
  }
  blocks[0][40 * page] = 77;
  const auto good = [&](const char* what) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (!holds(blocks[i] + 30 * page, 4 * page, 201) || blocks[i][40 * page] != 77) wrong(what);
      if (!holds(blocks[i], 30 * page, value_of(i)) || !holds(blocks[i] + 41 * page, 100 * page, value_of(i)))
        wrong(what);
    }
    return true;
  };
  let_move();
  good("after moves");
  for (int round = 0; round < 3; ++round) {
    in_child("the child's", [&] { return good("in a child"); });
    good("after a fork");
    let_move();
    good("later");
  }
  // One file, here and in a child: that is what the program has made of it.
  in_child("a shared page", [&] {
    blocks[3][40 * page] = 78;
    return true;
  });
  if (blocks[7][40 * page] != 78) wrong("a shared page of the program's is not shared");
  for (size_t i = 0; i < blocks.size(); ++i) {
    must(advise(blocks[i] + 30 * page, page, MADV_DONTNEED), "MADV_DONTNEED of an own mapping");
    if (!holds(blocks[i] + 30 * page, page, 0)) wrong("MADV_DONTNEED of an own mapping");
  }
  if (strcmp(on, "malloc") != 0) return;
  // Freed as they are: that memory becomes the heap's again, and the file keeps what it has.
  for (unsigned char*& block : blocks) {
    free(block);
    block = static_cast<unsigned char*>(aligned_alloc(page, bytes));
    memset(block, 5, bytes);
  }
  unsigned char kept_byte = 0;
  if (pread(file, &kept_byte, 1, 0) != 1 || kept_byte != 78)
    wrong("a freed block writes into the program's file");
}

// Whether forks leave out the mapping at `at`, for whatever reason.
bool left_out_of_forks(const unsigned char* at) {
  FILE* smaps = fopen("/proc/self/smaps", "r");
  if (smaps == nullptr) wrong("/proc/self/smaps");
  char line[512];
  bool here = false, found = false;
  while (!found && fgets(line, sizeof(line), smaps) != nullptr) {
    unsigned long long from = 0, to = 0;
    const auto address = reinterpret_cast<uintptr_t>(at);
    if (sscanf(line, "%llx-%llx ", &from, &to) == 2) here = from <= address && address < to;
    found = here && strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " dc") != nullptr;
  }
  fclose(smaps);
  return found;
}

// Mappings of the program's own that mremap takes away from among blocks. What an engine makes of its memory after a
// fork must not go along.
void moved_out(Blocks& blocks) {
  constexpr int plain = PROT_READ | PROT_WRITE;
  for (unsigned char* block : blocks)
    if (map(block + 30 * page, 8 * page, plain, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED) != block + 30 * page)
      wrong("mmap");
  for (size_t i = 0; i < blocks.size(); ++i) {
    memset(blocks[i] + 30 * page, 201, 8 * page);
    if (i % 4 == 3) must(advise(blocks[i] + 30 * page, 8 * page, MADV_DONTFORK), "MADV_DONTFORK");
  }
  in_child("first child", [] { return true; });
  // Until an engine that takes its memory back has begun to.
  const bool moves = getenv("TERRACE_TEST_POLICY") != nullptr && strcmp(on, "malloc") == 0;
  for (int i = 0; moves && i < 100 && !left_out_of_forks(blocks[1]); ++i) usleep(50'000);
  std::vector<unsigned char*> moved;
  for (unsigned char* block : blocks) {
    void* to = map(nullptr, 8 * page, plain, MAP_PRIVATE | MAP_ANONYMOUS);
    if (remap(block + 30 * page, 8 * page, 8 * page, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to) wrong("mremap");
    moved.push_back(static_cast<unsigned char*>(to));
  }
  in_child("a child that lacks what was moved, or has what it must not", [&] {
    for (size_t i = 0; i < moved.size(); ++i) {
      const bool there = !faults(moved[i], false) && holds(moved[i], 8 * page, 201);
      if (there != (i % 4 != 3)) return false;
    }
    return true;
  });
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!holds(moved[i], 8 * page, 201) || !holds(blocks[i], 30 * page, value_of(i)))
      wrong("moved memory changed");
    unmap(moved[i], 8 * page);
  }
}

void remapped(Blocks& blocks) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    unsigned char* at = blocks[i] + 50 * page;
    must_fail(remap(at, 4 * page, 8 * page, 0) == MAP_FAILED ? -1 : 0, ENOMEM, "mremap where it cannot grow");
    must_fail(remap(at + 1, page, page, MREMAP_MAYMOVE) == MAP_FAILED ? -1 : 0, EINVAL,
              "mremap at an odd address");
    must_fail(remap(at, page, 0, MREMAP_MAYMOVE) == MAP_FAILED ? -1 : 0, EINVAL, "mremap to nothing");
    must_fail(remap(at, page, page, 4096) == MAP_FAILED ? -1 : 0, EINVAL, "mremap with other flags");
    must_fail(remap(at, 4 * page, 4 * page, MREMAP_MAYMOVE | MREMAP_FIXED, at + page) == MAP_FAILED ? -1 : 0,
              EINVAL, "mremap over itself");
    auto* moved = static_cast<unsigned char*>(remap(at, 4 * page, 8 * page, MREMAP_MAYMOVE));
    if (moved == MAP_FAILED) wrong("mremap");
    if (!holds(moved, 4 * page, value_of(i)) || !holds(moved + 4 * page, 4 * page, 0))
      wrong("what mremap has moved");
    if (!faults(at, false) || !faults(at + 4 * page - 1, false)) wrong("mremap left the old place");
    memset(moved, 211, 8 * page);
    if (i % 5 == 0) let_move();
    if (!holds(moved, 8 * page, 211)) wrong("moved memory changed");
    // And back to where it was.
    if (remap(moved, 8 * page, 4 * page, MREMAP_MAYMOVE | MREMAP_FIXED, at) != at) wrong("mremap back");
    if (!holds(at, 4 * page, 211)) wrong("what was moved back");
    if (remap(at, 4 * page, 4 * page, MREMAP_MAYMOVE) != at) wrong("mremap to the same length");
    memset(at, value_of(i), 4 * page);
    // The old mapping stays, empty.
    auto* kept_old = static_cast<unsigned char*>(remap(at + 10 * page, page, page, MREMAP_MAYMOVE | 4));
    if (kept_old == MAP_FAILED || !holds(kept_old, page, value_of(i)) || !holds(at + 10 * page, page, 0))
      wrong("MREMAP_DONTUNMAP");
    memset(at + 10 * page, value_of(i), page);
    unmap(kept_old, page);
  }
  check(blocks, "a block changed");
  in_child("a child's", [&] {
    check(blocks, "a block in a child");
    return true;
  });
  // Holes.
  for (size_t i = 0; i < blocks.size(); ++i) {
    must(unmap(blocks[i] + 20 * page, 3 * page), "munmap");
    must_fail(unmap(blocks[i] + 1, page), EINVAL, "munmap at an odd address");
    if (!faults(blocks[i] + 20 * page, false)) wrong("munmap left memory");
  }
  let_move();
  in_child("holes in a child",
           [&] { return faults(blocks[3] + 20 * page, false) && holds(blocks[3], 20 * page, value_of(3)); });
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!holds(blocks[i], 20 * page, value_of(i)) ||
        !holds(blocks[i] + 23 * page, bytes - 23 * page, value_of(i)))
      wrong("munmap took more");
    unsigned char* at = blocks[i] + 20 * page;
    if (map(at, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED) != at)
      wrong("mmap into a hole");
    memset(at, value_of(i), 3 * page);
  }
  check(blocks, "a filled hole");
}

Blocks make(bool of_malloc) {
  Blocks blocks;
  for (size_t i = 0; i < block_count; ++i) {
    // Between two others, so that no neighbour is one of ours.
    auto* all = of_malloc ? static_cast<unsigned char*>(aligned_alloc(page, bytes))
                          : static_cast<unsigned char*>(mmap(nullptr, bytes + 2 * page, PROT_READ | PROT_WRITE,
                                                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) +
                                page;
    if (all == nullptr) wrong("no memory");
    blocks.push_back(all);
    memset(all, value_of(i), bytes);
  }
  return blocks;
}

}  // namespace

int main(int argc, char** argv) {
  struct Case {
    const char* name;
    void (*run)(Blocks&);
  };
  constexpr Case cases[] = {{"dropped", dropped},           {"wishes", wishes},
                            {"children", children},         {"kept", kept},
                            {"looked_at", looked_at},       {"executable", executable},
                            {"own_mappings", own_mappings}, {"moved_out", moved_out},
                            {"remapped", remapped}};
  by_number = argc > 2 && strcmp(argv[2], "number") == 0;
  for (const Case& one : cases)
    if (argc >= 2 && strcmp(argv[1], one.name) == 0) {
      Blocks plain = make(false);
      one.run(plain);
      for (unsigned char* block : plain) munmap(block - page, bytes + 2 * page);
      on = "malloc";
      Blocks blocks = make(true);
      one.run(blocks);
      for (unsigned char* block : blocks) free(block);
      return 0;
    }
  for (const Case& one : cases) puts(one.name);
  return argc == 1 ? 0 : 2;
}
