// SPDX-License-Identifier: Apache-2.0
// What is hot in a heap, for the manager: the cells of its tier page (core/layout/tier_page.h) as a few bands.
//
// Place     run_figures.h reports them; the console draws them over time. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/tier/tier_pages.h"
#include "terrace/session.h"

namespace terrace::cli {

// As many as a manager takes.
inline constexpr size_t heat_bands_max = 64;

struct HeatBands {
  std::vector<RunBand> bands;  // empty: the heap has no memory
  uint64_t band_bytes = 0;     // of each: a cell, or two, four, eight of them ...
};

// Of the range's start up to its last cell with memory. Bands double as that grows, so that a picture of one heap keeps
// its borders for long.
HeatBands heat_bands(uint64_t cell_bytes, const std::vector<uint8_t>& cells);

}  // namespace terrace::cli
