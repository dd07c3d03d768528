// SPDX-License-Identifier: Apache-2.0
#include "daemon/store/journal/delta_codec.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
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

// Both directions of the field lists of rows (daemon/model/row_fields.h).
class Writer {
 public:
  explicit Writer(ByteBuffer& out) : out_(out) {}
  void integer(const char*, uint64_t value) { out_.put_integer(value); }
  void random(const char*, uint64_t value) { out_.put_fixed(value); }  // as a varint it would be longer
  void truth(const char*, bool value) { out_.put_byte(value ? 1 : 0); }
  void id(const char*, auto value) { out_.put_integer(value.value); }
  void small(const char*, auto value, auto) { out_.put_byte(static_cast<uint8_t>(value)); }
  void name(const char*, const std::string& value) { out_.put_text(value); }
  void text(const char*, const std::string& value, size_t) { out_.put_text(value); }
  void extents(const char*, const std::vector<Extent>& list) {
    out_.put_integer(list.size());
    for (const Extent& extent : list)
      for (const uint64_t value : {extent.device.value, extent.first_granule, extent.granules})
        out_.put_integer(value);
  }

 private:
  ByteBuffer& out_;
};

// Once something is wrong, everything that follows reads as zero.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : at_(bytes.data()), end_(at_ + bytes.size()) {}

  void integer(const char*, uint64_t& value) { value = take_integer(); }
  void random(const char*, uint64_t& value) {
    value = 0;
    if (left() < sizeof(value)) return fail();
    std::memcpy(&value, at_, sizeof(value));
    at_ += sizeof(value);
  }
  void truth(const char*, bool& value) {
    const uint8_t byte = take_byte();
    if (byte > 1) fail();
    value = byte == 1;
  }
  template <typename Id>
  void id(const char*, Id& value) {
    value = Id{take_integer()};
  }
  template <typename Enum>
  void small(const char*, Enum& value, Enum last) {
    value = static_cast<Enum>(take_byte());
    if (value > last) fail();  // of a byte that several fields share, the row would keep a part
  }
  void name(const char* name, std::string& value) { text(name, value, limits::name_bytes_max); }
  void text(const char*, std::string& value, size_t bytes_max) {
    const uint64_t size = take_integer();
    if (size > bytes_max || size > left()) return fail();
    value.assign(reinterpret_cast<const char*>(at_), size);
    at_ += size;
  }
  void extents(const char* name, std::vector<Extent>& list) {
    const uint64_t count = take_integer();
    if (count > limits::lease_extents_max) return fail();
    list.resize(count);
    for (Extent& extent : list) {
      id(name, extent.device);
      integer(name, extent.first_granule);
      integer(name, extent.granules);
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

// Whether a record has a meta row; records of before there were restored stores know the first two.
constexpr uint8_t meta_absent = 0, meta_there = 1, meta_restored = 2;

void write_key(Writer& io, auto id) {
  io.id("id", id);
}
void write_key(Writer& io, const std::string& tenant) {
  io.name("tenant", tenant);
}

// One table: how many changes, then for each its key, whether the row is there, and the row.
template <typename Key, typename Row>
void write_table(Writer& io, const std::map<Key, std::optional<Row>>& rows) {
  io.integer("rows", rows.size());
  for (const auto& [key, row] : rows) {
    write_key(io, key);
    io.truth("there", row.has_value());
    if (row.has_value()) Stored<Row>::fields(io, *row);
  }
}

template <typename Key, typename Row>
Status read_table(Reader& io, std::map<Key, std::optional<Row>>& rows) {
  const uint64_t count = io.take_integer();
  std::optional<Key> previous;
  for (uint64_t i = 0; i < count && !io.failed(); ++i) {
    std::optional<Row> row(std::in_place);
    Stored<Row>::key(io, *row);
    Key key = key_of(*row);
    if (previous.has_value() && !(*previous < key)) io.fail();
    bool there = false;
    io.truth("there", there);
    if (there)
      Stored<Row>::fields(io, *row);
    else
      row.reset();
    if (io.failed()) break;
    if (row.has_value()) TERRACE_RETURN_IF_ERROR(validate(*row));
    rows.insert_or_assign(key, std::move(row));
    previous = std::move(key);
  }
  return {};
}

// Views came with version 9 of the store. They are behind all else, and only where there are some: a journal that an earlier
// version left when it was killed is read as it is.
template <typename Rows>
constexpr bool is_last(const Rows&) {
  return std::is_same_v<std::remove_cv_t<Rows>, decltype(Delta::views)>;
}

Status read_all(Reader& io, Delta& delta) {
  Status status;
  each_table(delta, [&](auto& rows) {
    if (status.ok() && !is_last(rows)) status = read_table(io, rows);
  });
  TERRACE_RETURN_IF_ERROR(status);
  const uint8_t meta = io.take_byte();
  if (meta > meta_restored) io.fail();
  if (meta != meta_absent) {
    delta.meta.emplace();
    delta.meta->restored = meta == meta_restored;
    Stored<MetaRow>::fields(io, *delta.meta);
    if (!io.failed()) TERRACE_RETURN_IF_ERROR(validate(*delta.meta));
  }
  const uint64_t lines = io.take_integer();
  for (uint64_t i = 0; i < lines && !io.failed(); ++i) Stored<AuditRow>::fields(io, delta.audit.emplace_back());
  if (io.failed() || io.at_end()) return {};
  TERRACE_RETURN_IF_ERROR(read_table(io, delta.views));
  if (delta.views.empty()) io.fail();  // one Delta has one encoding
  return {};
}

}  // namespace

void encode_delta(const Delta& delta, ByteBuffer& out) {
  Writer io(out);
  each_table(delta, [&](const auto& rows) {
    if (!is_last(rows)) write_table(io, rows);
  });
  out.put_byte(!delta.meta.has_value() ? meta_absent : delta.meta->restored ? meta_restored : meta_there);
  if (delta.meta.has_value()) Stored<MetaRow>::fields(io, *delta.meta);
  io.integer("lines", delta.audit.size());
  for (const AuditRow& row : delta.audit) {
    const AuditRow line = clipped(row);
    Stored<AuditRow>::fields(io, line);
  }
  if (!delta.views.empty()) write_table(io, delta.views);
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
