// SPDX-License-Identifier: Apache-2.0
// The workers of the hosts that this program plays: starts, kills, stops and replaces them until all hosts have seen
// enough, and reads what is left.
//
// Threads   One; its children are processes, and the sessions and spaces are theirs.
#pragma once

#include <sys/types.h>

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "core/base/prng.h"
#include "tests/support/kv_soak/place.h"

namespace terrace::kv_soak {

class Group {
 public:
  explicit Group(const Setup& setup);
  ~Group();  // ends its children
  Group(const Group&) = delete;

  // 0: enough was seen, and nothing wrong. Prints a line of JSON in any case.
  int run();

 private:
  struct Child {
    uint32_t host = 0, index = 0;
    pid_t pid = 0;
  };
  enum class Role { format, work, check };

  Status begin();
  Status work();
  Status end_workers();
  Status check_what_is_left();
  pid_t start(Role role, uint32_t host, uint32_t index);
  [[noreturn]] void be(Role role, uint32_t host, uint32_t index, uint64_t seed);
  Status run_one(Role role);
  // Takes note of a child that has ended; it is started again unless that was a fault or the end of the lease.
  Status note_end(Child& child, int status);
  Status collect();
  Status kill_one(uint64_t now_ns);
  Status stop_or_continue(uint64_t now_ns);
  void go_on();
  Status await_loss();
  bool satisfied(uint64_t now_ns) const;
  bool others_satisfied() const;
  Status late(const std::string& what) const;
  Ledger::Host& mine() { return ledger_->of_hosts[setup_.first_host()]; }
  void print(const Status& status) const;

  const Setup& setup_;
  const uint64_t begin_ns_;
  Prng prng_;
  Piece piece_, ledger_piece_;
  Ledger* ledger_ = nullptr;
  std::vector<Child> children_;
  Child* stopped_ = nullptr;
  uint64_t continue_at_ns_ = 0, reads_at_stop_ = 0, next_stop_ns_ = 0, next_kill_ns_ = 0, next_print_ns_ = 0;
  uint64_t kills_ = 0, stops_ = 0, reads_before_ = 0, reads_beside_stopped_ = 0;
  bool lost_ = false;
};

}  // namespace terrace::kv_soak
