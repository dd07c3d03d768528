// SPDX-License-Identifier: Apache-2.0
// The store as a crash sees it: the rows that are durable, and at most one batch on its way there. A batch
// that was not finished when the daemon died is there as a whole or not at all, by chance.
//
// Place     tests/sim/manager; keeps daemon::Store's contract without a disk.
#pragma once

#include <optional>
#include <vector>

#include "daemon/model/rows.h"
#include "tests/sim/environment.h"

namespace terrace::sim {

enum class CommitOutcome : uint8_t {
  done,
  full,    // capacity_exhausted: nothing of the batch is there, it may be tried again
  failed,  // io_error: nothing is known
};

// What no store records: that a lease reached `scrubbing`, and renewals that leave the TTL as it was.
inline void leave_out_unrecorded(std::vector<daemon::LeaseRow>& leases) {
  for (daemon::LeaseRow& lease : leases) {
    if (lease.phase == daemon::LeasePhase::scrubbing) lease.phase = daemon::LeasePhase::fencing;
    lease.expiry_ns = 0;
  }
}

class SimStore {
 public:
  explicit SimStore(Environment& environment) : environment_(environment) {}

  // Starts to write `batch`; one at a time.
  void begin(daemon::Delta batch);
  // What became of it. After `failed` the daemon must die and load again.
  CommitOutcome finish();
  // The daemon died: what was on its way lands or is lost.
  void crash();

  // A batch is durable, whoever wrote it.
  void land(daemon::Delta batch);

  // The disk has no room for a while.
  void fill_up(uint64_t ns) { full_until_ns_ = environment_.now_ns() + ns; }
  bool full() const { return environment_.now_ns() < full_until_ns_; }

  daemon::Image load() const;
  const daemon::LeaseRow* find_by_object(const std::string& object) const;
  uint64_t commits() const { return commits_; }

 private:
  void spoil(daemon::Delta& batch) const;

  Environment& environment_;
  std::optional<daemon::Delta> in_flight_;
  daemon::MetaRow meta_;
  bool meta_stored_ = false;
  std::map<DeviceId, daemon::DeviceRow> devices_;
  std::map<PoolId, daemon::PoolRow> pools_;
  std::map<LeaseId, daemon::LeaseRow> leases_;
  std::map<std::string, daemon::QuotaRow> quotas_;
  std::map<ReservationId, daemon::ReservationRow> reservations_;
  std::map<PartId, daemon::OwnerRow> owners_;
  std::map<daemon::ViewId, daemon::ViewRow> views_;
  uint64_t full_until_ns_ = 0;
  uint64_t commits_ = 0;
};

}  // namespace terrace::sim
