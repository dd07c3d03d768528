// SPDX-License-Identifier: Apache-2.0
// Element types, shapes, names.
#include "terrace/tensor.h"

#include <doctest/doctest.h>

using namespace terrace;

TEST_CASE("DType: names and numbers go both ways, sizes are those of the format") {
  for (int number = 0; number < 256; ++number) {
    const auto dtype = dtype_from_number(static_cast<uint8_t>(number));
    CHECK(dtype.has_value() == (number >= 1 && number <= 22));
    if (dtype) CHECK(dtype_from_name(dtype_name(*dtype)) == dtype);
  }
  CHECK(dtype_element_bytes(DType::boolean) == 1);
  CHECK(dtype_element_bytes(DType::bf16) == 2);
  CHECK(dtype_element_bytes(DType::f8_e4m3) == 1);
  CHECK(dtype_element_bytes(DType::f8_e5m2) == 1);
  CHECK(dtype_element_bytes(DType::f32) == 4);
  CHECK(dtype_element_bytes(DType::c64) == 8);
  CHECK(dtype_element_bytes(DType::f4) == 0);
  CHECK(dtype_bits(DType::f6_e2m3) == 6);
  CHECK_FALSE(dtype_from_name("f32").has_value());
  CHECK_FALSE(dtype_from_name("").has_value());
}

TEST_CASE("TensorHint: names go both ways") {
  for (uint8_t number = 0; number < 6; ++number) {
    CHECK(hint_from_name(hint_name(*hint_from_number(number))) == hint_from_number(number));
  }
  CHECK_FALSE(hint_from_number(6).has_value());
  CHECK_FALSE(hint_from_name("weight").has_value());
}

TEST_CASE("tensor_bytes: scalars, empty tensors, sub-byte types and overflow") {
  CHECK(*tensor_bytes(DType::f32, {}) == 4);
  CHECK(*tensor_bytes(DType::f32, {2, 3}) == 24);
  CHECK(*tensor_bytes(DType::f64, {0, UINT64_MAX, UINT64_MAX}) == 0);
  CHECK(*tensor_bytes(DType::f64, {UINT64_MAX, UINT64_MAX, 0}) == 0);
  CHECK(*tensor_bytes(DType::f4, {4}) == 2);
  CHECK(*tensor_bytes(DType::f6_e3m2, {4}) == 3);
  CHECK(tensor_bytes(DType::f4, {3}).error().code == ErrorCode::invalid_argument);
  CHECK(tensor_bytes(DType::u8, {uint64_t{1} << 62, 2}).error().code == ErrorCode::limit_exceeded);
  CHECK(tensor_bytes(DType::f32, {UINT64_MAX, 2}).error().code == ErrorCode::limit_exceeded);
}

TEST_CASE("Shape: more than eight dimensions are refused, strides are row-major") {
  const uint64_t nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
  CHECK(Shape::from(nine).error().code == ErrorCode::limit_exceeded);
  const Shape shape{2, 3, 5};
  CHECK(shape.to_string() == "[2, 3, 5]");
  CHECK(Shape{}.to_string() == "[]");
  const Strides strides = row_major_strides(shape);
  CHECK(strides[0] == 15);
  CHECK(strides[1] == 5);
  CHECK(strides[2] == 1);
  CHECK(strides[3] == 0);
}

TEST_CASE("is_utf8: accepts exactly the well-formed sequences") {
  for (const char* good :
       {"", "wte.weight", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"}) {
    CHECK(is_utf8(good));
  }
  for (const char* bad :
       {"\x80", "\xc3", "\xc0\xaf", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "a\xe2\x82", "\xe2\x28\xa1"}) {
    CHECK_FALSE(is_utf8(bad));
  }
}

TEST_CASE("quoted_name: shows strangers' names without obeying them") {
  CHECK(quoted_name("wte") == "'wte'");
  CHECK(quoted_name("\xc3\xa9") == "'\xc3\xa9'");
  CHECK(quoted_name("\x1b[2J") == "'\\x1b[2J'");
  CHECK(quoted_name(std::string_view("a\0b", 3)) == "'a\\x00b'");
  CHECK(quoted_name("\xff") == "'\\xff'");
  CHECK(quoted_name("\xc2\x9b") == "'\\xc2\\x9b'");
  CHECK(quoted_name(std::string(5000, 'x')).size() < 200);
}
