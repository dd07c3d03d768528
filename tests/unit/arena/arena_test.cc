// SPDX-License-Identifier: Apache-2.0
// Arena over leases that are memory files of the test: what the bookkeeping says is what the kernel maps.
#include "terrace/arena.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "core/base/prng.h"
#include "core/base/unique_fd.h"
#include "core/base/units.h"

using namespace terrace;

namespace {

class FileLease final : public Lease {
 public:
  FileLease(uint64_t id, uint64_t bytes, LeaseAccess access = LeaseAccess::read_write)
      : id_(id), bytes_(bytes), access_(access), file_(::memfd_create("unit_arena", MFD_CLOEXEC)) {
    REQUIRE(::ftruncate(file_.get(), static_cast<off_t>(bytes)) == 0);
  }
  LeaseId id() const override { return LeaseId{id_}; }
  LeaseEpoch epoch() const override { return LeaseEpoch{1}; }
  uint64_t bytes() const override { return bytes_; }
  LeaseAccess access() const override { return access_; }
  LeaseState state() const override { return state_; }
  int fd() const override { return file_.get(); }
  Result<LeaseInfo> info() override { return LeaseInfo{}; }
  Status renew(uint64_t) override { return {}; }
  Status release() override { return {}; }
  Status report_usage(const UsageReport&) override { return {}; }
  Result<LeaseInfo> resize(uint64_t) override { return unsupported(); }
  Status transfer(const std::string&, const std::string&) override { return unsupported(); }
  Result<std::unique_ptr<LeaseMove>> begin_move() override { return unsupported(); }

  void set_state(LeaseState state) { state_ = state; }
  void truncate(uint64_t bytes) const { REQUIRE(::ftruncate(file_.get(), static_cast<off_t>(bytes)) == 0); }
  std::byte read(uint64_t offset) const {
    std::byte value{};
    REQUIRE(::pread(file_.get(), &value, 1, static_cast<off_t>(offset)) == 1);
    return value;
  }

 private:
  static Error unsupported() { return {ErrorCode::unsupported, 0, "FileLease", "not in this test"}; }

  uint64_t id_, bytes_;
  LeaseAccess access_;
  std::atomic<LeaseState> state_{LeaseState::live};
  UniqueFd file_;
};

std::unique_ptr<Arena> make_arena(uint64_t ddr_bytes, uint64_t range_bytes = gib) {
  ArenaOptions options;
  options.range_bytes = range_bytes;
  options.ddr_bytes = ddr_bytes;
  auto arena = Arena::make(options);
  REQUIRE_MESSAGE(arena.ok(), arena.error().to_string());
  return std::move(*arena);
}

std::byte* must(Result<void*> result) {
  REQUIRE_MESSAGE(result.ok(), result.error().to_string());
  return static_cast<std::byte*>(*result);
}

}  // namespace

TEST_CASE("Arena: DDR first, then CXL, and the address tells the tier") {
  auto arena = make_arena(4 * mib);
  auto lease = std::make_shared<FileLease>(1, 8 * mib);
  REQUIRE(arena->add_lease(lease).ok());
  CHECK(arena->use(Tier::ddr).free_bytes == 4 * mib);
  CHECK(arena->use(Tier::cxl).free_bytes == 8 * mib);

  std::byte* first = must(arena->allocate(3 * mib, 1, TierPreference::ddr_first));
  std::byte* second = must(arena->allocate(3 * mib, 1, TierPreference::ddr_first));
  CHECK(arena->tier_of(first) == Tier::ddr);
  CHECK(arena->tier_of(first + 3 * mib - 1) == Tier::ddr);
  CHECK(arena->tier_of(second) == Tier::cxl);
  CHECK(arena->lease_of(second) == lease);
  CHECK(arena->lease_of(first) == nullptr);
  int local = 0;
  CHECK_FALSE(arena->tier_of(&local).has_value());
  CHECK_FALSE(arena->tier_of(arena->range().data() + 512 * mib).has_value());
  for (std::byte* place : {first, second}) {
    CHECK(place >= arena->range().data());
    std::memset(place, 0x6b, 3 * mib);
  }
  CHECK(lease->read(3 * mib - 1) == std::byte{0x6b});
  CHECK(lease->read(3 * mib) == std::byte{0});

  CHECK(arena->use(Tier::ddr).free_bytes == mib);
  CHECK(arena->use(Tier::cxl).allocations == 1);
  REQUIRE(arena->free(first).ok());
  CHECK(must(arena->allocate(4 * mib, 1, TierPreference::ddr_only)) == first);
}

