// SPDX-License-Identifier: Apache-2.0
#include "cli/tier/tier_map.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/terminal/output.h"
#include "core/base/units.h"

namespace terrace::cli {
namespace {

constexpr uint8_t in_ddr = 1, in_cxl = 2;

void add_cell(TierBlock& block, uint8_t cell) {
  const uint8_t heat = cell & layout::cell_heat_mask;
  const uint8_t residency = cell >> layout::cell_residency_shift;
  ++block.cells;
  if ((cell & layout::cell_busy) != 0) ++block.busy;
  if (residency == in_ddr) {
    ++block.ddr;
    block.ddr_heat = std::max(block.ddr_heat, heat);
  } else if (residency == in_cxl) {
    ++block.cxl;
    block.cxl_heat = std::max(block.cxl_heat, heat);
  }
}

// Bytes by heat code.
using HeatBytes = std::array<uint64_t, layout::cell_heat_mask + 1>;

// The heat that half of the bytes have at most; 0 for none.
size_t median_heat(const HeatBytes& by_heat, uint64_t bytes) {
  size_t heat = 0;
  for (uint64_t below = by_heat[0]; heat + 1 < by_heat.size() && 2 * below < bytes; below += by_heat[heat])
    ++heat;
  return heat;
}

// Sums of bytes; the last cell may be shorter than the others.
void add_totals(TierMap& map, const std::vector<uint8_t>& cells) {
  HeatBytes ddr{}, cxl{};
  for (size_t i = 0; i < cells.size(); ++i) {
    const uint64_t bytes = std::min(map.cell_bytes, map.range_bytes - i * map.cell_bytes);
    const uint8_t residency = cells[i] >> layout::cell_residency_shift;
    const size_t heat = cells[i] & layout::cell_heat_mask;
    if ((cells[i] & layout::cell_busy) != 0) map.busy_bytes += bytes;
    if (residency == in_ddr) {
      map.ddr_bytes += bytes;
      ddr[heat] += bytes;
    } else if (residency == in_cxl) {
      map.cxl_bytes += bytes;
      cxl[heat] += bytes;
    } else {
      map.none_bytes += bytes;
    }
  }
  map.idle_ddr_bytes = ddr[0];
  for (size_t heat = median_heat(ddr, map.ddr_bytes) + 1; heat < cxl.size(); ++heat)
    map.hot_cxl_bytes += cxl[heat];
}

// --- text

// By level. One letter a level, large in DDR and small in CXL: what stands out wrongly is found by eye.
constexpr char ddr_characters[heat_levels + 1] = "_CWHX";
constexpr char cxl_characters[heat_levels + 1] = ".cwhx";
constexpr char nothing_character = ' ', busy_character = '#';
// Of the 256 colours: DDR from grey-brown to bright orange, CXL from dark to bright blue.
constexpr int ddr_colours[heat_levels] = {236, 94, 130, 172, 214};
constexpr int cxl_colours[heat_levels] = {234, 17, 19, 27, 45};

bool mostly_ddr(const TierBlock& block) {
  return block.ddr >= block.cxl;
}

char character_of(const TierBlock& block, const TierMap& map) {
  if (block.ddr + block.cxl == 0) return nothing_character;
  if (2 * block.busy > block.cells) return busy_character;
  return mostly_ddr(block) ? ddr_characters[heat_level(block.ddr_heat, map)]
                           : cxl_characters[heat_level(block.cxl_heat, map)];
}

std::string painted(char character, bool ddr, int level) {
  const int background = ddr ? ddr_colours[level] : cxl_colours[level];
  const int ink = level >= 3 ? 16 : 250;
  return "\x1b[48;5;" + std::to_string(background) + ";38;5;" + std::to_string(ink) + "m" + character;
}

std::string row_text(const TierMap& map, size_t first, uint32_t columns, bool colour) {
  std::string text;
  std::string last;  // the sequence in force, so that neighbours share one
  for (size_t i = first; i < first + columns; ++i) {
    const TierBlock block = i < map.blocks.size() ? map.blocks[i] : TierBlock{};
    const char character = character_of(block, map);
    if (!colour || character == nothing_character) {
      if (!last.empty()) text += "\x1b[0m";
      last.clear();
      text += character;
      continue;
    }
    const bool ddr = mostly_ddr(block);
    std::string cell = painted(character, ddr, heat_level(ddr ? block.ddr_heat : block.cxl_heat, map));
    const std::string sequence = cell.substr(0, cell.size() - 1);
    text += sequence == last ? std::string(1, character) : cell;
    last = sequence;
  }
  return text + (last.empty() ? "" : "\x1b[0m");
}

std::string legend(const TierMap& map, bool colour) {
  std::string text;
  for (int level = 0; level < heat_levels; ++level) {
    const std::string range = heat_level_range(level, map);
    if (level != 0 && range.empty()) continue;
    const auto sample = [&](bool ddr) {
      const char character = ddr ? ddr_characters[level] : cxl_characters[level];
      return colour ? painted(character, ddr, level) + "\x1b[0m" : std::string(1, character);
    };
    std::string name = heat_level_name(level, map);
    name.resize(10, ' ');
    text += "  " + sample(true) + "  " + sample(false) + "    " + name + (level == 0 ? "" : range) + "\n";
  }
  while (text.find(" \n") != std::string::npos) text.erase(text.find(" \n"), 1);
  return "DDR CXL  accesses\n" + text + "  " + busy_character +
         " busy: held by I/O or a guard; blank: no memory\n";
}

std::string summary(const TierMap& map) {
  std::string text = format_size(map.ddr_bytes) + " in DDR, " + format_size(map.cxl_bytes) + " in CXL";
  if (map.none_bytes != 0) text += ", " + format_size(map.none_bytes) + " without memory";
  if (map.busy_bytes != 0) text += "; " + format_size(map.busy_bytes) + " busy";
  return text + "\n" + format_size(map.hot_cxl_bytes) + " in CXL are hotter than half of what is in DDR; " +
         format_size(map.idle_ddr_bytes) + " in DDR are not used";
}

}  // namespace

// --- heat

int heat_level(uint8_t heat, const TierMap& map) {
  if (heat == 0 || map.heat_high == 0) return 0;
  const int span = map.heat_high - map.heat_low + 1;
  const int above = std::clamp<int>(heat, map.heat_low, map.heat_high) - map.heat_low;
  // The hottest is always of the last level, however few there are.
  const int from_top =
      (map.heat_high - map.heat_low - above) * (heat_levels - 1) / std::max(span, heat_levels - 1);
  return heat_levels - 1 - from_top;
}

std::string heat_level_name(int level, const TierMap& map) {
  if (level != 0 && map.heat_low == map.heat_high) return "used";  // nothing to compare with
  constexpr const char* names[heat_levels] = {"not used", "cool", "warm", "hot", "hottest"};
  return names[std::clamp(level, 0, heat_levels - 1)];
}

std::string heat_level_range(int level, const TierMap& map) {
  int low = 0, high = 0;
  for (int heat = map.heat_low; heat != 0 && heat <= map.heat_high; ++heat) {
    if (heat_level(static_cast<uint8_t>(heat), map) != level) continue;
    if (low == 0) low = heat;
    high = heat;
  }
  if (low == 0) return "";
  const auto accesses = [](int code) { return std::to_string(uint64_t{1} << code); };
  const std::string below = "less than " + accesses(high) + " a second";
  return low <= 1 ? below : accesses(low - 1) + " to " + accesses(high) + " a second";
}

// --- the map

TierMap make_tier_map(const std::string& title, const TierRangeView& range, const std::vector<uint8_t>& cells,
                      uint32_t columns, uint32_t rows) {
  TierMap map;
  map.title = title;
  map.range_bytes = range.numbers.bytes;
  map.cell_bytes = range.granule_bytes() * range.numbers.granules_per_cell;
  const uint64_t room = std::max<uint64_t>(uint64_t{columns} * rows, 1);
  const uint64_t together = std::bit_ceil(std::max<uint64_t>((cells.size() + room - 1) / room, 1));
  map.block_bytes = map.cell_bytes * together;
  map.blocks.resize((cells.size() + together - 1) / together);
  for (size_t i = 0; i < cells.size(); ++i) {
    add_cell(map.blocks[i / together], cells[i]);
    const uint8_t heat = cells[i] & layout::cell_heat_mask;
    if (heat == 0) continue;
    map.heat_low = map.heat_low == 0 ? heat : std::min(map.heat_low, heat);
    map.heat_high = std::max(map.heat_high, heat);
  }
  add_totals(map, cells);
  return map;
}

std::string tier_map_text(const TierMap& map, uint32_t columns, bool colour) {
  std::string text = map.title + ": " + format_size(map.range_bytes) + ", one character is " +
                     format_size(map.block_bytes) + "\n";
  const size_t rows = (map.blocks.size() + columns - 1) / columns;
  size_t width = 1;
  for (size_t row = 0; row < rows; ++row)
    width = std::max(width, format_size(row * columns * map.block_bytes).size());
  for (size_t row = 0; row < rows; ++row) {
    const std::string place = format_size(row * columns * map.block_bytes);
    const auto inside = static_cast<uint32_t>(std::min<size_t>(columns, map.blocks.size() - row * columns));
    text += std::string(width - place.size(), ' ') + place + " |" +
            row_text(map, row * columns, inside, colour) + "|\n";
  }
  return text + legend(map, colour) + summary(map) + "\n";
}

nlohmann::json to_json(const TierMap& map) {
  nlohmann::json blocks = nlohmann::json::array();
  const auto heat = [](uint32_t cells, uint8_t code) -> nlohmann::json {
    if (cells == 0) return nullptr;
    return code == 0 ? uint64_t{0} : uint64_t{1} << (code - 1);
  };
  uint64_t offset = 0;
  for (const TierBlock& block : map.blocks) {
    const uint64_t bytes = std::min(map.block_bytes, map.range_bytes - offset);
    const auto share = [&](uint32_t cells) { return std::min(bytes, cells * map.cell_bytes); };
    blocks.push_back({{"offset_bytes", offset},
                      {"bytes", bytes},
                      {"ddr_bytes", share(block.ddr)},
                      {"cxl_bytes", share(block.cxl)},
                      {"busy_bytes", share(block.busy)},
                      {"ddr_accesses_per_s", heat(block.ddr, block.ddr_heat)},
                      {"cxl_accesses_per_s", heat(block.cxl, block.cxl_heat)}});
    offset += bytes;
  }
  return {{"title", map.title},
          {"bytes", map.range_bytes},
          {"block_bytes", map.block_bytes},
          {"ddr_bytes", map.ddr_bytes},
          {"cxl_bytes", map.cxl_bytes},
          {"busy_bytes", map.busy_bytes},
          {"hot_cxl_bytes", map.hot_cxl_bytes},
          {"idle_ddr_bytes", map.idle_ddr_bytes},
          {"blocks", blocks}};
}

}  // namespace terrace::cli
