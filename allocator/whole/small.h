// SPDX-License-Identifier: Apache-2.0
// The allocator of small requests: jemalloc 5.3, as Debian builds it for being linked into libraries
// (libjemalloc_pic.a). embed.cmake renames its functions, so that none of them collides with a program's.
// malloc and free keep their names: programs call them directly, and requests that a thread's cache cannot
// serve go to exports.cc.
//
// Its memory comes from extents.cc. Everything here may be called from the first instruction of a process on;
// it starts itself, and its own fork handlers are registered then.
//
// Threads   Any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

extern "C" {

void* small_calloc(size_t count, size_t bytes_each);
void* small_realloc(void* block, size_t bytes);
void* small_memalign(size_t alignment, size_t bytes);
size_t small_malloc_usable_size(const void* block);

void* small_mallocx(size_t bytes, int flags);
void* small_rallocx(void* block, size_t bytes, int flags);
size_t small_xallocx(void* block, size_t bytes, size_t extra, int flags);
size_t small_sallocx(const void* block, int flags);
void small_dallocx(void* block, int flags);
void small_sdallocx(void* block, size_t bytes, int flags);
size_t small_nallocx(size_t bytes, int flags);
int small_mallctl(const char* name, void* old, size_t* old_bytes, void* fresh, size_t fresh_bytes);
int small_mallctlnametomib(const char* name, size_t* mib, size_t* mib_length);
int small_mallctlbymib(const size_t* mib, size_t mib_length, void* old, size_t* old_bytes, void* fresh,
                       size_t fresh_bytes);
void small_malloc_stats_print(void (*write)(void*, const char*), void* opaque, const char* options);
}

namespace terrace::preload {

// Requests of at least this many bytes are large: runs of pages in the window, one a block.
inline constexpr size_t whole_large_from = 64 * 1024;

// How far an extent may be taken from, in the calling thread: what is there in the budget; pages that a fork
// made private as well; a little plain memory that each process has for when nothing else is left; plain
// memory, for extents no longer than they need be; plain memory.
enum class Reach : uint8_t { budget, detached, reserve, plain_exact, plain };

class Reaching {
 public:
  explicit Reaching(Reach reach) : before_(now_) { now_ = reach; }
  ~Reaching() { now_ = before_; }
  Reaching(const Reaching&) = delete;
  Reaching& operator=(const Reaching&) = delete;
  static Reach now() { return now_; }

 private:
  static thread_local constinit Reach now_ __attribute__((tls_model("initial-exec")));
  Reach before_;
};

// The small allocator had no memory for `bytes`, and took no lock to say so: brings a lease, or what is unused
// elsewhere in the process. Then it may be asked again.
void make_room(size_t bytes);
// Bytes that the calling thread has given back to the kernel or the window, ever.
uint64_t returned_bytes();
void note_returned(size_t bytes);
// Of a fork's child.
void reset_returns_in_child();

// Whether the calling thread is in the small allocator's lists: from its first allocation until the destructors
// of its thread-specific data have run. Where this is false nothing of the small allocator may be called that
// enters the thread there (mallctl): after those destructors nobody takes it out again, and the lists would
// hold a thread that is gone. The C library frees on behalf of each thread after them, if only nullptr.
bool small_knows_this_thread();

struct SmallNumbers {
  size_t live_bytes;  // asked for, rounded up to size classes
  size_t mapped_bytes;
  size_t retained_bytes;  // of extents that are kept and not resident
};
SmallNumbers small_numbers();

struct LargeNumbers {
  size_t blocks, bytes;
};
LargeNumbers large_numbers();

// checks.cc. False: nothing that the small allocator has handed out lies there, and it is not null. Not every
// wrong pointer is found.
bool is_small_block(const void* block);
// Ends the process, as glibc's free does.
[[noreturn]] void refuse_block(const void* block);
[[noreturn]] void refuse_realloc(const void* block);

// small_classes.cc. What times_asked() was when the size classes were last told; who sees another number on a
// slow way calls answer_small(), with no lock held.
extern std::atomic<uint32_t> small_answered;
void answer_small();
void answer_small_in_child();
// Plain memory that the small allocator has in place of the window's.
extern std::atomic<int64_t> plain_held;

}  // namespace terrace::preload
