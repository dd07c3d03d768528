// SPDX-License-Identifier: Apache-2.0
// Erases fenced leases and removes their objects, one after the other: in pieces and within a bandwidth bound
// where erasing is work of its own, ahead of others and without the bound where a grant waits for the room.
//
// Place     daemon/event_loop; the engine feeds it ScrubObject effects and applies what it reports.
// Threads   The event loop's thread; the erasing itself runs on the engine's bulk worker.
#pragma once

#include <kj/async.h>
#include <kj/timer.h>

#include <functional>
#include <list>

#include "core/base/clock.h"
#include "core/base/limits.h"
#include "daemon/event_loop/worker.h"
#include "daemon/memory/objects.h"
#include "daemon/state/command.h"

namespace terrace::daemon {

// Failures of this process or machine that pass: the memory behind the lease is not at fault.
bool passing_failure(const Status& status);

struct ScrubCounters {
  uint64_t scrubbed_bytes = 0;
  uint64_t queued_bytes = 0;  // the rest of the one under way included
};

class Scrubber {
 public:
  struct Reports {
    std::function<bool(PoolId)> is_urgent;                     // grants wait for that pool
    std::function<void(LeaseId, uint64_t granules)> advanced;  // that many from the end are erased
    // `took_ns`: since add(), what waited before it included.
    std::function<void(const ScrubObject&, Status, uint64_t took_ns)> finished;
  };

  // Everything referred to outlives it. `bytes_per_s`: 0 is no bound.
  Scrubber(Objects& memory, Worker& worker, const Clock& clock, kj::Timer& timer, uint64_t bytes_per_s,
           Reports reports, kj::TaskSet& tasks, uint64_t piece_bytes = limits::scrub_piece_bytes);

  // Takes over one lease; its finished() comes once, later.
  void add(ScrubObject job, uint64_t granule_bytes);
  // Something was freed, granted or queued: what is urgent may have changed.
  void reconsider();
  // Forgets what waits (the state it belonged to is gone). What runs still ends, silently.
  void clear();
  bool idle() const { return jobs_.empty() && !running_; }
  const ScrubCounters& counters() const { return counters_; }

 private:
  struct Job {
    ScrubObject object;
    uint64_t granule_bytes = 0;
    uint64_t left_bytes = 0;  // not erased yet, from the start
    uint64_t added_ns = 0;
  };

  std::list<Job>::iterator choose();
  void run_next();
  void erase_piece(std::list<Job>::iterator job);
  void remove_object(std::list<Job>::iterator job);
  void piece_done(uint64_t generation, std::list<Job>::iterator job, uint64_t bytes, Status status);
  void end(std::list<Job>::iterator job, Status status);
  void wait_until(uint64_t at_ns);

  Objects& memory_;
  Worker& worker_;
  const Clock& clock_;
  kj::Timer& timer_;
  const uint64_t bytes_per_s_;
  const uint64_t piece_bytes_;
  Reports reports_;
  kj::TaskSet& tasks_;
  std::list<Job> jobs_;
  ScrubCounters counters_;
  bool running_ = false;  // something is with the worker
  bool looping_ = false;
  uint64_t retry_ns_ = 0;         // nothing is tried before
  uint64_t next_allowed_ns_ = 0;  // by the bandwidth bound
  uint64_t woken_for_ns_ = 0;     // 0: no timer is set
  uint64_t generation_ = 0;       // of clear()
};

}  // namespace terrace::daemon
