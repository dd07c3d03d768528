// SPDX-License-Identifier: Apache-2.0
// A range as a picture: what a block says of its cells, and what both forms show of it.
#include "cli/tier/tier_map.h"

#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cli/terminal/output_file.h"
#include "core/base/units.h"
#include "tests/support/tier_page_file.h"

using namespace terrace;
using namespace terrace::cli;
using test::TierPageMaker;

namespace {

uint8_t cell(unsigned residency, unsigned heat, bool busy = false) {
  return TierPageMaker::cell(residency, heat, busy);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TierRangeView range_of(uint64_t granules, uint64_t granules_per_cell = 1) {
  TierRangeView range;
  range.name = "heap";
  range.numbers.granule_bytes_log2 = 21;
  range.numbers.bytes = granules << 21;
  range.numbers.granules_per_cell = granules_per_cell;
  range.numbers.cell_count = (granules + granules_per_cell - 1) / granules_per_cell;
  return range;
}

TierMap map_of(const std::vector<uint8_t>& cells, uint32_t columns = 64, uint32_t rows = 32) {
  return make_tier_map("prog[1] heap", range_of(cells.size()), cells, columns, rows);
}

// The characters between the bars of a row, all rows together.
std::string drawn(const std::string& text) {
  std::string rows;
  size_t at = 0;
  while ((at = text.find('|', at)) != std::string::npos) {
    const size_t end = text.find("|\n", at + 1);
    rows += text.substr(at + 1, end - at - 1);
    at = end + 2;
  }
  return rows;
}

}  // namespace

TEST_CASE("Tier map: as many cells as fit are shown each, more are put together by powers of two") {
  const std::vector<uint8_t> cells(100, cell(1, 3));
  CHECK(map_of(cells, 10, 10).blocks.size() == 100);
  CHECK(map_of(cells, 10, 9).blocks.size() == 50);
  CHECK(map_of(cells, 10, 9).block_bytes == 4 * mib);
  CHECK(map_of(cells, 10, 3).blocks.size() == 25);
  CHECK(map_of(cells, 1, 1).blocks.size() == 1);
  CHECK(map_of(cells, 1, 1).block_bytes == 256 * mib);
}

TEST_CASE("Tier map: a block counts its cells by residency, and keeps the hottest of each tier") {
  const TierMap map = map_of({cell(1, 2), cell(2, 9), cell(1, 5, true), cell(0, 0)}, 1, 1);
  REQUIRE(map.blocks.size() == 1);
  const TierBlock& block = map.blocks[0];
  CHECK(block.cells == 4);
  CHECK(block.ddr == 2);
  CHECK(block.cxl == 1);
  CHECK(block.busy == 1);
  CHECK(block.ddr_heat == 5);
  CHECK(block.cxl_heat == 9);
  CHECK(map.ddr_bytes == 4 * mib);
  CHECK(map.cxl_bytes == 2 * mib);
  CHECK(map.none_bytes == 2 * mib);
  CHECK(map.busy_bytes == 2 * mib);
}

TEST_CASE("Tier map: the last cell counts only what there is of it") {
  const TierRangeView range = range_of(5, 2);
  const TierMap map = make_tier_map("p", range, {cell(1, 1), cell(1, 1), cell(2, 1)}, 8, 8);
  CHECK(map.ddr_bytes == 8 * mib);
  CHECK(map.cxl_bytes == 2 * mib);
  uint64_t bytes = 0;
  const nlohmann::json blocks = to_json(map).at("blocks");
  for (const auto& block : blocks) bytes += block.at("bytes").get<uint64_t>();
  CHECK(bytes == 10 * mib);
}

TEST_CASE("Tier map: levels divide the heat that is there, the hottest last, and no heat is none") {
  const TierMap map = map_of({cell(1, 0), cell(1, 1), cell(1, 4), cell(1, 7), cell(2, 10), cell(2, 12)});
  CHECK(heat_level(0, map) == 0);
  CHECK(heat_level(1, map) == 1);
  CHECK(heat_level(12, map) == 4);
  int last = 0;
  for (uint8_t heat = 1; heat <= 12; ++heat) {
    const int level = heat_level(heat, map);
    CHECK(level >= std::max(last, 1));
    last = level;
  }
  CHECK(heat_level(31, map) == 4);  // outside of what was seen
  CHECK(heat_level_range(4, map) == "512 to 4096 a second");
  CHECK(heat_level_range(1, map) == "less than 8 a second");
  CHECK(heat_level_range(0, map).empty());
  const TierMap alike = map_of({cell(1, 5), cell(2, 5)});
  CHECK(heat_level_name(heat_level(5, alike), alike) == "used");
  CHECK(heat_level_name(heat_level(12, map), map) == "hottest");
  const TierMap cold = map_of({cell(1, 0)});
  CHECK(heat_level(0, cold) == 0);
  for (int level = 0; level < heat_levels; ++level) CHECK(heat_level_range(level, cold).empty());
}

TEST_CASE("Tier map: text tells tier and heat by characters alone, in their places") {
  const TierMap map =
      map_of({cell(1, 0), cell(1, 12), cell(2, 0), cell(2, 12), cell(0, 0), cell(1, 5, true), cell(2, 1)}, 8);
  const std::string text = tier_map_text(map, 8, false);
  CHECK(drawn(text) == "_X.x #c");
  CHECK_FALSE(contains(text, "\x1b"));
  CHECK(contains(text, "one character is 2 MiB"));
  CHECK(contains(text, "hottest"));
  CHECK(contains(text, "busy"));
  for (size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at + 1))
    CHECK(text[at - 1] != ' ');
}

