// SPDX-License-Identifier: Apache-2.0
// Ownership of parts as the manager grants it: an OwnershipSource over a Lease.
#include <sys/random.h>

#include <array>
#include <atomic>
#include <utility>

#include "core/base/kernel_clock.h"
#include "core/base/sync/mutex.h"
#include "terrace/host_ownership.h"
#include "terrace/session.h"
#include "terrace/tensor_space.h"

namespace terrace {
namespace {

constexpr const char* where = "ownership_by_manager";
constexpr uint32_t parts_max = 64;
constexpr uint64_t repeat_no_ns = 1'000'000;
constexpr uint64_t repeat_unknown_ns = 1'000'000'000;  // while the manager is away each question takes its time

uint64_t draw_key() {
  uint64_t key = 0;
  while (key == 0)
    if (::getrandom(&key, sizeof(key), 0) != static_cast<ssize_t>(sizeof(key))) key = 0;
  return key;
}

class ManagerOwnership final : public OwnershipSource {
 public:
  explicit ManagerOwnership(std::shared_ptr<Lease> lease) : lease_(std::move(lease)) {}

  Result<uint64_t> claim(uint32_t part, const std::function<uint64_t()>& last_epoch) override {
    TERRACE_ASSIGN_OR_RETURN(uint64_t epoch, lease_->claim_part(part, 0, draw_key()));
    // A part that had owners by other means is ahead of the manager once.
    if (const uint64_t last = last_epoch(); last >= epoch) {
      (void)lease_->release_part(part, epoch);
      if (last >= host_epochs_from)
        return Error{
            ErrorCode::permission_denied, 0, where,
            "part " + std::to_string(part) + " of lease " + std::to_string(lease_->id().value) +
                " had an owner by host (ownership_by_host_ranges): all holders of a space use the same "
                "kind of source; format it anew to change that"};
      TERRACE_ASSIGN_OR_RETURN(epoch, lease_->claim_part(part, last, draw_key()));
      if (last_epoch() != last) {
        (void)lease_->release_part(part, epoch);
        return Error{ErrorCode::busy, 0, where,
                     "part " + std::to_string(part) + " of lease " + std::to_string(lease_->id().value) +
                         " has an owner whom the manager did not make it"};
      }
    }
    const MutexLock lock(mutex_);
    owned_[part] = epoch;
    return epoch;
  }

  // What the manager is not told of in time ends with the process.
  void release(uint32_t part) override {
    uint64_t epoch = 0;
    {
      const MutexLock lock(mutex_);
      epoch = part < parts_max ? std::exchange(owned_[part], 0) : 0;
    }
    if (epoch != 0) (void)lease_->release_part(part, epoch);
  }

  SpaceOwnership kind() const override { return SpaceOwnership::manager; }

  bool is_dead(uint32_t part, uint64_t epoch) override {
    if (part >= parts_max || epoch == 0) return false;
    std::atomic<uint64_t>& dead = dead_[part];
    if (epoch <= dead.load(std::memory_order_relaxed)) return true;
    // Who waits for another asks in a loop: a "no" is good for a moment, as it may be out of date anyway.
    std::atomic<uint64_t>& lives_until_ns = lives_until_ns_[part];
    if (monotonic_ns() < lives_until_ns.load(std::memory_order_relaxed)) return false;
    const Result<bool> answer = lease_->part_is_dead(part, epoch);
    if (!answer.ok() || !*answer) {
      lives_until_ns.store(monotonic_ns() + (answer.ok() ? repeat_no_ns : repeat_unknown_ns),
                           std::memory_order_relaxed);
      return false;
    }
    uint64_t known = dead.load(std::memory_order_relaxed);
    while (known < epoch && !dead.compare_exchange_weak(known, epoch, std::memory_order_relaxed)) {
    }
    return true;
  }

 private:
  const std::shared_ptr<Lease> lease_;
  Mutex mutex_;
  std::array<uint64_t, parts_max> owned_ TERRACE_GUARDED_BY(mutex_){};  // epochs; 0: not this one's
  std::array<std::atomic<uint64_t>, parts_max> dead_{};  // the newest epoch whose owner is known to be dead
  std::array<std::atomic<uint64_t>, parts_max> lives_until_ns_{};
};

}  // namespace

Result<std::shared_ptr<OwnershipSource>> ownership_by_manager(std::shared_ptr<Lease> lease) {
  if (lease == nullptr) return Error{ErrorCode::invalid_argument, 0, where, "there is no lease"};
  if (lease->access() != LeaseAccess::read_write) {
    return Error{ErrorCode::permission_denied, 0, where,
                 "lease " + std::to_string(lease->id().value) +
                     " is attached read-only here; who owns a part of it stores to it"};
  }
  return std::shared_ptr<OwnershipSource>(std::make_shared<ManagerOwnership>(std::move(lease)));
}

SpaceCoherence space_coherence(const LeaseInfo& lease) {
  return lease.coherence == MemoryCoherence::coherent ? SpaceCoherence::coherent : SpaceCoherence::noncoherent;
}

}  // namespace terrace
