// SPDX-License-Identifier: Apache-2.0
#include "terrace/tensor.h"

#include <algorithm>

#include "core/base/check.h"

namespace terrace {
namespace {

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  uint32_t bits;
};

// In the order of their numbers, so that a number is an index.
constexpr DTypeInfo dtypes[] = {
    {DType::boolean, "BOOL", 8},
    {DType::f4, "F4", 4},
    {DType::f6_e2m3, "F6_E2M3", 6},
    {DType::f6_e3m2, "F6_E3M2", 6},
    {DType::u8, "U8", 8},
    {DType::i8, "I8", 8},
    {DType::f8_e5m2, "F8_E5M2", 8},
    {DType::f8_e4m3, "F8_E4M3", 8},
    {DType::f8_e8m0, "F8_E8M0", 8},
    {DType::i16, "I16", 16},
    {DType::u16, "U16", 16},
    {DType::f16, "F16", 16},
    {DType::bf16, "BF16", 16},
    {DType::i32, "I32", 32},
    {DType::u32, "U32", 32},
    {DType::f32, "F32", 32},
    {DType::c64, "C64", 64},
    {DType::f64, "F64", 64},
    {DType::i64, "I64", 64},
    {DType::u64, "U64", 64},
    {DType::f8_e4m3fnuz, "F8_E4M3FNUZ", 8},
    {DType::f8_e5m2fnuz, "F8_E5M2FNUZ", 8},
};

constexpr bool numbered_in_order() {
  uint8_t number = 1;
  for (const DTypeInfo& info : dtypes) {
    if (static_cast<uint8_t>(info.dtype) != number++) return false;
  }
  return true;
}
static_assert(numbered_in_order());

const DTypeInfo& info_of(DType dtype) {
  const auto index = static_cast<size_t>(dtype) - 1;
  TERRACE_CHECK(index < std::size(dtypes), "a DType has one of its named values");
  return dtypes[index];
}

constexpr std::string_view hints[] = {"none",      "weights",         "activations",
                                      "gradients", "optimizer_state", "kv_cache"};

// The length of the well-formed UTF-8 sequence at the start of `text`, or 0.
size_t utf8_length(std::string_view text) {
  const auto at = [&](size_t index) { return static_cast<unsigned char>(text[index]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (text.size() < length) return 0;
  unsigned char low = 0x80;
  unsigned char high = 0xbf;
  if (lead == 0xe0) low = 0xa0;   // overlong
  if (lead == 0xed) high = 0x9f;  // surrogates
  if (lead == 0xf0) low = 0x90;   // overlong
  if (lead == 0xf4) high = 0x8f;  // above U+10FFFF
  if (at(1) < low || at(1) > high) return 0;
  for (size_t index = 2; index < length; ++index) {
    if ((at(index) & 0xc0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

std::string_view dtype_name(DType dtype) {
  return info_of(dtype).name;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeInfo& info : dtypes) {
    if (info.name == name) return info.dtype;
  }
  return std::nullopt;
}

std::optional<DType> dtype_from_number(uint8_t number) {
  if (number == 0 || number > std::size(dtypes)) return std::nullopt;
  return static_cast<DType>(number);
}

uint32_t dtype_bits(DType dtype) {
  return info_of(dtype).bits;
}

uint32_t dtype_element_bytes(DType dtype) {
  const uint32_t bits = info_of(dtype).bits;
  return bits % 8 == 0 ? bits / 8 : 0;
}

std::string dtype_names() {
  std::string text;
  for (const DTypeInfo& info : dtypes) {
    if (!text.empty()) text += ", ";
    text += info.name;
  }
  return text;
}

std::string_view hint_name(TensorHint hint) {
  const auto index = static_cast<size_t>(hint);
  TERRACE_CHECK(index < std::size(hints), "a TensorHint has one of its named values");
  return hints[index];
}

std::optional<TensorHint> hint_from_name(std::string_view name) {
  for (size_t index = 0; index < std::size(hints); ++index) {
    if (hints[index] == name) return static_cast<TensorHint>(index);
  }
  return std::nullopt;
}

std::optional<TensorHint> hint_from_number(uint8_t number) {
  if (number >= std::size(hints)) return std::nullopt;
  return static_cast<TensorHint>(number);
}

Shape::Shape(std::initializer_list<uint64_t> dimensions) {
  TERRACE_CHECK(dimensions.size() <= rank_max, "a Shape has at most eight dimensions");
  std::copy(dimensions.begin(), dimensions.end(), dimensions_.begin());
  rank_ = static_cast<uint32_t>(dimensions.size());
}

Result<Shape> Shape::from(std::span<const uint64_t> dimensions) {
  if (dimensions.size() > rank_max) {
    return Error{.code = ErrorCode::limit_exceeded,
                 .where = "Shape::from",
                 .detail = "a tensor has at most 8 dimensions, not " + std::to_string(dimensions.size())};
  }
  Shape shape;
  std::copy(dimensions.begin(), dimensions.end(), shape.dimensions_.begin());
  shape.rank_ = static_cast<uint32_t>(dimensions.size());
  return shape;
}

std::optional<uint64_t> Shape::elements() const {
  uint64_t product = 1;
  // A zero makes the product zero, however large the other dimensions are.
  for (const uint64_t dimension : dimensions()) {
    if (dimension == 0) return 0;
  }
  for (const uint64_t dimension : dimensions()) {
    if (__builtin_mul_overflow(product, dimension, &product)) return std::nullopt;
  }
  return product;
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (uint32_t index = 0; index < rank_; ++index) {
    if (index > 0) text += ", ";
    text += std::to_string(dimensions_[index]);
  }
  return text + "]";
}

Strides row_major_strides(const Shape& shape) {
  Strides strides{};
  uint64_t step = 1;
  for (uint32_t index = shape.rank(); index-- > 0;) {
    strides[index] = static_cast<int64_t>(step);
    // Of an empty array no stride is ever used; 1 keeps the product from overflowing.
    if (__builtin_mul_overflow(step, std::max<uint64_t>(shape[index], 1), &step)) step = 1;
  }
  return strides;
}

Result<uint64_t> tensor_bytes(DType dtype, const Shape& shape) {
  const std::optional<uint64_t> elements = shape.elements();
  uint64_t bits = 0;
  if (!elements || __builtin_mul_overflow(*elements, uint64_t{dtype_bits(dtype)}, &bits)) {
    return Error{.code = ErrorCode::limit_exceeded,
                 .where = "tensor_bytes",
                 .detail = std::string(dtype_name(dtype)) + " of shape " + shape.to_string() +
                           " has more bytes than any memory"};
  }
  if (bits % 8 != 0) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "tensor_bytes",
                 .detail = std::string(dtype_name(dtype)) + " of shape " + shape.to_string() +
                           " does not fill whole bytes"};
  }
  return bits / 8;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string quoted_name(std::string_view text) {
  constexpr size_t shown_max = 128;
  constexpr char digits[] = "0123456789abcdef";
  std::string quoted = "'";
  while (!text.empty()) {
    if (quoted.size() > shown_max) return quoted + "…'";
    const size_t length = utf8_length(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    // C1 controls (U+0080 to U+009F) act on terminals too.
    const bool control = byte < 0x20 || byte == 0x7f ||
                         (byte == 0xc2 && length == 2 && static_cast<unsigned char>(text[1]) < 0xa0);
    if (length == 0 || control) {
      for (size_t index = 0; index < std::max<size_t>(length, 1); ++index) {
        const auto each = static_cast<unsigned char>(text[index]);
        quoted += "\\x";
        quoted += digits[each >> 4];
        quoted += digits[each & 15];
      }
      text.remove_prefix(std::max<size_t>(length, 1));
      continue;
    }
    quoted += text.substr(0, length);
    text.remove_prefix(length);
  }
  return quoted + "'";
}

}  // namespace terrace