TEST_CASE("Tier map: rows begin with their place in the range") {
  const TierMap map = map_of(std::vector<uint8_t>(20, cell(2, 0)), 8);
  const std::string text = tier_map_text(map, 8, false);
  CHECK(contains(text, "\n   0 B |........|\n16 MiB |........|\n32 MiB |....|\n"));
}

TEST_CASE("Tier map: colours change nothing of the characters, and end where the row ends") {
  const TierMap map = map_of({cell(1, 3), cell(1, 3), cell(0, 0), cell(2, 6)}, 8);
  std::string text = tier_map_text(map, 8, true);
  CHECK(contains(text, "\x1b[48;5;"));
  CHECK(contains(text, "\x1b[0m|\n"));
  for (size_t at; (at = text.find('\x1b')) != std::string::npos;) text.erase(at, text.find('m', at) + 1 - at);
  CHECK(text == tier_map_text(map, 8, false));
}

TEST_CASE("Tier map: what is in the wrong place is counted, and uniform use is not called so") {
  const TierMap wrong = map_of({cell(1, 0), cell(1, 3), cell(1, 3), cell(2, 9), cell(2, 0)});
  CHECK(wrong.hot_cxl_bytes == 2 * mib);
  CHECK(wrong.idle_ddr_bytes == 2 * mib);
  const TierMap uniform = map_of({cell(1, 4), cell(1, 4), cell(2, 4), cell(2, 4)});
  CHECK(uniform.hot_cxl_bytes == 0);
  CHECK(uniform.idle_ddr_bytes == 0);
  CHECK(contains(tier_map_text(wrong, 64, false), "2 MiB in CXL are hotter"));
}

TEST_CASE("Tier map: the SVG is whole, says everything in words, and neighbours alike are one shape") {
  std::vector<uint8_t> cells(64, cell(2, 1));
  for (size_t i = 0; i < 16; ++i) cells[i] = cell(1, 9);
  cells[20] = cell(2, 9);
  TierMap map = map_of(cells, 32);
  map.title = "a<b>&\"c\" heap";
  const std::string svg = tier_map_svg(map, 32);
  CHECK(svg.starts_with("<svg "));
  CHECK(svg.ends_with("</svg>\n"));
  CHECK(contains(svg, "role=\"img\" aria-labelledby=\"title description\""));
  CHECK(contains(svg, "<title id=\"title\">a&lt;b&gt;&amp;&quot;c&quot; heap</title>"));
  CHECK(contains(svg, "<desc id=\"description\">Map of 128 MiB"));
  CHECK(contains(svg, "0 B to 32 MiB: DDR, hottest"));
  CHECK(contains(svg, "40 MiB to 42 MiB: CXL, hottest"));
  CHECK_FALSE(contains(svg, "<script"));
  // A run a change: four in the first row, one in the second.
  size_t shapes = 0;
  for (size_t at = svg.find("</title></rect>"); at != std::string::npos;
       at = svg.find("</title></rect>", at + 1))
    ++shapes;
  CHECK(shapes == 5);
}

TEST_CASE("Tier map: a million cells become a picture of a bounded size") {
  const std::vector<uint8_t> cells(1 << 20, cell(2, 3));
  CHECK(tier_map_text(map_of(cells), 64, false).size() < 8192);
  const std::string svg = tier_map_svg(map_of(cells, 64, 64), 64);
  CHECK(svg.size() < 65536);
}

TEST_CASE("Tier map: a file is written whole or not at all") {
  char name[] = "/tmp/terrace-map-XXXXXX";
  REQUIRE(::mkdtemp(name) != nullptr);
  const std::filesystem::path folder = name;
  const std::string path = folder / "map.svg";
  REQUIRE(write_atomically(path, "one").ok());
  REQUIRE(write_atomically(path, "two").ok());
  std::ifstream file(path);
  CHECK(std::string{std::istreambuf_iterator<char>(file), {}} == "two");
  struct stat about {};
  const mode_t mask = ::umask(0);
  ::umask(mask);
  REQUIRE(::stat(path.c_str(), &about) == 0);
  CHECK((about.st_mode & 0777) == (0666 & ~mask));
  CHECK_FALSE(write_atomically(folder / "none" / "map.svg", "x").ok());
  REQUIRE(::mkdir((folder / "taken").c_str(), 0700) == 0);
  CHECK_FALSE(write_atomically(folder / "taken", "x").ok());
  CHECK(std::distance(std::filesystem::directory_iterator(folder), {}) == 2);  // nothing is left beside them
  std::filesystem::remove_all(folder);
}
