// SPDX-License-Identifier: Apache-2.0
// Catalogs that somebody tampered with: a reader refuses them, or yields views inside the span; never anything
// else. Two ways: random flips that leave checksums wrong, and precise lies whose checksums were fixed.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include "core/base/prng.h"
#include "core/layout/tensor_catalog.h"
#include "terrace/catalog.h"
#include "tests/support/fix_catalog.h"
#include "tests/support/skip.h"
#include "tests/unit/tensor/aligned_memory.h"

using namespace terrace;
using layout::CatalogHeader;
using layout::TensorRecord;

namespace {

struct Tampered {
  explicit Tampered(
      CatalogPlan plan = *CatalogPlan::make({{.name = "alpha", .dtype = DType::f32, .shape = {8, 8}},
                                             {.name = "beta", .dtype = DType::u8, .shape = {100}},
                                             {.name = "empty", .dtype = DType::f16, .shape = {0, 4}}},
                                            {{"key", "value"}}))
      : memory(plan.required_bytes()) {
    CatalogWriter writer = *CatalogWriter::begin(memory.span(), std::move(plan));
    for (size_t index = 0; index < 3; ++index) writer.filled(index);
    REQUIRE(writer.publish().ok());
  }

  CatalogHeader& header() { return *reinterpret_cast<CatalogHeader*>(memory.span().data()); }
  TensorRecord& record(size_t index) {
    return *reinterpret_cast<TensorRecord*>(memory.span().data() + sizeof(CatalogHeader) +
                                            index * sizeof(TensorRecord));
  }

  void fix_checksums() { fix_catalog(memory.span()); }

  AlignedMemory memory;
};

// Uses everything that a reader offers; true when the catalog was accepted.
bool exercise(std::span<const std::byte> memory) {
  const Result<CatalogReader> reader = CatalogReader::open(memory);
  if (!reader.ok()) {
    REQUIRE_FALSE(reader.error().detail.empty());
    return false;
  }
  uint64_t sum = 0;
  for (size_t index = 0; index < reader->size(); ++index) {
    const TensorView& view = (*reader)[index];
    const uintptr_t begin = reinterpret_cast<uintptr_t>(view.bytes.data());
    const uintptr_t low = reinterpret_cast<uintptr_t>(memory.data());
    REQUIRE(begin >= low);
    REQUIRE(begin + view.bytes.size() <= low + memory.size());
    REQUIRE(is_utf8(view.name));
    REQUIRE(reader->find(view.name)->bytes.data() == view.bytes.data());
    for (const std::byte byte : view.bytes) sum += static_cast<uint64_t>(byte);
    (void)reader->verify(index);
  }
  return sum < UINT64_MAX;
}

}  // namespace

TEST_CASE("Hostile catalog: random flips never crash and never yield a view outside the span") {
  Prng prng(20240501);
  Tampered original;
  const std::vector<std::byte> good(original.memory.span().begin(), original.memory.span().end());
  REQUIRE(exercise(original.memory.span()));
  int accepted = 0;
  for (int round = 0; round < 6000; ++round) {
    std::copy(good.begin(), good.end(), original.memory.span().begin());
    const bool fixed = prng.chance(1, 2);
    for (uint64_t flips = prng.between(1, 6); flips > 0; --flips) {
      // The first 1 KiB holds header and records; data bytes are anybody's.
      const uint64_t at = prng.below(prng.chance(3, 4) ? 1024 : good.size());
      std::byte& byte = original.memory.span()[at];
      byte = prng.chance(1, 3) ? static_cast<std::byte>(prng.next())
                               : byte ^ std::byte{uint8_t(1u << prng.below(8))};
    }
    if (fixed) original.fix_checksums();
    accepted += exercise(original.memory.span()) ? 1 : 0;
  }
  CHECK(accepted > 0);  // flips in data and reserved bytes are harmless; else this test would test nothing
}

