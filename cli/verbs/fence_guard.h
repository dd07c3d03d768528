// SPDX-License-Identifier: Apache-2.0
// Lets a command read a lease's memory while the lease may be fenced: no "Bus error", but a clear end.
//
// The first fault in the mapping puts private zero pages over all of it, so that the work at hand runs on to
// its next look at fenced() and cleans up after itself; what it computed is void.
//
// Threads   One guard a process at a time; faults may come from any thread, fenced() from any.
#pragma once

#include <csignal>
#include <cstddef>
#include <memory>
#include <span>

#include "core/base/result.h"
#include "terrace/session.h"

namespace terrace::cli {

class FenceGuard {
 public:
  // `mapped` stays mapped for as long as the guard lives.
  explicit FenceGuard(std::span<const std::byte> mapped);
  ~FenceGuard();
  FenceGuard(const FenceGuard&) = delete;
  FenceGuard& operator=(const FenceGuard&) = delete;

  static bool fenced();  // a fault was met

 private:
  struct sigaction before_ {};
};

// What to say of an error met, or a result made, while `lease` was read or written.
// Returns   lease_revoked or lease_expired when the memory was taken away (a fault was met, or `error` is
//           EFAULT and the lease is over); ok when nothing points to that, so that `error` stands.
Status fence_status(Lease& lease, const Error* error);

}  // namespace terrace::cli
