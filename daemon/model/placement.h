// SPDX-License-Identifier: Apache-2.0
// Chooses the free granules of a lease: the three placements of a pool, over the free granules of the devices
// that may be used.
//
// Place     daemon/state says which devices and how many pieces; pure.
// Threads   One.
// Invariant A call takes exactly what it returns, or nothing.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "daemon/model/extent_map.h"

namespace terrace::daemon {

using ExtentMaps = std::vector<ExtentMap*>;

struct Piece {
  size_t device = 0;  // index into ExtentMaps
  GranuleRun run;

  bool operator==(const Piece&) const = default;
};

// In the order of the lease's bytes. nullopt: fewer granules are free, or more than `pieces_max` pieces would
// be needed; then nothing was taken.
using Pieces = std::optional<std::vector<Piece>>;

// One run on one device where any has room for it: a close one (ExtentMap::find_fit) on the first device that
// has one, else on the first device with any, so that later devices stay whole. Otherwise the longest runs,
// wherever they are: the fewest pieces.
Pieces place_linear(const ExtentMaps& devices, uint64_t granules, size_t pieces_max);

// Stripes of `stripe` granules on one device after the other, beginning with the emptiest; a device without
// room for its next stripe is passed over. The stripes of one device are neighbours there where it has a run
// for them. A lease that would be more than `pieces_max` pieces gets wider stripes: the least multiple of
// `stripe` that makes few enough, doubled while the free runs are too short for it; and at last the longest
// runs, as in linear.
Pieces place_striped(const ExtentMaps& devices, uint64_t granules, uint64_t stripe, size_t pieces_max);

// All on the emptiest device that has a run for it. Otherwise device by device, the emptiest first, so that the
// lease depends on as few of them as can be.
Pieces place_spread(const ExtentMaps& devices, uint64_t granules, size_t pieces_max);

}  // namespace terrace::daemon
