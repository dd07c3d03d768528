// SPDX-License-Identifier: Apache-2.0
// Another holder, or whoever had the memory before, may write anything: answers may be wrong then, nothing
// leaves the space. ASan guards the memory's end.
#include <doctest/doctest.h>

#include <cstring>

#include "core/base/crc32c.h"
#include "core/base/prng.h"
#include "core/layout/tensor_space.h"
#include "libclient/coherence/geometry.h"
#include "tests/unit/coherence/space_fixture.h"

using namespace terrace;

namespace {

layout::SpaceHeader header_of(const SpaceFixture& fixture) {
  layout::SpaceHeader header;
  std::memcpy(&header, const_cast<SpaceFixture&>(fixture).memory.span().data(), sizeof header);
  return header;
}

ErrorCode attach_with(SpaceFixture& fixture, layout::SpaceHeader header) {
  header.checksum = crc32c(std::as_bytes(std::span(&header, 1)).first(layout::space_header_checked_bytes));
  std::memcpy(fixture.memory.span().data(), &header, sizeof header);
  const auto space = TensorSpace::attach(fixture.memory.span());
  return space.ok() ? ErrorCode::ok : space.error().code;
}

layout::SpaceRecord* record_of(SpaceFixture& fixture, uint32_t part, uint32_t index) {
  const auto geometry = coherence::check_header(header_of(fixture), fixture.memory.span());
  return geometry->record(part, index);
}

}  // namespace

TEST_CASE("TensorSpace: a header that contradicts itself or the memory is refused") {
  SpaceFixture fixture;
  const layout::SpaceHeader good = header_of(fixture);
  CHECK(attach_with(fixture, good) == ErrorCode::ok);
  const auto refused = [&](auto change) {
    layout::SpaceHeader bad = good;
    change(bad);
    return attach_with(fixture, bad);
  };
  using Header = layout::SpaceHeader;
  CHECK(refused([](Header& h) { h.magic = 1; }) == ErrorCode::not_found);
  CHECK(refused([](Header& h) { h.version_major = 3; }) == ErrorCode::version_mismatch);
  CHECK(refused([](Header& h) { h.features = 2; }) == ErrorCode::version_mismatch);
  CHECK(refused([](Header& h) { h.mode = 3; }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) { h.total_bytes = ~0ull; }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) { h.part_bytes = 1ull << 63; }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) { h.part_bytes += 4096; }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) { h.part_bytes = 0; }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) { h.parts_offset = ~0ull & ~4095ull; }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) { h.parts_offset = 0; }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) { h.data_bytes = h.part_bytes + 4096; }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) { h.data_bytes = h.part_bytes; }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) { h.part_count = 0; }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) { h.part_count = 65; }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) { h.records_per_part = 15; }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) { h.records_per_part = 1u << 31; }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) { h.pins_per_part = 1; }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) { h.pins_per_part = 1u << 31; }) == ErrorCode::corrupt);
  CHECK(attach_with(fixture, good) == ErrorCode::ok);
  const std::span<std::byte> memory = fixture.memory.span();
  for (const size_t bytes : {size_t{0}, size_t{255}, size_t{256}, size_t{4096}, memory.size() - 4096 * 3})
    CHECK_FALSE(TensorSpace::attach(memory.first(bytes)).ok());
}

TEST_CASE("TensorSpace: a record whose numbers leave its part is not believed") {
  SpaceFixture fixture;
  const auto writer = fixture.attach();
  REQUIRE(writer->publish(*writer->create(u8_tensor("t", 200)), bytes_of(1, 200)).ok());
  const auto geometry = coherence::check_header(header_of(fixture), fixture.memory.span());
  const uint32_t index = geometry->home(coherence::name_hash("t"));
  layout::SpaceRecord* const record = record_of(fixture, 0, index);
  const layout::TensorShape good = record->shape;
  using TensorShape = layout::TensorShape;
  const auto refused = [&](auto change) {
    record->shape = good;
    change(record->shape);
    // A hostile writer computes checksums, too.
    record->shape.checksum =
        coherence::shape_checksum(record->shape, record->slots.incarnation, record->slots.name_hash, "t");
    const auto reader = TensorSpace::attach(fixture.memory.span());
    const auto opened = (*reader)->open("t");
    return !opened.ok() && opened.error().code == ErrorCode::corrupt && (*reader)->list().empty();
  };
  CHECK(refused([](TensorShape& s) { s.extent_offset = ~0ull & ~63ull; }));
  CHECK(refused([](TensorShape& s) { s.extent_bytes = ~0ull & ~63ull; }));
  CHECK(refused([](TensorShape& s) { s.data_offset = 1ull << 63; }));
  CHECK(refused([](TensorShape& s) { s.data_offset += 8; }));
  CHECK(refused([](TensorShape& s) { s.data_bytes = 1ull << 40; }));
  CHECK(refused([](TensorShape& s) { s.slot_stride_bytes = 1ull << 63; }));
  CHECK(refused([](TensorShape& s) { s.slot_stride_bytes = 64; }));
  CHECK(refused([](TensorShape& s) { s.slot_count = 3; }));
  CHECK(refused([](TensorShape& s) { s.slot_count = 0; }));
  CHECK(refused([](TensorShape& s) { s.name_bytes = 1025; }));
  CHECK(refused([](TensorShape& s) { s.name_bytes = 0; }));
  CHECK(refused([](TensorShape& s) { s.dtype = 77; }));
  CHECK(refused([](TensorShape& s) { s.rank = 9; }));
  CHECK(refused([](TensorShape& s) { s.shape[0] = 201; }));
  CHECK(refused([](TensorShape& s) { s.strides[0] = 2; }));
  CHECK(refused([](TensorShape& s) { s.strides[0] = -1; }));
  CHECK_FALSE(refused([](TensorShape&) {}));
}

