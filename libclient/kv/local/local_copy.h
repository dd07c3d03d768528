// SPDX-License-Identifier: Apache-2.0
// A copy of a block in this process's memory, and references to it: its bytes stay while there is one.
//
// Threads   Any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "libclient/kv/block.h"

namespace terrace::kv {

class LocalStore;

// What one space has in a store.
struct LocalShare {
  explicit LocalShare(uint64_t of) : space(of) {}
  const uint64_t space;  // a number that no other space of the store ever had
  std::atomic<uint64_t> blocks = 0, bytes = 0, evicted = 0;
};

struct LocalCopy {
  Block block;  // as it was found
  std::shared_ptr<LocalShare> share;
  LocalStore* store = nullptr;
  std::byte* data = nullptr;  // laid out as the block's extent: its bytes, then its name
  uint32_t id = 0;            // in the order of eviction
  std::vector<uint16_t> budgets;
  bool in_order = false;  // under the store's mutex
  std::atomic<uint32_t> holders = 0;
  std::atomic<uint32_t> hits = 0;

  std::span<std::byte> bytes() const { return {data, static_cast<size_t>(block.bytes)}; }
  std::span<std::byte> name() const {
    return {data + (block.extent_bytes - block.name_bytes()), static_cast<size_t>(block.name_bytes())};
  }
};

// Ownership  One reference. The store must outlive it.
class LocalRef {
 public:
  LocalRef() = default;
  static LocalRef of(LocalCopy* held) { return LocalRef(held); }  // a reference that is counted already
  LocalRef(LocalRef&& other) noexcept : copy_(std::exchange(other.copy_, nullptr)) {}
  LocalRef& operator=(LocalRef&& other) noexcept {
    std::swap(copy_, other.copy_);
    return *this;
  }
  ~LocalRef() { reset(); }
  void reset();
  LocalCopy* release() { return std::exchange(copy_, nullptr); }
  explicit operator bool() const { return copy_ != nullptr; }
  LocalCopy* operator->() const { return copy_; }
  LocalCopy& operator*() const { return *copy_; }

 private:
  explicit LocalRef(LocalCopy* held) : copy_(held) {}
  LocalCopy* copy_ = nullptr;
};

}  // namespace terrace::kv
