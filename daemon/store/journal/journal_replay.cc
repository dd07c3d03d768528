// SPDX-License-Identifier: Apache-2.0
#include "daemon/store/journal/journal_replay.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace terrace::daemon {
namespace {

Error corrupt(std::string detail) {
  return Error{.code = ErrorCode::corrupt, .where = "replay_journal", .detail = std::move(detail)};
}

Error missing(uint64_t sequence, uint64_t newest_known) {
  const uint64_t count = newest_known - sequence;
  return corrupt(std::to_string(count) + " acknowledged commits are missing (" + std::to_string(sequence + 1) +
                 " to " + std::to_string(newest_known) +
                 "): the journal or the log was damaged, or a file is an older copy");
}

DeviceId key_of(const DeviceRow& row) {
  return row.id;
}
PoolId key_of(const PoolRow& row) {
  return row.id;
}
LeaseId key_of(const LeaseRow& row) {
  return row.id;
}
const std::string& key_of(const QuotaRow& row) {
  return row.tenant;
}
ReservationId key_of(const ReservationRow& row) {
  return row.id;
}
PartId key_of(const OwnerRow& row) {
  return row.id;
}
ViewId key_of(const ViewRow& row) {
  return row.id;
}

// Both are in the order of their keys.
template <typename Key, typename Row>
void merge_rows(std::map<Key, std::optional<Row>>&& changes, std::vector<Row>& rows) {
  if (changes.empty()) return;
  std::vector<Row> merged;
  merged.reserve(rows.size() + changes.size());
  auto old = rows.begin();
  for (auto& [key, row] : changes) {
    for (; old != rows.end() && key_of(*old) < key; ++old) merged.push_back(std::move(*old));
    if (old != rows.end() && key_of(*old) == key) ++old;
    if (row.has_value()) merged.push_back(std::move(*row));
  }
  std::move(old, rows.end(), std::back_inserter(merged));
  rows = std::move(merged);
}

}  // namespace

Result<Replay> replay_journal(std::span<const FoundRecord> records, const ReplayBounds& bounds) {
  std::vector<FoundRecord> newer;
  for (const FoundRecord& record : records)
    if (record.sequence > bounds.folded) newer.push_back(record);
  std::sort(newer.begin(), newer.end(),
            [](const FoundRecord& a, const FoundRecord& b) { return a.sequence < b.sequence; });
  Replay replay;
  replay.sequence = bounds.folded;
  for (const FoundRecord& record : newer) {
    if (record.sequence == replay.sequence)
      return corrupt("commit " + std::to_string(record.sequence) + " is in the journal twice");
    if (record.sequence != replay.sequence + 1)
      return missing(replay.sequence, std::max(bounds.marked, record.sequence - 1));
    const Status decoded = decode_delta(record.payload, replay.delta);
    if (!decoded.ok())
      return corrupt("commit " + std::to_string(record.sequence) + ": " + decoded.error().detail);
    replay.sequence = record.sequence;
  }
  if (replay.sequence < bounds.marked) return missing(replay.sequence, bounds.marked);
  return replay;
}

void apply_delta(Delta&& delta, Image& image) {
  merge_rows(std::move(delta.devices), image.devices);
  merge_rows(std::move(delta.pools), image.pools);
  merge_rows(std::move(delta.leases), image.leases);
  merge_rows(std::move(delta.quotas), image.quotas);
  merge_rows(std::move(delta.reservations), image.reservations);
  merge_rows(std::move(delta.owners), image.owners);
  merge_rows(std::move(delta.views), image.views);
  if (delta.meta.has_value()) image.meta = std::move(*delta.meta);
}

}  // namespace terrace::daemon