TEST_CASE("Hostile catalog: random numbers in one field, checksums fixed") {
  Prng prng(7);
  const uint64_t edges[] = {0,
                            1,
                            63,
                            64,
                            4095,
                            4096,
                            UINT32_MAX,
                            uint64_t{1} << 32,
                            INT64_MAX,
                            uint64_t{1} << 63,
                            UINT64_MAX - 63,
                            UINT64_MAX};
  for (int round = 0; round < 4000; ++round) {
    Tampered tampered;
    const uint64_t word = 8 * prng.below(1024 / 8);
    const uint64_t value = prng.chance(1, 2) ? edges[prng.below(std::size(edges))] : prng.below(10'000);
    const size_t width = prng.chance(1, 2) ? 8 : 4;
    std::memcpy(tampered.memory.span().data() + word + (width == 4 ? 4 * prng.below(2) : 0), &value, width);
    tampered.fix_checksums();
    exercise(tampered.memory.span());
  }
}

TEST_CASE("Hostile catalog: every cut of the memory is refused") {
  Tampered tampered;
  const size_t whole = tampered.memory.span().size();
  for (size_t bytes = 0; bytes < whole; bytes += bytes < 1200 ? 1 : 61) {
    AlignedMemory cut(bytes + 1);
    std::memcpy(cut.span().data(), tampered.memory.span().data(), bytes);
    CHECK_FALSE(exercise(cut.span().first(bytes)));
  }
}

TEST_CASE("Hostile catalog: lies with fixed checksums are told apart") {
  struct Lie {
    const char* expected;
    std::function<void(Tampered&)> tell;
  };
  const Lie lies[] = {
      {"the memory has", [](Tampered& t) { t.header().total_bytes += 64; }},
      {"overlap or leave", [](Tampered& t) { t.header().names_offset = 0; }},
      {"overlap or leave", [](Tampered& t) { t.header().records_offset = UINT64_MAX - 100; }},
      {"overlap or leave", [](Tampered& t) { t.header().data_bytes = UINT64_MAX; }},
      {"overlap or leave", [](Tampered& t) { t.header().data_offset = 0; }},
      {"than the format allows", [](Tampered& t) { t.header().record_count = UINT32_MAX; }},
      {"not that of version 1", [](Tampered& t) { t.header().record_bytes = 128; }},
      {"format version", [](Tampered& t) { t.header().version_major = 2; }},
      {"features unknown", [](Tampered& t) { t.header().features_required = 1; }},
      {"are not aligned", [](Tampered& t) { t.header().data_offset += 64, t.header().data_bytes -= 64; }},
      {"ends early", [](Tampered& t) { t.header().metadata_entries = 2; }},
      {"behind its metadata", [](Tampered& t) { t.header().metadata_entries = 0; }},
      {"outside the names", [](Tampered& t) { t.record(1).name_offset = UINT64_MAX - 1; }},
      {"outside the names", [](Tampered& t) { t.record(1).name_bytes = 0; }},
      {"another tensor's", [](Tampered& t) { t.record(1).name_offset = 0, t.record(1).name_bytes = 5; }},
      {"another tensor's", [](Tampered& t) { t.record(1).id = 0; }},
      {"stable state", [](Tampered& t) { t.record(0).version = 3; }},
      {"stable state", [](Tampered& t) { t.record(0).state = 2; }},
      {"unknown dtype", [](Tampered& t) { t.record(0).dtype = 23; }},
      {"unknown dtype", [](Tampered& t) { t.record(0).rank = 9; }},
      {"unknown dtype", [](Tampered& t) { t.record(0).hint = 200; }},
      {"beyond its rank", [](Tampered& t) { t.record(0).shape[7] = 1; }},
      {"do not fit", [](Tampered& t) { t.record(0).shape[0] = 9; }},
      {"more bytes than any memory", [](Tampered& t) { t.record(0).shape[0] = UINT64_MAX; }},
      {"do not fit", [](Tampered& t) { t.record(0).strides[0] = 9; }},
      {"do not fit", [](Tampered& t) { t.record(0).strides[0] = -8; }},
      {"do not fit", [](Tampered& t) { t.record(0).strides[0] = INT64_MAX; }},
      {"do not fit", [](Tampered& t) { t.record(0).data_bytes = 1024; }},
      {"outside the data", [](Tampered& t) { t.record(0).data_offset = 0; }},
      {"outside the data", [](Tampered& t) { t.record(0).data_offset = UINT64_MAX - 63; }},
      {"outside the data", [](Tampered& t) { t.record(0).data_offset = t.header().total_bytes; }},
      {"slots make no sense", [](Tampered& t) { t.record(0).data_offset += 8; }},
      {"slots make no sense", [](Tampered& t) { t.record(0).slot = 1; }},
      {"slots make no sense", [](Tampered& t) { t.record(0).slot_count = 3; }},
      {"slots make no sense", [](Tampered& t) { t.record(0).slot_stride_bytes = 0; }},
      {"outside the data",
       [](Tampered& t) { t.record(0).slot_count = 2, t.record(0).slot_stride_bytes = 1ull << 62; }},
      {"share bytes", [](Tampered& t) { t.record(1).data_offset = t.record(0).data_offset; }},
      {"share bytes", [](Tampered& t) { t.record(1).slot_count = 2, t.record(1).data_offset -= 128; }},
  };
  for (const Lie& lie : lies) {
    Tampered tampered;
    lie.tell(tampered);
    tampered.fix_checksums();
    const Result<CatalogReader> reader = CatalogReader::open(tampered.memory.span());
    REQUIRE_MESSAGE(!reader.ok(), lie.expected);
    CHECK_MESSAGE(reader.error().detail.find(lie.expected) != std::string::npos, reader.error().detail);
  }
}

TEST_CASE("Hostile catalog: two tensors of one name, and names that are no text") {
  Tampered tampered(*CatalogPlan::make({{.name = "aa", .dtype = DType::u8, .shape = {1}},
                                        {.name = "ab", .dtype = DType::u8, .shape = {1}},
                                        {.name = "ac", .dtype = DType::u8, .shape = {1}}}));
  char* names = reinterpret_cast<char*>(tampered.memory.span().data() + tampered.header().names_offset);
  names[3] = 'a';
  tampered.record(1).name_hash = tampered.record(0).name_hash;
  tampered.fix_checksums();
  CHECK(CatalogReader::open(tampered.memory.span()).error().detail.find("comes twice") != std::string::npos);
  names[3] = '\xff';
  tampered.fix_checksums();
  CHECK(CatalogReader::open(tampered.memory.span()).error().detail.find("not UTF-8") != std::string::npos);
  names[3] = '\0';
  tampered.fix_checksums();
  CHECK(CatalogReader::open(tampered.memory.span()).error().detail.find("NUL") != std::string::npos);
}

TEST_CASE("Hostile catalog: a second slot inside the data is read from there") {
  // Version 1 writers make one slot; the format's readers must already understand two.
  Tampered tampered(*CatalogPlan::make({{.name = "double", .dtype = DType::u8, .shape = {64}},
                                        {.name = "room", .dtype = DType::u8, .shape = {0}},
                                        {.name = "rest", .dtype = DType::u8, .shape = {128}}}));
  tampered.record(2).data_offset += 64;
  tampered.record(2).data_bytes = 64;
  tampered.record(2).shape[0] = 64;
  tampered.record(0).slot_count = 2;
  tampered.record(0).slot = 1;
  tampered.fix_checksums();
  const Result<CatalogReader> reader = CatalogReader::open(tampered.memory.span());
  REQUIRE(reader.ok());
  const auto offset = reader->find("double")->bytes.data() - tampered.memory.span().data();
  CHECK(static_cast<uint64_t>(offset) == tampered.record(0).data_offset + 64);
}

TEST_CASE("Hostile catalog: a writer that changes it while it is opened") {
#if defined(__SANITIZE_THREAD__)
  TERRACE_SKIP(races, "the hostile writer races on purpose");
#else
  Tampered tampered;
  std::atomic<bool> stop{false};
  const std::vector<std::byte> good(tampered.memory.span().begin(), tampered.memory.span().end());
  std::thread hostile([&] {
    Prng prng(3);
    auto* bytes = reinterpret_cast<volatile unsigned char*>(tampered.memory.span().data());
    while (!stop.load()) {
      const size_t at = prng.below(1100);
      bytes[at] = static_cast<unsigned char>(prng.next());
      for (int spin = 0; spin < 200; ++spin) bytes[at] = static_cast<unsigned char>(good[at]);
    }
  });
  int accepted = 0;
  for (int round = 0; round < 3000; ++round) accepted += exercise(tampered.memory.span()) ? 1 : 0;
  stop.store(true);
  hostile.join();
  CHECK(accepted > 0);
#endif
}
