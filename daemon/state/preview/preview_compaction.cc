// SPDX-License-Identifier: Apache-2.0
// A compaction, done to a copy: which place it would clear, and where what lies there would go.
#include <algorithm>

#include "daemon/state/preview/preview_moves.h"

namespace terrace::daemon {
namespace {

bool lies_within(const LeaseRow& lease, const CompactionReply& run) {
  return std::any_of(lease.extents.begin(), lease.extents.end(), [&run](const Extent& extent) {
    return extent.device == run.device && extent.first_granule < run.first_granule + run.granules &&
           run.first_granule < extent.end();
  });
}

}  // namespace

Preview preview_compaction(StateMachine copy, const CompactPool& command, const HolderCount& holders) {
  Preview preview;
  if (command.run_bytes == 0) {
    preview.outcome = Error{.code = ErrorCode::invalid_argument,
                            .where = "preview",
                            .detail = "say how long a free run is to be made: run_bytes"};
    return preview;
  }
  const PoolRow* pool = copy.find_pool(command.pool);
  const bool another = pool != nullptr && copy.compaction_of(pool->id) != nullptr;
  const Step begun = copy.apply(command);
  if (!begun.reply.ok()) {
    preview.outcome = begun.reply.error();
    return preview;
  }
  const auto run = std::get<CompactionReply>(*begun.reply);
  if (!run.device.valid()) {
    preview.summary = "moves nothing";
    preview.notes.push_back("a run of " + format_size(command.run_bytes) + " is free already");
    return preview;
  }
  preview.run = placed_extents(copy, {{run.device, run.first_granule, run.granules}}).at(0);
  PreviewedMoves moves(std::move(copy), command.now_ns, holders);
  moves.run([&run](const LeaseRow& lease) { return lies_within(lease, run); }, preview);
  preview.notes.insert(preview.notes.begin(), "clears " + format_size(preview.run->length) + " on " +
                                                  preview.run->device + " at " +
                                                  format_size(preview.run->offset));
  if (another) preview.notes.push_back("it takes the place of the compaction that is under way");
  if (preview.blocked_leases != 0)
    preview.notes.push_back("the run is not free before what stays has gone: release or revoke it");
  preview.notes.push_back("until it is free, or " + format_duration(command.deadline_ns - command.now_ns) +
                          " have passed, what is granted lies elsewhere where there is room");
  return preview;
}

}  // namespace terrace::daemon
