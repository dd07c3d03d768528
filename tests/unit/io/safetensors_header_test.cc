// SPDX-License-Identifier: Apache-2.0
// The header parser against malformed files, each with the message that tells its owner what is wrong.
#include <doctest/doctest.h>

#include "core/base/prng.h"
#include "terrace/safetensors.h"

using namespace terrace;

namespace {

Result<SafetensorsIndex> parse(const std::string& json, uint64_t buffer_bytes) {
  return parse_safetensors_header(std::as_bytes(std::span(json.data(), json.size())),
                                  8 + json.size() + buffer_bytes, "m.safetensors");
}

const std::string good =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,2],"data_offsets":[4,20]},)"
    R"("a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}})";

}  // namespace

TEST_CASE("safetensors header: a good one gives tensors in the order of their bytes") {
  const auto index = parse(good, 20);
  REQUIRE(index.ok());
  REQUIRE(index->tensors.size() == 2);
  CHECK(index->tensors[0].name == "a");
  CHECK(index->tensors[0].dtype == DType::f16);
  CHECK(index->tensors[0].file_offset == 8 + good.size());
  CHECK(index->tensors[1].name == "b");
  CHECK(index->tensors[1].shape == Shape{2, 2});
  CHECK(index->tensors[1].bytes == 16);
  CHECK(index->metadata == TensorMetadata{{"format", "pt"}});
}

TEST_CASE("safetensors header: what the format allows besides") {
  CHECK(parse("{}", 0).ok());
  CHECK(parse("{}     ", 0).ok());
  CHECK(parse(R"({"__metadata__":{}})", 0).ok());
  CHECK(parse(R"({"s":{"dtype":"I64","shape":[],"data_offsets":[0,8]}})", 8).ok());
  CHECK(
      parse(
          R"({"e":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},"s":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
          1)
          .ok());
  CHECK(parse(R"({"q":{"dtype":"F4","shape":[6],"data_offsets":[0,3]}})", 3).ok());
  CHECK(parse(R"({"q":{"data_offsets":[0,1],"dtype":"F8_E4M3","shape":[1]}})", 1).ok());
  CHECK(parse(R"({"\u00e9\ud83d\ude00":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}})", 1)
            ->tensors[0]
            .name == "\xc3\xa9\xf0\x9f\x98\x80");
}

