// SPDX-License-Identifier: Apache-2.0
// Who holds what, without a connection: the rules of the modes, and what follows when a lease's memory changes.
#include <doctest/doctest.h>

#include "daemon/rpc/holders/holder_table.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

struct Process final : HolderListener {
  explicit Process(int32_t pid_in) : number(pid_in) {}
  void revoking(LeaseId, uint64_t, const std::string&) override {}
  void fenced(LeaseId, const std::string&, LeaseCause) override {}
  void move_requested(LeaseId, const std::string&) override { ++asked; }
  int32_t pid() const override { return number; }
  std::string describe() const override { return "p" + std::to_string(number); }

  int32_t number;
  int asked = 0;
};

LeaseRow lease_of(uint64_t id, LeaseMode mode, uint64_t epoch = 1) {
  LeaseRow row;
  row.id = LeaseId{id};
  row.mode = mode;
  row.epoch = LeaseEpoch{epoch};
  return row;
}

}  // namespace

TEST_CASE("Holders: an exclusive lease is one process's, which may be here twice") {
  Holders holders;
  Process one(1), reconnected(1), other(2);
  const LeaseRow lease = lease_of(5, LeaseMode::exclusive);
  holders.add(lease, ObjectAccess::read_write, one);
  CHECK(holders.may_hold(lease, ObjectAccess::read_write, reconnected).ok());
  CHECK(holders.may_hold(lease, ObjectAccess::read_only, other).error().code == ErrorCode::busy);
  holders.remove(one);
  CHECK(holders.may_hold(lease, ObjectAccess::read_write, other).ok());
}

TEST_CASE("Holders: pid 0 is nobody's own: processes of other pid namespaces are told apart") {
  Holders holders;
  Process one(0), other(0);
  const LeaseRow lease = lease_of(5, LeaseMode::exclusive);
  holders.add(lease, ObjectAccess::read_write, one);
  CHECK_FALSE(holders.may_hold(lease, ObjectAccess::read_write, other).ok());
}

TEST_CASE("Holders: attaching again counts once, and ending takes every lease of the session out") {
  Holders holders;
  Process one(1), two(2);
  for (uint64_t id = 1; id <= 3; ++id) {
    holders.add(lease_of(id, LeaseMode::shared_coherent), ObjectAccess::read_only, one);
    holders.add(lease_of(id, LeaseMode::shared_coherent), ObjectAccess::read_write, one);
    holders.add(lease_of(id, LeaseMode::shared_coherent), ObjectAccess::read_only, two);
    CHECK(holders.count(LeaseId{id}) == 2);
  }
  holders.remove(one);
  holders.remove(one);
  for (uint64_t id = 1; id <= 3; ++id) CHECK(holders.of(LeaseId{id}) == std::vector<HolderListener*>{&two});
}

TEST_CASE("Holders: only those of an earlier LeaseEpoch lose a lease that moved, but for its mover") {
  Holders holders;
  Process mover(1), reader(2), late(3);
  holders.add(lease_of(5, LeaseMode::shared_coherent, 1), ObjectAccess::read_write, mover);
  holders.add(lease_of(5, LeaseMode::shared_coherent, 1), ObjectAccess::read_only, reader);
  const LeaseRow moved = lease_of(5, LeaseMode::shared_coherent, 2);
  holders.add(moved, ObjectAccess::read_only, late);
  CHECK(holders.take_outdated(moved, &mover) == std::vector<HolderListener*>{&reader});
  CHECK(holders.count(LeaseId{5}) == 2);
  CHECK(holders.take_outdated(moved, nullptr) == std::vector<HolderListener*>{&mover});
}

TEST_CASE("Holders: one alone is asked to move, several are not, and having moved it is asked anew") {
  Holders holders;
  Process one(1), two(2);
  const LeaseRow lease = lease_of(5, LeaseMode::shared_coherent, 1);
  CHECK_FALSE(holders.ask_to_move(lease.id, "drain"));
  holders.add(lease, ObjectAccess::read_write, one);
  CHECK(holders.asked_to_move(lease.id).empty());
  CHECK(holders.ask_to_move(lease.id, "drain"));
  CHECK(one.asked == 1);
  CHECK(holders.asked_to_move(lease.id) == "p1");
  holders.add(lease_of(5, LeaseMode::shared_coherent, 2), ObjectAccess::read_write, one);
  CHECK(holders.asked_to_move(lease.id).empty());
  holders.add(lease_of(5, LeaseMode::shared_coherent, 2), ObjectAccess::read_only, two);
  CHECK_FALSE(holders.ask_to_move(lease.id, "drain"));
  CHECK(two.asked == 0);
}
