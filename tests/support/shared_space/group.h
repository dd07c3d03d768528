// SPDX-License-Identifier: Apache-2.0
// The processes of one host: it makes the space (host 0) or waits for it, meets the other host's group in it,
// then starts a writer and readers, and kills and replaces them at random until both hosts have seen enough.
//
// Both groups speak through tensors of their own in the space, and in no other way: what one host says is the
// other's first read of memory that it did not write.
//
// Threads   One; its children are processes.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <span>

#include "core/base/prng.h"
#include "core/base/unique_fd.h"
#include "terrace/tensor_space.h"
#include "tests/support/shared_space/ledger.h"

namespace terrace::shared_space {

class Group {
 public:
  explicit Group(const Setup& setup);
  ~Group();  // ends its children
  Group(const Group&) = delete;

  // 0: enough was seen, and nothing wrong. 1: something was wrong, here or in the set-up. 3: the other host
  // says that something was wrong there. Prints a line of JSON in any case.
  int run();

 private:
  enum class State : uint64_t { none, here, satisfied, failed };

  Status map();
  Status attach();
  Status await_attached();
  Status publish(State state);
  // What the other host says of itself; none while it is not there, or is an earlier run's.
  State others_state(TensorSpace& space);
  Result<std::unique_ptr<TensorSpace>> attach_as(std::optional<uint32_t> part);
  Status work();
  void start(uint32_t child);
  [[noreturn]] void be(uint32_t child, uint64_t seed);
  // Ends the child and takes it off the list.
  void end(uint32_t child);
  void ended_by_itself(int status);
  void kill_one();
  bool children_live();
  bool satisfied() const;
  bool late() const { return std::chrono::steady_clock::now() >= deadline_; }
  Status too_late(const std::string& what) const;
  Status check_what_is_left();
  const char* memory_kind() const;
  void print(const Status& status) const;

  const Setup& setup_;
  const std::chrono::steady_clock::time_point deadline_;
  Prng prng_;
  UniqueFd file_;
  std::span<std::byte> memory_;
  Ledger* ledger_ = nullptr;
  std::unique_ptr<TensorSpace> space_;
  std::optional<SharedTensor> said_;  // the group's own tensor
  pid_t children_[holders] = {};
  uint64_t kills_ = 0;
  bool other_failed_ = false;
};

}  // namespace terrace::shared_space
