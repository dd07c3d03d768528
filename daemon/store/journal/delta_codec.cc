#include "daemon/store/journal/delta_codec.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "core/base/check.h"
#include "core/base/limits.h"
#include "daemon/store/row_codec.h"

namespace terrace::daemon {

void ByteBuffer::Free::operator()(std::byte* memory) const {
  std::free(memory);
}

void ByteBuffer::grow(size_t capacity) {
  capacity = std::max(capacity, capacity_ * 2);
  capacity = (capacity + alignment - 1) / alignment * alignment;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(alignment, capacity));
  TERRACE_CHECK(memory != nullptr, "memory for a journal record");
  if (size_ > 0) std::memcpy(memory, data_.get(), size_);
  data_.reset(memory);
  capacity_ = capacity;
}

void ByteBuffer::resize(size_t size) {
  if (size > size_) {
    need(size - size_);
    std::memset(data_.get() + size_, 0, size - size_);
  }
  size_ = size;
}

void ByteBuffer::shrink(size_t bytes) {
  if (capacity_ <= bytes) return;
  data_.reset();
  size_ = capacity_ = 0;
}

void ByteBuffer::put_byte(uint8_t value) {
  need(1);
  data_.get()[size_++] = std::byte{value};
}

void ByteBuffer::put_integer(uint64_t value) {
  need(10);
  std::byte* at = data_.get() + size_;
  for (; value >= 0x80; value >>= 7) *at++ = static_cast<std::byte>(value | 0x80);
  *at++ = static_cast<std::byte>(value);
  size_ = static_cast<size_t>(at - data_.get());
}

void ByteBuffer::put_fixed(uint64_t value) {
  need(sizeof(value));
  std::memcpy(data_.get() + size_, &value, sizeof(value));
  size_ += sizeof(value);
}

void ByteBuffer::put_text(std::string_view text) {
  put_integer(text.size());
  need(text.size());
  if (!text.empty()) std::memcpy(data_.get() + size_, text.data(), text.size());
  size_ += text.size();
}

namespace {

// Both directions of one field list: Writer and Reader have the same calls, so that each row's fields stand in
// one place below.
class Writer {
 public:
  explicit Writer(ByteBuffer& out) : out_(out) {}
  void integer(uint64_t value) { out_.put_integer(value); }
  void fixed(uint64_t value) { out_.put_fixed(value); }
  void text(const std::string& value, size_t) { out_.put_text(value); }
  template <typename Enum>
  void small(Enum value) {
    out_.put_byte(static_cast<uint8_t>(value));
  }
  void truth(bool value) { out_.put_byte(value ? 1 : 0); }
  void policy(Placement placement, PoolCoherence coherence) {
    out_.put_byte(
        static_cast<uint8_t>(static_cast<unsigned>(placement) | static_cast<unsigned>(coherence) << 4));
  }
  template <typename Id>
  void id(const Id& value) {
    out_.put_integer(value.value);
  }
  void extents(const std::vector<Extent>& list) {
    out_.put_integer(list.size());
    for (const Extent& extent : list) {
      out_.put_integer(extent.device.value);
      out_.put_integer(extent.first_granule);
      out_.put_integer(extent.granules);
    }
  }

 private:
  ByteBuffer& out_;
};

// Once something is wrong, everything that follows reads as zero.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : at_(bytes.data()), end_(at_ + bytes.size()) {}

  void integer(uint64_t& value) { value = take_integer(); }
  void fixed(uint64_t& value) {
    value = 0;
    if (left() < sizeof(value)) return fail();
    std::memcpy(&value, at_, sizeof(value));
    at_ += sizeof(value);
  }
  void text(std::string& value, size_t bytes_max) {
    const uint64_t size = take_integer();
    if (size > bytes_max || size > left()) return fail();
    value.assign(reinterpret_cast<const char*>(at_), size);
    at_ += size;
  }
  template <typename Enum>
  void small(Enum& value) {
    value = static_cast<Enum>(take_byte());
  }
  void truth(bool& value) {
    const uint8_t byte = take_byte();
    if (byte > 1) fail();
    value = byte == 1;
  }
  // What was written before pools had a coherence has none in the upper half.
  void policy(Placement& placement, PoolCoherence& coherence) {
    const uint8_t byte = take_byte();
    placement = static_cast<Placement>(byte & 0xf);
    coherence = static_cast<PoolCoherence>(byte >> 4);
  }
  template <typename Id>
  void id(Id& value) {
    value = Id{take_integer()};
  }
  void extents(std::vector<Extent>& list) {
    const uint64_t count = take_integer();
    if (count > limits::lease_extents_max) return fail();
    list.resize(count);
    for (Extent& extent : list) {
      id(extent.device);
      integer(extent.first_granule);
      integer(extent.granules);
    }
  }

