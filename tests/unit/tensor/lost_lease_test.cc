// SPDX-License-Identifier: Apache-2.0
// Catalogs in memory that goes away.
#include <doctest/doctest.h>

#include "terrace/catalog.h"
#include "tests/support/ending_lease.h"

namespace terrace {
namespace {

CatalogPlan plan() {
  auto made = CatalogPlan::make(
      {{.name = "a", .dtype = DType::u8, .shape = {100000}}, {.name = "b", .dtype = DType::u8, .shape = {64}}},
      {{"key", "value"}});
  REQUIRE(made.ok());
  return *std::move(made);
}

template <typename Answer>
bool is_lost(const Answer& answer) {
  return !answer.ok() && answer.error().code == ErrorCode::lease_expired;
}

}  // namespace

TEST_CASE("CatalogWriter: memory that goes away before any of its calls is lease_expired") {
  const std::vector<std::byte> bytes(100000, std::byte{7});
  for (int calls_before = 0; calls_before < 3; ++calls_before) {
    CAPTURE(calls_before);
    const test::EndingLease lease;
    if (calls_before == 0) {
      lease.fence();
      CHECK(is_lost(CatalogWriter::begin(lease.memory, plan())));
      continue;
    }
    auto writer = CatalogWriter::begin(lease.memory, plan());
    REQUIRE(writer.ok());
    if (calls_before == 2) REQUIRE(writer->add("a", bytes).ok());
    lease.fence();
    if (calls_before == 1) CHECK(is_lost(writer->add("a", bytes)));
    writer->filled(0);
    writer->filled(1);
    CHECK(is_lost(writer->publish()));
  }
}

TEST_CASE("CatalogReader: memory that goes away before open or verify is lease_expired") {
  const test::EndingLease lease;
  auto writer = CatalogWriter::begin(lease.memory, plan());
  REQUIRE(writer.ok());
  writer->filled(0);
  writer->filled(1);
  REQUIRE(writer->publish().ok());
  const auto reader = CatalogReader::open(lease.memory);
  REQUIRE(reader.ok());
  CHECK(reader->verify(0).ok());
  lease.fence();
  CHECK(is_lost(CatalogReader::open(lease.memory)));
  CHECK(is_lost(reader->verify(0)));
  CHECK(reader->find("a").ok());
}

}  // namespace terrace
