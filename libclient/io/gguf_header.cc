// SPDX-License-Identifier: Apache-2.0
#include "libclient/io/gguf_header.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "core/layout/tensor_catalog.h"
#include "libclient/io/gguf_types.h"

namespace terrace {
namespace {

constexpr std::array<char, 4> gguf_magic = {'G', 'G', 'U', 'F'};
constexpr uint64_t values_bytes_max = 100'000'000;
constexpr uint32_t gguf_rank_max = 4;

enum class ValueType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

// The file's bytes, one after the other.
class Cursor {
 public:
  Cursor(const ReadAt& read_at, uint64_t file_bytes, const std::string& file)
      : read_at_(read_at), file_bytes_(file_bytes), file_(file) {}

  Error refuse(ErrorCode code, const std::string& text) const {
    return Error{.code = code, .where = "read_gguf_header", .detail = file_ + ": " + text};
  }
  uint64_t at() const { return at_; }
  uint64_t left() const { return file_bytes_ - at_; }

  Status bytes(std::span<std::byte> into, const std::string& what) {
    if (into.size() > left())
      return refuse(ErrorCode::corrupt, what + " is cut short at byte " + std::to_string(file_bytes_) +
                                            ", the file's end; copy it again");
    while (!into.empty()) {
      if (at_ < buffer_at_ || at_ >= buffer_at_ + buffer_.size()) TERRACE_RETURN_IF_ERROR(fill());
      const uint64_t skip = at_ - buffer_at_;
      const size_t count = std::min<size_t>(into.size(), buffer_.size() - skip);
      std::memcpy(into.data(), buffer_.data() + skip, count);
      into = into.subspan(count);
      at_ += count;
    }
    return {};
  }
  template <typename Number>
  Result<Number> number(const std::string& what) {
    Number value{};  // little-endian in the file, as on every machine that Terrace runs on
    TERRACE_RETURN_IF_ERROR(bytes(std::as_writable_bytes(std::span(&value, 1)), what));
    return value;
  }
  Result<std::string> text(uint64_t bytes_max, const std::string& what) {
    TERRACE_ASSIGN_OR_RETURN(const uint64_t length, number<uint64_t>(what));
    if (length > left())
      return refuse(ErrorCode::corrupt, what + " is said to have " + std::to_string(length) +
                                            " bytes, more than the file; is it a GGUF file?");
    if (length > bytes_max)
      return refuse(ErrorCode::limit_exceeded,
                    what + " has more than " + std::to_string(bytes_max) + " bytes; shorten it");
    std::string value(length, '\0');
    TERRACE_RETURN_IF_ERROR(bytes(std::as_writable_bytes(std::span(value)), what));
    return value;
  }

 private:
  Status fill() {
    constexpr uint64_t step_bytes = 256 * kib;
    buffer_.resize(std::min<uint64_t>(step_bytes, file_bytes_ - at_));
    buffer_at_ = at_;
    return read_at_(at_, buffer_);
  }

