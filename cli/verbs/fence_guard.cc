// SPDX-License-Identifier: Apache-2.0
#include "cli/verbs/fence_guard.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <string>

namespace terrace::cli {
namespace {

// Read by the signal handler.
std::atomic<uintptr_t> guarded_begin{0};
std::atomic<size_t> guarded_bytes{0};
std::atomic<bool> fault_met{false};
static_assert(std::atomic<uintptr_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void on_bus_error(int number, siginfo_t* info, void* /*context*/) {
  const int saved_errno = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  const uintptr_t begin = guarded_begin.load();
  const size_t bytes = guarded_bytes.load();
  const bool ours = bytes > 0 && address >= begin && address - begin < bytes;
  fault_met.store(fault_met.load() || ours);
  if (!ours || ::mmap(reinterpret_cast<void*>(begin), bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    ::signal(number, SIG_DFL);  // somebody else's fault: met again at once, now with the usual end
  }
  errno = saved_errno;
}

}  // namespace

FenceGuard::FenceGuard(std::span<const std::byte> mapped) {
  guarded_begin.store(reinterpret_cast<uintptr_t>(mapped.data()));
  guarded_bytes.store(mapped.size());
  fault_met.store(false);
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, &before_);
}

FenceGuard::~FenceGuard() {
  ::sigaction(SIGBUS, &before_, nullptr);
  guarded_bytes.store(0);
}

bool FenceGuard::fenced() {
  return fault_met.load();
}

Status fence_status(Lease& lease, const Error* error) {
  const bool suspected = FenceGuard::fenced() || lease.state() == LeaseState::lost ||
                         (error != nullptr && error->os_errno == EFAULT);
  if (!suspected) return {};
  const std::string subject = "lease " + std::to_string(lease.id().value);
  const Result<LeaseInfo> info = lease.info();
  if (!info.ok() && info.error().code == ErrorCode::lease_expired) {
    return Error{.code = ErrorCode::lease_expired,
                 .where = "fence_status",
                 .detail = subject + " expired while its memory was in use"};
  }
  // The manager still stands by the lease: no fence then, whatever else is wrong with the memory.
  if (info.ok() && info->phase == "active" && !FenceGuard::fenced()) return {};
  return Error{.code = ErrorCode::lease_revoked,
               .where = "fence_status",
               .detail = subject + " was revoked or released while its memory was in use"};
}

}  // namespace terrace::cli
