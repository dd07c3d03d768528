// SPDX-License-Identifier: Apache-2.0
// Migration of a window's granules: requests to the engine's thread of this process.
//
// The thread starts with the first lease, and only with a policy. It has its own table of descriptors
// (CLOSE_RANGE_UNSHARE): the program neither sees nor closes the thread's descriptors, and the thread keeps
// none of the program's pipes open. The descriptors of the front's file, the leases and /dev/userfaultfd come
// from the supervisor.
//
// Threads   Any, unless noted. States: off → starting → moving ⇄ forked (fold_after_fork.h: back) → ended.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "allocator/preload/window/window.h"

namespace terrace::preload {

// Tells the engine's thread of a new segment, or notes that it is time to start it. supply_lock is held,
// heap_lock is not.
void note_new_segment();

// A thread's start allocates, so no lock may be held that an allocation takes: the functions that programs call
// look at this, and start it.
extern std::atomic<bool> engine_start_due;
void start_engine_if_due();

// The engine may be moving granules. heap_lock is held: it does not change meanwhile but from yes to no.
bool engine_moves();
// heap_lock is held. Whole free granules of the front shall go back soon.
void ask_to_give_back();
// heap_lock is held. Leases of which nothing is in use shall go back soon: `all`, or what is too much of them.
void ask_for_leases_back(bool all);
// No lock is held. Until the engine's thread has done what was asked, or 2 s. True: something went back.
bool wait_for_trim();
// No lock is held. True: the engine has found memory for reserve granules, it is worth to look again.
bool wait_for_reserve_memory(uint32_t pages, uint32_t align_pages);
// Granule of the DDR part; while the engine does not move.
bool front_granule_in_ddr(uint32_t granule);

// Busy memory: granules that must not move while a device or the kernel knows their pages. `for_good`: until
// the process ends. Any address; what is not in a window that migrates is left out. begin_hold() waits for a
// move that is under way; what it returns goes to end_hold().
enum class Held : uint8_t { nothing, counted, engine };
Held begin_hold(const void* address, size_t bytes);
void end_hold(const void* address, size_t bytes, Held held);
void hold_for_good(const void* address, size_t bytes);
// The same, for pages that may be read after this process's end: by a device, through a pipe.
void hold_past_exit(const void* address, size_t bytes);
// Nothing moves whose pages the kernel does not prove to be unpinned (Mover::prove_moves).
bool moves_are_proved();
bool holds_nothing();  // test seam: what is lost without this protection
// As often held as let go, by the program itself; heap_lock is not held. False: not memory that moves.
bool hold_counted(const void* address, size_t bytes);
void unhold_counted(const void* address, size_t bytes);
// Nothing moves any more in this process. Waits for a move that is under way.
void end_migration(supply::EndReason reason);
// The same, and the engine's threads end.
void quit_engine(supply::EndReason reason);

// The threads of this process are one, and the engine's.
bool program_has_one_thread();

// fork.cc. Both locks are held for the fork; between the two calls nothing moves.
void lock_moves();
void unlock_moves();  // what lock_moves() locked, if anything
void unlock_moves_in_child();
// Nothing moves, since pages become private; until they are folded back. Between lock_moves() and
// unlock_moves().
void give_up_for_fork();
// What lies behind a page that is not private: of a segment's lease, or (front_source) of the front's file.
inline constexpr uint32_t front_source = supply::segments_max;
inline constexpr uint32_t sources_max = front_source + 1;
struct PageSource {
  uint32_t source;
  uint64_t offset;  // of the page, in bytes
};
PageSource source_of(uint32_t page);
// Has the engine's thread call switch_pages with its descriptors, for a process that gets none any more. Not
// between lock_moves() and unlock_moves(). False: there is no such thread, it does not answer, or that failed.
using SwitchPages = bool (*)(void* argument, const int* descriptors);
bool switch_by_engine(SwitchPages switch_pages, void* argument);

}  // namespace terrace::preload
