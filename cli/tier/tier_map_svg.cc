// SPDX-License-Identifier: Apache-2.0
// The SVG of a range's map: squares of two families of colour, a scale, a legend, and all of it in words.
#include <algorithm>
#include <string>

#include "cli/tier/tier_map.h"
#include "core/base/units.h"
#include "daemon/plan/svg.h"

namespace terrace::cli {
namespace {

using plan::Svg;

// By level, light to dark: they stay apart for who tells colours badly, and on paper without any.
constexpr const char* ddr_fills[heat_levels] = {"#fdf0e2", "#fdd0a2", "#fd8d3c", "#d94801", "#7f2704"};
constexpr const char* cxl_fills[heat_levels] = {"#eaf1fa", "#c6dbef", "#6baed6", "#2171b5", "#08306b"};
constexpr const char* nothing_fill = "#ffffff";
constexpr const char* busy_fill = "#333333";

constexpr double square = 11, left = 78, above = 62, margin = 16;

std::string place_text(uint64_t from, uint64_t to) {
  return format_size(from) + " to " + format_size(to);
}

// What one block is, in words; blocks that say the same are drawn as one.
struct Look {
  double ddr_share = 0;  // of what has memory
  int ddr_level = 0, cxl_level = 0;
  bool memory = false, busy = false;
  bool operator==(const Look&) const = default;
};

Look look_of(const TierBlock& block, const TierMap& map) {
  Look look;
  const uint32_t there = block.ddr + block.cxl;
  look.memory = there != 0;
  if (there == 0) return look;
  look.ddr_share = static_cast<double>(block.ddr) / there;
  look.ddr_level = block.ddr == 0 ? 0 : heat_level(block.ddr_heat, map);
  look.cxl_level = block.cxl == 0 ? 0 : heat_level(block.cxl_heat, map);
  look.busy = 2 * block.busy > block.cells;
  return look;
}

std::string words_of(const Look& look, const TierMap& map) {
  if (!look.memory) return "no memory";
  std::string text;
  if (look.ddr_share > 0) text += "DDR, " + heat_level_name(look.ddr_level, map);
  if (look.ddr_share < 1) text += (text.empty() ? "CXL, " : "; CXL, ") + heat_level_name(look.cxl_level, map);
  return text + (look.busy ? "; busy" : "");
}

// `count` blocks from `column` on, all of one look: DDR's part above, CXL's below.
void draw_run(Svg& svg, const TierMap& map, const Look& look, plan::SvgPoint corner, uint32_t count,
              const std::string& place) {
  const double width = square * count;
  const std::string title = place + ": " + words_of(look, map);
  if (!look.memory) return svg.rectangle(corner, width, square, nothing_fill, title);
  const double ddr_height = square * look.ddr_share;
  if (ddr_height > 0) svg.rectangle(corner, width, ddr_height, ddr_fills[look.ddr_level], title);
  if (ddr_height < square)
    svg.rectangle({corner.x, corner.y + ddr_height}, width, square - ddr_height, cxl_fills[look.cxl_level],
                  title);
  if (!look.busy) return;
  for (uint32_t i = 0; i < count; ++i)
    svg.rectangle({corner.x + square * i + 4, corner.y + 4}, square - 8, square - 8, busy_fill);
}

void draw_row(Svg& svg, const TierMap& map, size_t first, size_t end, double top) {
  for (size_t at = first; at < end;) {
    const Look look = look_of(map.blocks[at], map);
    size_t behind = at + 1;
    while (behind < end && look_of(map.blocks[behind], map) == look) ++behind;
    const uint64_t to = std::min<uint64_t>(behind * map.block_bytes, map.range_bytes);
    draw_run(svg, map, look, {left + square * static_cast<double>(at - first), top},
             static_cast<uint32_t>(behind - at), place_text(at * map.block_bytes, to));
    at = behind;
  }
}

void draw_legend(Svg& svg, const TierMap& map, double top) {
  svg.text({left, top}, "DDR", {.size = 11, .anchor = "start", .bold = true});
  svg.text({left + 34, top}, "CXL", {.size = 11, .anchor = "start", .bold = true});
  double y = top + 8;
  for (int level = 0; level < heat_levels; ++level) {
    const std::string range = heat_level_range(level, map);
    if (level != 0 && range.empty()) continue;
    svg.rectangle({left, y}, 26, 12, ddr_fills[level]);
    svg.rectangle({left + 34, y}, 26, 12, cxl_fills[level]);
    svg.text({left + 70, y + 10}, heat_level_name(level, map) + (level == 0 ? "" : ": " + range), {.size = 11});
    y += 16;
  }
  svg.rectangle({left + 45, y + 4}, 4, 4, busy_fill);
  svg.text({left + 70, y + 10}, "busy: held by I/O or a guard", {.size = 11});
}

std::string description(const TierMap& map) {
  return "Map of " + format_size(map.range_bytes) + " of memory, " + format_size(map.block_bytes) +
         " a square, from left to right and top to bottom. " + format_size(map.ddr_bytes) +
         " are in DDR (orange), " + format_size(map.cxl_bytes) + " in CXL memory (blue), " +
         format_size(map.none_bytes) + " have no memory; darker is hotter. " + format_size(map.hot_cxl_bytes) +
         " in CXL are hotter than half of what is in DDR, " + format_size(map.idle_ddr_bytes) +
         " in DDR are not used.";
}

}  // namespace

std::string tier_map_svg(const TierMap& map, uint32_t columns) {
  const size_t rows = std::max<size_t>((map.blocks.size() + columns - 1) / columns, 1);
  const double shown = static_cast<double>(std::clamp<size_t>(map.blocks.size(), 1, columns));
  const double bottom = above + square * static_cast<double>(rows);
  const double width = std::max(left + square * shown + margin, 560.0);
  Svg svg(width, bottom + 34 + 16 * (heat_levels + 1) + margin, map.title, description(map));
  svg.text({margin, 24}, map.title, {.size = 15, .bold = true});
  svg.text({margin, 44},
           format_size(map.ddr_bytes) + " in DDR, " + format_size(map.cxl_bytes) + " in CXL; a square is " +
               format_size(map.block_bytes),
           {.size = 12});
  svg.rectangle({left - 1, above - 1}, square * shown + 2, bottom - above + 2, "#bbbbbb");
  svg.rectangle({left, above}, square * shown, bottom - above, "#ffffff");
  const size_t label_every = std::max<size_t>(rows / 16, 1);
  for (size_t row = 0; row < rows; ++row) {
    const double top = above + square * static_cast<double>(row);
    if (row % label_every == 0)
      svg.text({left - 6, top + 9}, format_size(row * columns * map.block_bytes),
               {.size = 10, .anchor = "end"});
    draw_row(svg, map, row * columns, std::min<size_t>((row + 1) * columns, map.blocks.size()), top);
  }
  draw_legend(svg, map, bottom + 26);
  return svg.finish();
}

}  // namespace terrace::cli
