// SPDX-License-Identifier: Apache-2.0
// The assertions that production runs over leases: what holds passes, and what does not ends the process.
#include <doctest/doctest.h>

#include <vector>

#include "daemon/model/granule_account.h"
#include "daemon/model/lease_index.h"
#include "daemon/model/phases.h"
#include "tests/support/ends_process.h"

using namespace terrace;
using namespace terrace::daemon;
using test::abort_message;

namespace {

constexpr LeasePhase phases[] = {LeasePhase::pending,      LeasePhase::active,    LeasePhase::revoking,
                                 LeasePhase::fencing,      LeasePhase::scrubbing, LeasePhase::quarantined,
                                 LeasePhase::transferring, LeasePhase::waiting};

bool says(const std::string& text, const char* what) {
  return text.find(what) != std::string::npos;
}

auto free_is(uint64_t granules) {
  return [granules](DeviceId) { return granules; };
}

LeaseRow lease_of(uint64_t id) {
  LeaseRow lease;
  lease.id = LeaseId{id};
  lease.tenant = "alice";
  lease.label = "weights";
  lease.request_low = 7;
  lease.phase = LeasePhase::active;
  lease.expiry_ns = 100;
  return lease;
}

}  // namespace

TEST_CASE("phases: a lease changes its phase as the table says, and else the process ends") {
  for (const LeasePhase from : phases) {
    for (const LeasePhase to : phases) {
      LeaseRow lease;
      lease.phase = from;
      CAPTURE(static_cast<int>(from));
      CAPTURE(static_cast<int>(to));
      if (may_follow(from, to)) {
        change_phase(lease, to);
        CHECK(lease.phase == to);
      } else {
        CHECK(says(abort_message([&] { change_phase(lease, to); }), "I14"));
      }
    }
  }
}

TEST_CASE("phases: nothing that was taken back is its holder's again") {
  for (const LeasePhase taken : {LeasePhase::fencing, LeasePhase::scrubbing, LeasePhase::quarantined})
    for (const LeasePhase held : phases)
      if (held != LeasePhase::fencing && held != LeasePhase::scrubbing && held != LeasePhase::quarantined)
        CHECK_FALSE(may_follow(taken, held));
}

TEST_CASE("lease index: a row goes in and out as a whole") {
  LeaseIndex index;
  LeaseRow lease = lease_of(1);
  index.insert(lease);
  CHECK(index.by_label("alice", "weights") == lease.id);
  CHECK(index.by_request("alice", 0, 7) == lease.id);
  CHECK_FALSE(index.by_label("bob", "weights").valid());
  index.set_expiry(lease, 200);
  CHECK(index.due() == std::set<LeaseIndex::Due>{{200, lease.id}});
  index.remove(lease);
  CHECK(index.due().empty());
  CHECK(index.labels() == 0);
  CHECK(index.requests() == 0);
  lease.phase = LeasePhase::revoking;
  lease.deadline_ns = lease.expiry_ns;  // one entry for both
  index.insert(lease);
  CHECK(index.due().size() == 1);
  index.remove(lease);
  CHECK(index.due().empty());
}

TEST_CASE("lease index: what is in already, or is not in, ends the process") {
  LeaseIndex index;
  const LeaseRow lease = lease_of(1);
  CHECK(says(abort_message([&] { index.remove(lease); }), "I7"));
  index.insert(lease);
  CHECK(says(abort_message([&] { index.insert(lease); }), "I7"));

  LeaseRow other = lease_of(2);
  CHECK(says(abort_message([&] { index.insert(other); }), "I6: a lease that is taken in has the label"));
  CHECK(says(abort_message([&] { index.remove(other); }), "I7"));
  other.label.clear();
  CHECK(says(abort_message([&] { index.insert(other); }), "I6: a lease that is taken in has the request key"));
  other.expiry_ns = 0;
  CHECK(says(abort_message([&] { index.remove(other); }), "I6: a lease that is taken out"));

  // Changed without being taken out first.
  LeaseRow changed = lease;
  changed.label = "other";
  CHECK(says(abort_message([&] { index.remove(changed); }), "I6"));
  changed = lease;
  changed.expiry_ns = 101;
  CHECK(says(abort_message([&] { index.remove(changed); }), "I7"));
  CHECK(says(abort_message([&] { index.set_expiry(changed, 200); }), "I7"));
  changed = lease;
  changed.deadline_ns = 50;
  CHECK(says(abort_message([&] { index.set_expiry(changed, 200); }), "I7"));
}

TEST_CASE("granule account: what leases have and what is free add up, or the process ends") {
  const DeviceId id{1};
  const std::vector<Extent> three{{id, 0, 2}, {id, 4, 1}};
  GranuleAccount account;
  account.add_device(id, 4);
  account.take(three);
  CHECK(account.used(id) == 3);
  account.settle(free_is(1));
  account.settle(free_is(7));  // nothing changed: not looked at
  CHECK(says(abort_message([&] { account.take(three); }), "I3"));
  CHECK(says(abort_message([&] { account.take({{DeviceId{2}, 0, 1}}); }), "I1"));
  CHECK(says(abort_message([&] { account.give({{id, 0, 4}}); }), "I3"));
  CHECK(says(abort_message([&] { account.add_device(id, 4); }), "I3"));
  CHECK(says(abort_message([&] { account.remove_device(id); }), "I3"));
  account.give({{id, 4, 1}});
  CHECK(says(abort_message([&] { account.settle(free_is(1)); }), "I3"));
  account.grow_device(id, 2);
  account.settle(free_is(4));
  account.give({{id, 0, 2}});
  account.remove_device(id);
}
