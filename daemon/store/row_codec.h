// One row's canonical bytes, its crc32c and its share of the store's seal; and whether a row may be stored
// at all. The same check runs before a row is written and after it is read, so that the store never holds
// what it would refuse to load.
//
// Place     daemon/store; pure. docs/formats/store.md describes the bytes.
// Threads   Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "daemon/model/rows.h"

namespace terrace::daemon {

// What the store adds to the manager's meta row: who this store is, how many commits it has seen, and a
// digest of every row, so that a row that vanished is noticed.
struct StoreSeal {
  uint64_t store_id = 0;
  uint64_t sequence = 0;
  uint64_t rows = 0;     // all rows but this one and the audit log's
  uint64_t digest = 0;   // sum over those rows of row_share(), modulo 2^64
  bool journal = false;  // commits beyond `sequence` may lie in the journal, which must then be there
};

// Which columns a row's checksum covers: those of schema version 1 or 2, or all.
enum class RowFormat : uint8_t { version_1, version_2, current };

inline constexpr size_t extent_bytes = 24;  // device, first granule, granules: three little-endian u64

// Errors    corrupt   names the row and what is impossible about it. Relations between rows are not looked
//                     at: StateMachine::recover does that
Status validate(const DeviceRow& row);
Status validate(const PoolRow& row);
Status validate(const LeaseRow& row);
Status validate(const QuotaRow& row);
Status validate(const ReservationRow& row);
Status validate(const OwnerRow& row);
Status validate(const MetaRow& row);
Status validate(const AuditRow& row);

// crc32c over a tag for the table and every column.
uint32_t row_crc(const DeviceRow& row, RowFormat format = RowFormat::current);
uint32_t row_crc(const PoolRow& row, RowFormat format = RowFormat::current);
uint32_t row_crc(const LeaseRow& row, RowFormat format = RowFormat::current);
uint32_t row_crc(const QuotaRow& row, RowFormat format = RowFormat::current);
uint32_t row_crc(const ReservationRow& row, RowFormat format = RowFormat::current);
uint32_t row_crc(const OwnerRow& row, RowFormat format = RowFormat::current);
uint32_t row_crc(const MetaRow& row, const StoreSeal& seal, RowFormat format = RowFormat::current);
uint32_t row_crc(const AuditRow& row);

// What a row's share is made from besides its checksum: its id, or a hash of the tenant that it is stored
// under.
uint64_t row_key(uint64_t id);
uint64_t row_key(const std::string& tenant);
// A row's summand in StoreSeal::digest.
uint64_t row_share(uint64_t key, uint32_t crc);

// `text` cut to what a line of the audit log may hold, between characters.
std::string_view clip_audit_text(std::string_view text);

void encode_extents(const std::vector<Extent>& extents, std::vector<std::byte>& bytes);
// Errors    corrupt   not a multiple of extent_bytes, or more than limits::lease_extents_max
Result<std::vector<Extent>> decode_extents(std::span<const std::byte> bytes);

}  // namespace terrace::daemon