TEST_CASE("TensorSpace: a description that lost a bit is not believed, and gone with the part's next owner") {
  SpaceFixture fixture;
  auto writer = fixture.attach();
  const auto reader = fixture.attach();
  const uint64_t free = reader->free_bytes();
  const SharedTensor tensor = *writer->create(u8_tensor("t", 200));
  REQUIRE(writer->publish(tensor, bytes_of(1, 200)).ok());
  layout::SpaceRecord* const record = record_of(fixture, 0, tensor.identity().record);
  record->shape.flags ^= TensorFlags::read_mostly;  // as sensible as before
  CHECK(reader->open("t").error().code == ErrorCode::corrupt);
  CHECK(reader->list().empty());
  fixture.die(std::move(writer));
  const auto heir = fixture.attach();
  REQUIRE(heir->part() == 0u);
  CHECK(reader->open("t").error().code == ErrorCode::not_found);
  CHECK(heir->free_bytes() == free);
}

TEST_CASE("TensorSpace: bytes that nobody published are refused where the space has checksums") {
  for (const bool double_buffered : {false, true}) {
    SpaceOptions options = SpaceFixture::small();
    options.checksums = true;
    SpaceFixture fixture(options);
    const auto writer = fixture.attach(), reader = fixture.attach();
    constexpr size_t size = 5000;  // more than are checked in one piece
    const SharedTensor tensor = *writer->create(u8_tensor("t", size), {.double_buffered = double_buffered});
    REQUIRE(writer->publish(tensor, bytes_of(1, size)).ok());
    std::byte* last = nullptr;
    {
      const auto pin = reader->pin(tensor);
      REQUIRE(pin.ok());
      last = const_cast<std::byte*>(&pin->bytes()[size - 1]);
    }
    std::vector<std::byte> copy(size);
    *last ^= std::byte{1};
    CHECK(reader->read(tensor, copy).error().code == ErrorCode::corrupt);
    CHECK(reader->pin(tensor).error().code == ErrorCode::corrupt);
    *last ^= std::byte{1};
    CHECK(reader->read(tensor, copy).ok());
    CHECK(reader->pin(tensor).ok());
    CHECK(writer->remove(tensor).ok());  // no pin that failed stays
  }
}

TEST_CASE("TensorSpace: whatever lies in a part, its next owner makes it whole") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SpaceFixture fixture({.parts = 2, .records_per_part = 8, .pins_per_part = 8}, 64 * 1024);
    Prng prng(seed);
    auto writer = fixture.attach();
    for (int index = 0; index < 5; ++index) {
      const auto tensor = writer->create(u8_tensor("t" + std::to_string(index), 100));
      if (prng.chance(1, 2)) REQUIRE(writer->publish(*tensor, bytes_of(1, 100)).ok());
    }
    const auto reader = fixture.attach();
    fixture.die(std::move(writer));
    const auto geometry = coherence::check_header(header_of(fixture), fixture.memory.span());
    auto* const bytes = reinterpret_cast<uint8_t*>(geometry->part_at(0));
    for (int change = 0; change < 40; ++change)
      bytes[prng.below(geometry->records_end())] = static_cast<uint8_t>(prng.next());
    for (const SharedTensor& tensor : reader->list()) {
      std::vector<std::byte> copy(tensor.bytes());
      (void)reader->read(tensor, copy);
      (void)reader->pin(tensor);
    }
    const auto heir = fixture.attach();
    CHECK(heir->part() == 0u);
    // It owns a part that works: nothing half-written, every name found, room given and taken.
    for (const SharedTensor& tensor : heir->list()) {
      if (tensor.part() != 0) continue;
      REQUIRE(heir->open(tensor.name()).ok());
      const auto published = heir->publish(*heir->open(tensor.name()), bytes_of(2, tensor.bytes()));
      REQUIRE_MESSAGE(published.ok(), published.error().to_string());
      REQUIRE(heir->remove(*heir->open(tensor.name())).ok());
    }
    CHECK(heir->list().empty());
    CHECK(heir->free_bytes() == geometry->data_bytes);
    CHECK(heir->create(u8_tensor("new", geometry->data_bytes / 2 - 4096)).ok());
  }
}
