// SPDX-License-Identifier: Apache-2.0
// Claims on the pools' room, kept from the commands alone and compared with what the state machine lets in:
//   quota         no step adds to what a tenant has beyond the quota that is in force
//   reservation   no grant or growth takes room that others' reservations keep; nobody is refused room that its
//                 own reservation covers and that is there
//   queue         while room is kept for who waits nobody is let in before, unless its own reservation covers
//                 it; at other times nobody before one that waits and is no larger; a turn has been open for as
//                 long as it kept room; of a tenant's requests none is served before an earlier, no larger one
//   accounting    free + leased + scrubbing + quarantined = capacity, of each pool, and of each device
//
// Place     tests/sim; the managers show it every command as it came in, and the state after it.
#pragma once

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "daemon/state/state_machine.h"
#include "tests/sim/environment.h"

namespace terrace::sim {

class Claims {
 public:
  explicit Claims(Environment& environment) : environment_(environment) {}

  void recovered(const daemon::StateMachine& machine);
  void before(const daemon::StateMachine& machine);
  void after(const daemon::Command& command, const daemon::Step& step, const daemon::StateMachine& machine);

  bool growing(LeaseId id) const { return growths_.contains(id); }
  // Growths under way, with the bytes of the lease afterwards; and what moves go to, which counts for no tenant.
  const std::map<LeaseId, uint64_t>& growths() const { return growths_; }
  const std::set<LeaseId>& targets() const { return targets_; }

 private:
  struct Use {
    uint64_t bytes = 0;
    uint64_t leases = 0;
  };
  using Key = std::tuple<std::string, uint64_t, uint64_t>;  // tenant and request key
  struct Request {
    PoolId pool;
    uint64_t bytes = 0;
    uint64_t arrived = 0;
  };
  struct View {
    std::map<std::string, Use> tenants;
    std::map<std::pair<PoolId, std::string>, uint64_t> bytes;  // of tenants in pools
    std::map<PoolId, uint64_t> free;                           // that can be granted
    std::map<Key, Request> waiting;
    std::set<PoolId> kept;  // where room is kept for who waits
  };
  // How long a pool's turn was open, and has kept room.
  struct Turn {
    LeaseId lease;
    bool held = false;
    uint64_t since_ns = 0;  // of the phase
    uint64_t open_ns = 0, held_ns = 0;
  };

  View look(const daemon::StateMachine& machine);
  void take_note(const daemon::Command& command, const daemon::Step& step, const daemon::StateMachine& machine);
  uint64_t unfilled(const View& view, PoolId pool, const std::string& tenant) const;
  uint64_t unfilled_of_others(const View& view, PoolId pool, const std::string& tenant) const;
  void check_quotas(const View& now);
  void check_room_kept(const View& now);
  void check_refusal(const daemon::Grant& grant, const daemon::Step& step, const daemon::StateMachine& machine);
  void check_turns(const daemon::Command& command, const daemon::Step& step, const View& now,
                   const daemon::StateMachine& machine);
  void check_overtaking(const View& now, PoolId pool, const std::string& tenant, uint64_t bytes);
  void check_order(const View& now, const daemon::StateMachine& machine);
  void check_phases(bool ticked, const daemon::StateMachine& machine);

  Environment& environment_;
  std::map<std::string, daemon::QuotaRow> quotas_;
  std::map<ReservationId, daemon::ReservationRow> reservations_;
  std::map<LeaseId, uint64_t> growths_;  // bytes afterwards
  std::set<LeaseId> targets_;            // of moves
  std::map<Key, uint64_t> arrivals_;
  uint64_t next_arrival_ = 1;
  std::map<PoolId, Turn> turns_;
  View last_;
};

// What is wrong with a pool's or a device's sums; "" when they add up.
std::string accounting_problem(const daemon::PoolUse& use);
void check_accounting(Environment& environment, const daemon::StateMachine& machine);

}  // namespace terrace::sim