  uint64_t take_integer() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const uint8_t byte = take_byte();
      // The tenth byte has room for one bit; a last byte of zero is a longer form of the same number.
      if ((shift == 63 && byte > 1) || (shift > 0 && byte == 0)) break;
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    fail();
    return 0;
  }
  uint8_t take_byte() {
    if (at_ != end_) return static_cast<uint8_t>(*at_++);
    fail();
    return 0;
  }
  void fail() {
    failed_ = true;
    at_ = end_;
  }
  bool failed() const { return failed_; }
  bool at_end() const { return at_ == end_; }

 private:
  size_t left() const { return static_cast<size_t>(end_ - at_); }

  const std::byte* at_;
  const std::byte* end_;
  bool failed_ = false;
};

// The fields of each row behind its key; Row is const for a Writer.
template <typename Io, typename Row>
void device_fields(Io& io, Row& row) {
  io.text(row.serial, limits::name_bytes_max);
  io.text(row.backend, limits::name_bytes_max);
  io.integer(row.capacity_bytes);
  io.integer(row.granule_bytes);
  io.id(row.pool);
  io.small(row.state);
}

template <typename Io, typename Row>
void pool_fields(Io& io, Row& row) {
  io.text(row.name, limits::name_bytes_max);
  io.policy(row.placement, row.coherence);
  io.integer(row.stripe_bytes);
}

template <typename Io, typename Row>
void lease_fields(Io& io, Row& row) {
  io.id(row.pool);
  io.text(row.tenant, limits::name_bytes_max);
  io.text(row.host, limits::name_bytes_max);
  io.text(row.label, limits::label_bytes_max);
  io.text(row.object, limits::name_bytes_max);
  io.text(row.reason, limits::reason_bytes_max);
  io.extents(row.extents);
  io.id(row.epoch);
  io.small(row.mode);
  io.small(row.phase);
  io.small(row.cause);
  io.truth(row.movable);
  io.integer(row.bytes);
  io.integer(row.ttl_ns);
  io.integer(row.expiry_ns);
  io.integer(row.deadline_ns);
  io.fixed(row.request_high);  // random: as a varint they would be longer
  io.fixed(row.request_low);
  io.integer(row.target_bytes);
  io.text(row.next_object, limits::name_bytes_max);
}

template <typename Io, typename Row>
void quota_fields(Io& io, Row& row) {
  io.integer(row.bytes_max);
  io.integer(row.leases_max);
}

template <typename Io, typename Row>
void reservation_fields(Io& io, Row& row) {
  io.id(row.pool);
  io.text(row.tenant, limits::name_bytes_max);
  io.integer(row.bytes);
  io.integer(row.ttl_ns);
  io.integer(row.expiry_ns);
}

template <typename Io, typename Row>
void owner_fields(Io& io, Row& row) {
  io.integer(row.epoch);
  io.fixed(row.request);  // random
  io.integer(row.process.pid);
  io.integer(row.process.started);
  io.integer(row.process.space);
  io.text(row.holder, limits::label_bytes_max);
}

template <typename Io, typename Row>
void meta_fields(Io& io, Row& row) {
  io.integer(row.next_device);
  io.integer(row.next_pool);
  io.integer(row.next_lease);
  io.integer(row.next_epoch);
  io.integer(row.next_reservation);
  io.text(row.boot_id, limits::name_bytes_max);
}

// One table: how many changes, then for each its key, whether the row is there, and the row.
template <typename Key>
void write_key(Writer& io, const Key& key) {
  io.id(key);
}
void write_key(Writer& io, const std::string& key) {
  io.text(key, 0);
}
template <typename Key>
void read_key(Reader& io, Key& key) {
  io.id(key);
}
void read_key(Reader& io, std::string& key) {
  io.text(key, limits::name_bytes_max);
}

template <typename Rows, typename Fields>
void write_table(Writer& io, const Rows& rows, const Fields& fields) {
  io.integer(rows.size());
  for (const auto& [key, row] : rows) {
    write_key(io, key);
    io.truth(row.has_value());
    if (row.has_value()) fields(io, *row);
  }
}

