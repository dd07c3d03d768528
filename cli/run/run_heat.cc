// SPDX-License-Identifier: Apache-2.0
#include "cli/run/run_heat.h"

#include <algorithm>
#include <cmath>

namespace terrace::cli {
namespace {

constexpr uint8_t band_in_ddr = 1, band_in_cxl = 2;  // of a cell's residency

uint8_t residency_of(uint8_t cell) {
  return cell >> layout::cell_residency_shift;
}

// Accesses a second that a cell's code stands for.
double accesses_of(uint8_t cell) {
  const int code = cell & layout::cell_heat_mask;
  return code == 0 ? 0 : std::exp2(code - 1);
}

// The schema's code of so many accesses a second. The coolest that is not none is 1.
uint8_t heat_code(double accesses) {
  if (accesses <= 0) return 0;
  return static_cast<uint8_t>(std::clamp(1 + 8 * std::log2(accesses), 1.0, 255.0));
}

RunBand band_of(const std::vector<uint8_t>& cells, size_t first, size_t count) {
  size_t ddr = 0, cxl = 0;
  double accesses = 0;
  for (size_t i = first; i < std::min(first + count, cells.size()); ++i) {
    const uint8_t residency = residency_of(cells[i]);
    if (residency == band_in_ddr)
      ++ddr;
    else if (residency == band_in_cxl)
      ++cxl;
    else
      continue;
    accesses += accesses_of(cells[i]);
  }
  if (ddr + cxl == 0) return {};
  // Rounded so that what is there is never shown as nothing, and both together are at most all.
  const auto percent = [&](size_t part) {
    const size_t rounded = 100 * part / count;
    return static_cast<uint8_t>(part != 0 && rounded == 0 ? 1 : rounded);
  };
  RunBand band;
  band.heat = heat_code(accesses / static_cast<double>(ddr + cxl));
  band.ddr_percent = percent(ddr);
  band.cxl_percent = static_cast<uint8_t>(std::min<size_t>(percent(cxl), 100u - band.ddr_percent));
  return band;
}

}  // namespace

HeatBands heat_bands(uint64_t cell_bytes, const std::vector<uint8_t>& cells) {
  size_t used = cells.size();
  while (used != 0 && residency_of(cells[used - 1]) != band_in_ddr &&
         residency_of(cells[used - 1]) != band_in_cxl)
    --used;
  if (used == 0) return {};
  size_t cells_per_band = 1;
  while ((used - 1) / cells_per_band + 1 > heat_bands_max) cells_per_band *= 2;
  HeatBands heat;
  heat.band_bytes = cell_bytes * cells_per_band;
  for (size_t first = 0; first < used; first += cells_per_band)
    heat.bands.push_back(band_of(cells, first, cells_per_band));
  return heat;
}

}  // namespace terrace::cli
