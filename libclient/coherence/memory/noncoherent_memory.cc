// SPDX-License-Identifier: Apache-2.0
#include "libclient/coherence/memory/noncoherent_memory.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace terrace::coherence {

#if defined(__x86_64__)
namespace {

constexpr uintptr_t line_bytes = 64;
constexpr size_t streamed_bytes_min =
    4096;  // below it, copy and write-back is as fast (measured: bench tensor)

using LineAction = void (*)(uintptr_t first, uintptr_t end);

void write_back_clwb(uintptr_t at, uintptr_t end) {
  for (; at < end; at += line_bytes)
    asm volatile("1: clwb (%0)\n2:\n\t" TERRACE_GO_ON_AT_2 : : "r"(at) : "memory");
}
void flush_clflushopt(uintptr_t at, uintptr_t end) {
  for (; at < end; at += line_bytes)
    asm volatile("1: clflushopt (%0)\n2:\n\t" TERRACE_GO_ON_AT_2 : : "r"(at) : "memory");
}
void flush_clflush(uintptr_t at, uintptr_t end) {
  for (; at < end; at += line_bytes)
    asm volatile("1: clflush (%0)\n2:\n\t" TERRACE_GO_ON_AT_2 : : "r"(at) : "memory");
}

__m128i load_16(const __m128i* from) {
  __m128i value = _mm_setzero_si128();
  asm volatile("1: movdqu %1, %0\n2:\n\t" TERRACE_GO_ON_AT_2 : "+x"(value) : "m"(*from) : "memory");
  return value;
}
void stream_16(__m128i* to, __m128i value) {
  asm volatile("1: movntdq %1, %0\n2:\n\t" TERRACE_GO_ON_AT_2 : "=m"(*to) : "x"(value) : "memory");
}

struct Instructions {
  LineAction write_back = flush_clflush;
  LineAction invalidate = flush_clflush;
  const char* name = "clflush";

  Instructions() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return;
    if ((b & (1u << 23)) != 0) {
      write_back = invalidate = flush_clflushopt;
      name = "clflushopt";
    }
    if ((b & (1u << 24)) != 0) {
      write_back = write_back_clwb;
      name = "clwb";
    }
  }
};

const Instructions& instructions() {
  static const Instructions chosen;
  return chosen;
}

uintptr_t address(const void* at) {
  return reinterpret_cast<uintptr_t>(at);
}

}  // namespace

bool NonCoherentMemory::supported() {
  return true;
}

const char* NonCoherentMemory::write_back_instruction() {
  return instructions().name;
}

void NonCoherentMemory::write(void* to, const void* from, size_t bytes) const {
  if (bytes < streamed_bytes_min || address(to) % 16 != 0) {
    racing_copy(to, from, bytes);
    return;
  }
  auto* out = static_cast<__m128i*>(to);
  const auto* in = static_cast<const __m128i*>(from);
  const size_t quarters = bytes / 64 * 4;
  for (size_t at = 0; at < quarters; at += 4) {
    const __m128i a = load_16(in + at), b = load_16(in + at + 1);
    const __m128i c = load_16(in + at + 2), d = load_16(in + at + 3);
    stream_16(out + at, a);
    stream_16(out + at + 1, b);
    stream_16(out + at + 2, c);
    stream_16(out + at + 3, d);
  }
  racing_copy(out + quarters, in + quarters, bytes % 64);
}

void NonCoherentMemory::write_back(const void* from, size_t bytes, Step) const {
  if (bytes == 0) return;
  instructions().write_back(address(from) & ~(line_bytes - 1), address(from) + bytes);
}

void NonCoherentMemory::invalidate(const void* from, size_t bytes, Step) const {
  if (bytes == 0) return;
  instructions().invalidate(address(from) & ~(line_bytes - 1), address(from) + bytes);
}

void NonCoherentMemory::store_barrier(Step) const {
  _mm_sfence();
}

// clflushopt is ordered with loads by mfence only; lfence keeps later loads from being begun early.
void NonCoherentMemory::load_barrier(Step) const {
  _mm_mfence();
  _mm_lfence();
}

void NonCoherentMemory::full_barrier(Step) const {
  _mm_mfence();
  _mm_lfence();
}

#else

bool NonCoherentMemory::supported() {
  return false;
}
const char* NonCoherentMemory::write_back_instruction() {
  return "none";
}
void NonCoherentMemory::write(void* to, const void* from, size_t bytes) const {
  racing_copy(to, from, bytes);
}
void NonCoherentMemory::write_back(const void*, size_t, Step) const {}
void NonCoherentMemory::invalidate(const void*, size_t, Step) const {}
void NonCoherentMemory::store_barrier(Step) const {
  ordered_accesses();
}
void NonCoherentMemory::load_barrier(Step) const {
  ordered_accesses();
}
void NonCoherentMemory::full_barrier(Step) const {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // seq_cst: pairs with this in the other holder
}

#endif

}  // namespace terrace::coherence
