// SPDX-License-Identifier: Apache-2.0
// Where else blocks of 64 KiB can be kept for a program to find by key: what a KV space is held against.
//
// Each get ends in the caller's buffer, and each set replaces what was there. The servers are started for the
// measurement, with nothing but a socket in `folder`.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace terrace::bench::kv {

inline constexpr uint64_t stored_bytes = 64 << 10;

class Store {
 public:
  virtual ~Store() = default;
  virtual void get(const std::string& key, std::span<std::byte> into) = 0;
  virtual void set(const std::string& key, std::span<const std::byte> bytes) = 0;
};

std::unique_ptr<Store> files_store(const std::string& folder);
// Nothing: the program is not installed.
std::unique_ptr<Store> redis_store(const std::string& folder);
std::unique_ptr<Store> memcached_store(const std::string& folder);

}  // namespace terrace::bench::kv
