// SPDX-License-Identifier: Apache-2.0
// A KV space in ordinary memory with holders that live in this process, and die when a test says so.
#pragma once

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/sync/mutex.h"
#include "terrace/kv_space.h"
#include "tests/unit/tensor/aligned_memory.h"

namespace terrace {

class KvBook {
 public:
  Result<uint64_t> claim(uint32_t part, uint64_t last_epoch) {
    const MutexLock lock(mutex_);
    if (owned_.count(part) != 0) return Error{.code = ErrorCode::busy, .where = "test", .detail = ""};
    return owned_[part] = last_epoch + 1;
  }
  void release(uint32_t part) {
    const MutexLock lock(mutex_);
    owned_.erase(part);
  }
  bool is_dead(uint32_t part, uint64_t epoch) {
    const MutexLock lock(mutex_);
    const auto found = owned_.find(part);
    return found == owned_.end() || found->second != epoch;
  }

 private:
  Mutex mutex_;
  std::unordered_map<uint32_t, uint64_t> owned_ TERRACE_GUARDED_BY(mutex_);
};

class KvTestOwnership final : public OwnershipSource {
 public:
  explicit KvTestOwnership(std::shared_ptr<KvBook> book) : book_(std::move(book)) {}
  Result<uint64_t> claim(uint32_t part, const std::function<uint64_t()>& last_epoch) override {
    return book_->claim(part, last_epoch());
  }
  void release(uint32_t part) override { book_->release(part); }
  bool is_dead(uint32_t part, uint64_t epoch) override { return book_->is_dead(part, epoch); }

 private:
  std::shared_ptr<KvBook> book_;
};

struct KvFixture {
  explicit KvFixture(KvFormatOptions options = small(), size_t bytes = 4 << 20) : memory(bytes) {
    const Status formatted = KvSpace::format(memory.span(), options);
    REQUIRE_MESSAGE(formatted.ok(), formatted.error().to_string());
  }
  static KvFormatOptions small() {
    return {.parts = 3, .seats = 2, .block_bytes = 4096, .max_block_bytes = 64 << 10, .pins = 16};
  }

  std::unique_ptr<KvSpace> attach(bool tends = false, bool puts = true) {
    auto space = KvSpace::attach(
        memory.span(),
        {.ownership = std::make_shared<KvTestOwnership>(book), .puts = puts, .tends_itself = tends});
    REQUIRE_MESSAGE(space.ok(), space.error().to_string());
    return std::move(*space);
  }
  // Gone without a word, as after kill -9: it does nothing any more, not even in a destructor.
  void die(std::unique_ptr<KvSpace> space) {
    if (space->part()) book->release(*space->part());
    kept_for_ever().push_back(std::shared_ptr<KvSpace>(std::move(space)));
  }
  static std::vector<std::shared_ptr<void>>& kept_for_ever() {
    static auto* const kept = new std::vector<std::shared_ptr<void>>();
    return *kept;
  }

  AlignedMemory memory;
  std::shared_ptr<KvBook> book = std::make_shared<KvBook>();
  KvNamespace name_space = *KvNamespace::of("test");
};

// Bytes that follow from a key, each another.
inline std::vector<std::byte> kv_bytes(std::string_view key, size_t bytes) {
  std::vector<std::byte> made(bytes);
  uint64_t state = std::hash<std::string_view>()(key);
  for (size_t at = 0; at < bytes; ++at) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    made[at] = static_cast<std::byte>(state >> 56);
  }
  return made;
}

inline Status kv_put(KvSpace& space, const KvNamespace& name_space, std::string_view key, size_t bytes = 4096,
                     KvPutOptions options = {}) {
  const std::vector<std::byte> made = kv_bytes(key, bytes);
  return space.put(name_space, {.key = key, .bytes = made, .options = options});
}

// 1: there and right; 0: not there; -1: wrong.
inline int kv_check(KvSpace& space, const KvNamespace& name_space, std::string_view key, size_t bytes = 4096) {
  std::vector<std::byte> into(bytes);
  const auto got = space.get(name_space, {.key = key, .into = into});
  if (!got.ok()) return got.error().code == ErrorCode::not_found ? 0 : -1;
  return *got == bytes && into == kv_bytes(key, bytes) ? 1 : -1;
}

}  // namespace terrace