TEST_CASE("safetensors header: each malformation has its message, which names file and tensor") {
  struct Case {
    std::string json;
    uint64_t buffer_bytes;
    ErrorCode code;
    const char* expected;
  };
  const auto tensor = [](const std::string& fields) { return "{\"t\":{" + fields + "}}"; };
  const std::string nul("{\"a\\u0000b\":{}}");
  const Case cases[] = {
      {"", 0, ErrorCode::corrupt, "does not begin with '{'"},
      {" {}", 0, ErrorCode::corrupt, "does not begin with '{'"},
      {"[]", 0, ErrorCode::corrupt, "does not begin with '{'"},
      {"{", 0, ErrorCode::corrupt, "not valid JSON"},
      {"{}x", 0, ErrorCode::corrupt, "not valid JSON"},
      {"{}{}", 0, ErrorCode::corrupt, "not valid JSON"},
      {"{} // comment", 0, ErrorCode::corrupt, "not valid JSON"},
      {"{'t':1}", 0, ErrorCode::corrupt, "not valid JSON"},
      {"{\"\xff\":1}", 0, ErrorCode::corrupt, "not UTF-8"},
      {"{\"\xed\xa0\x80\":1}", 0, ErrorCode::corrupt, "not UTF-8"},
      {"{\"\\ud800\":1}", 0, ErrorCode::corrupt, "not valid JSON"},
      {std::string("{\0}", 3), 0, ErrorCode::corrupt, "not valid JSON"},
      {nul, 0, ErrorCode::corrupt, "NUL in its name"},
      {R"({"":{}})", 0, ErrorCode::corrupt, "empty name"},
      {R"({"t":1})", 0, ErrorCode::corrupt, "tensor 't' is described by a number, not by an object"},
      {R"({"t":null})", 0, ErrorCode::corrupt, "tensor 't' is described by null"},
      {R"({"t":[[[[[[]]]]]]})", 0, ErrorCode::corrupt, "tensor 't' is described by an array"},
      {R"({"__metadata__":1})", 0, ErrorCode::corrupt, "__metadata__ is a number"},
      {R"({"__metadata__":{"k":1}})", 0, ErrorCode::corrupt,
       "__metadata__ 'k' is a number; its values must be strings"},
      {R"({"__metadata__":{"k":{"deep":{}}}})", 0, ErrorCode::corrupt, "__metadata__ 'k' is an object"},
      {R"({"__metadata__":{"k":"a","k":"b"}})", 0, ErrorCode::corrupt, "the key 'k' twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, ErrorCode::corrupt, "__metadata__ comes twice"},
      {tensor(""), 0, ErrorCode::corrupt, "tensor 't' has no dtype"},
      {tensor(R"("dtype":"F32")"), 0, ErrorCode::corrupt, "tensor 't' has no shape"},
      {tensor(R"("dtype":"F32","shape":[1])"), 4, ErrorCode::corrupt, "data_offsets must be two numbers"},
      {tensor(R"("dtype":"F33","shape":[1],"data_offsets":[0,4])"), 4, ErrorCode::unsupported,
       "unknown dtype 'F33'; known are BOOL"},
      {tensor(R"("dtype":"f32","shape":[1],"data_offsets":[0,4])"), 4, ErrorCode::unsupported, "unknown dtype"},
      {tensor(R"("dtype":5,"shape":[1],"data_offsets":[0,4])"), 4, ErrorCode::corrupt,
       "has a number as its dtype"},
      {tensor(R"("dtype":"U8","shape":4,"data_offsets":[0,4])"), 4, ErrorCode::corrupt,
       "has a number as its shape"},
      {tensor(R"("dtype":"U8","shape":[-1],"data_offsets":[0,4])"), 4, ErrorCode::corrupt,
       "has a negative number in its shape"},
      {tensor(R"("dtype":"U8","shape":[1.5],"data_offsets":[0,4])"), 4, ErrorCode::corrupt, "has a fraction"},
      {tensor(R"("dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,4])"), 4, ErrorCode::corrupt,
       "above 2^64"},
      {tensor(R"("dtype":"U8","shape":[1e999],"data_offsets":[0,4])"), 4, ErrorCode::corrupt, "not valid JSON"},
      {tensor(R"("dtype":"U8","shape":["4"],"data_offsets":[0,4])"), 4, ErrorCode::corrupt,
       "has a string in its shape"},
      {tensor(R"("dtype":"U8","shape":[[4]],"data_offsets":[0,4])"), 4, ErrorCode::corrupt,
       "has an array in its shape"},
      {tensor(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1])"), 1, ErrorCode::unsupported,
       "more than 8 dimensions"},
      {tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,1,2])"), 4, ErrorCode::corrupt,
       "must be two numbers"},
      {tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0])"), 4, ErrorCode::corrupt, "must be two numbers"},
      {tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,true])"), 4, ErrorCode::corrupt,
       "has a boolean in its data_offsets"},
      {tensor(R"("dtype":"U8","shape":[1],"data_offsets":[4,3])"), 4, ErrorCode::corrupt,
       "end before they begin"},
      {tensor(R"("dtype":"U8","shape":[5],"data_offsets":[0,5])"), 4, ErrorCode::corrupt,
       "only 4 bytes behind the header; it was cut short"},
      {tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551615])"), 4, ErrorCode::corrupt,
       "cut short"},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4, ErrorCode::corrupt,
       "4 bytes, but F32 of shape [2] needs 8"},
      {tensor(R"("dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0, ErrorCode::corrupt,
       "more bytes than any memory"},
      {tensor(R"("dtype":"F4","shape":[3],"data_offsets":[0,2])"), 2, ErrorCode::corrupt,
       "does not fill whole bytes"},
      {tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"extra":1)"), 1, ErrorCode::corrupt,
       "unknown field 'extra'"},
      {tensor(R"("dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1])"), 1, ErrorCode::corrupt,
       "has dtype twice"},
      {tensor(R"("dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1])"), 1, ErrorCode::corrupt,
       "has shape twice"},
      {tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"data_offsets":[0,1])"), 1, ErrorCode::corrupt,
       "has data_offsets twice"},
      {tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,1])"), 3, ErrorCode::corrupt,
       "2 bytes behind the last tensor"},
      {tensor(R"("dtype":"U8","shape":[1],"data_offsets":[1,2])"), 2, ErrorCode::corrupt,
       "leave a hole of 1 bytes"},
      {R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2, ErrorCode::corrupt, "tensor 't' comes twice"},
      {R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"t":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3, ErrorCode::corrupt, "tensor 't' has data_offsets [1, 3], which overlap those of 'x'"},
      {R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
       2, ErrorCode::corrupt, "overlap"},
      {"{\"" + std::string(1025, 'n') + "\":{}}", 0, ErrorCode::limit_exceeded, "more than 1024 bytes"},
      {"{}" + std::string(safetensors_header_bytes_max, ' '), 0, ErrorCode::limit_exceeded, "more than 100 MB"},
  };
  for (const Case& one : cases) {
    const auto result = parse(one.json, one.buffer_bytes);
    REQUIRE_MESSAGE(!result.ok(), one.json);
    CHECK_MESSAGE(result.error().code == one.code, one.json, " ", result.error().to_string());
    CHECK_MESSAGE(result.error().detail.find(one.expected) != std::string::npos, one.expected, ": ",
                  result.error().detail);
    CHECK(result.error().detail.rfind("m.safetensors: ", 0) == 0);
  }
}

