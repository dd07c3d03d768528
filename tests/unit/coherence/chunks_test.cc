// SPDX-License-Identifier: Apache-2.0
// How the data is shared: a holder takes what its tensors need of what nobody has.
#include <sys/mman.h>

#include <cstring>

#include "core/base/crc32c.h"
#include "libclient/coherence/chunk_run.h"
#include "tests/unit/coherence/space_fixture.h"

using namespace terrace;
using namespace terrace::coherence;

namespace {

constexpr uint64_t mib = 1 << 20, block_bytes = 512 * 1024;

// As large as a lease, and touched only where it is stored to.
struct LargeSpace {
  LargeSpace() {
    void* const at =
        ::mmap(nullptr, 256 * mib, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(at != MAP_FAILED);
    memory = {static_cast<std::byte*>(at), 256 * mib};
    REQUIRE(TensorSpace::format(memory).ok());
  }
  ~LargeSpace() { ::munmap(memory.data(), memory.size()); }
  std::unique_ptr<TensorSpace> attach() {
    auto space = TensorSpace::attach(memory, {.ownership = std::make_shared<MadeUpOwnership>(book)});
    REQUIRE(space.ok());
    return std::move(*space);
  }
  std::span<std::byte> memory;
  std::shared_ptr<MadeUpOwnership::Book> book = std::make_shared<MadeUpOwnership::Book>();
};

// The next block of a holder, whose content is its number; false when there is no room.
bool store_block(TensorSpace& space, const std::string& name, uint8_t number) {
  const auto block = space.create(u8_tensor(name, block_bytes), {.double_buffered = false});
  if (!block.ok()) {
    CHECK(block.error().code == ErrorCode::capacity_exhausted);
    return false;
  }
  REQUIRE(space.publish(*block, bytes_of(number, block_bytes)).ok());
  return true;
}

void check_block(TensorSpace& reader, const std::string& name, uint8_t number) {
  std::vector<std::byte> copy(block_bytes);
  REQUIRE(reader.read(*reader.open(name), copy).ok());
  CHECK(copy == bytes_of(number, block_bytes));
}

Geometry geometry_of(std::span<std::byte> memory) {
  layout::SpaceHeader header;
  std::memcpy(&header, memory.data(), sizeof header);
  return *check_header(header, memory);
}

}  // namespace

TEST_CASE("Chunks: one holder fills the lease, not only a share of it") {
  LargeSpace lease;
  const auto only = lease.attach(), late = lease.attach();
  int blocks = 0;
  while (store_block(*only, "b" + std::to_string(blocks), static_cast<uint8_t>(blocks))) ++blocks;
  CHECK(blocks >= 480);  // of 496 that would fit without records and names
  for (int block = 0; block < blocks; block += 7)
    check_block(*late, "b" + std::to_string(block), static_cast<uint8_t>(block));
  CHECK_FALSE(store_block(*late, "mine", 1));
  // What one removes another one can have.
  for (int block = 8; block < 16; ++block) REQUIRE(only->remove(*only->open("b" + std::to_string(block))).ok());
  CHECK(late->largest_free_bytes() >= 2 * block_bytes);
  CHECK(store_block(*late, "mine", 1));
  check_block(*only, "mine", 1);
}

TEST_CASE("Chunks: holders share what is free, in the order in which they ask") {
  LargeSpace lease;
  std::vector<std::unique_ptr<TensorSpace>> holders;
  for (int i = 0; i < 3; ++i) holders.push_back(lease.attach());
  std::vector<int> blocks(3);
  for (bool any = true; any;) {
    any = false;
    for (int i = 0; i < 3; ++i)
      for (int burst = 0; burst <= i; ++burst) {
        const std::string name = std::to_string(i) + "-" + std::to_string(blocks[i]);
        if (!store_block(*holders[i], name, static_cast<uint8_t>(64 * i + blocks[i] % 64))) break;
        ++blocks[i];
        any = true;
      }
  }
  CHECK(blocks[0] + blocks[1] + blocks[2] >= 470);
  CHECK(blocks[0] >= 75);
  CHECK(blocks[2] > 2 * blocks[0]);
  for (int i = 0; i < 3; ++i)
    for (int block = 0; block < blocks[i]; block += 5)
      check_block(*holders[(i + 1) % 3], std::to_string(i) + "-" + std::to_string(block),
                  static_cast<uint8_t>(64 * i + block % 64));
}

TEST_CASE("Chunks: the largest free hole can be had, and not a byte more") {
  SpaceFixture fixture;
  const auto b = fixture.attach(), a = fixture.attach();
  REQUIRE(a->create(u8_tensor("in-the-way", 5000)).ok());
  const uint64_t largest = b->largest_free_bytes();
  CHECK(largest > 64);
  CHECK(largest < b->free_bytes());
  CHECK_FALSE(b->create(u8_tensor("big", largest - 63), {.double_buffered = false}).ok());
  const auto big = b->create(u8_tensor("big", largest - 64), {.double_buffered = false});
  REQUIRE(big.ok());
  CHECK(a->free_bytes() < geometry_of(fixture.memory.span()).data_bytes - largest);
  REQUIRE(b->remove(*big).ok());
  REQUIRE(a->remove(*a->open("in-the-way")).ok());
  CHECK(a->free_bytes() == geometry_of(fixture.memory.span()).data_bytes);
  CHECK(a->largest_free_bytes() == a->free_bytes());
}

TEST_CASE("Chunks: what a dead holder had stays its part's, and is free once its next owner removes it") {
  SpaceFixture fixture;
  const uint64_t all = geometry_of(fixture.memory.span()).data_bytes;
  auto writer = fixture.attach();
  const auto other = fixture.attach();
  const auto tensor = writer->create(u8_tensor("t", all / 4));
  REQUIRE(writer->publish(*tensor, bytes_of(7, all / 4)).ok());
  const uint64_t left = other->free_bytes();
  fixture.die(std::move(writer));
  CHECK(other->free_bytes() == left);
  CHECK_FALSE(other->create(u8_tensor("o", all / 4 + all / 8)).ok());
  const auto heir = fixture.attach();
  CHECK(heir->part() == 0u);
  std::vector<std::byte> copy(all / 4);
  CHECK(other->read(*other->open("t"), copy).ok());
  CHECK(copy == bytes_of(7, all / 4));
  REQUIRE(heir->remove(*heir->open("t")).ok());
  CHECK(other->free_bytes() == all);
  CHECK(other->create(u8_tensor("o", all / 4 + all / 8)).ok());
}

TEST_CASE("Chunks: a holder that left in order keeps only what its tensors need") {
  SpaceFixture fixture;
  auto writer = fixture.attach();
  const auto other = fixture.attach();
  const uint64_t all = other->free_bytes();
  REQUIRE(writer->create(u8_tensor("kept", 100)).ok());
  REQUIRE(writer->remove(*writer->create(u8_tensor("removed", all / 4))).ok());
  writer.reset();
  CHECK(other->free_bytes() == all - geometry_of(fixture.memory.span()).chunk_bytes);
}

TEST_CASE("Chunks: damaged words are found, not followed") {
  SpaceFixture fixture;
  const auto writer = fixture.attach(), other = fixture.attach();
  const Geometry geometry = geometry_of(fixture.memory.span());
  for (uint32_t chunk = 0; chunk < geometry.chunks; ++chunk) *geometry.claim(2, chunk) = chunk % 5;
  const uint64_t free = writer->free_bytes();
  CHECK(free < geometry.data_bytes / 4);
  CHECK(writer->create(u8_tensor("one", 64)).ok());
  CHECK(other->create(u8_tensor("two", 64)).ok());
  CHECK(writer->create(u8_tensor("three", geometry.data_bytes / 2)).error().code ==
        ErrorCode::capacity_exhausted);
  const auto heir = fixture.attach();  // owns part 2
  CHECK(heir->part() == 2u);
  CHECK(writer->create(u8_tensor("three", geometry.data_bytes / 4)).ok());
}

TEST_CASE("Chunks: a header whose chunks are not its data is refused; so is a space of version 1, in words") {
  SpaceFixture fixture;
  layout::SpaceHeader good;
  std::memcpy(&good, fixture.memory.span().data(), sizeof good);
  const auto refused = [&](auto change) {
    layout::SpaceHeader bad = good;
    change(bad);
    bad.checksum = crc32c(std::as_bytes(std::span(&bad, 1)).first(layout::space_header_checked_bytes));
    const auto geometry = check_header(bad, fixture.memory.span());
    return geometry.ok() ? ErrorCode::ok : geometry.error().code;
  };
  using Header = layout::SpaceHeader;
  CHECK(refused([](Header&) {}) == ErrorCode::ok);
  CHECK(refused([](Header& h) { h.chunk_count = 0; }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) { ++h.chunk_count; }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) { h.chunk_count = ~0u; }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) { h.chunk_bytes = 0; }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) { h.chunk_bytes = 65; }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) { h.chunk_bytes = ~63ull; }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) {
          h.chunk_bytes = 64;
          h.chunk_count = static_cast<uint32_t>(h.data_bytes / 64);
        }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) { h.data_offset = 0; }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) { h.data_offset -= 4096; }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) { h.data_offset += 4096; }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) { h.data_offset = ~4095ull; }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) { h.data_bytes = 0; }) == ErrorCode::corrupt);
  CHECK(refused([](Header& h) { h.data_bytes += 4096; }) == ErrorCode::corrupt);
  layout::SpaceHeader old = good;
  old.version_major = 1;
  const auto geometry = check_header(old, fixture.memory.span());
  CHECK(geometry.error().code == ErrorCode::version_mismatch);
  CHECK(geometry.error().detail.find("format version 1, this program reads version 2: format the space anew") !=
        std::string::npos);
}

