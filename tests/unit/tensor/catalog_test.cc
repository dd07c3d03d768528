// SPDX-License-Identifier: Apache-2.0
// The catalog of named tensors: planned, written, published, read back.
#include "terrace/catalog.h"

#include <doctest/doctest.h>

#include <cstring>
#include <numeric>

#include "core/base/crc32c.h"
#include "core/layout/tensor_catalog.h"
#include "tests/support/fix_catalog.h"
#include "tests/unit/tensor/aligned_memory.h"

using namespace terrace;

namespace {

std::vector<TensorSpec> two_tensors() {
  return {{.name = "weight", .dtype = DType::f32, .shape = {4, 5}, .hint = TensorHint::weights},
          {.name = "bias", .dtype = DType::bf16, .shape = {5}, .flags = TensorFlags::pinned}};
}

std::vector<std::byte> numbered(size_t bytes, int start) {
  std::vector<std::byte> result(bytes);
  for (size_t index = 0; index < bytes; ++index)
    result[index] = static_cast<std::byte>(start + static_cast<int>(index));
  return result;
}

}  // namespace

TEST_CASE("Catalog: what was published is found by name, with its bytes, in place") {
  CatalogPlan plan = *CatalogPlan::make(two_tensors(), {{"format", "pt"}, {"empty", ""}});
  AlignedMemory memory(plan.required_bytes());
  CatalogWriter writer = *CatalogWriter::begin(memory.span(), plan, {.persist = {}, .lease_epoch = {7}});
  const auto weight = numbered(80, 1);
  REQUIRE(writer.add("weight", weight).ok());
  const auto bias = numbered(10, 100);
  std::memcpy(writer.data(1).data(), bias.data(), bias.size());
  writer.filled(1);
  REQUIRE(writer.publish().ok());

  const CatalogReader reader = *CatalogReader::open(memory.span());
  REQUIRE(reader.size() == 2);
  CHECK(reader.generation() == 1);
  CHECK(reader.lease_epoch().value == 7);
  CHECK(reader.data_bytes() == 90);
  CHECK(reader.metadata() == TensorMetadata{{"format", "pt"}, {"empty", ""}});
  const TensorView found = *reader.find("bias");
  CHECK(found.dtype == DType::bf16);
  CHECK(found.shape == Shape{5});
  CHECK(found.flags == TensorFlags::pinned);
  CHECK(found.crc32c == crc32c(bias));
  CHECK(found.row_major());
  CHECK(std::equal(found.bytes.begin(), found.bytes.end(), bias.begin(), bias.end()));
  CHECK(found.bytes.data() == writer.data(1).data());  // no copy
  for (const TensorView& tensor : reader.tensors()) {
    CHECK(reinterpret_cast<uintptr_t>(tensor.bytes.data()) % layout::tensor_alignment_bytes == 0);
  }
  CHECK(reader.verify(0).ok());
  CHECK(reader.find("weights").error().code == ErrorCode::not_found);
  CHECK(reader[0].hint == TensorHint::weights);

  writer.data(0)[3] ^= std::byte{1};
  CHECK(reader.verify(0).error().code == ErrorCode::corrupt);
  CHECK(reader.verify(0).error().detail.find("'weight'") != std::string::npos);
}

TEST_CASE("Catalog: readers refuse it until it is published, and again while it is rewritten") {
  CatalogPlan plan = *CatalogPlan::make(two_tensors());
  AlignedMemory memory(plan.required_bytes());
  CHECK(CatalogReader::open(memory.span()).error().code == ErrorCode::not_found);
  {
    CatalogWriter writer = *CatalogWriter::begin(memory.span(), plan);
    CHECK(CatalogReader::open(memory.span()).error().code == ErrorCode::busy);
    CHECK(writer.publish().error().code == ErrorCode::invalid_argument);  // nothing was added
    CHECK(CatalogReader::open(memory.span()).error().code == ErrorCode::busy);
    writer.filled(0);
    writer.filled(1);
    REQUIRE(writer.publish().ok());
    CHECK(writer.publish().error().code == ErrorCode::already_exists);
  }
  CHECK(CatalogReader::open(memory.span())->generation() == 1);
  CatalogWriter writer = *CatalogWriter::begin(memory.span(), plan);
  CHECK(CatalogReader::open(memory.span()).error().code == ErrorCode::busy);
  writer.filled(0);
  writer.filled(1);
  REQUIRE(writer.publish().ok());
  CHECK(CatalogReader::open(memory.span())->generation() == 2);
}

TEST_CASE("Catalog: the state is persisted after all that it stands for") {
  CatalogPlan plan = *CatalogPlan::make(two_tensors());
  AlignedMemory memory(plan.required_bytes());
  const auto* header = reinterpret_cast<const layout::CatalogHeader*>(memory.span().data());
  struct Call {
    uint64_t offset, bytes;
    uint32_t state;
  };
  std::vector<Call> calls;
  CatalogWriter writer =
      *CatalogWriter::begin(memory.span(), plan, {.persist = [&](std::span<const std::byte> range) {
                              calls.push_back({static_cast<uint64_t>(range.data() - memory.span().data()),
                                               range.size(), header->state});
                            }});
  REQUIRE(!calls.empty());
  CHECK(calls[0].offset == 0);
  CHECK(calls[0].state == static_cast<uint32_t>(layout::CatalogState::building));
  writer.filled(0);
  writer.filled(1);
  calls.clear();
  REQUIRE(writer.publish().ok());
  REQUIRE(calls.size() == 2);
  CHECK(calls[0].bytes == plan.required_bytes());
  CHECK(calls[0].state == static_cast<uint32_t>(layout::CatalogState::building));
  CHECK(calls[1].offset == offsetof(layout::CatalogHeader, state));
  CHECK(calls[1].state == static_cast<uint32_t>(layout::CatalogState::published));
}

