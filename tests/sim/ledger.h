// SPDX-License-Identifier: Apache-2.0
// What the outside world was promised, and the check that the manager keeps it. It records only replies that
// a client received, and compares them with the manager's state after every command and every recovery.
//
//   L1  An acknowledged lease stays active, with its tenant, epoch, extents and at least its acknowledged
//       expiry, until it lapses, its release, revocation or transfer is asked for, a device below it is lost or
//       given up, or the machine restarts. While a resize or move is asked for it may be in either form.
//   L2  A lease whose release was acknowledged is never usable again; one that is gone stays gone.
//   L3  A retried key never leads to a second lease while the first is promised.
//   L4  Epochs are never repeated, and on each granule that a grant, transfer or move gives they only grow.
//   L5  A quarantined lease stays quarantined, and its granules with it, until an operator releases it or its
//       device comes back.
//   L6  A holder that was told of a revocation has the grace it was told, whatever the lease's expiry.
//   L7  What an operator was acknowledged (quotas, reservations, devices' states and pools) is what is in
//       force.
//
// Place     tests/sim; knows the state machine's queries, none of its decisions.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "daemon/state/state_machine.h"
#include "tests/sim/environment.h"

namespace terrace::sim {

class Ledger {
 public:
  explicit Ledger(Environment& environment) : environment_(environment) {}

  void grant_acknowledged(const daemon::LeaseRow& lease);
  // A renewal may also shorten a lease: from here no more than `ttl_ns` is promised; 0 asks for no change.
  void renewal_asked(LeaseId id, uint64_t ttl_ns);
  void release_asked(LeaseId id);
  void release_acknowledged(LeaseId id) { released_.insert(id); }
  void revocation_asked(LeaseId id);
  void revocation_acknowledged(LeaseId id) { revoked_.insert(id); }
  void grace_announced(const daemon::StateMachine& machine, LeaseId id, uint64_t grace_ns);
  // A resize, or a move by the holder or the manager: until row_acknowledged() it may have happened or not.
  void change_asked(LeaseId id);
  // The manager moves it: whatever is acknowledged meanwhile may be of before or after.
  void move_begins(LeaseId id);
  void move_over(LeaseId id) { moving_.erase(id); }
  // A transfer: until it is acknowledged nobody may rely on the lease.
  void transfer_asked(LeaseId id);
  void transfer_refused(LeaseId id);
  void dropped(LeaseId id) { ending_.insert(id); }  // nothing is known of it any more
  void renewal_acknowledged(const daemon::LeaseRow& lease);
  // A resize, move or transfer was answered, or the lease was attached: this is what it is now.
  void row_acknowledged(const daemon::LeaseRow& lease);

  void quarantine_durable(const daemon::LeaseRow& lease);
  // A command that ends quarantines, before it is applied: an operator's word.
  void quarantines_may_end(const daemon::StateMachine& machine, const daemon::Command& command);
  // The device is lost or given up: what is on it may be taken from its holders.
  void device_hit(const daemon::StateMachine& machine, const std::string& serial);
  void rebooted();

  // Settings: unknown from the moment that a change is asked for until one is acknowledged.
  std::optional<std::string> setting_asked(const std::string& name);  // returns what it was until now
  void setting_acknowledged(const std::string& name, std::string value) { settings_[name] = std::move(value); }
  void setting_forgotten(const std::string& name) { settings_.erase(name); }

  // Whether the holder may still rely on this lease's memory.
  bool promised(LeaseId id) const;
  // The state after a command or a recovery, before anything of it is sent.
  void check(const daemon::StateMachine& machine);
  void check_settings(const daemon::StateMachine& machine);

  uint64_t grants() const { return grants_; }

 private:
  struct Promise {
    daemon::LeaseRow lease;
    uint64_t expiry_ns = 0;  // 0: persistent
    bool changing = false;
    bool handed = false;
  };

  void check_promise(LeaseId id, const Promise& promise, const daemon::StateMachine& machine);
  void check_ended(const daemon::StateMachine& machine);
  void epochs_given(const daemon::LeaseRow& lease);
  bool hit_lately(const daemon::LeaseRow& lease) const;
  bool anything_hit_lately() const;

  Environment& environment_;
  std::map<LeaseId, Promise> promises_;  // until they end
  std::set<LeaseId> ending_;             // release or revocation asked for
  std::set<LeaseId> moving_;             // by the manager
  std::set<LeaseId> release_asked_;
  std::map<LeaseId, uint64_t> revocations_;  // how often it was asked for
  std::map<LeaseId, uint64_t> graces_;       // until when, of those revoked once
  std::set<LeaseId> released_;
  std::set<LeaseId> revoked_;
  std::set<LeaseId> quarantined_;
  std::map<std::tuple<std::string, uint64_t, uint64_t>, LeaseId> keys_;
  std::map<LeaseEpoch, LeaseId> epochs_;
  std::map<std::pair<DeviceId, uint64_t>, LeaseEpoch> granule_epochs_;
  std::map<DeviceId, uint64_t> hits_;  // steady time of the last one
  std::map<std::string, std::optional<std::string>> settings_;
  uint64_t grants_ = 0;
};

// Every setting as the state machine has it; what is not named is "".
std::map<std::string, std::string> settings_of(const daemon::StateMachine& machine);
std::string setting_text(const daemon::QuotaRow& row);
std::string setting_text(const daemon::ReservationRow& row, const daemon::StateMachine& machine);

}  // namespace terrace::sim
