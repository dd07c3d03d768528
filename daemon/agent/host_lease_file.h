// SPDX-License-Identifier: Apache-2.0
// When this host's memory is to be fenced, where the guard process sees it: a page of the runtime directory
// that the agent and its guard have mapped. It outlives the agent, and means nothing to another boot. Beside it,
// for as long as the file lasts: the id of the store whose managers are obeyed.
//
// Place     Uplink sets it with each answered heartbeat; daemon/agent/guard.h waits for the moment.
// Threads   Any; its words are read and written atomically, in one order.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "core/base/result.h"
#include "daemon/model/store_id.h"

namespace terrace::daemon {

class HostLeaseFile {
 public:
  // Makes or opens the file. One of another boot, or one that is damaged, begins anew: without a promise.
  static Result<HostLeaseFile> open(const std::string& path);
  HostLeaseFile(HostLeaseFile&& other) noexcept;
  HostLeaseFile& operator=(HostLeaseFile&&) = delete;
  ~HostLeaseFile();

  // CLOCK_BOOTTIME; 0: nothing is promised, or all is fenced.
  uint64_t fence_at_ns() const { return word().load(); }
  // `stop_at_ns`: when an agent that has not fenced by then is killed by the guard; the first of the two words.
  void set_fence_at_ns(uint64_t at_ns, uint64_t stop_at_ns) {
    stop().store(stop_at_ns);
    word().store(at_ns);
  }
  uint64_t stop_at_ns() const { return stop().load(); }
  // Clears `at_ns` if it still stands: a promise that was renewed meanwhile stays.
  bool clear(uint64_t at_ns) { return word().compare_exchange_strong(at_ns, 0); }

  // The store whose managers this host obeys; not valid: none yet. Also after another boot.
  StoreId store() const;
  // Durable when it returns.
  Status set_store(const StoreId& store);

  // The guard says so before it looks at the moment, and until it has fenced: an agent that sees it busy
  // registers later, so that nothing new is carved under the guard's hands.
  bool guard_is_busy() const { return busy().load() != 0; }
  void set_guard_busy(bool is_busy) { busy().store(is_busy ? 1 : 0); }

 private:
  std::atomic_ref<uint64_t> busy() const;
  std::atomic_ref<uint64_t> stop() const;
  explicit HostLeaseFile(void* page) : page_(page) {}
  std::atomic_ref<uint64_t> word() const;

  void* page_;
};

}  // namespace terrace::daemon
