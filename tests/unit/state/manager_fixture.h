// SPDX-License-Identifier: Apache-2.0
// A state machine with short verbs for tests. Every command goes through apply(), which checks what holds
// for all of them: the invariants, and that a refused command has changed nothing.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/base/limits.h"
#include "core/base/units.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {

inline constexpr uint64_t granule = limits::granule_bytes;
inline constexpr uint64_t second = ns_per_s;

inline bool same_rows(const Image& a, const Image& b) {
  return a.meta == b.meta && a.devices == b.devices && a.pools == b.pools && a.leases == b.leases &&
         a.quotas == b.quotas && a.reservations == b.reservations && a.owners == b.owners && a.views == b.views;
}

class Manager {
 public:
  Manager() { REQUIRE(machine.recover({}, {}, "boot-1", now_ns).ok()); }

  // A pool "p" of devices "emu:0", "emu:1"... with so many granules each.
  explicit Manager(const std::vector<uint64_t>& device_granules, uint64_t ttl_ns_max = limits::ttl_ns_max)
      : machine(ttl_ns_max) {
    REQUIRE(machine.recover({}, {}, "boot-1", now_ns).ok());
    std::vector<std::string> serials;
    for (const uint64_t granules : device_granules) {
      serials.push_back("emu:" + std::to_string(serials.size()));
      REQUIRE(adopt(serials.back(), granules).reply.ok());
    }
    REQUIRE(apply(CreatePool{"p", serials}).reply.ok());
  }

  Step apply(const Command& command) {
    const Image before = machine.image();
    Step step = machine.apply(command);
    for (const std::string& problem : machine.check_all()) FAIL_CHECK(problem);
    if (!step.reply.ok()) {
      // What a failed carve, resize or rebind leaves behind is dealt with in the step that answers with its
      // error.
      if (std::holds_alternative<CarveFinished>(command) || std::holds_alternative<ResizeFinished>(command) ||
          std::holds_alternative<RebindFinished>(command))
        return step;
      CHECK(step.delta.empty());
      CHECK(step.effects.empty());
      CHECK(same_rows(before, machine.image()));
    }
    return step;
  }
  Step adopt(const std::string& serial, uint64_t granules) {
    return apply(AdoptDevice{serial, "emulated", granules * granule, granule});
  }
  Grant request(uint64_t bytes) const {
    Grant grant;
    grant.pool = "p";
    grant.tenant = "alice";
    grant.host = "host";
    grant.bytes = bytes;
    grant.ttl_ns = 10 * second;
    grant.now_ns = now_ns;
    return grant;
  }
  // Granted and carved.
  LeaseRow grant(const Grant& asked) {
    const Step pending = apply(asked);
    REQUIRE(pending.reply.ok());
    const LeaseId id = std::get<GrantPending>(*pending.reply).lease;
    const Step carved = apply(CarveFinished{id, {}, now_ns});
    REQUIRE(carved.reply.ok());
    return std::get<LeaseReply>(*carved.reply).lease;
  }
  LeaseRow grant(uint64_t granules) { return grant(request(granules * granule)); }
  // Through fence and scrub to freedom.
  void finish(LeaseId id) {
    REQUIRE(apply(FenceFinished{id, {}, now_ns}).reply.ok());
    REQUIRE(apply(ScrubFinished{id, {}, now_ns}).reply.ok());
  }
  PoolUse use() const { return machine.pool_use(machine.find_pool("p")->id); }
  LeasePhase phase(LeaseId id) const { return machine.find_lease(id)->phase; }

  StateMachine machine;
  uint64_t now_ns = 1000 * second;
};

inline ErrorCode code_of(const Step& step) {
  return step.reply.ok() ? ErrorCode::ok : step.reply.error().code;
}

inline Error failure() {
  return Error{.code = ErrorCode::io_error, .os_errno = 5, .where = "test", .detail = "the device failed"};
}

}  // namespace terrace::daemon
