// SPDX-License-Identifier: Apache-2.0
// The visibility contract that KV-cache servers ask of an operator's library (LMCache, shared Device-DAX L1):
// one host's stores become visible to other hosts, as far as the CPU can do that.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Makes completed stores to [mapped_address, mapped_address + length) reach the memory (operation 1, publish),
// or makes later loads of them ask the memory (operation 2, acquire). Synchronous.
//
// Units      length: bytes; the last cache line is rounded up, so that the range must have it to itself.
//            mapped_address, device_offset: multiples of 64.
// mode       "software_fenced" (LMCache's) or "noncoherent": write-back, invalidation and barriers.
//            "coherent": a barrier only, where the hardware keeps hosts coherent.
// Unused     device_fd, which must be open, and generation.
// Returns    0, or -EINVAL (mode, operation, alignment, range), -EBADF (device_fd is negative), -ENOTSUP (no
//            cache-line write-back on this processor).
// Promises   Visibility, not durability. The operator must check that the fabric does not tear a line.
// Threads    Any.
int lmcache_shared_l1_visibility_v1(const char* mode, uint32_t operation, int device_fd, void* mapped_address,
                                    uint64_t device_offset, size_t length, uint64_t generation);

#ifdef __cplusplus
}
#endif
