// SPDX-License-Identifier: Apache-2.0
// A space in ordinary memory with holders that live in this process.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "terrace/tensor_space.h"
#include "tests/unit/tensor/aligned_memory.h"

namespace terrace {

// Ownership that a test decides.
class MadeUpOwnership final : public OwnershipSource {
 public:
  struct Book {
    std::unordered_map<uint32_t, uint64_t> owned;  // part, epoch
  };
  explicit MadeUpOwnership(std::shared_ptr<Book> book) : book_(std::move(book)) {}

  Result<uint64_t> claim(uint32_t part, const std::function<uint64_t()>& last_epoch) override {
    if (book_->owned.count(part) != 0) return Error{.code = ErrorCode::busy, .where = "test", .detail = ""};
    return book_->owned[part] = last_epoch() + 1;
  }
  void release(uint32_t part) override { book_->owned.erase(part); }
  bool is_dead(uint32_t part, uint64_t epoch) override {
    const auto found = book_->owned.find(part);
    return found == book_->owned.end() || found->second != epoch;
  }

 private:
  std::shared_ptr<Book> book_;
};

struct SpaceFixture {
  explicit SpaceFixture(SpaceOptions options = small(), size_t bytes = 1 << 20) : memory(bytes) {
    const Status formatted = TensorSpace::format(memory.span(), options);
    REQUIRE_MESSAGE(formatted.ok(), formatted.error().to_string());
  }
  static SpaceOptions small() { return {.parts = 3, .records_per_part = 16, .pins_per_part = 8}; }

  std::unique_ptr<TensorSpace> attach() {
    Result<std::unique_ptr<TensorSpace>> space =
        TensorSpace::attach(memory.span(), {.ownership = std::make_shared<MadeUpOwnership>(book)});
    REQUIRE_MESSAGE(space.ok(), space.error().to_string());
    return std::move(*space);
  }
  // The holder is gone without a word, as after kill -9: its mapping stays, nobody uses it.
  void die(std::unique_ptr<TensorSpace> space) {
    book->owned.erase(*space->part());
    dead.push_back(std::move(space));
  }
  AlignedMemory memory;
  std::shared_ptr<MadeUpOwnership::Book> book = std::make_shared<MadeUpOwnership::Book>();
  std::vector<std::unique_ptr<TensorSpace>> dead;  // destroyed last: a destructor stores
};

inline std::vector<std::byte> bytes_of(uint8_t value, size_t count) {
  return std::vector<std::byte>(count, std::byte{value});
}

inline TensorSpec u8_tensor(std::string name, uint64_t bytes) {
  return {.name = std::move(name), .dtype = DType::u8, .shape = {bytes}};
}

}  // namespace terrace