TEST_CASE("Catalog: plans with bad names, shapes or flags are refused and name the tensor") {
  const auto refusal = [](TensorSpec spec) {
    return CatalogPlan::make({{.name = "fine", .shape = {1}}, std::move(spec)}).error();
  };
  CHECK(refusal({.name = "", .shape = {1}}).code == ErrorCode::invalid_argument);
  CHECK(refusal({.name = "fine", .shape = {2}}).detail == "tensor 'fine' comes twice");
  CHECK(refusal({.name = std::string("a\0b", 3), .shape = {1}}).detail.find("NUL") != std::string::npos);
  CHECK(refusal({.name = "\xff", .shape = {1}}).detail.find("UTF-8") != std::string::npos);
  CHECK(refusal({.name = std::string(1025, 'n'), .shape = {1}}).detail.find("1024") != std::string::npos);
  CHECK(refusal({.name = "f", .shape = {1}, .flags = 128}).detail.find("flags") != std::string::npos);
  CHECK(refusal({.name = "f4", .dtype = DType::f4, .shape = {3}}).detail.find("'f4'") != std::string::npos);
  CHECK(refusal({.name = "huge", .shape = {uint64_t{1} << 61}}).code == ErrorCode::limit_exceeded);
  CHECK(refusal({.name = "huge", .shape = {(uint64_t{1} << 61) - 1}}).code == ErrorCode::limit_exceeded);
}

TEST_CASE("Catalog: memory that is too short or unaligned is refused and not touched") {
  CatalogPlan plan = *CatalogPlan::make(two_tensors());
  AlignedMemory memory(plan.required_bytes());
  const auto refusal = CatalogWriter::begin(memory.span().first(plan.required_bytes() - 1), plan).error();
  CHECK(refusal.code == ErrorCode::capacity_exhausted);
  CHECK(refusal.detail.find(std::to_string(plan.required_bytes())) != std::string::npos);
  AlignedMemory larger(plan.required_bytes() + 64);
  CHECK(CatalogWriter::begin(larger.span().subspan(8), plan).error().code == ErrorCode::invalid_argument);
  for (const std::byte byte : memory.span()) REQUIRE(byte == std::byte{0});
}

TEST_CASE("Catalog: adding an unknown, known or wrongly sized tensor") {
  CatalogPlan plan = *CatalogPlan::make(two_tensors());
  AlignedMemory memory(plan.required_bytes());
  CatalogWriter writer = *CatalogWriter::begin(memory.span(), plan);
  CHECK(writer.add("other", {}).error().code == ErrorCode::not_found);
  CHECK(writer.add("weight", numbered(79, 0)).error().code == ErrorCode::invalid_argument);
  CHECK(writer.add("weight", numbered(80, 0)).ok());
  CHECK(writer.add("weight", numbered(80, 0)).error().code == ErrorCode::already_exists);
}

TEST_CASE("Catalog: empty ones, empty tensors and many tensors") {
  AlignedMemory small(CatalogPlan::make({})->required_bytes());
  CatalogWriter none = *CatalogWriter::begin(small.span(), *CatalogPlan::make({}));
  REQUIRE(none.publish().ok());
  CHECK(CatalogReader::open(small.span())->size() == 0);

  std::vector<TensorSpec> specs;
  for (int index = 0; index < 3000; ++index) {
    specs.push_back(
        {.name = "t" + std::to_string(index), .dtype = DType::u8, .shape = {static_cast<uint64_t>(index % 7)}});
  }
  CatalogPlan plan = *CatalogPlan::make(specs);
  AlignedMemory memory(plan.required_bytes());
  CatalogWriter writer = *CatalogWriter::begin(memory.span(), plan);
  for (size_t index = 0; index < specs.size(); ++index) writer.filled(index);
  REQUIRE(writer.publish().ok());
  const CatalogReader reader = *CatalogReader::open(memory.span());
  CHECK(reader.size() == 3000);
  CHECK(reader.find("t2999")->bytes.size() == 2999 % 7);
}

TEST_CASE("Catalog: the documented example, byte for byte") {
  // docs/formats/tensor_catalog.md shows these bytes. If this fails the format changed: give it another
  // version.
  CatalogPlan plan = *CatalogPlan::make({{.name = "w",
                                          .dtype = DType::f32,
                                          .shape = {2, 2},
                                          .hint = TensorHint::weights,
                                          .flags = TensorFlags::read_mostly},
                                         {.name = "b", .dtype = DType::u8, .shape = {3}}},
                                        {{"format", "pt"}});
  AlignedMemory memory(plan.required_bytes());
  CatalogWriter writer = *CatalogWriter::begin(memory.span(), plan, {.lease_epoch = {5}});
  const float w[] = {1, 2, 3, 4};
  const uint8_t b[] = {7, 8, 9};
  REQUIRE(writer.add("w", std::as_bytes(std::span(w))).ok());
  REQUIRE(writer.add("b", std::as_bytes(std::span(b))).ok());
  REQUIRE(writer.publish().ok());
  reinterpret_cast<layout::CatalogHeader*>(memory.span().data())->created_unix_s = 1735689600;
  fix_catalog(memory.span());
  CHECK(memory.span().size() == 4224);
  CHECK(crc32c(memory.span()) == 0xda2a2fee);
}
