// SPDX-License-Identifier: Apache-2.0
// What is hot in a heap as a few bands: where they end, and what they say of their cells.
#include "cli/run/run_heat.h"

#include <doctest/doctest.h>

#include "core/base/units.h"
#include "tests/support/tier_page_file.h"

using namespace terrace;
using namespace terrace::cli;

namespace {

uint8_t heat_cell(unsigned residency, unsigned heat) {
  return test::TierPageMaker::cell(residency, heat, false);
}

}  // namespace

TEST_CASE("Heat bands: a heap without memory has none, and what lies behind the last memory is none") {
  CHECK(heat_bands(2 * mib, {}).bands.empty());
  CHECK(heat_bands(2 * mib, std::vector<uint8_t>(100, 0)).bands.empty());
  std::vector<uint8_t> cells(100, 0);
  cells[9] = heat_cell(2, 0);
  const HeatBands heat = heat_bands(2 * mib, cells);
  CHECK(heat.bands.size() == 10);
  CHECK(heat.band_bytes == 2 * mib);
  CHECK(heat.bands[0] == RunBand{});
  CHECK(heat.bands[9] == RunBand{.heat = 0, .ddr_percent = 0, .cxl_percent = 100});
}

TEST_CASE("Heat bands: there are 64 at most, of a power of two of cells") {
  const auto of = [](size_t cells) {
    return heat_bands(2 * mib, std::vector<uint8_t>(cells, heat_cell(1, 3)));
  };
  CHECK(of(64).bands.size() == 64);
  CHECK(of(64).band_bytes == 2 * mib);
  CHECK(of(65).bands.size() == 33);
  CHECK(of(65).band_bytes == 4 * mib);
  CHECK(of(128).bands.size() == 64);
  CHECK(of(1 << 20).bands.size() == 64);
  CHECK(of(1 << 20).band_bytes == uint64_t{2 * mib} << 14);
  for (const RunBand& band : of(1 << 20).bands) CHECK(band == RunBand{.heat = 17, .ddr_percent = 100});
}

TEST_CASE("Heat bands: heat is the average over what has memory, and shares are of the band") {
  // 68 cells: bands of two. 8 and 0 accesses a second; 4 and no memory; one in each tier.
  std::vector<uint8_t> cells(68, heat_cell(2, 0));
  cells[0] = heat_cell(1, 4);
  cells[1] = heat_cell(2, 0);
  cells[2] = heat_cell(1, 3);
  cells[3] = 0;
  cells[4] = heat_cell(2, 31);
  cells[5] = heat_cell(2, 31);
  const auto bands = heat_bands(2 * mib, cells).bands;
  REQUIRE(bands.size() == 34);
  CHECK(bands[0] == RunBand{.heat = 17, .ddr_percent = 50, .cxl_percent = 50});  // 4 a second
  CHECK(bands[1] == RunBand{.heat = 17, .ddr_percent = 50, .cxl_percent = 0});
  CHECK(bands[2] == RunBand{.heat = 241, .ddr_percent = 0, .cxl_percent = 100});
  CHECK(bands[3] == RunBand{.heat = 0, .ddr_percent = 0, .cxl_percent = 100});
}

TEST_CASE("Heat bands: little is never shown as nothing, and two shares are never more than all") {
  std::vector<uint8_t> cells(64 * 1024, heat_cell(2, 0));
  cells[0] = heat_cell(1, 1);  // of 1,024 in the band
  const auto bands = heat_bands(2 * mib, cells).bands;
  REQUIRE(bands.size() == 64);
  CHECK(bands[0] == RunBand{.heat = 1, .ddr_percent = 1, .cxl_percent = 99});
}
