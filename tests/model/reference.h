// SPDX-License-Identifier: Apache-2.0
// What the state machine should do, said as simply as can be: plain lists, every answer by a walk over all of
// them, one bit of memory a granule. It shares no code with daemon/state but the row types.
//
// It does not choose where a lease is placed, nor ids and epochs: it takes the machine's choice and checks it.
// Nobody waits for room in it, and no compaction is planned: tests/unit/state and tests/sim attack those.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/state/command.h"

namespace terrace::model {

using daemon::LeasePhase;

struct Expected {
  ErrorCode code = ErrorCode::ok;
  // "fence 3", "scrub 3", "carve 3", "notice 3", "fenced 3", in any order.
  std::multiset<std::string> effects;
  std::optional<LeaseId> same_lease;                           // a retried grant: this lease, and nothing new
  std::vector<std::pair<LeaseId, ErrorCode>> failed_renewals;  // of RenewMany
};

class Reference {
 public:
  // What must come of `command`. For a grant that succeeds the machine's row is passed to placed() next.
  Expected apply(const daemon::Command& command);
  // Takes over a new pending lease, as the machine placed it. Returns what is wrong with it, or nothing.
  std::string placed(const daemon::Grant& grant, const daemon::LeaseRow& row);

  // The same for the target of a move, the granules of a growth, the rest of a shrink, a transfer's new epoch.
  std::string placed_target(LeaseId lease, const daemon::LeaseRow& target);
  std::string grown(LeaseId lease, const std::vector<daemon::Extent>& extents);
  std::string cut_off(LeaseId lease, const daemon::LeaseRow& tail);
  std::string handed(const daemon::LeaseRow& row);

  // The manager restarts and finds `objects` (name, bytes) and the devices of `seen`.
  Expected restart(const std::map<std::string, uint64_t>& objects, const std::set<std::string>& seen,
                   bool same_boot, uint64_t now_ns);

  const std::vector<daemon::DeviceRow>& devices() const { return devices_; }
  const std::vector<std::string>& pools() const { return pools_; }
  const std::vector<daemon::LeaseRow>& leases() const { return leases_; }
  uint64_t free_granules(const std::string& pool) const;
  bool is_absent(const std::string& serial) const { return absent_.contains(serial); }
  const std::map<std::string, daemon::QuotaRow>& quotas() const { return quotas_; }
  size_t reservations() const { return reservations_.size(); }
  std::optional<LeaseId> target_of(LeaseId lease) const;
  bool growing(LeaseId lease) const { return growths_.contains(lease); }
  uint64_t owner_epoch(LeaseId lease, uint64_t part) const {
    const auto owner = owners_.find({lease, part});
    return owner == owners_.end() ? 0 : owner->second.epoch;
  }
  uint64_t owner_pid(LeaseId lease, uint64_t part) const {
    const auto owner = owners_.find({lease, part});
    return owner == owners_.end() ? 0 : owner->second.process.pid;
  }
  // What the lease will have once a growth under way has ended.
  uint64_t bytes_to_come(const daemon::LeaseRow& lease) const {
    const auto growth = growths_.find(lease.id);
    return growth == growths_.end() ? lease.bytes : growth->second.bytes;
  }
  std::optional<uint64_t> next_due_ns() const;
  const std::map<LeaseId, std::string>& offers() const { return offers_; }  // to which tenant
  const std::string& pool_of(const std::string& serial) const { return pool_of_device_.at(serial); }

