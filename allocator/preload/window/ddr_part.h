// SPDX-License-Identifier: Apache-2.0
// The DDR part of a window that migrates: charged to the run's budget by granules.
//
// Place     large_requests.cc asks for room and reports freed runs; engine_thread.cc does the engine's part.
// Threads   heap_lock is held, except where noted.
//
// Invariants
//   F1  charged[g] is 0 exactly if granule g of the DDR part is all in `reserve_arena`; such a granule is
//       mapped to the front's file at its own offset, which is a hole.
//   F2  charged_granules counts the granules that are in DDR: of the DDR part those that are charged and were
//       not demoted, of the segments those that were promoted.
#pragma once

#include <cstdint>

#include "allocator/preload/window/window.h"

namespace terrace::preload {

// Charges as many reserve granules as hold `pages` at the alignment and hands them to ddr_arena. False: no room
// in the part, or in the budget.
bool charge_front(uint32_t pages, uint32_t align_pages);

// Reserve granules that hold `pages` at the alignment, in use until open_front() gets them. In pages; pages 0:
// there are none.
heap::PageSpan take_reserve(uint32_t pages, uint32_t align_pages);
void open_front(heap::PageSpan granules);      // to ddr_arena, free; in pages
void return_reserve(heap::PageSpan granules);  // nothing came of it; in pages

// A run of ddr_arena is free now: granules go back when too much of what is charged lies free.
void front_freed(heap::PageSpan free_run);
// All whole free granules. True: some went back; `*soon`: the engine is asked to give them back.
bool trim_front(bool* soon);

// Gives back the whole granules of one free run, or of all, for which `release` says that their memory is gone
// and uncharged.
using ReleaseGranule = bool (*)(uint32_t granule);
uint32_t give_back_run(heap::PageSpan free_run, ReleaseGranule release);
uint32_t give_back_all(ReleaseGranule release);

// Charged granules, with the budget. Any lock, or none.
bool charge_granules(uint32_t granules);
void uncharge_granules(uint32_t granules);
void charge_granules_anyway(uint32_t granules);  // beyond the budget: they are in DDR already

}  // namespace terrace::preload
