// SPDX-License-Identifier: Apache-2.0
// One process that holds a part: the writer of its host's tensors, or a reader of both hosts'. It works until
// it is killed, and says in the ledger what it saw wrong.
//
// Threads   One.
#pragma once

#include "core/base/prng.h"
#include "terrace/tensor_space.h"
#include "tests/support/shared_space/content.h"

namespace terrace::shared_space {

class Holder {
 public:
  // `place`: its own in the ledger.
  Holder(TensorSpace& space, Ledger& ledger, const Setup& setup, uint32_t place, uint64_t seed)
      : space_(space), ledger_(ledger), setup_(setup), place_(place), prng_(seed) {}

  [[noreturn]] void write_on();
  [[noreturn]] void read_on();
  // Reads each tensor of both hosts once, as far as it has content.
  void read_all();

 private:
  void write(uint32_t index);
  void read(uint32_t host, uint32_t index);
  void pin(uint32_t host, uint32_t index);
  Result<SharedTensor> find_or_create(uint32_t index);
  // The tensor, unless it was never seen and is not there.
  std::optional<SharedTensor> find(uint32_t host, uint32_t index, uint64_t floor);
  // What was read, held against what was known before the read began. The number; nothing if it is wrong.
  std::optional<uint64_t> judge(std::span<const std::byte> bytes, uint32_t host, uint32_t index, uint64_t floor,
                                const char* how);
  // Whether that answer is right for this tensor, when `floor` was known.
  void judge_error(const Error& error, uint32_t host, uint32_t index, uint64_t floor, const char* how);
  void fail(const std::string& text) { ledger_.fail(place_, text); }
  void plant(const SharedTensor& tensor, uint32_t index, uint64_t number);
  void fill(std::span<std::byte> bytes, std::span<const uint64_t> words);

  TensorSpace& space_;
  Ledger& ledger_;
  const Setup& setup_;
  const uint32_t place_;
  Prng prng_;
};

}  // namespace terrace::shared_space
