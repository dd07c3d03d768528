// SPDX-License-Identifier: Apache-2.0
#include "core/base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace terrace {
namespace {

constexpr uint32_t polynomial_reflected = 0x82f63b78;

constexpr std::array<uint32_t, 256> make_byte_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? polynomial_reflected : 0);
    table[i] = crc;
  }
  return table;
}
constexpr auto byte_table = make_byte_table();

#if defined(__x86_64__)

// A CRC is linear, so appending a fixed number of zero bytes is a 32x32 bit matrix. The matrix for one
// stream block is kept as four 256-entry tables, which joins three streams run in parallel.
constexpr size_t block_bytes = 1024;

struct ZeroShift {
  uint32_t table[4][256];

  ZeroShift() {
    for (uint32_t lane = 0; lane < 4; ++lane) {
      for (uint32_t i = 0; i < 256; ++i) {
        uint32_t crc = i << (8 * lane);
        for (size_t n = 0; n < block_bytes; ++n) crc = byte_table[crc & 0xff] ^ (crc >> 8);
        table[lane][i] = crc;
      }
    }
  }
  uint32_t operator()(uint32_t crc) const {
    return table[0][crc & 0xff] ^ table[1][(crc >> 8) & 0xff] ^ table[2][(crc >> 16) & 0xff] ^
           table[3][crc >> 24];
  }
};

uint64_t load_u64(const std::byte* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(std::span<const std::byte> bytes, uint32_t crc) {
  static const ZeroShift shift_block;
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  uint64_t state = crc ^ 0xffffffffu;

  while (left >= 3 * block_bytes) {
    uint64_t first = state, second = 0, third = 0;
    for (size_t i = 0; i < block_bytes; i += 8) {
      first = _mm_crc32_u64(first, load_u64(at + i));
      second = _mm_crc32_u64(second, load_u64(at + block_bytes + i));
      third = _mm_crc32_u64(third, load_u64(at + 2 * block_bytes + i));
    }
    const uint32_t joined = shift_block(static_cast<uint32_t>(first)) ^ static_cast<uint32_t>(second);
    state = shift_block(joined) ^ static_cast<uint32_t>(third);
    at += 3 * block_bytes;
    left -= 3 * block_bytes;
  }
  for (; left >= 8; at += 8, left -= 8) state = _mm_crc32_u64(state, load_u64(at));
  for (; left > 0; ++at, --left)
    state = _mm_crc32_u8(static_cast<uint32_t>(state), static_cast<unsigned char>(*at));
  return static_cast<uint32_t>(state) ^ 0xffffffffu;
}

#endif

}  // namespace

uint32_t crc32c_table(std::span<const std::byte> bytes, uint32_t previous) {
  uint32_t crc = previous ^ 0xffffffffu;
  for (const std::byte b : bytes) crc = byte_table[(crc ^ static_cast<uint8_t>(b)) & 0xff] ^ (crc >> 8);
  return crc ^ 0xffffffffu;
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t previous) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return crc32c_sse42(bytes, previous);
#endif
  return crc32c_table(bytes, previous);
}

}  // namespace terrace
