// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/pmem/dax_memory.h"

#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/prng.h"
#include "core/base/units.h"
#include "core/os/erase.h"
#include "core/os/fault_guard.h"

namespace terrace::daemon {
namespace {

constexpr uint64_t step_bytes = 2 * mib;  // the alignment of every device here
constexpr size_t line_bytes = 64;

void flush(const std::byte* begin, size_t bytes) {
  for (size_t at = 0; at < bytes; at += line_bytes) _mm_clflush(begin + at);
  _mm_mfence();
}

Error failing(const char* where) {
  return Error{
      .code = ErrorCode::io_error,
      .os_errno = EIO,
      .where = where,
      .detail = "the memory failed under an access: its device is going away, or a line of it is poisoned"};
}

}  // namespace

DaxMapping::DaxMapping(DaxMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), length_(std::exchange(other.length_, 0)) {}

DaxMapping& DaxMapping::operator=(DaxMapping&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) ::munmap(data_, length_);
    data_ = std::exchange(other.data_, nullptr);
    length_ = std::exchange(other.length_, 0);
  }
  return *this;
}

DaxMapping::~DaxMapping() {
  if (data_ != nullptr) ::munmap(data_, length_);
}

Result<DaxMapping> DaxMapping::map(int fd, uint64_t offset, uint64_t length, bool writable) {
  void* at = ::mmap(nullptr, length, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd,
                    static_cast<off_t>(offset));
  if (at == MAP_FAILED)
    return os_error(errno, "DaxMapping::map", "cannot map " + format_size(length) + " of a dax device");
  DaxMapping mapping;
  mapping.data_ = static_cast<std::byte*>(at);
  mapping.length_ = static_cast<size_t>(length);
  return mapping;
}

// Steps of 4096 + 256 bytes: consecutive words lie on different memdevs whatever the granularity, and 128 of
// them span more than 16 times 16 KiB.
Status check_memory(int write_fd, int read_fd, uint64_t device_bytes) {
  constexpr uint64_t stride = 4096 + 256;
  constexpr size_t words = 128;
  constexpr const char* where = "check_memory";
  const uint64_t span = std::min(device_bytes, step_bytes);
  for (const uint64_t offset : {uint64_t{0}, device_bytes - span}) {
    TERRACE_ASSIGN_OR_RETURN(const DaxMapping out, DaxMapping::map(write_fd, offset, span, true));
    TERRACE_ASSIGN_OR_RETURN(const DaxMapping in, DaxMapping::map(read_fd, offset, span, false));
    Prng prng(secure_random_u64());
    std::array<uint64_t, words> before{}, wrote{};
    for (uint64_t& word : wrote) word = prng.next() | 1;
    size_t wrong = 0, zeros = 0;
    const bool there = os::guarded([&] {
      std::byte* const to = out.bytes().data();
      const std::byte* const from = in.bytes().data();
      for (size_t i = 0; i < words; ++i) {
        std::memcpy(&before[i], to + i * stride, sizeof before[i]);
        std::memcpy(to + i * stride, &wrote[i], sizeof wrote[i]);
        flush(to + i * stride, sizeof wrote[i]);
      }
      for (size_t i = 0; i < words; ++i) {
        uint64_t word = 0;
        flush(from + i * stride, sizeof word);
        std::memcpy(&word, from + i * stride, sizeof word);
        wrong += word != wrote[i];
        zeros += word == 0;
        std::memcpy(to + i * stride, &before[i], sizeof word);
        flush(to + i * stride, sizeof word);
      }
    });
    if (!there) return failing(where);
    if (wrong == 0) continue;
    Error error{.code = ErrorCode::io_error,
                .where = where,
                .detail = std::to_string(wrong) + " of " + std::to_string(words) +
                          " words that were written there read back as something else"};
    if (zeros == words) {
      error.detail =
          "everything written there reads back as zeros: its decoders were never programmed. Kernel 6.1 takes "
          "a "
          "host bridge with a single root port for one that passes all through, and some platforms (QEMU 7.2) "
          "need "
          "its decoder all the same: give the host bridge a second root port, or use kernel 6.3 or later";
    }
    return error;
  }
  return {};
}

Status erase_memory(int fd, uint64_t offset, uint64_t length) {
  TERRACE_ASSIGN_OR_RETURN(const DaxMapping mapping, DaxMapping::map(fd, offset, length, true));
  os::EraseOptions options;
  options.threads = 4;
  options.seed = secure_random_u64();
  const auto erased = os::erase(mapping.bytes(), options);
  if (!erased.ok()) return erased.error();
  return {};
}

Status copy_memory(int from_fd, int to_fd, uint64_t bytes) {
  constexpr uint64_t piece = 64 * mib;
  for (uint64_t done = 0; done < bytes; done += piece) {
    const uint64_t length = std::min(piece, bytes - done);
    TERRACE_ASSIGN_OR_RETURN(const DaxMapping from, DaxMapping::map(from_fd, done, length, false));
    TERRACE_ASSIGN_OR_RETURN(const DaxMapping to, DaxMapping::map(to_fd, done, length, true));
    const bool copied = os::guarded([&] {
      std::memcpy(to.bytes().data(), from.bytes().data(), length);
      flush(to.bytes().data(), length);
    });
    if (!copied) return failing("copy_memory");
  }
  return {};
}

}  // namespace terrace::daemon
