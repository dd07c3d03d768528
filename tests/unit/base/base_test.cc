// SPDX-License-Identifier: Apache-2.0
// Base types: sizes and durations, errors, checksums, randomness.
#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "core/base/crc32c.h"
#include "core/base/ids.h"
#include "core/base/prng.h"
#include "core/base/units.h"
#include "core/identity/machine_name.h"

using namespace terrace;

TEST_CASE("units: sizes in binary multiples, with and without suffix") {
  CHECK(*parse_size("4096") == 4096);
  CHECK(*parse_size("64M") == 64 * mib);
  CHECK(*parse_size("64MB") == 64 * mib);
  CHECK(*parse_size("2GiB") == 2 * gib);
  CHECK(*parse_size("1.5g") == gib + gib / 2);
  CHECK(*parse_size("1 T") == 1024 * gib);
}

TEST_CASE("units: what is not a size is refused and named") {
  for (const char* text : {"", "M", "-1", "12X", "1.2.3", "1e3", ".", "99999999999T", "0x10"}) {
    const auto result = parse_size(text);
    REQUIRE_FALSE(result.ok());
    CHECK(result.error().code == ErrorCode::invalid_argument);
    CHECK(result.error().detail.find("'" + std::string(text) + "'") != std::string::npos);
  }
}

TEST_CASE("units: durations need their unit") {
  CHECK(*parse_duration("250ms") == 250 * ns_per_ms);
  CHECK(*parse_duration("10s") == 10 * ns_per_s);
  CHECK(*parse_duration("2h") == 7200 * ns_per_s);
  CHECK(*parse_duration("1.5m") == 90 * ns_per_s);
  CHECK_FALSE(parse_duration("10").ok());
  CHECK_FALSE(parse_duration("ten seconds").ok());
}

TEST_CASE("units: sizes and durations are printed as people read them") {
  CHECK(format_size(0) == "0 B");
  CHECK(format_size(1023) == "1023 B");
  CHECK(format_size(64 * mib) == "64 MiB");
  CHECK(format_size(gib + gib / 2) == "1.5 GiB");
  CHECK(format_duration(1'500'000'000) == "1.5 s");
  CHECK(format_duration(7200 * ns_per_s) == "2 h");
}

TEST_CASE("error: text names code, errno and place") {
  const Error error = os_error(ENOSPC, "EmulatedBackend::carve", "no room for 64 MiB");
  CHECK(error.code == ErrorCode::capacity_exhausted);
  CHECK(error.to_string() ==
        "no room for 64 MiB [capacity_exhausted, ENOSPC No space left on device, in EmulatedBackend::carve]");
}

TEST_CASE("error: every code has its own name and survives the wire") {
  for (uint16_t n = 0; n <= static_cast<uint16_t>(ErrorCode::internal); ++n) {
    CHECK(error_code_from_wire(n) == static_cast<ErrorCode>(n));
    for (uint16_t m = 0; m < n; ++m)
      CHECK(error_code_name(static_cast<ErrorCode>(n)) != error_code_name(static_cast<ErrorCode>(m)));
  }
  CHECK(error_code_from_wire(60000) == ErrorCode::internal);
}

TEST_CASE("crc32c: the vectors of RFC 3720 B.4") {
  std::vector<std::byte> bytes(32, std::byte{0});
  CHECK(crc32c(bytes) == 0x8a9136aa);
  bytes.assign(32, std::byte{0xff});
  CHECK(crc32c(bytes) == 0x62a8ab43);
  for (size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(i);
  CHECK(crc32c(bytes) == 0x46dd794e);
  CHECK(crc32c({}) == 0);
}

TEST_CASE("crc32c: instruction and table agree at every length, and continue") {
  Prng prng(7);
  std::vector<std::byte> bytes(20000);
  for (auto& b : bytes) b = static_cast<std::byte>(prng.next());
  const std::span<const std::byte> all(bytes);
  for (size_t length = 0; length < bytes.size(); length += 1 + length / 7) {
    const auto part = all.first(length);
    REQUIRE(crc32c(part) == crc32c_table(part));
    const size_t cut = length / 3;
    REQUIRE(crc32c(part.subspan(cut), crc32c(part.first(cut))) == crc32c(part));
  }
}

TEST_CASE("prng: the same seed gives the same run, another seed another") {
  Prng a(1), b(1), c(2);
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const uint64_t value = a.next();
    CHECK(value == b.next());
    differs |= value != c.next();
  }
  CHECK(differs);
  for (int i = 0; i < 10000; ++i) CHECK(a.below(7) < 7);
}

TEST_CASE("ids: zero is no id, and ids of different kinds do not mix") {
  CHECK_FALSE(LeaseId{}.valid());
  CHECK(LeaseId{3} < LeaseId{4});
  static_assert(!std::is_convertible_v<LeaseId, PoolId>);
}

TEST_CASE("machine name: one that leases cannot carry is replaced by one that stays the same") {
  CHECK(machine_name_of("node-7.example.org", "0123") == "node-7.example.org");
  const std::string machine = machine_name_of("(none)", "4c4c4544004b5a10804eb9c04f4d3333");
  CHECK(machine.starts_with("machine-"));
  CHECK(machine.size() == 24);
  CHECK(machine.find("4c4c45") == std::string::npos);
  CHECK(machine_name_of("(none)", "4c4c4544004b5a10804eb9c04f4d3333") == machine);
  CHECK(machine_name_of("(none)", "5c4c4544004b5a10804eb9c04f4d3333") != machine);
  CHECK(machine_name_of(std::string(64, 'a'), "0123").starts_with("machine-"));
  for (const char* host : {"", "(none)", ".hidden", "-x", "a b", "\xc3\xa9"})
    CHECK(machine_name_of(host, "") == "localhost");
  CHECK_FALSE(machine_name().empty());
}
