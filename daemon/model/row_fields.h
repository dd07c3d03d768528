// SPDX-License-Identifier: Apache-2.0
// The fields of each stored row, once: SQL, journal records, checksums and bounds all follow from these lists.
//
//   Stored<LeaseRow>::fields(io, row)   calls io.integer("bytes", row.bytes) and the like, in the order of columns
//
// The calls of an `io` (row is const for one that only reads):
//   integer(name, uint64_t)      random(name, uint64_t): an integer that is no small number
//   id(name, Id)                 truth(name, bool)
//   name(name, text)             not empty, at most limits::name_bytes_max
//   text(name, text, bytes_max)  may be empty
//   small(name, Enum, last)      an enumeration of one byte, `last` its greatest value
//   extents(name, vector)
//
// A new field is one line here; relations between fields are in daemon/store/row_codec.cc. The key of a row is
// apart, for journal records name it first and a deleted row has nothing else.
//
// Place     Between rows.h and the code that stores rows. Pure.
#pragma once

#include "core/base/limits.h"
#include "daemon/model/rows.h"

namespace terrace::daemon {

template <typename Row>
struct Stored;

template <>
struct Stored<DeviceRow> {
  static constexpr const char* table = "device";
  static constexpr char tag = 'D';  // the first byte of what its checksum covers
  static constexpr uint64_t rows_max = limits::devices_max;
  template <typename Io>
  static void key(Io& io, auto& row) {
    io.id("id", row.id);
  }
  template <typename Io>
  static void fields(Io& io, auto& row) {
    io.name("serial", row.serial);
    io.name("backend", row.backend);
    io.integer("capacity_bytes", row.capacity_bytes);
    io.integer("granule_bytes", row.granule_bytes);
    io.id("pool", row.pool);
    io.small("state", row.state, DeviceState::failed);
  }
};

// A pool's coherence and trust, which share a byte in the store: an older row has the first of them only.
enum class PoolWords : uint8_t { last = 6 };
constexpr PoolWords words_of(const PoolRow& row) {
  return static_cast<PoolWords>(static_cast<unsigned>(row.coherence) | static_cast<unsigned>(row.trust) << 2);
}
constexpr void set_words(PoolRow& row, PoolWords words) {
  row.coherence = static_cast<PoolCoherence>(static_cast<unsigned>(words) & 3);
  row.trust = static_cast<TenantTrust>(static_cast<unsigned>(words) >> 2);
}
constexpr void set_words(const PoolRow&, PoolWords) {}  // it was only read

template <>
struct Stored<PoolRow> {
  static constexpr const char* table = "pool";
  static constexpr char tag = 'P';
  static constexpr uint64_t rows_max = limits::pools_max;
  template <typename Io>
  static void key(Io& io, auto& row) {
    io.id("id", row.id);
  }
  template <typename Io>
  static void fields(Io& io, auto& row) {
    io.name("name", row.name);
    io.small("placement", row.placement, Placement::spread);
    io.integer("stripe_bytes", row.stripe_bytes);
    PoolWords words = words_of(row);
    io.small("words", words, PoolWords::last);
    set_words(row, words);
  }
};

// Whether a lease is movable, and what becomes of its holders at a fence, which share a byte in the store: an older row has
// the first of them only. Never both.
enum class LeaseWords : uint8_t { last = 2 };
constexpr LeaseWords words_of(const LeaseRow& row) {
  return static_cast<LeaseWords>((row.movable ? 1u : 0u) | static_cast<unsigned>(row.on_fence) << 1);
}
constexpr void set_words(LeaseRow& row, LeaseWords words) {
  row.movable = (static_cast<unsigned>(words) & 1) != 0;
  row.on_fence = static_cast<OnFence>(static_cast<unsigned>(words) >> 1 & 1);
}
constexpr void set_words(const LeaseRow&, LeaseWords) {}  // it was only read

template <>
struct Stored<LeaseRow> {
  static constexpr const char* table = "lease";
  static constexpr char tag = 'L';
  static constexpr uint64_t rows_max = limits::leases_max;
  template <typename Io>
  static void key(Io& io, auto& row) {
    io.id("id", row.id);
  }
  template <typename Io>
  static void fields(Io& io, auto& row) {
    io.id("pool", row.pool);
    io.name("tenant", row.tenant);
    io.name("host", row.host);
    io.text("label", row.label, limits::label_bytes_max);
    io.name("object", row.object);
    io.text("reason", row.reason, limits::reason_bytes_max);
    io.extents("extents", row.extents);
    io.id("epoch", row.epoch);
    io.small("mode", row.mode, LeaseMode::shared_coherent);
    io.small("phase", row.phase, LeasePhase::transferring);
    io.integer("bytes", row.bytes);
    io.integer("ttl_ns", row.ttl_ns);
    io.integer("expiry_ns", row.expiry_ns);
    io.integer("deadline_ns", row.deadline_ns);
    io.random("request_high", row.request_high);
    io.random("request_low", row.request_low);
    io.small("cause", row.cause, LeaseCause::moved);
    LeaseWords words = words_of(row);
    io.small("words", words, LeaseWords::last);
    set_words(row, words);
    io.integer("target_bytes", row.target_bytes);
    io.text("next_object", row.next_object, limits::name_bytes_max);
  }
};

template <>
struct Stored<QuotaRow> {
  static constexpr const char* table = "quota";
  static constexpr char tag = 'Q';
  static constexpr uint64_t rows_max = limits::quotas_max;
  template <typename Io>
  static void key(Io& io, auto& row) {
    io.name("tenant", row.tenant);
  }
  template <typename Io>
  static void fields(Io& io, auto& row) {
    io.integer("bytes_max", row.bytes_max);
    io.integer("leases_max", row.leases_max);
  }
};

template <>
struct Stored<ReservationRow> {
  static constexpr const char* table = "reservation";
  static constexpr char tag = 'R';
  static constexpr uint64_t rows_max = limits::reservations_max;
  template <typename Io>
  static void key(Io& io, auto& row) {
    io.id("id", row.id);
  }
  template <typename Io>
  static void fields(Io& io, auto& row) {
    io.id("pool", row.pool);
    io.name("tenant", row.tenant);
    io.integer("bytes", row.bytes);
    io.integer("ttl_ns", row.ttl_ns);
    io.integer("expiry_ns", row.expiry_ns);
  }
};

// Who owns a part and on which host, which share a text in the store: an older row has the first alone.
inline std::string who_of(const OwnerRow& row) {
  return row.host.empty() ? row.holder : row.holder + '\n' + row.host;
}
inline void set_who(OwnerRow& row, const std::string& who) {
  const size_t line = who.find('\n');
  row.holder = who.substr(0, line);
  row.host = line == std::string::npos ? "" : who.substr(line + 1);
  if (line != std::string::npos && row.host.empty()) row.host = "\n";  // no name: a row has one encoding
}
inline void set_who(const OwnerRow&, const std::string&) {}  // it was only read

template <>
struct Stored<OwnerRow> {
  static constexpr const char* table = "owner";
  static constexpr char tag = 'O';
  static constexpr uint64_t rows_max = limits::leases_max * lease_parts_max;
  template <typename Io>
  static void key(Io& io, auto& row) {
    io.id("id", row.id);
  }
  template <typename Io>
  static void fields(Io& io, auto& row) {
    io.integer("epoch", row.epoch);
    io.random("request", row.request);
    io.integer("pid", row.process.pid);
    io.integer("started", row.process.started);
    io.integer("space", row.process.space);
    std::string who = who_of(row);
    io.text("who", who, limits::label_bytes_max + 1 + limits::name_bytes_max);
    set_who(row, who);
  }
};

template <>
struct Stored<ViewRow> {
  static constexpr const char* table = "host_view";
  static constexpr char tag = 'V';
  static constexpr uint64_t rows_max = limits::leases_max * lease_views_max;
  template <typename Io>
  static void key(Io& io, auto& row) {
    io.id("id", row.id);
  }
  template <typename Io>
  static void fields(Io& io, auto& row) {
    io.name("object", row.object);
    io.truth("opening", row.opening);
    io.truth("closing", row.closing);
  }
};

// Numbered by the store; a journal record has no number yet.
template <>
struct Stored<AuditRow> {
  static constexpr const char* table = "audit";
  static constexpr char tag = 'A';
  template <typename Io>
  static void key(Io& io, auto& row) {
    io.integer("sequence", row.sequence);
  }
  template <typename Io>
  static void fields(Io& io, auto& row) {
    io.integer("wall_ns", row.wall_ns);
    io.text("actor", row.actor, limits::audit_text_bytes_max);
    io.text("tenant", row.tenant, limits::audit_text_bytes_max);
    io.text("verb", row.verb, limits::audit_text_bytes_max);
    io.text("subject", row.subject, limits::audit_text_bytes_max);
    io.text("detail", row.detail, limits::audit_text_bytes_max);
  }
};

// One row, behind the store's own fields (SealFields in daemon/store/row_codec.h).
template <>
struct Stored<MetaRow> {
  static constexpr const char* table = "meta";
  static constexpr char tag = 'M';
  template <typename Io>
  static void fields(Io& io, auto& row) {
    io.integer("next_device", row.next_device);
    io.integer("next_pool", row.next_pool);
    io.integer("next_lease", row.next_lease);
    io.integer("next_epoch", row.next_epoch);
    io.integer("next_reservation", row.next_reservation);
    io.text("boot_id", row.boot_id, limits::name_bytes_max);
  }
};

// The tables of rows with keys, of a Delta (maps) or an Image (vectors), in the order in which they are stored.
void each_table(auto& rows, auto&& visit) {
  visit(rows.devices);
  visit(rows.pools);
  visit(rows.leases);
  visit(rows.quotas);
  visit(rows.reservations);
  visit(rows.owners);
  visit(rows.views);
}

inline DeviceId key_of(const DeviceRow& row) {
  return row.id;
}
inline PoolId key_of(const PoolRow& row) {
  return row.id;
}
inline LeaseId key_of(const LeaseRow& row) {
  return row.id;
}
inline const std::string& key_of(const QuotaRow& row) {
  return row.tenant;
}
inline ReservationId key_of(const ReservationRow& row) {
  return row.id;
}
inline PartId key_of(const OwnerRow& row) {
  return row.id;
}
inline ViewId key_of(const ViewRow& row) {
  return row.id;
}

}  // namespace terrace::daemon
