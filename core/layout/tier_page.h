// SPDX-License-Identifier: Apache-2.0
// The page with the state of a process that migrates memory, and with requests to it: one file for each
// process, /dev/shm/terrace-tier-<uid>/<pid>, made by the migration engine, read and written by `terrace tier`.
//
//   0              TierPage (4096 bytes)
//   4096           TierRange, tier_ranges_max of them
//   cells_offset   one byte a cell; range i's cells at ranges[i].cells_offset
//
// Offsets count from the file's first byte. Native byte order: one machine reads it. No pointers.
//
// Coherence domain  One machine. Every field that changes is accessed with std::atomic_ref, relaxed unless
//                   noted.
// Trust             Directory 0700 of the uid, file 0600. Both sides take what they read as the
//                   statement of a process of the same user (or root): lengths, offsets, names and states are
//                   checked before use, by the engine as well.
// Threads           The engine's thread writes the statistics and cells; `terrace tier` writes requests, one at
//                   a time under an exclusive flock of the file.
//
// A request: `terrace tier` writes the wanted_* fields of a range, then raises `request` (release). The engine
// sees it at its next round (acquire), carries it out or not, writes `answer`, then sets `applied` to the
// number (release). pid and start_ticks identify the process that made the file; the first process that finds
// the file of an ended process removes it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace terrace::layout {

inline constexpr uint32_t tier_page_magic = 0x31505454;  // "TTP1" in memory order
inline constexpr uint16_t tier_page_version = 1;
inline constexpr uint32_t tier_ranges_max = 16;
inline constexpr uint64_t tier_cells_max = 1u
                                           << 20;  // a range; one cell stands for several granules beyond that
inline constexpr uint32_t tier_name_bytes = 64;    // zero-terminated, printable
inline constexpr char tier_page_directory[] = "/dev/shm/terrace-tier-";  // and the uid, decimal

// A cell: residency in the high bits, then busy, then heat: 0 none, else 1 + log2 of accesses a second, at
// most 31.
inline constexpr uint8_t cell_residency_shift = 6;  // 0 nothing, 1 DDR, 2 CXL (tiering::Residency)
inline constexpr uint8_t cell_busy = 1u << 5;
inline constexpr uint8_t cell_heat_mask = 0x1f;

enum class TierState : uint32_t {
  absent = 0,   // no such range
  running = 1,  // migrates
  paused = 2,   // by request
  no_uffd = 3,  // works, but nothing moves: no userfaultfd with kernel faults for this process
  stopped = 4,  // something failed for good: `reason` says what; nothing moves any more
  forked = 5,   // private to this process since a fork
};

enum class TierAnswer : uint32_t {
  done = 0,
  unknown_policy = 1,
  bad_value = 2,
  refused = 3,  // not in this state
};

struct alignas(64) TierRange {
  uint32_t state;  // TierState; stored last when a range appears (release)
  uint32_t granule_bytes_log2;
  uint64_t base;  // address in the process
  uint64_t bytes;
  uint64_t cells_offset;
  uint64_t cell_count;
  uint64_t granules_per_cell;
  char name[tier_name_bytes];
  char policy[32];
  char reason[tier_name_bytes];  // why it is stopped, or has no userfaultfd
  // Bytes now.
  uint64_t ddr_bytes, cxl_bytes, busy_bytes;
  uint64_t ddr_bytes_max;         // what it may hold in DDR
  uint64_t copy_bytes_per_s_max;  // the copy budget
  // Since the start.
  uint64_t promotions, demotions;  // granules
  uint64_t promoted_bytes, demoted_bytes;
  uint64_t aborted;                    // moves begun and undone
  uint64_t skipped_busy, skipped_vma;  // not begun: held; the bound of mappings reached
  uint64_t stalled_ns;                 // sum over moves of the time during which accesses could have waited
  uint64_t copy_ns;                    // of that, copying
  uint64_t sweeps, sampler_ns;         // of the sampler
  uint64_t announced, prefetched;      // granules announced; of those, brought to DDR before their use
  // Of the last rounds.
  uint32_t ddr_hit_permille;  // share of accesses that DDR served, as the sampler estimates it
  uint32_t copy_mib_per_s;
  // Requests.
  uint32_t request, applied, answer, wanted_paused;
  uint64_t wanted_ddr_bytes_max;         // UINT64_MAX: as it is
  uint64_t wanted_copy_bytes_per_s_max;  // UINT64_MAX: as it is
  char wanted_policy[32];                // empty: as it is
  // Since the start; 0 where the writer does not know them. Not done: somebody had pages pinned (found before
  // the move, or in it: then it was undone); nobody can say whether somebody has.
  uint64_t skipped_pinned, skipped_unproven;
};
static_assert(sizeof(TierRange) == 448);

struct alignas(64) TierPage {
  uint32_t magic;  // stored last (release)
  uint16_t version;
  uint16_t range_count;
  uint64_t file_bytes;
  uint32_t pid;
  uint32_t reserved;
  uint64_t start_ticks;  // field 22 of /proc/<pid>/stat
  char program[tier_name_bytes];
  char reserved_to_4096[4096 - 96];
};
static_assert(sizeof(TierPage) == 4096);

inline constexpr uint64_t tier_ranges_offset = sizeof(TierPage);
inline constexpr uint64_t tier_cells_offset = tier_ranges_offset + tier_ranges_max * sizeof(TierRange);

}  // namespace terrace::layout