TEST_CASE("Chunks: a run takes the fewest chunks, and a part begins at its own place") {
  const Geometry geometry{.data_bytes = 10 * 1024 - 64, .chunk_bytes = 1024, .chunks = 10};
  FreeChunks free(10, true);
  FreeSpace own;
  using Run = std::vector<uint32_t>;
  CHECK(chunks_for(100, own, free, 4, geometry) == Run{4});
  CHECK(chunks_for(2000, own, free, 4, geometry) == Run{4, 5});
  CHECK(chunks_for(1024, own, free, 9, geometry) == Run{4});  // the last one is shorter
  CHECK(chunks_for(10 * 1024 - 64, own, free, 4, geometry)->size() == 10);
  CHECK_FALSE(chunks_for(10 * 1024, own, free, 4, geometry).has_value());
  // Beside a hole of its own one chunk does.
  free[4] = false;
  own.give(4 * 1024 + 512, 512);
  CHECK(chunks_for(1500, own, free, 4, geometry) == Run{5});
  free[5] = false;
  own.take_at(4 * 1024 + 512, 512);
  own.give(4 * 1024, 512);
  CHECK(chunks_for(1500, own, free, 4, geometry) == Run{3});
  CHECK(chunks_for(1024, FreeSpace(), free, 4, geometry) == Run{1});  // in the middle of 0 to 3
  for (const uint32_t taken : {0u, 2u, 6u, 8u}) free[taken] = false;
  CHECK_FALSE(chunks_for(1600, own, free, 4, geometry).has_value());
  CHECK(with_chunks(own, free, geometry).free_bytes() == 512 + 3 * 1024 + 1024 - 64);
}
