// SPDX-License-Identifier: Apache-2.0
// Which session holds which lease, and with what access: who may hold it beside them, and who has to be told.
//
// Place     Service owns one. Sessions enter leases when they hand descriptors out.
// Threads   The event loop's thread only.
// Invariant A listener is in here only while it lives (remove() at its end); each pair of lease and listener is
//           here at most once; both indexes hold the same pairs.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/result.h"
#include "daemon/memory/backend.h"
#include "daemon/model/rows.h"

namespace terrace::daemon {

// A connected session that wants to hear of its leases.
class HolderListener {
 public:
  virtual ~HolderListener() noexcept(false) = default;
  virtual void revoking(LeaseId lease, uint64_t grace_ns, const std::string& reason) = 0;
  virtual void fenced(LeaseId lease, const std::string& reason, LeaseCause cause) = 0;
  // At most one of a lease is under way; further ones are dropped.
  virtual void move_requested(LeaseId lease, const std::string& reason) = 0;
  virtual int32_t pid() const = 0;
  virtual std::string describe() const = 0;  // "redis-server[1234]"
};

class Holders {
 public:
  // Whether `listener` may hold `lease` with `access` beside those who hold it now: an exclusive lease has
  // one holding process, a shared read-only one has one that writes. A process that reconnects may be
  // here twice for a moment.
  Status may_hold(const LeaseRow& lease, ObjectAccess access, const HolderListener& listener) const;

  void add(const LeaseRow& lease, ObjectAccess access, HolderListener& listener);
  // Returns the leases that it held.
  std::set<LeaseId> remove(HolderListener& listener);
  // Takes one holder of one lease out; returns the access it had, nullopt if it did not hold it.
  std::optional<ObjectAccess> leave(LeaseId lease, HolderListener& listener);
  // Takes every holder of the lease out, and gives them back.
  std::vector<HolderListener*> take_all(LeaseId lease);
  // Takes out those who attached it before its present epoch, but for `keeper`, and gives them back.
  std::vector<HolderListener*> take_outdated(const LeaseRow& lease, HolderListener* keeper);
  std::vector<HolderListener*> of(LeaseId lease) const;
  size_t count(LeaseId lease) const;

  // Asks the holder of `lease` to move it, if there is exactly one. Returns whether there is.
  bool ask_to_move(LeaseId lease, const std::string& reason);
  // The holder that was asked and did not move it yet, in words; empty: nobody was asked.
  std::string asked_to_move(LeaseId lease) const;

 private:
  struct Holder {
    HolderListener* listener;
    ObjectAccess access;
    LeaseEpoch epoch;    // of the lease when it attached it
    bool asked = false;  // to move it
  };
  void forget(LeaseId lease, HolderListener* listener);

  std::multimap<LeaseId, Holder> by_lease_;
  std::unordered_map<const HolderListener*, std::set<LeaseId>> by_listener_;
};

}  // namespace terrace::daemon