  const ReadAt& read_at_;
  const uint64_t file_bytes_;
  const std::string& file_;
  uint64_t at_ = 0, buffer_at_ = 0;
  std::vector<std::byte> buffer_;
};

template <typename Number>
Result<nlohmann::json> as_json(Cursor& cursor, const std::string& what) {
  TERRACE_ASSIGN_OR_RETURN(const Number value, cursor.number<Number>(what));
  return nlohmann::json(value);
}

Result<nlohmann::json> scalar(Cursor& cursor, ValueType type, const std::string& what) {
  switch (type) {
    case ValueType::u8: return as_json<uint8_t>(cursor, what);
    case ValueType::i8: return as_json<int8_t>(cursor, what);
    case ValueType::u16: return as_json<uint16_t>(cursor, what);
    case ValueType::i16: return as_json<int16_t>(cursor, what);
    case ValueType::u32: return as_json<uint32_t>(cursor, what);
    case ValueType::i32: return as_json<int32_t>(cursor, what);
    case ValueType::f32: return as_json<float>(cursor, what);
    case ValueType::u64: return as_json<uint64_t>(cursor, what);
    case ValueType::i64: return as_json<int64_t>(cursor, what);
    case ValueType::f64: return as_json<double>(cursor, what);
    case ValueType::boolean: {
      TERRACE_ASSIGN_OR_RETURN(const uint8_t value, cursor.number<uint8_t>(what));
      if (value > 1) return cursor.refuse(ErrorCode::corrupt, what + " is neither true nor false");
      return nlohmann::json(value == 1);
    }
    case ValueType::string: {
      TERRACE_ASSIGN_OR_RETURN(std::string value, cursor.text(values_bytes_max, what));
      return nlohmann::json(std::move(value));
    }
    case ValueType::array: break;
  }
  return cursor.refuse(ErrorCode::unsupported,
                       what + " has the unknown type " + std::to_string(static_cast<uint32_t>(type)));
}

std::string dumped(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);  // tokens need not be UTF-8
}

// As text: strings as they are, arrays as JSON.
Result<std::string> value_text(Cursor& cursor, const std::string& what) {
  TERRACE_ASSIGN_OR_RETURN(const uint32_t type, cursor.number<uint32_t>(what));
  if (static_cast<ValueType>(type) != ValueType::array) {
    TERRACE_ASSIGN_OR_RETURN(const nlohmann::json value, scalar(cursor, static_cast<ValueType>(type), what));
    if (!value.is_string()) return dumped(value);
    const auto& text = value.get_ref<const std::string&>();
    return is_utf8(text) ? text : dumped(value);
  }
  TERRACE_ASSIGN_OR_RETURN(const uint32_t element, cursor.number<uint32_t>(what));
  TERRACE_ASSIGN_OR_RETURN(const uint64_t count, cursor.number<uint64_t>(what));
  if (count > cursor.left())  // each has a byte at least
    return cursor.refuse(ErrorCode::corrupt, what + " is said to have " + std::to_string(count) +
                                                 " elements, more than the file has bytes");
  std::string text = "[";
  for (uint64_t index = 0; index < count; ++index) {
    TERRACE_ASSIGN_OR_RETURN(const nlohmann::json value, scalar(cursor, static_cast<ValueType>(element), what));
    if (index > 0) text += ',';
    text += dumped(value);
    if (text.size() > values_bytes_max)
      return cursor.refuse(ErrorCode::limit_exceeded, what + " has more than 100 MB");
  }
  return text + "]";
}

Status read_values(Cursor& cursor, uint64_t count, TensorMetadata& metadata, uint64_t& alignment) {
  if (count > layout::catalog_metadata_entries_max)
    return cursor.refuse(ErrorCode::limit_exceeded, "more than 65536 values");
  std::unordered_set<std::string> keys;
  uint64_t bytes = 0;
  for (uint64_t index = 0; index < count; ++index) {
    TERRACE_ASSIGN_OR_RETURN(std::string key, cursor.text(65535, "key " + std::to_string(index)));
    if (!is_utf8(key) || !keys.insert(key).second)
      return cursor.refuse(ErrorCode::corrupt, "key " + quoted_name(key) + " comes twice, or is not UTF-8");
    TERRACE_ASSIGN_OR_RETURN(std::string value, value_text(cursor, "the value of " + quoted_name(key)));
    if ((bytes += key.size() + value.size()) > values_bytes_max)
      return cursor.refuse(ErrorCode::limit_exceeded, "more than 100 MB of values");
    if (key == "general.alignment") {
      alignment = value.size() < 10 ? std::strtoull(value.c_str(), nullptr, 10) : 0;
      if (alignment == 0 || (alignment & (alignment - 1)) != 0)
        return cursor.refuse(ErrorCode::corrupt,
                             "general.alignment is " + quoted_name(value) + ", no power of two");
    }
    metadata.emplace_back(std::move(key), std::move(value));
  }
  return {};
}

Status read_tensor(Cursor& cursor, uint64_t index, SafetensorsIndex& into) {
  TERRACE_ASSIGN_OR_RETURN(std::string name, cursor.text(layout::tensor_name_bytes_max,
                                                         "the name of tensor " + std::to_string(index)));
  const std::string what = "tensor " + quoted_name(name);
  if (name.empty() || !is_utf8(name) || name.find('\0') != std::string::npos)
    return cursor.refuse(ErrorCode::corrupt, what + " has no name, or one that is not UTF-8");
  TERRACE_ASSIGN_OR_RETURN(const uint32_t rank, cursor.number<uint32_t>(what));
  if (rank > gguf_rank_max)
    return cursor.refuse(ErrorCode::unsupported,
                         what + " has " + std::to_string(rank) + " dimensions, at most 4 are known");
  std::array<uint64_t, gguf_rank_max> shape{};  // the file has the fastest dimension first
  for (uint32_t at = rank; at-- > 0;) {
    TERRACE_ASSIGN_OR_RETURN(shape[at], cursor.number<uint64_t>(what));
  }
  TERRACE_ASSIGN_OR_RETURN(const uint32_t number, cursor.number<uint32_t>(what));
  TERRACE_ASSIGN_OR_RETURN(const uint64_t offset, cursor.number<uint64_t>(what));
  const auto type = gguf_type(number);
  if (!type)
    return cursor.refuse(ErrorCode::unsupported, what + " has the unknown type " + std::to_string(number));
  if (type->block_elements > 1) {
    uint64_t& row = shape[std::max(rank, 1U) - 1];
    if (rank == 0 || row % type->block_elements != 0 ||
        __builtin_mul_overflow(row / type->block_elements, type->block_bytes, &row))
      return cursor.refuse(ErrorCode::corrupt, what + " of type " + std::string(type->name) + " has rows of " +
                                                   std::to_string(row) +
                                                   " elements, which do not fill its blocks of " +
                                                   std::to_string(type->block_elements));
    into.metadata.emplace_back("gguf.type." + name, std::string(type->name));
  }
  const Shape dimensions = *Shape::from({shape.data(), rank});
  const Result<uint64_t> bytes = tensor_bytes(type->dtype, dimensions);
  if (!bytes.ok()) return cursor.refuse(ErrorCode::corrupt, what + " is wrong: " + bytes.error().detail);
  into.tensors.push_back({.name = std::move(name),
                          .dtype = type->dtype,
                          .shape = dimensions,
                          .file_offset = offset,
                          .bytes = *bytes});
  return {};
}

// Offsets from the file's first byte, in their order; refuses tensors that overlap or leave the file.
Status place(const Cursor& cursor, uint64_t alignment, SafetensorsIndex& index) {
  for (SafetensorsEntry& entry : index.tensors) {
    uint64_t end = 0;
    if (entry.file_offset % alignment != 0 ||
        __builtin_add_overflow(entry.file_offset, index.buffer_offset, &entry.file_offset) ||
        __builtin_add_overflow(entry.file_offset, entry.bytes, &end) || end > index.file_bytes)
      return cursor.refuse(ErrorCode::corrupt, "tensor " + quoted_name(entry.name) +
                                                   " lies outside the file, or not at a multiple of " +
                                                   std::to_string(alignment) +
                                                   "; it was cut short, copy it again");
  }
  std::sort(index.tensors.begin(), index.tensors.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::pair(a.file_offset, a.bytes) < std::pair(b.file_offset, b.bytes);
            });
  std::unordered_set<std::string_view> names;
  uint64_t end = 0;
  for (const SafetensorsEntry& entry : index.tensors) {
    if (!names.insert(entry.name).second)
      return cursor.refuse(ErrorCode::corrupt, "tensor " + quoted_name(entry.name) + " comes twice");
    if (entry.file_offset < end)
      return cursor.refuse(ErrorCode::corrupt,
                           "tensor " + quoted_name(entry.name) + " overlaps the one before it");
    end = entry.file_offset + entry.bytes;
  }
  return {};
}

}  // namespace

