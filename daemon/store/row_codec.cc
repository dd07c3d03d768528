// SPDX-License-Identifier: Apache-2.0
#include "daemon/store/row_codec.h"

#include <bit>
#include <cstring>
#include <string_view>

#include "core/base/crc32c.h"
#include "core/base/limits.h"
#include "core/base/plain_name.h"

namespace terrace::daemon {
namespace {

static_assert(std::endian::native == std::endian::little, "the codec copies integers as they lie in memory");

// Feeds fields to the crc in order; a text's length comes first, so that two rows never share their bytes.
class Crc {
 public:
  explicit Crc(char table) { add_bytes(&table, 1); }
  void integer(const char*, uint64_t value) { add_bytes(&value, sizeof(value)); }
  void random(const char* name, uint64_t value) { integer(name, value); }
  void truth(const char* name, bool value) { integer(name, value ? 1 : 0); }
  void id(const char* name, auto value) { integer(name, value.value); }
  void small(const char* name, auto value, auto) { integer(name, static_cast<uint64_t>(value)); }
  void name(const char* name, const std::string& value) { text(name, value, 0); }
  void text(const char* name, const std::string& value, size_t) {
    integer(name, value.size());
    add_bytes(value.data(), value.size());
  }
  void extents(const char* name, const std::vector<Extent>& list) {
    integer(name, list.size());
    for (const Extent& extent : list)
      for (const uint64_t value : {extent.device.value, extent.first_granule, extent.granules})
        integer(name, value);
  }
  uint32_t value() const { return crc_; }

 private:
  void add_bytes(const void* data, size_t size) {
    crc_ = crc32c({static_cast<const std::byte*>(data), size}, crc_);
  }
  uint32_t crc_ = 0;
};

// The first field beyond its bounds.
class Bounds {
 public:
  void integer(const char*, uint64_t) {}
  void random(const char*, uint64_t) {}
  void truth(const char*, bool) {}
  void id(const char*, auto) {}
  void small(const char* name, auto value, auto last) { require(value <= last, name); }
  void name(const char* name, const std::string& value) {
    require(!value.empty() && value.size() <= limits::name_bytes_max, name);
  }
  void text(const char* name, const std::string& value, size_t bytes_max) {
    require(value.size() <= bytes_max, name);
  }
  void extents(const char* name, const std::vector<Extent>& list) {
    require(!list.empty() && list.size() <= limits::lease_extents_max, name);
    for (const Extent& extent : list)
      require(extent.device.valid() && extent.granules > 0 && extent.end() >= extent.first_granule, name);
  }
  const char* broken() const { return broken_; }

 private:
  void require(bool holds, const char* name) {
    if (!holds && broken_ == nullptr) broken_ = name;
  }
  const char* broken_ = nullptr;
};

// What else must hold within one row: the name of what does not, or nullptr.
const char* broken_relation(const DeviceRow& row) {
  if (!row.id.valid()) return "id";
  if (row.capacity_bytes == 0) return "capacity";
  if (!is_power_of_two(row.granule_bytes) || row.granule_bytes > limits::granule_bytes_max)
    return "granule size";
  return nullptr;
}
const char* broken_relation(const PoolRow& row) {
  if (!row.id.valid()) return "id";
  if (row.coherence > PoolCoherence::noncoherent) return "coherence";
  if (row.trust > TenantTrust::mutual) return "trust";
  return (row.stripe_bytes != 0) != (row.placement == Placement::striped) ? "stripe" : nullptr;
}
const char* broken_relation(const LeaseRow& row) {
  if (!row.id.valid()) return "id";
  if (!row.pool.valid()) return "pool";
  if (!row.epoch.valid()) return "epoch";
  if (row.phase == LeasePhase::pending) return "phase";
  return row.bytes == 0 ? "size" : nullptr;
}
const char* broken_relation(const QuotaRow&) {
  return nullptr;
}
const char* broken_relation(const ReservationRow& row) {
  if (!row.id.valid()) return "id";
  if (!row.pool.valid()) return "pool";
  return row.bytes == 0 ? "size" : nullptr;
}
const char* broken_relation(const OwnerRow& row) {
  if (!lease_of(row.id).valid()) return "lease";
  if (row.epoch == 0) return "epoch";
  if (!row.host.empty() && row.host != any_host && !valid_plain_name(row.host)) return "host";
  if (row.process.pid != 0 && (row.host == any_host || row.holder.size() > limits::label_bytes_max))
    return "host";
  const OwnerRow vacant{.id = row.id, .epoch = row.epoch, .host = row.host};
  return row.process.pid == 0 && row != vacant ? "owner" : nullptr;
}
const char* broken_relation(const ViewRow& row) {
  return lease_of(row.id).valid() ? nullptr : "lease";
}
const char* broken_relation(const MetaRow& row) {
  const bool counts = row.next_device != 0 && row.next_pool != 0 && row.next_lease != 0 &&
                      row.next_epoch != 0 && row.next_reservation != 0;
  return counts ? nullptr : "counter";
}

std::string_view clip_audit_text(std::string_view text) {
  if (text.size() <= limits::audit_text_bytes_max) return text;
  size_t size = limits::audit_text_bytes_max;
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) --size;
  return text.substr(0, size);
}

template <typename Row>
std::string name_of(const Row& row) {
  return std::string(Stored<Row>::table) + " " + std::to_string(row.id.value);
}
std::string name_of(const OwnerRow& row) {
  return "part " + std::to_string(part_of(row.id)) + " of lease " + std::to_string(lease_of(row.id).value);
}
std::string name_of(const ViewRow& row) {
  return "a view of lease " + std::to_string(lease_of(row.id).value);
}
std::string name_of(const QuotaRow&) {
  return "a quota";
}
std::string name_of(const MetaRow&) {
  return "the meta row";
}

}  // namespace