TEST_CASE("Arena: a shortage names the tiers and the bytes") {
  auto arena = make_arena(2 * mib);
  REQUIRE(arena->add_lease(std::make_shared<FileLease>(1, 4 * mib)).ok());
  auto both = arena->allocate(5 * mib, 1, TierPreference::ddr_first);
  REQUIRE_FALSE(both.ok());
  CHECK(both.error().code == ErrorCode::capacity_exhausted);
  CHECK(both.error().detail.find("ddr is short of 3 MiB") != std::string::npos);
  CHECK(both.error().detail.find("cxl is short of 1 MiB") != std::string::npos);
  auto ddr = arena->allocate(3 * mib, 1, TierPreference::ddr_only);
  CHECK(ddr.error().detail.find("cxl") == std::string::npos);
  auto without = make_arena(0);
  CHECK(without->allocate(1, 1, TierPreference::ddr_first).error().detail.find("ddr has no memory") !=
        std::string::npos);
  auto aligned = arena->allocate(1, uint64_t{1} << 62, TierPreference::ddr_only);
  REQUIRE_FALSE(aligned.ok());
  CHECK(aligned.error().detail.find("aligned to") != std::string::npos);
  CHECK(arena->allocate(~uint64_t{0}, 1, TierPreference::ddr_first).error().code ==
        ErrorCode::capacity_exhausted);
}

TEST_CASE("Arena: alignment is that of the address") {
  auto arena = make_arena(16 * mib);
  must(arena->allocate(1, 1, TierPreference::ddr_only));
  for (const uint64_t alignment : {uint64_t{1}, uint64_t{64}, uint64_t{8192}, mib, 4 * mib}) {
    std::byte* place = must(arena->allocate(100, alignment, TierPreference::ddr_only));
    CHECK(reinterpret_cast<uintptr_t>(place) % alignment == 0);
  }
}

TEST_CASE("Arena: wrong arguments are refused and change nothing") {
  auto arena = make_arena(2 * mib);
  CHECK(arena->allocate(0, 1, TierPreference::ddr_first).error().code == ErrorCode::invalid_argument);
  CHECK(arena->allocate(1, 3, TierPreference::ddr_first).error().code == ErrorCode::invalid_argument);
  CHECK(arena->allocate(1, 0, TierPreference::ddr_first).error().code == ErrorCode::invalid_argument);
  std::byte* place = must(arena->allocate(8192, 1, TierPreference::ddr_only));
  int local = 0;
  CHECK(arena->free(&local).error().code == ErrorCode::invalid_argument);
  CHECK(arena->free(nullptr).error().code == ErrorCode::invalid_argument);
  CHECK(arena->free(place + 1).error().code == ErrorCode::invalid_argument);
  CHECK(arena->free(place + 4096).error().code == ErrorCode::invalid_argument);
  CHECK(arena->free(place).ok());
  CHECK(arena->free(place).error().code == ErrorCode::invalid_argument);
  CHECK(arena->use(Tier::ddr).free_bytes == 2 * mib);

  ArenaOptions options;
  options.granule_bytes = 3 * mib;
  CHECK(Arena::make(options).error().code == ErrorCode::invalid_argument);
  options = {};
  options.range_bytes = mib;
  CHECK(Arena::make(options).error().code == ErrorCode::invalid_argument);
  options.range_bytes = 4 * mib;
  options.ddr_bytes = 5 * mib;
  CHECK(Arena::make(options).error().code == ErrorCode::invalid_argument);
  options.range_bytes = uint64_t{1} << 62;
  CHECK(Arena::make(options).error().code == ErrorCode::out_of_memory);
}

TEST_CASE("Arena: leases come and go; places are used again") {
  auto arena = make_arena(2 * mib, 12 * mib);
  auto first = std::make_shared<FileLease>(1, 4 * mib);
  auto second = std::make_shared<FileLease>(2, 3 * mib);  // its place is 4 MiB
  REQUIRE(arena->add_lease(first).ok());
  REQUIRE(arena->add_lease(second).ok());
  CHECK(arena->use(Tier::cxl).capacity_bytes == 7 * mib);
  CHECK(arena->add_lease(first).error().code == ErrorCode::already_exists);
  auto third = arena->add_lease(std::make_shared<FileLease>(3, 4 * mib));
  REQUIRE_FALSE(third.ok());
  CHECK(third.error().code == ErrorCode::capacity_exhausted);
  CHECK(third.error().detail.find("largest gap is 2 MiB") != std::string::npos);

  std::byte* place = must(arena->allocate(4 * mib, 1, TierPreference::cxl_only));
  CHECK(arena->lease_of(place) == first);
  CHECK(arena->remove_lease(LeaseId{1}).error().code == ErrorCode::busy);
  CHECK(arena->remove_lease(LeaseId{9}).error().code == ErrorCode::not_found);
  REQUIRE(arena->free(place).ok());
  REQUIRE(arena->remove_lease(LeaseId{1}).ok());
  CHECK_FALSE(arena->tier_of(place).has_value());
  CHECK(first.use_count() == 1);
  auto fourth = std::make_shared<FileLease>(4, 4 * mib);
  REQUIRE(arena->add_lease(fourth).ok());
  CHECK(must(arena->allocate(4 * mib, 1, TierPreference::cxl_only)) == place);
}