 private:
  // One for each command, none left out.
  Expected on(const daemon::AdoptDevice& c);
  Expected on(const daemon::CreatePool& c);
  Expected on(const daemon::DeletePool& c);
  Expected on(const daemon::AddDevice& c);
  Expected on(const daemon::DrainDevice& c);
  Expected on(const daemon::UndrainDevice& c);
  Expected on(const daemon::FailDevice& c);
  Expected on(const daemon::DeviceLost& c);
  Expected on(const daemon::DeviceBack& c);
  Expected on(const daemon::RemoveDevice& c);
  Expected on(const daemon::SetQuota& c);
  Expected on(const daemon::CreateReservation& c);
  Expected on(const daemon::RemoveReservation& c);
  Expected on(const daemon::CompactPool& c);
  Expected on(const daemon::Grant& c);
  Expected on(const daemon::CancelGrant& c);
  Expected on(const daemon::CarveFinished& c);
  Expected on(const daemon::Renew& c);
  Expected on(const daemon::RenewMany& c);
  Expected on(const daemon::Release& c);
  Expected on(const daemon::Revoke& c);
  Expected on(const daemon::Resize& c);
  Expected on(const daemon::ResizeFinished& c);
  Expected on(const daemon::Transfer& c);
  Expected on(const daemon::RebindFinished& c);
  Expected on(const daemon::BeginMove& c);
  Expected on(const daemon::FinishMove& c);
  Expected on(const daemon::Tick& c);
  Expected on(const daemon::FenceFinished& c);
  Expected on(const daemon::ScrubFinished& c);
  Expected on(const daemon::ScrubAdvanced& c);
  Expected on(const daemon::SetPoolCoherence& c);
  Expected on(const daemon::SetPoolTrust& c);
  Expected on(const daemon::ClaimPart& c);
  Expected on(const daemon::ReleasePart& c);
  Expected on(const daemon::ResumeAfterGap& c);
  Expected on(const daemon::OfferLease& c);
  Expected on(const daemon::AcceptOffer& c);
  Expected on(const daemon::CancelWaiting& c);
  // Views of leases on further hosts have a test of their own: tests/unit/state/random_views_test.cc.
  static Expected on(const daemon::OpenView&) { return {}; }
  static Expected on(const daemon::ViewOpened&) { return {}; }
  static Expected on(const daemon::ViewClosed&) { return {}; }
  static Expected on(const daemon::LoseObject&) { return {}; }
  Expected hand_over(daemon::LeaseRow& row, const std::string& to_tenant, bool pins_outlast);

  struct Growth {
    std::vector<daemon::Extent> extents;
    uint64_t bytes = 0;
  };
  struct Owner {
    uint64_t epoch = 0;
    uint64_t request = 0;
    daemon::ProcessId process;
  };
  struct Move {
    LeaseId lease;  // invalid: given up while its target was carved
    bool carved = false;
    bool own_accord = false;
  };

  const daemon::DeviceRow* device(const std::string& serial) const;
  bool has_pool(const std::string& name) const;
  daemon::LeaseRow* lease(LeaseId id, const std::string& tenant);
  bool taken(DeviceId id, uint64_t granule) const;
  void fence(daemon::LeaseRow& lease, daemon::LeaseCause cause, Expected& expected);
  void quarantine(daemon::LeaseRow& lease);
  void give_up_move(LeaseId target, Expected& expected);
  void fence_all_on(DeviceId id, Expected& expected);
  void retry_quarantined(DeviceId id, bool failed_too, Expected& expected);
  void come_back(const std::string& serial, Expected& expected);
  daemon::DeviceRow* mutable_device(const std::string& serial);
  const daemon::DeviceRow& device(DeviceId id) const;
  bool absent(const daemon::LeaseRow& lease) const;
  bool lost(const std::vector<daemon::Extent>& extents) const;
  // Why a lease cannot be used or changed now; ok when it can.
  ErrorCode live(const daemon::LeaseRow& lease, uint64_t now_ns) const;
  ErrorCode changeable(LeaseId id, const std::string& tenant, uint64_t now_ns);
  uint64_t granule_bytes(const std::string& pool) const;
  uint64_t capacity_bytes(const std::string& pool) const;
  uint64_t grantable_bytes(const std::string& pool) const;
  bool in_quota(const std::string& tenant, uint64_t bytes, uint64_t leases) const;
  uint64_t use_in(const std::string& pool, const std::string& tenant) const;
  uint64_t kept_for_others(const std::string& pool, const std::string& but, const std::string& lessened = "",
                           uint64_t less = 0) const;
  bool room(const std::string& pool, const std::string& tenant, uint64_t bytes) const;

  std::vector<daemon::DeviceRow> devices_;
  std::map<std::string, std::string> pool_of_device_;  // serial -> pool, or ""
  std::vector<std::string> pools_;
  std::set<std::string> trusting_;  // pools whose tenants trust each other
  std::map<LeaseId, std::string> pool_of_lease_;
  std::vector<daemon::LeaseRow> leases_;
  std::map<std::pair<LeaseId, uint64_t>, Owner> owners_;  // by lease and part
  std::set<std::string> absent_;
  std::map<std::string, daemon::QuotaRow> quotas_;
  struct Reservation {
    ReservationId id;
    std::string pool, tenant;
    uint64_t bytes = 0, ttl_ns = 0, expiry_ns = 0;
  };
  std::vector<Reservation> reservations_;
  std::map<LeaseId, Growth> growths_;
  std::map<LeaseId, Move> moves_;  // by target
  std::map<LeaseId, std::string> offers_;
  bool own_accord_ = false;  // of the move that was begun last
  uint64_t next_device_ = 1;
  uint64_t next_reservation_ = 1;
  uint64_t last_id_ = 0;  // of leases that became durable
  uint64_t last_epoch_ = 0;
};

}  // namespace terrace::model
