// SPDX-License-Identifier: Apache-2.0
// The memory of a run: the space's, and the ledger.
#pragma once

#include <memory>
#include <span>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "terrace/kv_space.h"
#include "terrace/mapping.h"
#include "terrace/session.h"
#include "tests/support/kv_soak/ledger.h"

namespace terrace::kv_soak {

// Some bytes of a file or device, mapped; of a new memory file if `path` is empty.
class Piece {
 public:
  static Result<Piece> map(const std::string& path, uint64_t offset, uint64_t bytes);
  Piece() = default;
  Piece(Piece&& other) noexcept;
  Piece& operator=(Piece&& other) noexcept;
  ~Piece();
  std::span<std::byte> bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
  std::span<std::byte> bytes_;
};

// What one process has of the space.
struct Attached {
  std::unique_ptr<Session> session;
  std::shared_ptr<Lease> lease;
  std::unique_ptr<Mapping> mapping;
  std::span<std::byte> memory;
  std::unique_ptr<KvSpace> space;  // the first to go
};

// `piece`: the space's memory, unless it is a lease's.
// Errors    those of Session::connect, Session::attach, Mapping::map and KvSpace::attach
Result<Attached> open_memory(const Setup& setup, const Piece& piece);
Status attach_space(const Setup& setup, const Piece& piece, uint32_t host, Attached* attached);

}  // namespace terrace::kv_soak
