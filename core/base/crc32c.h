// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli polynomial, RFC 3720 appendix B.4), by the SSE4.2 instruction where the processor
// has it, three interleaved streams for long inputs; by table elsewhere. Both give the same value.
//
// Threads   Pure function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace terrace {

// Continues from `previous` (0 to start), so that crc32c(b, crc32c(a)) == crc32c(a followed by b).
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t previous = 0);

// The portable table version, for tests and other processors.
uint32_t crc32c_table(std::span<const std::byte> bytes, uint32_t previous = 0);

}  // namespace terrace
