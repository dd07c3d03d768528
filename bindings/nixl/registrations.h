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

// The memory of this process that lies in leases without coherent caches: what others wrote there is read anew after a
// notification, what this program stored there is written back before one.
class NoncoherentMemory {
 public:
  void add(const Registration& one);
  void remove(const Registration& one);
  void publish_all();
  void acquire_all();

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