bool is_gguf(std::span<const std::byte> first_bytes) {
  return first_bytes.size() >= gguf_magic.size() &&
         std::memcmp(first_bytes.data(), gguf_magic.data(), gguf_magic.size()) == 0;
}

Result<SafetensorsIndex> read_gguf_header(const ReadAt& read_at, uint64_t file_bytes, const std::string& file) {
  Cursor cursor(read_at, file_bytes, file);
  std::array<std::byte, 4> magic{};
  TERRACE_RETURN_IF_ERROR(cursor.bytes(magic, "its header"));
  if (!is_gguf(magic)) return cursor.refuse(ErrorCode::corrupt, "it does not begin with GGUF");
  TERRACE_ASSIGN_OR_RETURN(const uint32_t version, cursor.number<uint32_t>("its header"));
  if (version != 2 && version != 3)
    return cursor.refuse(ErrorCode::unsupported, "GGUF of version " + std::to_string(version) +
                                                     "; 2 and 3 are known, in little-endian byte order");
  TERRACE_ASSIGN_OR_RETURN(const uint64_t tensors, cursor.number<uint64_t>("its header"));
  TERRACE_ASSIGN_OR_RETURN(const uint64_t values, cursor.number<uint64_t>("its header"));
  if (tensors > layout::catalog_records_max)
    return cursor.refuse(ErrorCode::limit_exceeded, "more than 1048576 tensors; is it a GGUF file?");
  SafetensorsIndex index;
  index.file_bytes = file_bytes;
  uint64_t alignment = 32;
  TERRACE_RETURN_IF_ERROR(read_values(cursor, values, index.metadata, alignment));
  for (uint64_t at = 0; at < tensors; ++at) TERRACE_RETURN_IF_ERROR(read_tensor(cursor, at, index));
  index.buffer_offset = round_up(cursor.at(), alignment);
  TERRACE_RETURN_IF_ERROR(place(cursor, alignment, index));
  return index;
}

}  // namespace terrace
