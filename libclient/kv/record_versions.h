// SPDX-License-Identifier: Apache-2.0
// A version for each record of a part, 0 at first. A million records are touched only as they are asked for, so that a
// new owner's first put does not wait for them. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace terrace::kv {

class RecordVersions {
 public:
  explicit RecordVersions(uint32_t records) : pieces_((records + piece_records - 1) / piece_records) {}

  uint64_t& of(uint32_t record) {
    std::unique_ptr<Piece>& piece = pieces_[record / piece_records];
    if (piece == nullptr) piece = std::make_unique<Piece>();
    return (*piece)[record % piece_records];
  }

 private:
  static constexpr uint32_t piece_records = 1024;
  using Piece = std::array<uint64_t, piece_records>;
  std::vector<std::unique_ptr<Piece>> pieces_;
};

}  // namespace terrace::kv
