// SPDX-License-Identifier: Apache-2.0
// What NIXL keeps for each piece of memory and each object, of this agent and of others, and the words in which agents
// tell each other of theirs. An agent cannot be told no when it loads them: what cannot be reached says so, with the
// reason, to the first transfer.
//
// Threads   Made by one thread at a time; then read by any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backend/backend_engine.h"
#include "bindings/nixl/leased_memory.h"
#include "bindings/nixl/notifications/hex.h"
#include "bindings/nixl/objects.h"
#include "core/base/sync/mutex.h"

namespace terrace::nixl {

struct Registration : nixlBackendMD {
  enum class Kind { memory, object, remote_memory, remote_object };

  Registration(Kind of, uint64_t first, size_t length)
      : nixlBackendMD(true), kind(of), address(first), bytes(length) {}

  const Kind kind;
  const uint64_t address;  // in the agent that registered it
  const size_t bytes;
  std::optional<LeasedRange> leased = {};  // memory of this process; nothing: private
  RemoteRange remote = {};                 // memory of another one
  std::string key = {};                    // of an object, here or there
  std::string refusal = {};                // why it cannot be reached; empty: it can
};

// What a transfer wrote to memory of another agent, which reads these lines anew once it is notified. Agents of hosts
// without coherent caches enclose it with the next notification.
struct WrittenRange {
  uint64_t lease = 0;  // 0: anything may have been written
  uint64_t offset = 0, bytes = 0;
};
std::string to_enclosure(const std::vector<WrittenRange>& ranges);
// In order, those that touch as one.
std::vector<WrittenRange> merged(std::vector<WrittenRange> ranges);

// The memory of this process that lies in leases without coherent caches.
class NoncoherentMemory {
 public:
  void add(const Registration& one);
  void remove(const Registration& one);
  // What this program stored there reaches the memory.
  void publish_all();
  // What others wrote there, as they say, is asked of the memory.
  void acquire(const std::string& enclosure);

 private:
  Mutex mutex_;
  std::set<const Registration*> all_ TERRACE_GUARDED_BY(mutex_);
};

nixl_status_t status_of(const Error& error);
// Says it on stderr, and returns it as NIXL has it.
nixl_status_t fail(const Error& error);
nixl_status_t fail(nixl_status_t status, const std::string& text);
// A key as people read it.
std::string shown(const std::string& key);

}  // namespace terrace::nixl
