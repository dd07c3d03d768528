// SPDX-License-Identifier: Apache-2.0
// Large requests: DDR up to the run's budget, then leased CXL memory, then the run's choice for a full window.
//
// Threads   Any. Never waits for a fork (see lock.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "allocator/preload/window/statistics.h"

namespace terrace::preload {

// How a large request ended when the window did not serve it.
enum class Refusal { none, use_next, exhausted };

// `alignment`: power of two. `zero`: the memory must read as zeros. nullptr with `*refusal` set: use_next (ask
// the next malloc) or exhausted (ENOMEM). Leaves errno alone.
// `may_fail`: the caller has another way (less, or elsewhere): a refusal is not said, counted or waited for.
// `owner`: whose it is in the statistics.
void* allocate_large(size_t bytes, size_t alignment, bool zero, Refusal* refusal, bool may_fail = false,
                     statistics::Owner owner = statistics::Owner::program);

// Of what is there, at once: no word with the supervisor, no wait but for the heap's lock. For callers that
// hold locks which others need to go on. `*zero`: as above; set where the memory reads as zeros. nullptr:
// `*forking` says that a fork was in the way.
void* allocate_present(size_t bytes, size_t alignment, bool detached_too, bool* zero, bool* forking,
                       statistics::Owner owner = statistics::Owner::small_allocator);

// For mapped_blocks.cc. Frees pages in use: a part of a run, or several. False: a fork is under way, nothing
// was freed.
bool free_mapped(heap::PageSpan span);
// heap_lock is held: `part` of the free run at `run` is in use from now on, as a mapping, charged also beyond
// the budget. False: of addresses behind which there is no memory.
bool claim_part(uint32_t run, heap::PageSpan part);

// Frees [at, at + bytes) of runs in use, whole pages: a part of one, or several. `clean`: they read as zeros.
void free_span(void* at, size_t bytes, bool clean);
// [at, at + bytes) is one run in use, or some of them side by side.
bool are_whole_runs(const void* at, size_t bytes);
// A run in use begins at this page of the window. No lock: the page is a part of the caller's run, or the one
// behind it.
bool begins_run(const void* at);

// Frees what is kept for the next requests (run_cache.h), for numbers that count blocks.
void free_kept_runs();

// Each library's own: gives the window what an allocator of small blocks on top of it does not use; nullptr
// where there is none. Called before a request is refused, with no lock held. False: it could not look.
enum class Reclaim : uint8_t { whole_runs, every_page };
extern bool (*const reclaim_small)(Reclaim how);

// Each library's own: the block that begins at `page` goes back to the heap; nullptr where nobody wants to
// know. Before its pages can be anybody else's.
extern void (*const forget_block)(uint32_t page);

// The following take pointers for which in_window() holds; any that is not the start of a block ends the
// process, as glibc's free does.
void free_large(void* pointer);
bool resize_large(void* pointer, size_t bytes);  // in place or not at all
size_t usable_large(const void* pointer);

// Gives free pages back: of the DDR part to the kernel, leases to the pool. True: there were some.
bool trim_large();

// advice.cc. The program's madvise where the kernel's own would not do what it does on anonymous memory. False:
// the kernel's is right. Any address.
bool advise_window(void* address, size_t bytes, int advice, int* result);

// Frees what was queued while a fork was under way. heap_lock is held.
void free_deferred();

// How many pages of DDR memory this process may hold without using them. Any thread.
uint64_t kept_ddr_pages_max();

// DDR budget. Any thread.
bool charge(size_t bytes);
void charge_anyway(size_t bytes);  // beyond the budget
void uncharge(size_t bytes);

}  // namespace terrace::preload
