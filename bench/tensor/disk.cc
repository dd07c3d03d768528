// SPDX-License-Identifier: Apache-2.0
#include "bench/tensor/disk.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "bench/tensor/parts.h"
#include "core/base/kernel_clock.h"
#include "core/base/unique_fd.h"
#include "core/base/units.h"

namespace terrace::bench {
namespace {

constexpr uint64_t block_bytes = 1 * mib;

std::byte* block() {
  static std::byte* const buffer = [] {
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(4096, block_bytes));
    std::fill(memory, memory + block_bytes, std::byte{0x5a});
    return memory;
  }();
  return buffer;
}

UniqueFd open_direct(const std::string& path, int flags, bool* direct) {
  UniqueFd fd(::open(path.c_str(), flags | O_DIRECT | O_CLOEXEC, 0600));
  *direct = fd.valid();
  if (!fd.valid()) fd.reset(::open(path.c_str(), flags | O_CLOEXEC, 0600));
  if (!fd.valid()) die(path + ": cannot be opened");
  return fd;
}

}  // namespace

BenchDirectory::BenchDirectory(const std::string& parent) : path_(parent + "/terrace-bench-XXXXXX") {
  if (::mkdtemp(path_.data()) == nullptr) die(parent + ": no directory can be made there");
}

BenchDirectory::~BenchDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

double plain_read_s(const std::string& path, bool* direct) {
  const uint64_t begin = monotonic_ns();
  const UniqueFd fd = open_direct(path, O_RDONLY, direct);
  for (;;) {
    const ssize_t count = ::read(fd.get(), block(), block_bytes);
    if (count < 0) die("a plain read failed");
    if (count == 0) return seconds_since(begin);
  }
}

double plain_write_s(const std::string& path, uint64_t bytes) {
  const uint64_t begin = monotonic_ns();
  bool direct = false;
  const UniqueFd fd = open_direct(path, O_WRONLY | O_CREAT | O_TRUNC, &direct);
  bytes = round_up(bytes, block_bytes);
  if (::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0) die("no space on the disk");
  for (uint64_t done = 0; done < bytes; done += block_bytes)
    if (::write(fd.get(), block(), block_bytes) != static_cast<ssize_t>(block_bytes))
      die("a plain write failed");
  if (::fsync(fd.get()) != 0) die("fsync failed");
  return seconds_since(begin);
}

double seconds_since(uint64_t begin_ns) {
  return static_cast<double>(monotonic_ns() - begin_ns) / 1e9;
}

double gib_per_s(uint64_t bytes, double seconds) {
  return static_cast<double>(bytes) / static_cast<double>(gib) / seconds;
}

}  // namespace terrace::bench
