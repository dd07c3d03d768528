// What the state machine should do, said as simply as can be: plain lists, every answer by a walk over all of
// them, one bit of memory a granule. It shares no code with daemon/state but the row types.
//
// It does not choose where a lease is placed, nor ids and epochs: it takes the machine's choice and checks it.
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
  std::optional<LeaseId> same_lease;  // a retried grant: this lease, and nothing new
};

class Reference {
 public:
  // What must come of `command`. For a grant that succeeds the machine's row is passed to placed() next.
  Expected apply(const daemon::Command& command);
  // Takes over a new pending lease, as the machine placed it. Returns what is wrong with it, or nothing.
  std::string placed(const daemon::Grant& grant, const daemon::LeaseRow& row);

  // The manager restarts and finds `objects` (name, bytes).
  Expected restart(const std::map<std::string, uint64_t>& objects, bool same_boot, uint64_t now_ns);

  const std::vector<daemon::DeviceRow>& devices() const { return devices_; }
  const std::vector<std::string>& pools() const { return pools_; }
  const std::vector<daemon::LeaseRow>& leases() const { return leases_; }
  uint64_t free_granules(const std::string& pool) const;
  std::optional<uint64_t> next_due_ns() const;
  const std::string& pool_of(const std::string& serial) const { return pool_of_device_.at(serial); }

 private:
  template <typename Other>
  Expected on(const Other&) {
    return {};  // not modelled yet, and not drawn
  }
  Expected on(const daemon::AdoptDevice& c);
  Expected on(const daemon::CreatePool& c);
  Expected on(const daemon::DeletePool& c);
  Expected on(const daemon::Grant& c);
  Expected on(const daemon::CarveFinished& c);
  Expected on(const daemon::Renew& c);
  Expected on(const daemon::Release& c);
  Expected on(const daemon::Revoke& c);
  Expected on(const daemon::Tick& c);
  Expected on(const daemon::FenceFinished& c);
  Expected on(const daemon::ScrubFinished& c);

  const daemon::DeviceRow* device(const std::string& serial) const;
  bool has_pool(const std::string& name) const;
  daemon::LeaseRow* lease(LeaseId id, const std::string& tenant);
  bool taken(DeviceId id, uint64_t granule) const;
  static void fence(daemon::LeaseRow& lease, Expected& expected);

  std::vector<daemon::DeviceRow> devices_;
  std::map<std::string, std::string> pool_of_device_;  // serial -> pool, or ""
  std::vector<std::string> pools_;
  std::map<LeaseId, std::string> pool_of_lease_;
  std::vector<daemon::LeaseRow> leases_;
  uint64_t last_id_ = 0;  // of leases that became durable
  uint64_t last_epoch_ = 0;
};

}  // namespace terrace::model