TEST_CASE("Arena: leases that cannot be used are refused, and skipped once revoked") {
  auto arena = make_arena(0);
  CHECK(arena->add_lease(std::make_shared<FileLease>(1, 2 * mib, LeaseAccess::read_only)).error().code ==
        ErrorCode::invalid_argument);
  auto lost = std::make_shared<FileLease>(2, 2 * mib);
  lost->set_state(LeaseState::lost);
  CHECK(arena->add_lease(lost).error().code == ErrorCode::lease_expired);
  auto fenced = std::make_shared<FileLease>(3, 2 * mib);
  fenced->truncate(0);
  CHECK(arena->add_lease(fenced).error().code == ErrorCode::lease_expired);
  auto grown = std::make_shared<FileLease>(4, 2 * mib);
  grown->truncate(6 * mib);
  CHECK(arena->add_lease(grown).error().code == ErrorCode::corrupt);
  CHECK(arena->use(Tier::cxl).capacity_bytes == 0);

  auto good = std::make_shared<FileLease>(5, 2 * mib);
  REQUIRE(arena->add_lease(good).ok());
  std::byte* place = must(arena->allocate(4096, 1, TierPreference::cxl_only));
  good->set_state(LeaseState::revoking);
  CHECK(arena->allocate(4096, 1, TierPreference::cxl_only).error().code == ErrorCode::capacity_exhausted);
  CHECK(arena->use(Tier::cxl).free_bytes == 0);
  CHECK(arena->tier_of(place) == Tier::cxl);
  CHECK(arena->free(place).ok());
  CHECK(arena->remove_lease(LeaseId{5}).ok());
}

TEST_CASE("Arena: large pieces of DDR go back to the system when freed") {
  for (const bool in_memory_file : {false, true}) {
    CAPTURE(in_memory_file);
    ArenaOptions options;
    options.range_bytes = 64 * mib;
    options.ddr_bytes = 16 * mib;
    options.ddr_in_memory_file = in_memory_file;
    auto arena = Arena::make(options);
    REQUIRE(arena.ok());
    std::byte* place = must((*arena)->allocate(8 * mib, 1, TierPreference::ddr_only));
    std::memset(place, 0x44, 8 * mib);
    REQUIRE((*arena)->free(place).ok());
    std::vector<unsigned char> resident(8 * mib / 4096);
    CHECK(must((*arena)->allocate(8 * mib, 1, TierPreference::ddr_only)) == place);
    REQUIRE(::mincore(place, 8 * mib, resident.data()) == 0);
    size_t pages = 0;
    for (const unsigned char page : resident) pages += page & 1u;
    CHECK(pages == 0);
    CHECK(place[4 * mib] == std::byte{0});
  }
}

TEST_CASE("Arena: DDR in a memory file is shared with a forked child") {
  ArenaOptions options;
  options.range_bytes = 8 * mib;
  options.ddr_bytes = 2 * mib;
  options.ddr_in_memory_file = true;
  auto arena = Arena::make(options);
  REQUIRE(arena.ok());
  std::byte* place = must((*arena)->allocate(4096, 1, TierPreference::ddr_only));
  const pid_t child = ::fork();
  if (child == 0) {
    place[0] = std::byte{77};
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(place[0] == std::byte{77});
}

TEST_CASE("Arena: threads allocate, write and free without meeting each other") {
  auto arena = make_arena(8 * mib);
  REQUIRE(arena->add_lease(std::make_shared<FileLease>(1, 8 * mib)).ok());
  std::atomic<int> torn{0};
  std::vector<std::thread> threads;
  for (unsigned number = 1; number <= 4; ++number) {
    threads.emplace_back([&, number] {
      Prng prng(number);
      for (int i = 0; i < 300; ++i) {
        const uint64_t bytes = prng.between(1, 64 * kib);
        auto place = arena->allocate(bytes, 1, TierPreference::ddr_first);
        if (!place.ok()) continue;
        auto* data = static_cast<unsigned char*>(*place);
        std::memset(data, static_cast<int>(number), bytes);
        for (uint64_t at = 0; at < bytes; at += 1024) torn += data[at] != number ? 1 : 0;
        if (!arena->free(*place).ok()) ++torn;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(torn == 0);
  CHECK(arena->use(Tier::ddr).free_bytes == 8 * mib);
  CHECK(arena->use(Tier::cxl).free_bytes == 8 * mib);
}
