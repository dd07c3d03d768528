// What the outside world was promised, and the check that the manager keeps it. It records only replies that
// a client received, and compares them with the manager's state after every command and every recovery.
//
//   L1  An acknowledged lease stays active, with its epoch, extents and at least its acknowledged expiry,
//       until it lapses, its release or revocation is asked for, or the machine restarts.
//   L2  A lease whose release was acknowledged is never usable again; one that is gone stays gone.
//   L3  A retried key never leads to a second lease while the first is promised.
//   L4  Epochs are never repeated, and on each granule they only grow.
//   L5  A quarantined lease stays quarantined, and its granules with it.
//   L6  A holder that was told of a revocation has the grace it was told, whatever the lease's expiry.
//
// Place     tests/sim; knows the state machine's queries, none of its decisions.
#pragma once

#include <map>
#include <set>
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
  void renewal_acknowledged(const daemon::LeaseRow& lease);
  void release_asked(LeaseId id);
  void release_acknowledged(LeaseId id) { released_.insert(id); }
  void revocation_asked(LeaseId id);
  void revocation_acknowledged(LeaseId id) { revoked_.insert(id); }
  void quarantine_durable(LeaseId id) { quarantined_.insert(id); }
  void grace_announced(const daemon::StateMachine& machine, LeaseId id, uint64_t grace_ns);
  void rebooted();

  // Whether the holder may still rely on this lease's memory.
  bool promised(LeaseId id) const;
  // The state after a command or a recovery, before anything of it is sent.
  void check(const daemon::StateMachine& machine);

  uint64_t grants() const { return grants_; }

 private:
  struct Promise {
    daemon::LeaseRow lease;
    uint64_t expiry_ns = 0;  // 0: persistent
  };

  void check_promise(LeaseId id, const Promise& promise, const daemon::StateMachine& machine);

  Environment& environment_;
  std::map<LeaseId, Promise> promises_;  // until they end
  std::set<LeaseId> ending_;             // release or revocation asked for
  std::set<LeaseId> release_asked_;
  std::map<LeaseId, uint64_t> revocations_;  // how often it was asked for
  std::map<LeaseId, uint64_t> graces_;       // until when, of those revoked once
  std::set<LeaseId> released_;
  std::set<LeaseId> revoked_;
  std::set<LeaseId> quarantined_;
  std::map<std::tuple<std::string, uint64_t, uint64_t>, LeaseId> keys_;
  std::map<LeaseEpoch, LeaseId> epochs_;
  std::map<std::pair<DeviceId, uint64_t>, LeaseEpoch> granule_epochs_;
  uint64_t grants_ = 0;
};

}  // namespace terrace::sim