TEST_CASE("safetensors header: nesting costs neither stack nor time") {
  CHECK_FALSE(parse("{\"t\":" + std::string(10'000'000, '['), 0).ok());
  CHECK_FALSE(parse("{\"t\":{\"shape\":" + std::string(1'000'000, '{'), 0).ok());
}

TEST_CASE("safetensors header: names of strangers do not reach the terminal as they are") {
  const auto result = parse("{\"\\u001b[2J\":1}", 0);
  CHECK(result.error().detail.find('\x1b') == std::string::npos);
  CHECK(result.error().detail.find("\\x1b[2J") != std::string::npos);
}

TEST_CASE("safetensors header: mutations never crash, and what is accepted lies in the file") {
  Prng prng(99);
  const char* pieces[] = {
      "\"", "{",       "}",    "[",     "]",         ",",       ":",    "0", "18446744073709551615",
      "-",  "\\u0000", "null", "\"t\"", "\"dtype\"", "\"F32\"", "\xff", " ", "\"data_offsets\":[0,4]"};
  int accepted = 0;
  for (int round = 0; round < 30'000; ++round) {
    std::string json = good;
    for (uint64_t edits = prng.between(1, 4); edits > 0; --edits) {
      const size_t at = prng.below(json.size());
      switch (prng.below(4)) {
        case 0: json[at] = static_cast<char>(prng.next()); break;
        case 1: json.erase(at, prng.below(8)); break;
        case 2: json.insert(at, pieces[prng.below(std::size(pieces))]); break;
        default: json[at] = static_cast<char>('0' + prng.below(10)); break;
      }
      if (json.empty()) json = "{";
    }
    const auto result = parse(json, 20);
    if (!result.ok()) {
      REQUIRE_FALSE(result.error().detail.empty());
      continue;
    }
    ++accepted;
    uint64_t end = result->buffer_offset;
    for (const SafetensorsEntry& entry : result->tensors) {
      REQUIRE(entry.file_offset == end);
      REQUIRE(entry.bytes == *tensor_bytes(entry.dtype, entry.shape));
      end += entry.bytes;
    }
    REQUIRE(end == result->file_bytes);
  }
  CHECK(accepted > 0);
}
