// SPDX-License-Identifier: Apache-2.0
// The bytes of the journal: a record's payload, or a run of records. The first byte says which. Whatever
// decodes must encode to the same bytes again and hold only rows that the store would also read from its
// database; replay must never accept a gap.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/base/check.h"
#include "daemon/store/journal/delta_codec.h"
#include "daemon/store/journal/journal_replay.h"
#include "daemon/store/journal/journal_segment.h"
#include "daemon/store/row_writer.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

void attack_payload(std::span<const std::byte> bytes) {
  Delta delta;
  if (!decode_delta(bytes, delta).ok()) return;
  TERRACE_CHECK(RowWriter::check(delta).ok(), "what decodes may be stored");
  ByteBuffer again;
  encode_delta(delta, again);
  TERRACE_CHECK(again.size() == bytes.size() && std::equal(bytes.begin(), bytes.end(), again.data()),
                "one Delta has one encoding");
}

// Records of two bytes each in the input: a sequence number and how much of a fixed payload is left of it.
void attack_replay(std::span<const std::byte> bytes) {
  ByteBuffer payload;
  Delta deletion;
  deletion.leases[LeaseId{7}] = std::nullopt;
  encode_delta(deletion, payload);
  std::vector<FoundRecord> records;
  for (size_t i = 2; i + 1 < bytes.size(); i += 2) {
    const auto kept = std::min(static_cast<size_t>(bytes[i + 1]), payload.size());
    records.push_back({static_cast<uint64_t>(bytes[i]), {payload.data(), kept}});
  }
  if (bytes.size() < 2) return;
  const ReplayBounds bounds{.folded = static_cast<uint64_t>(bytes[0]),
                            .marked = static_cast<uint64_t>(bytes[1])};
  const Result<Replay> replay = replay_journal(records, bounds);
  if (!replay.ok()) return;
  TERRACE_CHECK(replay->sequence >= std::max(bounds.folded, bounds.marked), "nothing acknowledged is dropped");
  for (const FoundRecord& record : records)
    TERRACE_CHECK(record.sequence <= replay->sequence, "nothing that is there is dropped");
}

// The input as the bytes behind a record's start, with and without its checksum fixed.
void attack_record(std::span<const std::byte> bytes) {
  constexpr uint64_t store_id = 1;
  (void)find_record(bytes, store_id);
  ByteBuffer record;
  record.resize(sizeof(RecordHeader));
  record.resize(sizeof(RecordHeader) + bytes.size());
  if (!bytes.empty()) std::memcpy(record.data() + sizeof(RecordHeader), bytes.data(), bytes.size());
  seal_record(record, store_id, 1);
  const auto found = find_record({record.data(), record.size()}, store_id);
  TERRACE_CHECK(found.has_value() && found->payload.size() == bytes.size(), "a sealed record is found");
  attack_payload(found->payload);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  // A copy, exactly as long as the input, so that ASan guards its end.
  const std::vector<std::byte> bytes(reinterpret_cast<const std::byte*>(data) + 1,
                                     reinterpret_cast<const std::byte*>(data) + size);
  switch (data[0] % 3) {
    case 0: attack_payload(bytes); break;
    case 1: attack_replay(bytes); break;
    default: attack_record(bytes); break;
  }
  return 0;
}
