// SPDX-License-Identifier: Apache-2.0
// FileMap and AddressReservation over memory files: the same calls as for a lease's descriptor.
#include "core/os/persist.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "core/base/units.h"
#include "core/os/memory_map.h"

using terrace::ErrorCode;
using terrace::mib;
using terrace::UniqueFd;
using terrace::os::AddressReservation;
using terrace::os::FileMap;
using terrace::os::StoreGranularity;

namespace {

UniqueFd memory_file(uint64_t bytes) {
  UniqueFd file(::memfd_create("unit_os_persist", MFD_CLOEXEC));
  REQUIRE(file.valid());
  REQUIRE(::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0);
  return file;
}

UniqueFd reopen_read_only(const UniqueFd& file) {
  return UniqueFd(::open(("/proc/self/fd/" + std::to_string(file.get())).c_str(), O_RDONLY | O_CLOEXEC));
}

// The signal that ends a child which reads `byte`; 0 when it lives.
int signal_of_touch(const volatile std::byte* byte) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (int number : {SIGSEGV, SIGBUS}) ::signal(number, SIG_DFL);
    const std::byte value = *byte;
    ::_exit(value == std::byte{255} ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

}  // namespace

TEST_CASE("FileMap: two maps of one descriptor are one memory, also after it is closed") {
  UniqueFd file = memory_file(4 * mib);
  auto first = FileMap::map(file.get());
  auto second = FileMap::map(file.get());
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  file.reset();
  CHECK(first->bytes().size() == 4 * mib);
  CHECK(first->writable());
  CHECK(first->granularity() == StoreGranularity::page);
  std::memset(first->bytes().data() + mib, 0x5a, 100);
  first->persist(first->bytes().subspan(mib, 100));
  first->flush(first->bytes().first(64));
  first->drain();
  first->persist({});
  CHECK(second->bytes()[mib + 99] == std::byte{0x5a});
  CHECK(std::string(terrace::os::store_granularity_name(StoreGranularity::cache_line)) == "cache line");
}

TEST_CASE("FileMap: a read-only descriptor gives a map that cannot be written") {
  UniqueFd file = memory_file(mib);
  UniqueFd reader = reopen_read_only(file);
  auto map = FileMap::map(reader.get());
  REQUIRE(map.ok());
  CHECK_FALSE(map->writable());
  CHECK(::mprotect(map->bytes().data(), 4096, PROT_READ | PROT_WRITE) == -1);
}

TEST_CASE("FileMap: a fenced descriptor and things that are no memory are refused with a reason") {
  UniqueFd empty = memory_file(0);
  auto fenced = FileMap::map(empty.get());
  REQUIRE_FALSE(fenced.ok());
  CHECK(fenced.error().code == ErrorCode::not_found);
  CHECK_FALSE(fenced.error().detail.empty());

  CHECK(FileMap::map(-1).error().code == ErrorCode::io_error);
  UniqueFd directory(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  CHECK(FileMap::map(directory.get()).error().code == ErrorCode::unsupported);
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  CHECK(FileMap::map(reading.get()).error().code == ErrorCode::unsupported);
  UniqueFd file = memory_file(mib);
  UniqueFd write_only(::open(("/proc/self/fd/" + std::to_string(file.get())).c_str(), O_WRONLY | O_CLOEXEC));
  CHECK(FileMap::map(write_only.get()).error().code == ErrorCode::unsupported);
}

TEST_CASE("FileMap: truncating the file takes the memory away from an old map") {
  UniqueFd file = memory_file(mib);
  auto map = FileMap::map(file.get());
  REQUIRE(map.ok());
  CHECK(signal_of_touch(map->bytes().data()) == 0);
  REQUIRE(::ftruncate(file.get(), 0) == 0);
  const int signal = signal_of_touch(map->bytes().data());
  CHECK(signal == SIGBUS);
}

TEST_CASE("AddressReservation: maps go to exact places beside memory of the process") {
  auto reservation = AddressReservation::make(16 * mib, 2 * mib);
  REQUIRE(reservation.ok());
  std::byte* start = reservation->range().data();
  CHECK(reinterpret_cast<uintptr_t>(start) % (2 * mib) == 0);
  CHECK(reservation->range().size() == 16 * mib);
  REQUIRE(terrace::os::map_anonymous_at(reservation->range(), 0, 2 * mib).ok());
  std::memset(start, 1, 2 * mib);

  UniqueFd file = memory_file(4 * mib);
  {
    auto map = FileMap::map(file.get(), {.reservation = &*reservation, .offset_bytes = 4 * mib});
    REQUIRE(map.ok());
    CHECK(map->bytes().data() == start + 4 * mib);
    start[4 * mib] = std::byte{9};
    CHECK(start[0] == std::byte{1});

    SUBCASE("a taken place is refused and what is there stays") {
      auto taken = FileMap::map(file.get(), {.reservation = &*reservation, .offset_bytes = 6 * mib});
      REQUIRE_FALSE(taken.ok());
      CHECK(taken.error().code == ErrorCode::invalid_argument);
      CHECK(start[4 * mib] == std::byte{9});
    }
    SUBCASE("a place beyond the end is refused") {
      auto beyond = FileMap::map(file.get(), {.reservation = &*reservation, .offset_bytes = 14 * mib});
      REQUIRE_FALSE(beyond.ok());
      CHECK(beyond.error().code == ErrorCode::invalid_argument);
      auto far = FileMap::map(file.get(), {.reservation = &*reservation, .offset_bytes = ~uint64_t{0}});
      CHECK(far.error().code == ErrorCode::invalid_argument);
    }
  }
  // Freed again: inaccessible, and the place can be used by another map.
  CHECK(signal_of_touch(start + 4 * mib) == SIGSEGV);
  auto again = FileMap::map(file.get(), {.reservation = &*reservation, .offset_bytes = 4 * mib});
  REQUIRE(again.ok());
  CHECK(start[4 * mib] == std::byte{9});
}

TEST_CASE("AddressReservation: what is no range is refused") {
  CHECK(AddressReservation::make(0, 2 * mib).error().code == ErrorCode::invalid_argument);
  CHECK(AddressReservation::make(mib, 2 * mib).error().code == ErrorCode::invalid_argument);
  CHECK(AddressReservation::make(6 * mib, 3 * mib).error().code == ErrorCode::invalid_argument);
  CHECK(AddressReservation::make(uint64_t{1} << 60, 2 * mib).error().code == ErrorCode::out_of_memory);
}
