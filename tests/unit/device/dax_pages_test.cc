// SPDX-License-Identifier: Apache-2.0
// Memory of dax devices is recognised in the kernel's list of mappings.
#include "libclient/device/cuda/dax_pages.h"

#include "tests/unit/device/device_fixture.h"

using namespace terrace;
using namespace terrace::device;

namespace {

constexpr const char* maps =
    "555500000000-555500010000 r-xp 00000000 fe:01 77   /usr/bin/dax-tool\n"
    "7f0000000000-7f0000200000 rw-s 00000000 00:05 312  /dev/dax0.1\n"
    "7f0000200000-7f0000400000 rw-s 00000000 00:1c 9    /run/terrace/objects/lease-5.obj (deleted)\n"
    "7f0000400000-7f0000600000 rw-s 00000000 00:05 313  /dax12.0 (deleted)\n"
    "7f0000600000-7f0000800000 rw-p 00000000 00:00 0\n"
    "7f0000800000-7f0000a00000 rw-s 00000000 fe:01 8    /data/daxophone.bin\n"
    "garbage\n";

bool shown(uintptr_t begin, size_t bytes) {
  return maps_show_dax(maps, {reinterpret_cast<const std::byte*>(begin), bytes});
}

}  // namespace

TEST_CASE("dax_pages: a dax device's mapping is found, wholly or in part, also when its name is gone") {
  CHECK(shown(0x7f0000000000, 4096));
  CHECK(shown(0x7f00001ff000, 8192));
  CHECK(shown(0x7f0000400000 - 1, 2));
  CHECK(shown(0x7f0000000000, 0x1000000));
}

TEST_CASE("dax_pages: files, plain memory and addresses beside are not") {
  CHECK_FALSE(shown(0x555500000000, 4096));
  CHECK_FALSE(shown(0x7f0000200000, 0x200000));
  CHECK_FALSE(shown(0x7f0000600000, 0x200000));
  CHECK_FALSE(shown(0x7f0000800000, 0x200000));
  CHECK_FALSE(shown(0x7e0000000000, 4096));
  CHECK_FALSE(maps_show_dax("", {}));
}

TEST_CASE("dax_pages: what may be pinned does not count, and all else in the same memory does") {
  const auto at = [](uintptr_t begin, size_t bytes) {
    return std::span(reinterpret_cast<const std::byte*>(begin), bytes);
  };
  std::vector<std::span<const std::byte>> asked;
  const MayPin first_only = [&asked](std::span<const std::byte> part) {
    asked.push_back(part);
    return reinterpret_cast<uintptr_t>(part.data()) < 0x7f0000200000;
  };
  CHECK_FALSE(maps_show_dax(maps, at(0x7f0000001000, 4096), first_only));
  REQUIRE(asked.size() == 1);
  CHECK(asked[0].data() == at(0x7f0000001000, 1).data());
  CHECK(asked[0].size() == 4096);
  CHECK(maps_show_dax(maps, at(0x7f0000400000, 4096), first_only));
  CHECK(maps_show_dax(maps, at(0x7f0000000000, 0x600000), first_only));  // the second device
  CHECK(asked.back().size() == 0x200000);
}

TEST_CASE("dax_pages: this process's own heap is not") {
  const std::vector<std::byte> bytes(4096);
  CHECK_FALSE(lies_on_dax(bytes));
}
