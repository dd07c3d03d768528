// SPDX-License-Identifier: Apache-2.0
#include "core/os/erase.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/base/units.h"
#include "core/os/fault_guard.h"

namespace terrace::os {
namespace {

using Steady = std::chrono::steady_clock;

constexpr const char* where = "os::erase";
constexpr uint64_t line_bytes = 64;
constexpr uint64_t page_bytes = 4 * kib;

// Zeroed, then checked: as much as the address translations of one huge page cover.
constexpr uint64_t block_bytes = 2 * mib;

// Whole lines from a line's start; the callers see to both.
using ZeroLines = void (*)(std::byte* at, uint64_t bytes);

void zero_plain(std::byte* at, uint64_t bytes) {
  std::memset(at, 0, bytes);
}

#if defined(__x86_64__)

__attribute__((target("avx512f"))) void zero_avx512(std::byte* at, uint64_t bytes) {
  const __m512i zero = _mm512_setzero_si512();
  for (std::byte* const end = at + bytes; at != end; at += line_bytes)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(at), zero);
}

__attribute__((target("avx2"))) void zero_avx2(std::byte* at, uint64_t bytes) {
  const __m256i zero = _mm256_setzero_si256();
  for (std::byte* const end = at + bytes; at != end; at += line_bytes) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(at), zero);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(at + 32), zero);
  }
}

void zero_sse2(std::byte* at, uint64_t bytes) {
  const __m128i zero = _mm_setzero_si128();
  for (std::byte* const end = at + bytes; at != end; at += line_bytes)
    for (uint64_t part = 0; part < line_bytes; part += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(at + part), zero);
}

// Streaming stores wait in buffers of their own until this.
void drain_stores() {
  _mm_sfence();
}

void flush_line(const std::byte* at) {
  _mm_clflush(at);
  _mm_mfence();
}

ZeroLines zero_lines(EraseStores stores) {
  switch (stores) {
    case EraseStores::avx512: return __builtin_cpu_supports("avx512f") ? zero_avx512 : nullptr;
    case EraseStores::avx2: return __builtin_cpu_supports("avx2") ? zero_avx2 : nullptr;
    case EraseStores::sse2: return zero_sse2;
    case EraseStores::plain: return zero_plain;
    case EraseStores::best: break;
  }
  if (__builtin_cpu_supports("avx512f")) return zero_avx512;
  return __builtin_cpu_supports("avx2") ? zero_avx2 : zero_sse2;
}

#else

void drain_stores() {}
void flush_line(const std::byte*) {}

ZeroLines zero_lines(EraseStores stores) {
  return stores == EraseStores::plain || stores == EraseStores::best ? zero_plain : nullptr;
}

#endif

uint64_t address_of(const std::byte* at) {
  return reinterpret_cast<uintptr_t>(at);
}

// Splitmix64: a well-spread word for each page, whatever the seed.
uint64_t spread(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// The part of a line that lies in `range` is all zero.
bool line_is_zero(std::span<const std::byte> range, uint64_t line) {
  const std::byte* const start = std::max(range.data(), reinterpret_cast<const std::byte*>(line));
  const std::byte* const end =
      std::min(range.data() + range.size(), reinterpret_cast<const std::byte*>(line + line_bytes));
  uint64_t any = 0;
  const std::byte* at = start;
  for (; end - at >= 8; at += 8) {
    uint64_t word;
    std::memcpy(&word, at, sizeof(word));
    any |= word;
  }
  for (; at != end; ++at) any |= static_cast<uint64_t>(*at);
  return any == 0;
}

Error not_zero(std::span<const std::byte> range, uint64_t line) {
  const uint64_t start = std::max(line, address_of(range.data())) - address_of(range.data());
  return Error{.code = ErrorCode::io_error,
               .where = where,
               .detail = "memory that was just zeroed reads otherwise in the cache line at offset " +
                         std::to_string(start) + " of " + std::to_string(range.size()) +
                         ": it must not be given to anybody"};
}

Error taken_away(uint64_t offset) {
  return Error{.code = ErrorCode::io_error,
               .where = where,
               .detail = "the memory failed, or was taken away, within 2 MiB of offset " +
                         std::to_string(offset) + " of what was being zeroed (SIGBUS)"};
}

void zero_range(std::span<std::byte> range, ZeroLines zero) {
  std::byte* const start = range.data();
  std::byte* const end = start + range.size();
  const uint64_t to_line = (line_bytes - address_of(start) % line_bytes) % line_bytes;
  if (to_line >= range.size()) {
    std::memset(start, 0, range.size());
    flush_line(start);
    flush_line(end - 1);
    return;
  }
  std::byte* const first = start + to_line;
  std::byte* const last = end - address_of(end) % line_bytes;
  if (first != start) {
    std::memset(start, 0, to_line);
    flush_line(start);
  }
  zero(first, static_cast<uint64_t>(last - first));
  if (last != end) {
    std::memset(last, 0, static_cast<size_t>(end - last));
    flush_line(last);
  }
  drain_stores();
}

// Waits until `done` bytes are due at `bytes_per_s`.
void hold_back(Steady::time_point begin, uint64_t done, double bytes_per_s) {
  if (bytes_per_s <= 0) return;
  std::this_thread::sleep_until(begin +
                                std::chrono::duration_cast<Steady::duration>(
                                    std::chrono::duration<double>(static_cast<double>(done) / bytes_per_s)));
}

struct Slice {
  std::span<std::byte> range;
  uint64_t checked_bytes = 0;
  std::optional<Error> error;
};

void erase_slice(Slice& slice, ZeroLines zero, uint64_t seed, double bytes_per_s) {
  const auto begin = Steady::now();
  for (uint64_t done = 0; done < slice.range.size();) {
    const auto block = slice.range.subspan(done, std::min(block_bytes, slice.range.size() - done));
    std::optional<Result<uint64_t>> checked;
    const bool there = guarded([&] {
      zero_range(block, zero);
      checked.emplace(check_erased(block, seed));
    });
    if (!there || !checked->ok()) {
      slice.error = there ? checked->error() : taken_away(done);
      return;
    }
    slice.checked_bytes += **checked;
    done += block.size();
    hold_back(begin, done, bytes_per_s);
  }
}

}  // namespace

