// SPDX-License-Identifier: Apache-2.0
// The protocol between the preload library in a program and the supervisor (`terrace run`), byte for byte:
// requests and replies on a local socket, and the control page that both map.
//
// Place     allocator/preload speaks it, allocator/supply (Broker) answers. Same machine, same build of
//           Terrace, same uid: the version is checked and nothing else is negotiated.
// Format    Fixed-width integers in the machine's order; no pointers. The control page's domain is one
//           machine's coherent memory. Counters are accessed with std::atomic_ref only.
// Trust     The supervisor takes everything in the control page as a statement of the program about itself:
//           wrong numbers give wrong reports and a wrong budget within that run, nothing else.
#pragma once

#include <cstddef>
#include <cstdint>

#include "allocator/supply/process_statistics.h"

namespace terrace::supply {

inline constexpr uint32_t magic = 0x31535254;  // "TRS1"
inline constexpr uint16_t version = 5;

// Environment of a supervised program.
inline constexpr char socket_variable[] = "TERRACE_SUPPLY";
inline constexpr char min_size_variable[] = "TERRACE_MIN_SIZE";
// Private anonymous mappings of at least so many bytes are served; 0 or not there: none.
inline constexpr char mmap_variable[] = "TERRACE_MMAP";
inline constexpr char fallback_variable[] = "TERRACE_FALLBACK";
// seccomp filters that the supervisor has itself: a process with more of them is in a sandbox of the program's.
inline constexpr char seccomp_variable[] = "TERRACE_SECCOMP_FILTERS";
inline constexpr char library_variable[] = "TERRACE_MALLOC_LIBRARY";

inline constexpr uint64_t min_size_default = 32 * 1024;
inline constexpr uint64_t mmap_from_default = 1024 * 1024;
inline constexpr uint64_t mmap_from_min = 64 * 1024;

// Leases one process can map. Segments are at least a 32nd of the budget, so that this is never the limit.
inline constexpr uint32_t segments_max = 64;
// Processes of one run that use the window at once; a further one runs on the next malloc.
inline constexpr uint32_t slots_max = 1024;
inline constexpr uint32_t no_slot = UINT32_MAX;

enum class RequestKind : uint16_t {
  hello = 1,    // once a process: reply carries the control page's descriptor and the process's slot
  segment = 2,  // a lease of at least `bytes`: reply carries its descriptor, `bytes`, `segment_key`
  reopen = 3,   // the descriptor of `segment_key` (a lease or a front) once more
  front = 4,  // a memory file of `bytes` for the DDR part of a window that migrates: descriptor, `segment_key`
  userfault_device = 5,  // the machine's /dev/userfaultfd, where programs cannot make a userfaultfd themselves
  // A page to map, of a file that is locked (flock) through the descriptor that comes along, and nowhere else
  // open that way. `segment_key`: with reopen, another open file of the same, for which the lock is free as
  // soon as nobody maps the page.
  token = 6,
};

enum class ReplyStatus : uint16_t {
  ok = 0,
  exhausted = 1,    // the run's CXL budget or the pool is used up now
  unavailable = 2,  // the pool manager does not answer
  refused = 3,      // malformed, unknown key, or no slot left
};

struct Request {
  uint32_t magic;
  uint16_t version;
  uint16_t kind;           // RequestKind
  uint32_t segment_index;  // segment: its number in the asking process
  uint32_t at_once;        // segment; 1: what others are about to give back is not waited for
  uint64_t bytes;
  uint64_t segment_key;
};
static_assert(sizeof(Request) == 32);

struct Reply {
  uint32_t magic;
  uint16_t version;
  uint16_t status;  // ReplyStatus
  uint32_t slot;
  uint32_t reserved;
  uint64_t bytes;
  uint64_t segment_key;
};
static_assert(sizeof(Reply) == 32);

// One process's part of the control page. Written by that process under its heap lock, except where noted.
struct alignas(64) Slot {
  uint32_t pid;          // 0: free. Claimed by compare-and-swap, cleared by the supervisor
  uint32_t parent_slot;  // of a forked child: its parent's slot, else no_slot
  uint64_t window_base;  // addresses of the window in this process, for reading its smaps
  uint64_t window_bytes;
  uint64_t ddr_window_bytes;  // the part at the front
  uint64_t ddr_charged;       // allocated by this process, in ControlHeader::ddr_used
  uint64_t inherited_bytes;   // DDR runs alive at the fork that made it
  uint64_t inherited_charge;  // of those, what the supervisor moved here when the parent died
  uint64_t live_ddr;
  uint64_t live_cxl;       // in leases
  uint64_t live_detached;  // in private pages that were in leases before a fork
  uint64_t peak_live;
  uint64_t allocations_ddr;
  uint64_t allocations_cxl;
  uint64_t allocations_detached;
  uint64_t fallbacks;       // large requests that the next malloc served: the window was full
  uint64_t refused;         // large requests that failed: the window was full
  uint64_t during_fork;     // large requests that the next malloc served because a fork was under way
  uint64_t forks_switched;  // forks that made CXL pages private
  uint64_t switched_bytes;  // bytes of CXL ranges made private
  uint64_t forks_failed;
  // Migration, written by the engine's thread.
  uint64_t migration_state;  // MigrationState
  uint64_t tier_ddr_bytes;   // of the window, granules in use or not: in DDR now, ...
  uint64_t tier_cxl_bytes;
  uint64_t promotions, demotions;  // granules
  uint64_t moves_undone, moves_skipped;
  uint64_t stalled_ns, copy_ns;
  uint64_t sampler_ns;
  uint64_t ddr_hit_permille;
  uint64_t held_bytes;
  // After forks: bytes of private memory that went back into leases and front, and how often all of it was
  // back.
  uint64_t folded_bytes, folds;
  // A bit a segment whose lease is being taken back: written by the supervisor, taken by the engine's thread,
  // which moves what lies in it elsewhere. leave_room: DDR that may be used for that beyond the budget.
  uint64_t leaving, leave_room;
  uint64_t leases_left, left_bytes;  // leases emptied that way, and what of them went to DDR or other leases
  uint64_t end_reason;               // EndReason, beside MigrationState::stopped
  uint64_t reserved[1];
  uint64_t segment_live[segments_max];
};
static_assert(sizeof(Slot) == 832 && offsetof(Slot, window_base) == 8 && offsetof(Slot, segment_live) == 320);

enum class MigrationState : uint64_t {
  not_started = 0,  // off, or no lease yet
  running = 1,
  stopped = 2,  // ring, fork or a failure ended it: the program said why on stderr where it was a failure
  forked = 3,   // private memory since a fork
};

// Why a process ended its migration, or none could begin.
enum class EndReason : uint64_t { none = 0, filters = 1, locks = 2, ring = 3, no_proof = 4 };
// At most 60 bytes; empty: none, or one that this version does not know.
constexpr const char* end_reason_text(EndReason reason) {
  switch (reason) {
    case EndReason::filters: return "the program filters its system calls";
    case EndReason::locks: return "the program locks its memory (mlockall)";
    case EndReason::ring: return "the program uses io_uring";
    case EndReason::no_proof: return "the kernel does not say which pages are pinned";
    case EndReason::none: break;
  }
  return "";
}

inline constexpr size_t policy_name_bytes = 32;

struct alignas(64) ControlHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t fallback;  // 1: large requests go to the next malloc when the window is full
  uint32_t slots;
  uint32_t access_events;  // 1: the engine asks for the kernel's records of accesses, too
  uint64_t ddr_budget;
  uint64_t cxl_budget;
  uint64_t ddr_used;          // charged by all processes; raised before a slot's own count, lowered after it
  uint64_t copy_bytes_per_s;  // what a process's engine may copy; 0: as much as it likes
  uint64_t round_ns;          // between an engine's plans
  char policy[policy_name_bytes];  // zero-terminated; empty: no migration
  uint32_t userfault_from_device;  // 1: ask for userfault_device
  uint32_t statistics_asked;       // raised at each tick: see process_statistics.h
};
static_assert(sizeof(ControlHeader) == 128);

// The header, the slots, and a page of statistics for each of them.
inline constexpr size_t statistics_offset =
    (sizeof(ControlHeader) + slots_max * sizeof(Slot) + 4095) / 4096 * 4096;
inline constexpr size_t control_bytes = statistics_offset + slots_max * sizeof(ProcessStatistics);

inline Slot* slots_of(ControlHeader* control) {
  return reinterpret_cast<Slot*>(reinterpret_cast<char*>(control) + sizeof(ControlHeader));
}

inline ProcessStatistics* statistics_of(ControlHeader* control) {
  return reinterpret_cast<ProcessStatistics*>(reinterpret_cast<char*>(control) + statistics_offset);
}

}  // namespace terrace::supply
