#include "daemon/store/row_codec.h"

#include <bit>
#include <cstring>
#include <string_view>

#include "core/base/crc32c.h"
#include "core/base/limits.h"

namespace terrace::daemon {
namespace {

static_assert(std::endian::native == std::endian::little, "the codec copies integers as they lie in memory");

// Feeds fields to the crc in order; a text's length comes first, so that two rows never share their bytes.
class Crc {
 public:
  explicit Crc(char table) { add_bytes(&table, 1); }
  Crc& add(uint64_t value) {
    add_bytes(&value, sizeof(value));
    return *this;
  }
  Crc& add(std::string_view text) {
    add(static_cast<uint64_t>(text.size()));
    add_bytes(text.data(), text.size());
    return *this;
  }
  uint32_t value() const { return crc_; }

 private:
  void add_bytes(const void* data, size_t size) {
    crc_ = crc32c({static_cast<const std::byte*>(data), size}, crc_);
  }
  uint32_t crc_ = 0;
};

Error impossible(std::string row, const char* what) {
  return Error{.code = ErrorCode::corrupt,
               .where = "store row",
               .detail = std::move(row) + " has an impossible " + what};
}

bool name_fits(const std::string& name) {
  return !name.empty() && name.size() <= limits::name_bytes_max;
}

}  // namespace

Status validate(const DeviceRow& row) {
  const std::string name = "device " + std::to_string(row.id.value);
  if (!row.id.valid()) return impossible(name, "id");
  if (!name_fits(row.serial)) return impossible(name, "serial");
  if (!name_fits(row.backend)) return impossible(name, "backend name");
  if (row.capacity_bytes == 0) return impossible(name, "capacity");
  if (!is_power_of_two(row.granule_bytes) || row.granule_bytes > limits::granule_bytes_max)
    return impossible(name, "granule size");
  if (row.state > DeviceState::failed) return impossible(name, "state");
  return {};
}

Status validate(const PoolRow& row) {
  const std::string name = "pool " + std::to_string(row.id.value);
  if (!row.id.valid()) return impossible(name, "id");
  if (!name_fits(row.name)) return impossible(name, "name");
  if (row.placement > Placement::spread) return impossible(name, "placement");
  if ((row.stripe_bytes != 0) != (row.placement == Placement::striped)) return impossible(name, "stripe");
  if (row.coherence > PoolCoherence::noncoherent) return impossible(name, "coherence");
  return {};
}

Status validate(const LeaseRow& row) {
  const std::string name = "lease " + std::to_string(row.id.value);
  if (!row.id.valid()) return impossible(name, "id");
  if (!row.pool.valid()) return impossible(name, "pool");
  if (!name_fits(row.tenant)) return impossible(name, "tenant");
  if (!name_fits(row.host)) return impossible(name, "host");
  if (!name_fits(row.object)) return impossible(name, "object name");
  if (row.label.size() > limits::label_bytes_max) return impossible(name, "label");
  if (row.reason.size() > limits::reason_bytes_max) return impossible(name, "reason");
  if (!row.epoch.valid()) return impossible(name, "epoch");
  if (row.mode > LeaseMode::shared_coherent) return impossible(name, "mode");
  if (row.phase == LeasePhase::pending || row.phase >= LeasePhase::waiting) return impossible(name, "phase");
  if (row.cause > LeaseCause::moved) return impossible(name, "cause");
  if (row.next_object.size() > limits::name_bytes_max) return impossible(name, "next object name");
  if (row.bytes == 0) return impossible(name, "size");
  if (row.extents.empty() || row.extents.size() > limits::lease_extents_max)
    return impossible(name, "number of extents");
  for (const Extent& extent : row.extents) {
    if (!extent.device.valid() || extent.granules == 0 || extent.end() < extent.first_granule)
      return impossible(name, "extent");
  }
  return {};
}

Status validate(const QuotaRow& row) {
  if (!name_fits(row.tenant)) return impossible("a quota", "tenant");
  return {};
}

Status validate(const ReservationRow& row) {
  const std::string name = "reservation " + std::to_string(row.id.value);
  if (!row.id.valid()) return impossible(name, "id");
  if (!row.pool.valid()) return impossible(name, "pool");
  if (!name_fits(row.tenant)) return impossible(name, "tenant");
  if (row.bytes == 0) return impossible(name, "size");
  return {};
}

Status validate(const OwnerRow& row) {
  const std::string name =
      "part " + std::to_string(part_of(row.id)) + " of lease " + std::to_string(lease_of(row.id).value);
  if (!lease_of(row.id).valid()) return impossible(name, "lease");
  if (row.epoch == 0) return impossible(name, "epoch");
  if (row.holder.size() > limits::label_bytes_max) return impossible(name, "owner's name");
  const OwnerRow vacant{.id = row.id, .epoch = row.epoch};
  if (row.process.pid == 0 && row != vacant) return impossible(name, "owner");
  return {};
}

Status validate(const AuditRow& row) {
  for (const std::string* text : {&row.actor, &row.tenant, &row.verb, &row.subject, &row.detail})
    if (text->size() > limits::audit_text_bytes_max) return impossible("an audit row", "text");
  return {};
}

Status validate(const MetaRow& row) {
  if (row.next_device == 0 || row.next_pool == 0 || row.next_lease == 0 || row.next_epoch == 0 ||
      row.next_reservation == 0)
    return impossible("the meta row", "counter");
  if (row.boot_id.size() > limits::name_bytes_max) return impossible("the meta row", "boot id");
  return {};
}

uint32_t row_crc(const DeviceRow& row, RowFormat format) {
  Crc crc('D');
  crc.add(row.id.value).add(row.serial).add(row.backend).add(row.capacity_bytes).add(row.granule_bytes);
  crc.add(row.pool.value);
  if (format != RowFormat::version_1) crc.add(static_cast<uint64_t>(row.state));
  return crc.value();
}

uint32_t row_crc(const PoolRow& row, RowFormat format) {
  Crc crc('P');
  crc.add(row.id.value).add(row.name);
  if (format != RowFormat::version_1) crc.add(static_cast<uint64_t>(row.placement)).add(row.stripe_bytes);
  if (format == RowFormat::current) crc.add(static_cast<uint64_t>(row.coherence));
  return crc.value();
}

uint32_t row_crc(const LeaseRow& row, RowFormat format) {
  Crc crc('L');
  crc.add(row.id.value).add(row.pool.value).add(row.tenant).add(row.host).add(row.label).add(row.object);
  crc.add(row.reason).add(static_cast<uint64_t>(row.extents.size()));
  for (const Extent& extent : row.extents)
    crc.add(extent.device.value).add(extent.first_granule).add(extent.granules);
  crc.add(row.epoch.value).add(static_cast<uint64_t>(row.mode)).add(static_cast<uint64_t>(row.phase));
  crc.add(row.bytes).add(row.ttl_ns).add(row.expiry_ns).add(row.deadline_ns);
  crc.add(row.request_high).add(row.request_low);
  if (format != RowFormat::version_1) {
    crc.add(static_cast<uint64_t>(row.cause)).add(static_cast<uint64_t>(row.movable));
    crc.add(row.target_bytes).add(row.next_object);
  }
  return crc.value();
}

uint32_t row_crc(const QuotaRow& row, RowFormat) {
  return Crc('Q').add(row.tenant).add(row.bytes_max).add(row.leases_max).value();
}

uint32_t row_crc(const ReservationRow& row, RowFormat) {
  Crc crc('R');
  crc.add(row.id.value).add(row.pool.value).add(row.tenant).add(row.bytes);
  return crc.add(row.ttl_ns).add(row.expiry_ns).value();
}

uint32_t row_crc(const OwnerRow& row, RowFormat) {
  Crc crc('O');
  crc.add(row.id.value).add(row.epoch).add(row.request).add(row.process.pid).add(row.process.started);
  return crc.add(row.process.space).add(row.holder).value();
}

uint32_t row_crc(const MetaRow& row, const StoreSeal& seal, RowFormat format) {
  Crc crc('M');
  crc.add(seal.store_id).add(seal.sequence).add(seal.rows).add(seal.digest);
  if (format != RowFormat::version_1) crc.add(static_cast<uint64_t>(seal.journal));
  crc.add(row.next_device).add(row.next_pool).add(row.next_lease).add(row.next_epoch);
  if (format != RowFormat::version_1) crc.add(row.next_reservation);
  return crc.add(row.boot_id).value();
}

uint32_t row_crc(const AuditRow& row) {
  Crc crc('A');
  crc.add(row.sequence).add(row.wall_ns).add(row.actor).add(row.tenant).add(row.verb);
  return crc.add(row.subject).add(row.detail).value();
}

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

std::string_view clip_audit_text(std::string_view text) {
  if (text.size() <= limits::audit_text_bytes_max) return text;
  size_t size = limits::audit_text_bytes_max;
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) --size;
  return text.substr(0, size);
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