template <typename Key>
void set_key(auto& row, const Key& key) {
  row.id = key;
}
void set_key(QuotaRow& row, const std::string& key) {
  row.tenant = key;
}

template <typename Key, typename Row, typename Fields>
Status read_table(Reader& io, std::map<Key, std::optional<Row>>& rows, const Fields& fields) {
  const uint64_t count = io.take_integer();
  std::optional<Key> previous;
  for (uint64_t i = 0; i < count && !io.failed(); ++i) {
    Key key{};
    read_key(io, key);
    if (previous.has_value() && !(*previous < key)) io.fail();
    bool there = false;
    io.truth(there);
    std::optional<Row> row;
    if (there) {
      row.emplace();
      set_key(*row, key);
      fields(io, *row);
    }
    if (io.failed()) break;
    if (row.has_value()) TERRACE_RETURN_IF_ERROR(validate(*row));
    rows.insert_or_assign(key, std::move(row));
    previous = std::move(key);
  }
  return {};
}

Status read_all(Reader& io, Delta& delta) {
  TERRACE_RETURN_IF_ERROR(read_table(io, delta.devices, device_fields<Reader, DeviceRow>));
  TERRACE_RETURN_IF_ERROR(read_table(io, delta.pools, pool_fields<Reader, PoolRow>));
  TERRACE_RETURN_IF_ERROR(read_table(io, delta.leases, lease_fields<Reader, LeaseRow>));
  TERRACE_RETURN_IF_ERROR(read_table(io, delta.quotas, quota_fields<Reader, QuotaRow>));
  TERRACE_RETURN_IF_ERROR(read_table(io, delta.reservations, reservation_fields<Reader, ReservationRow>));
  bool meta = false;
  io.truth(meta);
  if (meta) {
    delta.meta.emplace();
    meta_fields(io, *delta.meta);
    if (!io.failed()) TERRACE_RETURN_IF_ERROR(validate(*delta.meta));
  }
  const uint64_t lines = io.take_integer();
  for (uint64_t i = 0; i < lines && !io.failed(); ++i) {
    AuditRow& row = delta.audit.emplace_back();
    io.integer(row.wall_ns);
    for (std::string* text : {&row.actor, &row.tenant, &row.verb, &row.subject, &row.detail})
      io.text(*text, limits::audit_text_bytes_max);
  }
  if (io.failed() || io.at_end()) return {};
  // Only where there is one: records of before parts had owners end here.
  std::map<PartId, std::optional<OwnerRow>> owners;
  TERRACE_RETURN_IF_ERROR(read_table(io, owners, owner_fields<Reader, OwnerRow>));
  if (owners.empty()) io.fail();
  for (auto& [id, row] : owners) delta.owners.insert_or_assign(id, std::move(row));
  return {};
}

}  // namespace

void encode_delta(const Delta& delta, ByteBuffer& out) {
  Writer io(out);
  write_table(io, delta.devices, device_fields<Writer, const DeviceRow>);
  write_table(io, delta.pools, pool_fields<Writer, const PoolRow>);
  write_table(io, delta.leases, lease_fields<Writer, const LeaseRow>);
  write_table(io, delta.quotas, quota_fields<Writer, const QuotaRow>);
  write_table(io, delta.reservations, reservation_fields<Writer, const ReservationRow>);
  io.truth(delta.meta.has_value());
  if (delta.meta.has_value()) meta_fields(io, *delta.meta);
  io.integer(delta.audit.size());
  for (const AuditRow& row : delta.audit) {
    io.integer(row.wall_ns);
    for (const std::string* text : {&row.actor, &row.tenant, &row.verb, &row.subject, &row.detail})
      out.put_text(clip_audit_text(*text));
  }
  if (!delta.owners.empty()) write_table(io, delta.owners, owner_fields<Writer, const OwnerRow>);
}

Status decode_delta(std::span<const std::byte> bytes, Delta& delta) {
  Reader io(bytes);
  TERRACE_RETURN_IF_ERROR(read_all(io, delta));
  if (!io.failed() && io.at_end()) return {};
  return Error{.code = ErrorCode::corrupt,
               .where = "decode_delta",
               .detail = io.failed() ? "a journal record ends early or holds an impossible value"
                                     : "a journal record holds more than its rows"};
}

}  // namespace terrace::daemon
