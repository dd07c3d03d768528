// SPDX-License-Identifier: Apache-2.0
// Copies of granules: non-temporal stores in four interleaved streams, as the processor can.
//
// Place     tiering/migration: between write-protect and switch. The bench compares it with memcpy.
// Threads   Any.
// Memory    libc only; nothing is allocated.
//
// Four streams: the block is cut in four quarters that are copied in lockstep, 128 bytes at a time, so that
// four hardware prefetchers run ahead (docs/design/0008-migration.md has the figures). The stores bypass the
// caches: this processor does not need the moved bytes soon, and CXL memory gets full lines.
#pragma once

#include <cstddef>
#include <cstdint>

namespace terrace::tiering {

enum class CopyKind : uint8_t { plain, nt_avx2, nt_avx512 };

// What this processor can, asked once by CPUID.
CopyKind best_copy_kind();
const char* copy_kind_name(CopyKind kind);  // "memcpy", "nt-avx2", "nt-avx512"

// Copies `bytes`; source and destination do not overlap. Multiples of 512 bytes from 64-byte aligned addresses
// are streamed, everything else goes through memcpy. On return all stores are ordered before later ones
// (sfence).
void copy_streamed(void* to, const void* from, size_t bytes, CopyKind kind = best_copy_kind());

// How a mover copies where memory may go away in the middle of it, as a lease that is fenced: false then, with
// anything in the target. The owner of the process says so, since an answer in place of a SIGBUS needs a signal
// handler; nullptr stands for copy_streamed.
using CopyBlock = bool (*)(char* to, const char* from, size_t bytes);
inline bool copy_block(CopyBlock copy, char* to, const char* from, size_t bytes) {
  if (copy != nullptr) return copy(to, from, bytes);
  copy_streamed(to, from, bytes);
  return true;
}

// Writes the lines of freshly zeroed memory back and drops them from the caches, where the processor can:
// streaming into memory that is still in the caches is twice as slow. Outside any stall.
void drop_from_caches(void* at, size_t bytes);

// A bound on bytes a second: says when the next move may begin. Debt is paid off by waiting, unused time saves
// up for at most a tenth of a second.
//
// Threads   One at a time.
class CopyBudget {
 public:
  static constexpr uint64_t most_bytes_per_s = uint64_t{1} << 50;
  void set(uint64_t bytes_per_s);  // 0: no bound; more than the most counts as that
  uint64_t bytes_per_s() const { return bytes_per_s_; }
  // Bytes that may be copied now: 0 until the debt of earlier copies is paid.
  uint64_t allowance(uint64_t now_ns);
  void spend(uint64_t bytes) {
    if (bytes_per_s_ != 0) balance_ -= static_cast<int64_t>(bytes);
  }

 private:
  uint64_t bytes_per_s_ = 0;
  uint64_t last_ns_ = 0;
  int64_t balance_ = 0;
};

}  // namespace terrace::tiering
