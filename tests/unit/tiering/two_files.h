// SPDX-License-Identifier: Apache-2.0
// A tiered range over two memory files, for tests of what moves it.
#pragma once

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "core/base/units.h"
#include "core/os/memory_map.h"
#include "tests/support/skip.h"
#include "tiering/migration/tiered_memory.h"

namespace terrace::test {

template <typename Value>
Value take(Result<Value> result) {
  REQUIRE(result.ok());
  return std::move(*result);
}

struct TwoFiles {
  // `huge`: granules lie in huge pages, for which every rising one is joined where no tmpfs of them can be had.
  explicit TwoFiles(uint32_t granules, uint64_t granule_bytes = 2 * mib, uint32_t slots = 0,
                    uint32_t mappings_max = 0, bool huge = false)
      : map(take(os::MemoryMap::reserve(granules * granule_bytes, 2 * mib))),
        ddr(file("ddr", granules * granule_bytes, huge)),
        cxl(file("cxl", (slots == 0 ? granules : slots) * granule_bytes, huge)) {
    REQUIRE(memory.open({.base = base(),
                         .bytes = granules * granule_bytes,
                         .granule_bytes = granule_bytes,
                         .ddr_fd = ddr.get(),
                         .join_pages = huge && !on_huge_tmpfs,
                         .mappings_max = mappings_max}) == 0);
    REQUIRE(memory.add_segment(cxl.get(), (slots == 0 ? granules : slots) * granule_bytes) == 0);
  }
  ~TwoFiles() { memory.close(); }

  char* base() { return reinterpret_cast<char*>(map.data()); }
  char* at(uint32_t granule) { return base() + granule * memory.granule_bytes(); }
  // Every 8 bytes of the granule say which they are.
  void fill(uint32_t granule, uint64_t tag) {
    auto* words = reinterpret_cast<uint64_t*>(at(granule));
    for (uint64_t i = 0; i < memory.granule_bytes() / 8; ++i) words[i] = tag << 32 | i;
  }
  bool holds(uint32_t granule, uint64_t tag) {
    const auto* words = reinterpret_cast<const uint64_t*>(at(granule));
    for (uint64_t i = 0; i < memory.granule_bytes() / 8; ++i)
      if (words[i] != (tag << 32 | i)) return false;
    return true;
  }
  uint64_t ddr_file_bytes() const {
    struct stat status {};
    ::fstat(ddr.get(), &status);
    return static_cast<uint64_t>(status.st_blocks) * 512;
  }

  UniqueFd file(const char* name, uint64_t bytes, bool huge) {
    return take(huge ? os::make_huge_memory_file(name, bytes, &on_huge_tmpfs)
                     : os::make_memory_file(name, bytes));
  }

  bool on_huge_tmpfs = false;
  os::MemoryMap map;
  UniqueFd ddr, cxl;
  tiering::TieredMemory memory;
};

// A Mover, or the test is skipped: this machine or user has no userfaultfd.
#define TERRACE_REQUIRE_MOVER(mover)                                                 \
  tiering::Mover mover;                                                              \
  if (const int refused = mover.start(-1, 8 * mib); refused != 0) {                  \
    TERRACE_SKIP(userfaultfd, "no userfaultfd for this process, errno " << refused); \
    return;                                                                          \
  }

}  // namespace terrace::test
