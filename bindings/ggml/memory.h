// SPDX-License-Identifier: Apache-2.0
// The memory behind all buffers: pools of tensors over DDR and leases. One pool is made for the first buffer; where it
// is full and the size of the lease was left open, a further one, with a lease of its own. A pool whose last buffer is
// freed goes, and its lease with it.
//
// Threads   All from any thread, under one mutex, that no copy waits for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <utility>

#include "bindings/ggml/settings.h"
#include "core/base/sync/mutex.h"
#include "terrace/terrace_c.h"

namespace terrace::plugin {

// What a buffer is for; its first place follows from that.
enum class Kind { weights, kv_cache, compute };
const char* kind_name(Kind kind);

struct Part {
  terrace_lease* lease = nullptr;  // may be nullptr: DDR alone
  terrace_pool* pool = nullptr;
  uint64_t ddr_bytes = 0;
  size_t blocks = 0;
};

// The memory of one buffer.
struct Block {
  Part* part = nullptr;  // nullptr: a range of a mapped file
  terrace_tensor* tensor = nullptr;
  std::byte* base = nullptr;
  uint64_t bytes = 0;
  Kind kind = Kind::compute;
  Mutex views_mutex;
  std::map<std::pair<uint64_t, uint64_t>, terrace_tensor*> views
      TERRACE_GUARDED_BY(views_mutex);  // of its tensor, by offset and length; see Steps
};

class Memory {
 public:
  // Connects; nothing is leased yet. Returns why not; empty: connected.
  std::string open(const Settings& settings);
  // Afterwards open() may be called again.
  void close();

  // Never throws. nullptr: stderr has been told why.
  Block* allocate(uint64_t bytes, Kind kind);
  void free(Block* block);

  // What buffers can still have, and what there is in all, with what the manager's pool has free.
  void figures(uint64_t& free_bytes, uint64_t& all_bytes);
  const Settings& settings() const { return settings_; }

 private:
  bool make_part(uint64_t bytes, std::string& why) TERRACE_REQUIRES(mutex_);
  terrace_code make_lease(uint64_t bytes, terrace_lease** lease) TERRACE_REQUIRES(mutex_);
  terrace_code create(Part& part, uint64_t bytes, Kind kind, Block& block);
  void drop(Part& part);
  uint64_t grantable_bytes() TERRACE_REQUIRES(mutex_);

  Settings settings_;  // as open() left it: buffers come after that
  Mutex mutex_;
  terrace_session* session_ TERRACE_GUARDED_BY(mutex_) = nullptr;
  std::list<Part> parts_ TERRACE_GUARDED_BY(mutex_);
};

}  // namespace terrace::plugin
