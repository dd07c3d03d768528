// SPDX-License-Identifier: Apache-2.0
#include "tiering/migration/copy.h"

#include <cpuid.h>
#include <immintrin.h>
#include <string.h>

#include <atomic>

namespace terrace::tiering {
namespace {

constexpr uint64_t saved_bytes_min = 8u << 20;
constexpr size_t streams = 4;
constexpr size_t step_bytes = 128;  // of one stream

__attribute__((target("avx512f"))) void copy_nt_avx512(char* to, const char* from, size_t bytes) {
  const size_t quarter = bytes / streams;
  for (size_t at = 0; at < quarter; at += step_bytes) {
#pragma GCC unroll 4
    for (size_t stream = 0; stream < streams; ++stream) {
      const char* source = from + stream * quarter + at;
      char* target = to + stream * quarter + at;
      const __m512i a = _mm512_loadu_si512(source);
      const __m512i b = _mm512_loadu_si512(source + 64);
      _mm512_stream_si512(reinterpret_cast<__m512i*>(target), a);
      _mm512_stream_si512(reinterpret_cast<__m512i*>(target + 64), b);
    }
  }
  _mm_sfence();
}

__attribute__((target("avx2"))) void copy_nt_avx2(char* to, const char* from, size_t bytes) {
  const size_t quarter = bytes / streams;
  for (size_t at = 0; at < quarter; at += step_bytes) {
#pragma GCC unroll 4
    for (size_t stream = 0; stream < streams; ++stream) {
      const auto* source = reinterpret_cast<const __m256i*>(from + stream * quarter + at);
      auto* target = reinterpret_cast<__m256i*>(to + stream * quarter + at);
      const __m256i a = _mm256_loadu_si256(source);
      const __m256i b = _mm256_loadu_si256(source + 1);
      const __m256i c = _mm256_loadu_si256(source + 2);
      const __m256i d = _mm256_loadu_si256(source + 3);
      _mm256_stream_si256(target, a);
      _mm256_stream_si256(target + 1, b);
      _mm256_stream_si256(target + 2, c);
      _mm256_stream_si256(target + 3, d);
    }
  }
  _mm_sfence();
}

// The processor has it and the system saves those registers.
CopyKind ask_processor() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_OSXSAVE) == 0) return CopyKind::plain;
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & 0x6) != 0x6 || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return CopyKind::plain;
  if ((b & bit_AVX512F) != 0 && (low & 0xe0) == 0xe0) return CopyKind::nt_avx512;
  return (b & bit_AVX2) != 0 ? CopyKind::nt_avx2 : CopyKind::plain;
}

__attribute__((target("clflushopt"))) void flush_lines(char* at, size_t bytes) {
  for (size_t line = 0; line < bytes; line += 64) _mm_clflushopt(at + line);
  _mm_sfence();
}

bool has_clflushopt() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & bit_CLFLUSHOPT) != 0;
}

}  // namespace

void drop_from_caches(void* at, size_t bytes) {
  static constinit std::atomic<uint8_t> known{UINT8_MAX};
  uint8_t can = known.load(std::memory_order_relaxed);
  if (can == UINT8_MAX) {
    can = has_clflushopt() ? 1 : 0;
    known.store(can, std::memory_order_relaxed);
  }
  if (can != 0) flush_lines(static_cast<char*>(at), bytes);
}

CopyKind best_copy_kind() {
  static constinit std::atomic<uint8_t> known{UINT8_MAX};
  uint8_t kind = known.load(std::memory_order_relaxed);
  if (kind == UINT8_MAX) {
    kind = static_cast<uint8_t>(ask_processor());
    known.store(kind, std::memory_order_relaxed);
  }
  return static_cast<CopyKind>(kind);
}

const char* copy_kind_name(CopyKind kind) {
  switch (kind) {
    case CopyKind::plain: return "memcpy";
    case CopyKind::nt_avx2: return "nt-avx2";
    case CopyKind::nt_avx512: return "nt-avx512";
  }
  return "?";
}

void copy_streamed(void* to, const void* from, size_t bytes, CopyKind kind) {
  const bool aligned = (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 64 == 0 &&
                       bytes % (streams * step_bytes) == 0;
  if (aligned && kind == CopyKind::nt_avx512)
    return copy_nt_avx512(static_cast<char*>(to), static_cast<const char*>(from), bytes);
  if (aligned && kind == CopyKind::nt_avx2)
    return copy_nt_avx2(static_cast<char*>(to), static_cast<const char*>(from), bytes);
  memcpy(to, from, bytes);
  _mm_sfence();
}

void CopyBudget::set(uint64_t bytes_per_s) {
  bytes_per_s_ = bytes_per_s < most_bytes_per_s ? bytes_per_s : most_bytes_per_s;
  balance_ = 0;
  last_ns_ = 0;
}

uint64_t CopyBudget::allowance(uint64_t now_ns) {
  if (bytes_per_s_ == 0) return UINT64_MAX;
  const auto most =
      static_cast<int64_t>(bytes_per_s_ / 10 > saved_bytes_min ? bytes_per_s_ / 10 : saved_bytes_min);
  const uint64_t passed_ns = last_ns_ == 0 || now_ns <= last_ns_ ? 0 : now_ns - last_ns_;
  const uint64_t counted_ns = passed_ns < 10'000'000'000 ? passed_ns : 10'000'000'000;
  balance_ += static_cast<int64_t>(static_cast<double>(bytes_per_s_) * static_cast<double>(counted_ns) / 1e9);
  if (balance_ > most) balance_ = most;
  last_ns_ = now_ns;
  return balance_ > 0 ? static_cast<uint64_t>(balance_) : 0;
}

}  // namespace terrace::tiering
