// SPDX-License-Identifier: Apache-2.0
#include "terrace/visibility.h"

#include <doctest/doctest.h>

#include <cerrno>
#include <cstring>

#include "libclient/coherence/memory/noncoherent_memory.h"
#include "tests/unit/tensor/aligned_memory.h"

TEST_CASE("Visibility: publish and acquire of any range that begins on a line") {
  terrace::AlignedMemory memory(8192);
  std::byte* const at = memory.span().data();
  for (const char* mode : {"software_fenced", "noncoherent", "coherent"})
    for (const size_t length : {size_t{0}, size_t{1}, size_t{64}, size_t{65}, size_t{8192}})
      for (const uint32_t operation : {1u, 2u}) {
        std::memset(at, static_cast<int>(length % 251), 8192);
        CHECK(lmcache_shared_l1_visibility_v1(mode, operation, 0, at, 4096, length, 7) == 0);
        CHECK(at[8191] == std::byte(length % 251));  // dropping a line loses no store of this host
      }
}

TEST_CASE("Visibility: what cannot be right is refused") {
  terrace::AlignedMemory memory(4096);
  std::byte* const at = memory.span().data();
  const auto call = [](const char* mode, uint32_t operation, int fd, void* address, uint64_t offset,
                       size_t length) {
    return lmcache_shared_l1_visibility_v1(mode, operation, fd, address, offset, length, 0);
  };
  CHECK(call(nullptr, 1, 0, at, 0, 64) == -EINVAL);
  CHECK(call("magic", 1, 0, at, 0, 64) == -EINVAL);
  CHECK(call("software_fenced", 0, 0, at, 0, 64) == -EINVAL);
  CHECK(call("software_fenced", 3, 0, at, 0, 64) == -EINVAL);
  CHECK(call("software_fenced", 1, -1, at, 0, 64) == -EBADF);
  CHECK(call("software_fenced", 1, 0, nullptr, 0, 64) == -EINVAL);
  CHECK(call("software_fenced", 1, 0, at + 8, 0, 64) == -EINVAL);
  CHECK(call("software_fenced", 1, 0, at, 8, 64) == -EINVAL);
  CHECK(call("software_fenced", 1, 0, at, 0, SIZE_MAX) == -EINVAL);
}

TEST_CASE("NonCoherentMemory: large copies keep every byte") {
  const terrace::coherence::NonCoherentMemory memory;
  terrace::AlignedMemory target(3 * 4096), source(3 * 4096);
  for (size_t index = 0; index < 3 * 4096; ++index) source.span()[index] = std::byte(index * 7);
  for (const size_t length : {1, 63, 64, 4095, 4096, 4097, 8191, 12000})
    for (const size_t shift : {0, 1, 16}) {
      std::memset(target.span().data(), 0, target.span().size());
      memory.write(target.span().data() + shift, source.span().data(), length);
      memory.full_barrier(terrace::coherence::Step::none);
      CHECK(std::memcmp(target.span().data() + shift, source.span().data(), length) == 0);
      CHECK(target.span()[shift + length] == std::byte{0});
    }
}
