// SPDX-License-Identifier: Apache-2.0
// What all parts of bench_kv_space use: a file in memory with a KV space in it, keys, medians, figures with aims.
#pragma once

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/kv_replay/histogram.h"
#include "core/base/kernel_clock.h"
#include "core/base/prng.h"
#include "core/base/unique_fd.h"
#include "core/base/units.h"
#include "terrace/kv_space.h"

namespace terrace::bench::kv {

[[noreturn]] void give_up(const std::string& what);  // kills what it started and ends with 1

template <typename Value>
Value must(Result<Value> result, const char* what) {
  if (!result.ok()) give_up(std::string(what) + ": " + result.error().to_string());
  return std::move(result).value();
}
inline void must(const Status& status, const char* what) {
  if (!status.ok()) give_up(std::string(what) + ": " + status.error().to_string());
}

// Memory that processes share by its descriptor, gone with the last of them.
class MemoryFile {
 public:
  explicit MemoryFile(uint64_t bytes, bool with_pages = false);  // a new one
  static MemoryFile of(int fd);                                  // another process' one, inherited
  // For this process alone, in pages of 2 MiB where the kernel gives them. The file is there for locks only.
  static MemoryFile in_large_pages(uint64_t bytes);
  MemoryFile(MemoryFile&& other) noexcept
      : fd_(std::move(other.fd_)), bytes_(std::exchange(other.bytes_, {})) {}
  ~MemoryFile();

  int fd() const { return fd_.get(); }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  MemoryFile() = default;
  void map(uint64_t bytes, bool with_pages);
  UniqueFd fd_;
  std::span<std::byte> bytes_;
};

inline constexpr bool puts = true, only_reads = false;
std::unique_ptr<KvSpace> attach(const MemoryFile& file, bool also_puts);

// Room for `blocks` of that size, beside the directories of `parts`.
uint64_t space_bytes_for(uint64_t blocks, uint64_t block_bytes, uint32_t parts);

std::string key_of(uint64_t number);
std::vector<std::string> keys_of(uint64_t begin, uint64_t end);
void put_blocks(KvSpace& space, uint64_t begin, uint64_t end, uint64_t block_bytes);

// So that nothing that was read or copied is left out.
inline void used(const void* bytes) {
  asm volatile("" : : "r"(bytes) : "memory");
}

double median(std::vector<double> values);  // 0 of none
double percentile_us(const Histogram& histogram, double share);

// Figures, and the aims that they are held against where there is one.
class Figures {
 public:
  void at_least(const char* key, double value, double aim) { add(key, value, aim, true); }
  void at_most(const char* key, double value, double aim) { add(key, value, aim, false); }
  void detail(const std::string& key, double value) { add(key, value, std::nullopt, true); }
  void say(const std::string& key, bool value);
  const nlohmann::json& json() const { return json_; }

 private:
  void add(const std::string& key, double value, std::optional<double> aim, bool at_least);
  nlohmann::json json_ = nlohmann::json::object();
};

struct Sizes {
  bool smoke = false;
  uint64_t many_blocks = 1'000'000;  // of 4 KiB
  int rounds = 5;
  uint64_t round_ns = 400 * ns_per_ms;
  uint64_t seconds = 20;  // of checked reads
  bool plant = false;     // a worker puts what is wrong
};

}  // namespace terrace::bench::kv
