// SPDX-License-Identifier: Apache-2.0
// What a FakeGateway knows, whether it runs or not. For the fake_gateway_*.cc files only.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fake_gateway.h"

namespace terrace::test {

struct StoredLease {
  FakeLease lease;
  UniqueFd file;
  UniqueFd target;           // of the move under way
  uint64_t target_move = 0;  // which one; 0: none
};

// The memory file of a lease, or of a move's target.
UniqueFd make_memory(uint64_t bytes);
// What was mapped from it gives SIGBUS from now on.
void fence_memory(const UniqueFd& file);
// Another file with the same bytes, as far as both reach.
UniqueFd copy_memory(const UniqueFd& from, uint64_t bytes);

// Survives stop(). Everything under mutex.
struct FakeGateway::State {
  mutable std::mutex mutex;
  std::map<uint64_t, StoredLease> leases;
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> by_key;
  std::map<std::string, std::deque<Fault>> next_faults;
  std::map<std::string, Fault> faults;
  std::map<std::string, int> calls;
  ErrorCode refuse_code = ErrorCode::internal;
  std::string refuse_detail = "refused by the test";
  std::string last_client;
  uint64_t next_id = 1;
  uint64_t next_epoch = 100;
  uint32_t version = 1;
  int connections = 0;
  uint64_t next_move = 1;
  bool full = false;
  bool new_file_on_resize = false;
  std::vector<uint64_t> waits_ns;  // of the grants asked for
  std::vector<FakeRun> runs;

  std::optional<Fault> take_fault(const std::string& method) {
    const std::lock_guard lock(mutex);
    ++calls[method];
    if (auto& queue = next_faults[method]; !queue.empty()) {
      const Fault fault = queue.front();
      queue.pop_front();
      return fault;
    }
    if (const auto always = faults.find(method); always != faults.end()) return always->second;
    return std::nullopt;
  }
};

}  // namespace terrace::test