bool can_erase_with(EraseStores stores) {
  return zero_lines(stores) != nullptr;
}

Result<uint64_t> check_erased(std::span<const std::byte> range, uint64_t seed) {
  if (range.empty()) return uint64_t{0};
  const uint64_t begin = address_of(range.data());
  const uint64_t end = begin + range.size();
  uint64_t lines = 0;
  const auto look = [&](uint64_t line) {
    ++lines;
    return line_is_zero(range, line);
  };
  const uint64_t first = begin / line_bytes * line_bytes;
  const uint64_t last = (end - 1) / line_bytes * line_bytes;
  if (!look(first)) return not_zero(range, first);
  if (!look(last)) return not_zero(range, last);
  for (uint64_t page = begin / page_bytes * page_bytes; page < end; page += page_bytes) {
    const uint64_t line = page + spread(seed ^ page) % (page_bytes / line_bytes) * line_bytes;
    if (line < first || line > last) continue;
    if (!look(line)) return not_zero(range, line);
  }
  return std::min(lines * line_bytes, static_cast<uint64_t>(range.size()));
}

Result<Erased> erase(std::span<std::byte> range, const EraseOptions& options) {
  const ZeroLines zero = zero_lines(options.stores);
  if (zero == nullptr)
    return Error{.code = ErrorCode::unsupported, .where = where, .detail = "this processor has no such stores"};
  if (range.empty()) return Erased{};
  const auto begin = Steady::now();
  // Whole blocks for each thread, and none without one.
  const uint64_t blocks = (range.size() + block_bytes - 1) / block_bytes;
  const uint64_t threads = std::min<uint64_t>(std::max(options.threads, 1u), blocks);
  const uint64_t slice_bytes = (blocks + threads - 1) / threads * block_bytes;
  std::vector<Slice> slices;
  for (uint64_t at = 0; at < range.size(); at += slice_bytes)
    slices.push_back({.range = range.subspan(at, std::min(slice_bytes, range.size() - at)),
                      .checked_bytes = 0,
                      .error = std::nullopt});
  const double share = static_cast<double>(options.bytes_per_s) / static_cast<double>(slices.size());
  std::vector<std::thread> workers;
  for (size_t i = 1; i < slices.size(); ++i)
    workers.emplace_back(erase_slice, std::ref(slices[i]), zero, options.seed, share);
  erase_slice(slices[0], zero, options.seed, share);
  for (std::thread& worker : workers) worker.join();

  Erased erased{.bytes = range.size(), .checked_bytes = 0, .bytes_per_s = 0};
  for (const Slice& slice : slices) {
    if (slice.error.has_value()) return *slice.error;
    erased.checked_bytes += slice.checked_bytes;
  }
  const double seconds = std::chrono::duration<double>(Steady::now() - begin).count();
  erased.bytes_per_s = static_cast<double>(erased.bytes) / std::max(seconds, 1e-9);
  return erased;
}

void flush(std::span<std::byte> range) {
  std::byte* const end = range.data() + range.size();
#if defined(__x86_64__)
  for (std::byte* at = range.data(); at < end; at += line_bytes) _mm_clflush(at);
  _mm_mfence();
#else
  (void)end;
  // seq_cst: in place of mfence; pairs with no other thread.
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace terrace::os
