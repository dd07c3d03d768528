// SPDX-License-Identifier: Apache-2.0
// The commits that the journal adds to a database, and a check that none is missing.
//
// The rule  A commit that was acknowledged is never dropped in silence. The commits behind the database's
//           number must be there one after the other. The first number without a whole record ends the replay
//           only if nothing speaks for a later one: no whole record of this store with a higher number,
//           anywhere in either segment, and no mark of it. Then it is a tail that was torn before it was
//           acknowledged; else it is damage.
//
// Place     daemon/store/journal; pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/base/result.h"
#include "daemon/model/rows.h"
#include "daemon/store/journal/journal_segment.h"

namespace terrace::daemon {

struct ReplayBounds {
  uint64_t folded = 0;  // the newest commit that the database has
  uint64_t marked = 0;  // the newest commit that was acknowledged, as far as the mark knows
};

struct Replay {
  Delta delta;            // of all commits in (folded, sequence]
  uint64_t sequence = 0;  // the newest commit that is there
};

// `records` of all segments, in any order.
// Errors    corrupt   commits are missing, or a record is no Delta; says how many
Result<Replay> replay_journal(std::span<const FoundRecord> records, const ReplayBounds& bounds);

// Makes `image` what it is after `delta`.
void apply_delta(Delta&& delta, Image& image);

}  // namespace terrace::daemon
