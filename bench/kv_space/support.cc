// SPDX-License-Identifier: Apache-2.0
#include "bench/kv_space/support.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

namespace terrace::bench::kv {

void give_up(const std::string& what) {
  std::fprintf(stderr, "bench: %s\n", what.c_str());
  std::_Exit(1);  // what it started ends with it (processes.h)
}

MemoryFile::MemoryFile(uint64_t bytes, bool with_pages) : fd_(::memfd_create("kv_space", 0)) {
  if (!fd_.valid() || ::ftruncate(fd_.get(), static_cast<off_t>(bytes)) != 0)
    give_up("no memory file of " + format_size(bytes));
  map(bytes, with_pages);
}

MemoryFile MemoryFile::of(int fd) {
  struct stat stat {};
  if (::fstat(fd, &stat) != 0) give_up("a memory file that was not inherited");
  MemoryFile file;
  file.fd_.reset(fd);
  file.map(static_cast<uint64_t>(stat.st_size), false);
  return file;
}

MemoryFile MemoryFile::in_large_pages(uint64_t bytes) {
  MemoryFile file;
  file.fd_.reset(::memfd_create("kv_space_locks", 0));
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) give_up("cannot map " + format_size(bytes));
  (void)::madvise(at, bytes, MADV_HUGEPAGE);
  file.bytes_ = {static_cast<std::byte*>(at), bytes};
  return file;
}

MemoryFile::~MemoryFile() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

void MemoryFile::map(uint64_t bytes, bool with_pages) {
  const int flags = MAP_SHARED | (with_pages ? MAP_POPULATE : 0);
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd_.get(), 0);
  if (at == MAP_FAILED) give_up("cannot map " + format_size(bytes));
  bytes_ = {static_cast<std::byte*>(at), bytes};
}

std::unique_ptr<KvSpace> attach(const MemoryFile& file, bool also_puts) {
  KvAttachOptions options;
  options.ownership = must(ownership_by_locks(file.fd()), "locks");
  options.puts = also_puts;
  return must(KvSpace::attach(file.bytes(), options), "attach");
}

uint64_t space_bytes_for(uint64_t blocks, uint64_t block_bytes, uint32_t parts) {
  const uint64_t data = blocks * (block_bytes + 64) * 5 / 4 + 64 * mib;
  const uint64_t records = std::bit_ceil(data / block_bytes * 4 / 3);
  return round_up(data + parts * (records * 64 + mib), 2 * mib);
}

std::string key_of(uint64_t number) {
  char text[32];
  std::snprintf(text, sizeof text, "block/%016llx", static_cast<unsigned long long>(number));
  return text;
}

std::vector<std::string> keys_of(uint64_t begin, uint64_t end) {
  std::vector<std::string> keys;
  for (; begin < end; ++begin) keys.push_back(key_of(begin));
  return keys;
}

void put_blocks(KvSpace& space, uint64_t begin, uint64_t end, uint64_t block_bytes) {
  std::vector<std::byte> bytes(block_bytes, std::byte{7});
  for (; begin < end; ++begin) {
    std::memcpy(bytes.data(), &begin, sizeof begin);
    const std::string key = key_of(begin);
    must(space.put({}, {.key = key, .bytes = bytes}), "put");
  }
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

double percentile_us(const Histogram& histogram, double share) {
  uint64_t total = 0;
  for (size_t index = 0; index < Histogram::steps; ++index) total += histogram.count(index);
  auto left = static_cast<uint64_t>(share * static_cast<double>(total));
  for (size_t index = 0; index < Histogram::steps; ++index) {
    if (histogram.count(index) > left) return Histogram::middle_ns(index) / 1000;
    left -= histogram.count(index);
  }
  return 0;
}

void Figures::say(const std::string& key, bool value) {
  json_[key] = value;
  std::printf("  %-44s %12s\n", key.c_str(), value ? "true" : "false");
}

void Figures::add(const std::string& key, double value, std::optional<double> aim, bool at_least) {
  json_[key] = value;
  std::printf("  %-44s %12.3f", key.c_str(), value);
  if (aim) {
    const bool reached = at_least ? value >= *aim : value <= *aim;
    std::printf("  %s %g  %s", at_least ? ">=" : "<=", *aim, reached ? "reached" : "missed");
    json_["aims"][key] = {{"aim", *aim}, {"at", at_least ? "least" : "most"}, {"reached", reached}};
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace terrace::bench::kv
