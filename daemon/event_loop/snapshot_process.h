// SPDX-License-Identifier: Apache-2.0
// Work on this process as it is at one moment, while the process goes on: a child of fork does it on its own copy of
// all memory and says through a pipe what it found. What takes a second for 100,000 leases costs the thread that asks
// for it the fork only, a few milliseconds. docs/design/0025-check.md says why not by pieces.
//
// The child has that one thread and no descriptor but the pipe's and standard error, runs at a lower priority, and ends
// with this process. Its work may read, compute and allocate. What it must not do: take a lock that another thread may
// have had at the fork (but the C library's own), or write to memory that is mapped shared.
//
// Threads   start(): the thread that owns what the work reads. The rest: one thread at a time.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace terrace::daemon {

class SnapshotProcess {
 public:
  using Found = std::vector<std::string>;

  // Errors   io_error   the kernel makes no pipe or no process
  static Result<SnapshotProcess> start(const std::function<Found()>& work);

  SnapshotProcess(SnapshotProcess&& other) noexcept
      : child_(std::exchange(other.child_, -1)), pipe_(std::move(other.pipe_)) {}
  SnapshotProcess& operator=(SnapshotProcess&&) = delete;
  ~SnapshotProcess();  // ends a child that is still at work

  // Waits for what the work found, for `patience_s` seconds at most; 0: without a bound. Call once.
  // Errors   io_error   the child ended before it had said all, or was ended for taking longer
  Result<Found> wait(uint32_t patience_s = 0);

 private:
  SnapshotProcess(pid_t child, UniqueFd pipe) : child_(child), pipe_(std::move(pipe)) {}

  pid_t child_;
  UniqueFd pipe_;
};

}  // namespace terrace::daemon
