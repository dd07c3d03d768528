// SPDX-License-Identifier: Apache-2.0
// A picture of one range: the tier and the heat of its granules, as text and as SVG.
//
// Place     Between tier_pages.h and the verbs. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/tier/tier_pages.h"

namespace terrace::cli {

// What one character or square stands for: neighbouring cells.
struct TierBlock {
  uint32_t cells = 0;  // 0: behind the end of the range
  uint32_t ddr = 0, cxl = 0, busy = 0;
  uint8_t ddr_heat = 0, cxl_heat = 0;  // of the hottest cell there: 0 none, else 1 + log2 of accesses a second
};

struct TierMap {
  std::string title;  // "redis-server[1234] heap"
  uint64_t range_bytes = 0;
  uint64_t cell_bytes = 0;   // of all but perhaps the last
  uint64_t block_bytes = 0;  // a whole number of cells
  std::vector<TierBlock> blocks;
  // Of the range's cells that have a heat: the coldest and the hottest code. 0: none has.
  uint8_t heat_low = 0, heat_high = 0;
  // Bytes, by residency; and what may be in the wrong place: in CXL and hotter than half of what is in DDR, in
  // DDR and not used.
  uint64_t ddr_bytes = 0, cxl_bytes = 0, none_bytes = 0, busy_bytes = 0;
  uint64_t hot_cxl_bytes = 0, idle_ddr_bytes = 0;
};

// Heat in words: not used, cool, warm, hot, hottest. The bands divide what this range shows (a sampler's counts
// compare with each other, not with another program's).
inline constexpr int heat_levels = 5;
int heat_level(uint8_t heat, const TierMap& map);
std::string heat_level_name(int level, const TierMap& map);
// "2 to 8 a second"; empty where no heat code falls into the level.
std::string heat_level_range(int level, const TierMap& map);

// At most `columns` × `rows` blocks, each a power of two of cells.
TierMap make_tier_map(const std::string& title, const TierRangeView& range, const std::vector<uint8_t>& cells,
                      uint32_t columns, uint32_t rows);

// Rows of `columns` characters with their place in the range before them, then a legend. `colour`: with ANSI
// sequences, by which it can be read as well as by the characters.
std::string tier_map_text(const TierMap& map, uint32_t columns, bool colour);
std::string tier_map_svg(const TierMap& map, uint32_t columns);
nlohmann::json to_json(const TierMap& map);

}  // namespace terrace::cli
