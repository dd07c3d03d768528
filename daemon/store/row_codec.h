// SPDX-License-Identifier: Apache-2.0
// One row's canonical bytes, its crc32c and its share of the store's seal; and whether a row may be stored
// at all. The same check runs before a row is written and after it is read, so that the store never holds
// a row that it would refuse to load.
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
#include "daemon/model/row_fields.h"

namespace terrace::daemon {

// What the store adds to the manager's meta row: who this store is, how many commits it has seen, and a
// digest of every row, so that a row that vanished is noticed.
struct StoreSeal {
  uint64_t store_id = 0;
  uint64_t sequence = 0;
  uint64_t rows = 0;     // all rows but this one and the audit log's
  uint64_t digest = 0;   // sum over those rows of row_share(), modulo 2^64
  bool journal = false;  // commits beyond `sequence` may lie in the journal, which must then be there
  uint64_t store_high =
      0;  // the other half of the store's id (daemon/model/store_id.h); store_id is the low one
};

// Columns of the meta row, before MetaRow's (MetaFields has all of them).
struct SealFields {
  template <typename Io>
  static void fields(Io& io, auto& seal) {
    io.integer("store_id", seal.store_id);
    io.integer("sequence", seal.sequence);
    io.integer("rows", seal.rows);
    io.integer("digest", seal.digest);
    io.truth("journal", seal.journal);
    io.random("store_high", seal.store_high);
  }
};

// The same up to version 4 of the schema, when a store's id had 64 bits.
struct SealFields4 {
  template <typename Io>
  static void fields(Io& io, auto& seal) {
    io.integer("store_id", seal.store_id);
    io.integer("sequence", seal.sequence);
    io.integer("rows", seal.rows);
    io.integer("digest", seal.digest);
    io.truth("journal", seal.journal);
  }
};

// All columns of the meta row. `restored` is the last one: it is younger than the others, and journal records know it
// in a way of their own (delta_codec.cc).
struct MetaFields {
  template <typename Io>
  static void fields(Io& io, auto& seal, auto& meta) {
    SealFields::fields(io, seal);
    Stored<MetaRow>::fields(io, meta);
    io.truth("restored", meta.restored);
  }
};

inline constexpr size_t extent_bytes = 24;  // device, first granule, granules: three little-endian u64

// Bounds of each field (daemon/model/row_fields.h), and relations between the fields of one row. Instantiated for
// every row of rows.h.
// Errors    corrupt   names the row and what is impossible about it. Relations between rows are not looked
//                     at: StateMachine::recover does that
template <typename Row>
Status validate(const Row& row);

// crc32c over a tag for the table and every column.
template <typename Row>
uint32_t row_crc(const Row& row);
uint32_t row_crc(const MetaRow& row, const StoreSeal& seal);
uint32_t row_crc_4(const MetaRow& row, const StoreSeal& seal);  // of version 4 of the schema
uint32_t row_crc_5(const MetaRow& row, const StoreSeal& seal);  // of version 5

// What a row's share is made from besides its checksum: its id, or a hash of the tenant that it is stored
// under.
uint64_t row_key(uint64_t id);
uint64_t row_key(const std::string& tenant);
// A row's summand in StoreSeal::digest.
uint64_t row_share(uint64_t key, uint32_t crc);

// `row` with its texts cut to what a line of the audit log may hold, between characters.
AuditRow clipped(AuditRow row);

void encode_extents(const std::vector<Extent>& extents, std::vector<std::byte>& bytes);
// Errors    corrupt   not a multiple of extent_bytes, or more than limits::lease_extents_max
Result<std::vector<Extent>> decode_extents(std::span<const std::byte> bytes);

}  // namespace terrace::daemon
