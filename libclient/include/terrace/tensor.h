// SPDX-License-Identifier: Apache-2.0
// The description of a tensor: a name, an element type, a shape, strides, a hint of its use, and its bytes.
//
// Place     libclient/tensor; the catalog and the safetensors reader and writer speak in these types.
// Threads   Plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/result.h"

namespace terrace {

// Element types of the safetensors format. The numbers are stored in catalogs: never renumber.
enum class DType : uint8_t {
  boolean = 1,
  f4 = 2,  // two elements a byte
  f6_e2m3 = 3,
  f6_e3m2 = 4,  // four elements in three bytes
  u8 = 5,
  i8 = 6,
  f8_e5m2 = 7,
  f8_e4m3 = 8,
  f8_e8m0 = 9,
  i16 = 10,
  u16 = 11,
  f16 = 12,
  bf16 = 13,
  i32 = 14,
  u32 = 15,
  f32 = 16,
  c64 = 17,  // two f32: real, imaginary
  f64 = 18,
  i64 = 19,
  u64 = 20,
  f8_e4m3fnuz = 21,  // neither infinities nor a negative zero; the bits of that are NaN
  f8_e5m2fnuz = 22,
};

// The name in safetensors files: "F32", "BF16", "F8_E4M3", "BOOL".
std::string_view dtype_name(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);
// From a stored number; nothing for numbers that are no DType.
std::optional<DType> dtype_from_number(uint8_t number);
uint32_t dtype_bits(DType dtype);
// Whole bytes an element; 0 for types that share bytes between elements (F4, F6).
uint32_t dtype_element_bytes(DType dtype);
// All names, comma-separated, for error texts.
std::string dtype_names();

// The framework's knowledge about a tensor's use; the first placement follows from it.
enum class TensorHint : uint8_t { none, weights, activations, gradients, optimizer_state, kv_cache };
std::string_view hint_name(TensorHint hint);
std::optional<TensorHint> hint_from_name(std::string_view name);
std::optional<TensorHint> hint_from_number(uint8_t number);

struct TensorFlags {
  static constexpr uint8_t read_mostly = 1;  // replicas are cheap
  static constexpr uint8_t streaming = 2;    // each byte once an iteration: caching it is waste
  static constexpr uint8_t pinned = 4;       // stays where it is
  static constexpr uint8_t all = 7;
  // Of tensor spaces only: holders of other parts may have it removed (CreateOptions).
  static constexpr uint8_t peers_may_remove = 8;
};

// Up to eight dimensions, each a number of elements. A scalar has rank 0; a dimension may be 0.
class Shape {
 public:
  static constexpr uint32_t rank_max = 8;

  constexpr Shape() = default;
  Shape(std::initializer_list<uint64_t> dimensions);  // at most rank_max, checked

  // Errors: limit_exceeded when there are more than rank_max.
  static Result<Shape> from(std::span<const uint64_t> dimensions);

  uint32_t rank() const { return rank_; }
  uint64_t operator[](uint32_t index) const { return dimensions_[index]; }
  std::span<const uint64_t> dimensions() const { return {dimensions_.data(), rank_}; }
  // The product of all; nothing when it passes 2^64.
  std::optional<uint64_t> elements() const;
  // "[768, 2304]"
  std::string to_string() const;
  bool operator==(const Shape&) const = default;

 private:
  std::array<uint64_t, rank_max> dimensions_{};
  uint32_t rank_ = 0;
};

using Strides = std::array<int64_t, Shape::rank_max>;

// Strides, in elements, of an array whose last dimension is contiguous. Requires shape.elements() to exist.
Strides row_major_strides(const Shape& shape);

// The bytes of a dense tensor.
// Errors    limit_exceeded    more than 2^63 bytes
//           invalid_argument  F4 and F6 elements that do not fill whole bytes
Result<uint64_t> tensor_bytes(DType dtype, const Shape& shape);

// A tensor to be made.
struct TensorSpec {
  std::string name = {};
  DType dtype = DType::f32;
  Shape shape = {};
  TensorHint hint = TensorHint::none;
  uint8_t flags = 0;  // TensorFlags
};

// A tensor in somebody's memory.
//
// Ownership  Nothing: `name` and `bytes` live as long as their source, such as a catalog's memory.
struct TensorView {
  std::string_view name;
  DType dtype = DType::u8;
  Shape shape;
  Strides strides{};  // in elements
  TensorHint hint = TensorHint::none;
  uint8_t flags = 0;                 // TensorFlags
  std::span<const std::byte> bytes;  // 64-byte aligned in a catalog
  uint32_t crc32c = 0;               // as recorded; not compared with the bytes
  uint64_t version = 0;

  bool row_major() const { return strides == row_major_strides(shape); }
};

// `text` in single quotes with control characters and broken UTF-8 escaped, cut at 128 bytes: for messages
// and tables about names that come from files.
std::string quoted_name(std::string_view text);

// true: `text` is well-formed UTF-8, without overlong forms, surrogates, or values above U+10FFFF.
bool is_utf8(std::string_view text);

}  // namespace terrace