template <typename Row>
Status validate(const Row& row) {
  Bounds bounds;
  if constexpr (requires { Stored<Row>::key(bounds, row); }) Stored<Row>::key(bounds, row);
  Stored<Row>::fields(bounds, row);
  const char* broken = bounds.broken();
  if (broken == nullptr) broken = broken_relation(row);
  if (broken == nullptr) return {};
  return Error{.code = ErrorCode::corrupt,
               .where = "store row",
               .detail = name_of(row) + " has an impossible " + broken};
}

template <typename Row>
uint32_t row_crc(const Row& row) {
  Crc crc(Stored<Row>::tag);
  Stored<Row>::key(crc, row);
  Stored<Row>::fields(crc, row);
  return crc.value();
}

uint32_t row_crc(const MetaRow& row, const StoreSeal& seal) {
  Crc crc(Stored<MetaRow>::tag);
  MetaFields::fields(crc, seal, row);
  return crc.value();
}

template <typename Seal>
uint32_t older_meta_crc(const MetaRow& row, const StoreSeal& seal) {
  Crc crc(Stored<MetaRow>::tag);
  Seal::fields(crc, seal);
  Stored<MetaRow>::fields(crc, row);
  return crc.value();
}

uint32_t row_crc_4(const MetaRow& row, const StoreSeal& seal) {
  return older_meta_crc<SealFields4>(row, seal);
}

uint32_t row_crc_5(const MetaRow& row, const StoreSeal& seal) {
  return older_meta_crc<SealFields>(row, seal);
}

template Status validate(const DeviceRow&);
template Status validate(const PoolRow&);
template Status validate(const LeaseRow&);
template Status validate(const QuotaRow&);
template Status validate(const ReservationRow&);
template Status validate(const OwnerRow&);
template Status validate(const ViewRow&);
template Status validate(const MetaRow&);
template uint32_t row_crc(const DeviceRow&);
template uint32_t row_crc(const PoolRow&);
template uint32_t row_crc(const LeaseRow&);
template uint32_t row_crc(const QuotaRow&);
template uint32_t row_crc(const ReservationRow&);
template uint32_t row_crc(const OwnerRow&);
template uint32_t row_crc(const ViewRow&);
template uint32_t row_crc(const AuditRow&);

uint64_t row_key(uint64_t id) {
  return id;
}

// FNV-1a. Two tenants of one hash are no matter: their checksums differ.
uint64_t row_key(const std::string& tenant) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : tenant) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

uint64_t row_share(uint64_t key, uint32_t crc) {
  uint64_t z = key * 0x9e3779b97f4a7c15ull + crc;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

AuditRow clipped(AuditRow row) {
  for (std::string* text : {&row.actor, &row.tenant, &row.verb, &row.subject, &row.detail})
    text->resize(clip_audit_text(*text).size());
  return row;
}

void encode_extents(const std::vector<Extent>& extents, std::vector<std::byte>& bytes) {
  bytes.resize(extents.size() * extent_bytes);
  std::byte* at = bytes.data();
  for (const Extent& extent : extents) {
    const uint64_t fields[3] = {extent.device.value, extent.first_granule, extent.granules};
    static_assert(sizeof(fields) == extent_bytes);
    std::memcpy(at, fields, extent_bytes);
    at += extent_bytes;
  }
}

Result<std::vector<Extent>> decode_extents(std::span<const std::byte> bytes) {
  if (bytes.size() % extent_bytes != 0 || bytes.size() / extent_bytes > limits::lease_extents_max) {
    return Error{.code = ErrorCode::corrupt,
                 .where = "decode_extents",
                 .detail = "an extent list of " + std::to_string(bytes.size()) + " bytes is impossible"};
  }
  std::vector<Extent> extents(bytes.size() / extent_bytes);
  for (size_t i = 0; i < extents.size(); ++i) {
    uint64_t fields[3];
    std::memcpy(fields, bytes.data() + i * extent_bytes, extent_bytes);
    extents[i] = {DeviceId{fields[0]}, fields[1], fields[2]};
  }
  return extents;
}

}  // namespace terrace::daemon
