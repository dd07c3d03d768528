// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/unique_fd.h"
#include "daemon/event_loop/processes.h"
#include "tests/unit/event_loop/engine_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using terrace::test::EngineFixture;

namespace {

const EngineOptions busy_house{.housekeeping_ns = 5 * ns_per_ms, .unheld_ns = 20 * ns_per_ms};

LeaseRow grant_movable(EngineFixture& fixture, uint64_t bytes) {
  Grant request = fixture.grant_of(bytes);
  request.movable = true;
  return fixture.grant(request);
}

std::string serial_of(const EngineFixture& fixture, const LeaseRow& lease) {
  return fixture.engine->state().find_device(lease.extents.front().device)->serial;
}

char first_byte(EngineFixture& fixture, const std::string& object) {
  auto fd = fixture.backend.open(object, ObjectAccess::read_write);
  REQUIRE(fd.ok());
  char byte = 0;
  REQUIRE(::pread(fd->get(), &byte, 1, 0) == 1);
  return byte;
}

void write_first_byte(EngineFixture& fixture, const std::string& object, char byte) {
  auto fd = fixture.backend.open(object, ObjectAccess::read_write);
  REQUIRE(fd.ok());
  REQUIRE(::pwrite(fd->get(), &byte, 1, 0) == 1);
}

}  // namespace

TEST_CASE(
    "Engine: draining moves a movable lease that nobody holds, its bytes and all, and empties the device") {
  EngineFixture fixture;
  fixture.start(busy_house);
  fixture.compose(true);
  const LeaseRow lease = grant_movable(fixture, 4 * mib);
  write_first_byte(fixture, lease.object, 'x');
  const std::string serial = serial_of(fixture, lease);
  REQUIRE(fixture.submit(DrainDevice{serial}).ok());
  CHECK(fixture.eventually(
      [&] { return serial_of(fixture, *fixture.engine->state().find_lease(lease.id)) != serial; }));
  const LeaseRow moved = *fixture.engine->state().find_lease(lease.id);
  CHECK(moved.epoch > lease.epoch);
  CHECK(first_byte(fixture, moved.object) == 'x');
  CHECK(fixture.eventually([&] { return fixture.engine->state().leases().size() == 1; }));
  CHECK(fixture.engine->counters().moves == 1);
  CHECK(fixture.submit(RemoveDevice{serial}).ok());
}

TEST_CASE("Engine: what is sure to be nobody's is moved one after the other without a pause, the rest is not") {
  EngineFixture fixture;
  fixture.start({.housekeeping_ns = 3600 * ns_per_s, .unheld_ns = 3600 * ns_per_s});
  fixture.compose(true);
  std::vector<LeaseRow> leases;
  for (int i = 0; i < 11; ++i) leases.push_back(grant_movable(fixture, 2 * mib));
  const LeaseRow back_soon = leases.back();
  for (const LeaseRow& lease : leases)
    if (lease.id != back_soon.id) fixture.notifier.nobodys.insert(lease.id);
  const std::string serial = serial_of(fixture, back_soon);
  for (const LeaseRow& lease : leases) REQUIRE(serial_of(fixture, lease) == serial);
  REQUIRE(fixture.submit(DrainDevice{serial}).ok());
  CHECK(fixture.eventually([&] { return fixture.engine->counters().moves == 10; }));
  CHECK(serial_of(fixture, *fixture.engine->state().find_lease(back_soon.id)) == serial);
  CHECK(fixture.engine->state().find_lease(back_soon.id)->epoch == back_soon.epoch);
  CHECK(fixture.notifier.looks <= 11);
}

TEST_CASE(
    "Engine: the one holder of a movable lease is asked, again only after a while; nobody else is moved") {
  EngineFixture fixture;
  fixture.start(busy_house);
  fixture.compose(true);
  const LeaseRow held = grant_movable(fixture, 4 * mib);
  const LeaseRow fixed = fixture.grant(fixture.grant_of(4 * mib));
  const LeaseRow shared = grant_movable(fixture, 4 * mib);
  fixture.notifier.held = {held.id, shared.id, shared.id};
  REQUIRE(fixture.submit(DrainDevice{serial_of(fixture, held)}).ok());
  REQUIRE(serial_of(fixture, fixed) == serial_of(fixture, held));
  CHECK(fixture.eventually([&] { return !fixture.notifier.asked.empty(); }));
  fixture.io.provider->getTimer().afterDelay(100 * kj::MILLISECONDS).wait(fixture.io.waitScope);
  CHECK(fixture.notifier.asked == std::vector<LeaseId>{held.id});
  for (const LeaseRow& lease : {held, fixed, shared})
    CHECK(fixture.engine->state().find_lease(lease.id)->extents == lease.extents);
}

TEST_CASE("Engine: a lease that nobody holds stays while the owner of a part of it lives") {
  EngineFixture fixture;
  fixture.start(busy_house);
  fixture.compose(true);
  Grant request = fixture.grant_of(4 * mib);
  request.movable = true;
  request.mode = LeaseMode::shared_coherent;
  const LeaseRow lease = fixture.grant(request);
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const UniqueFd ours(ends[0]), theirs(ends[1]);
  const auto process = peer_process(ours.get(), ::getpid());
  REQUIRE_MESSAGE(process.ok(), process.error().to_string());
  ClaimPart claim{.lease = lease.id, .tenant = "t", .part = 1};
  claim.request = 1;
  claim.process = *process;
  claim.holder = "this test";
  claim.now_ns = fixture.clock.now_ns();
  REQUIRE(fixture.submit(claim).ok());
  const std::string serial = serial_of(fixture, lease);
  REQUIRE(fixture.submit(DrainDevice{serial}).ok());
  fixture.io.provider->getTimer().afterDelay(200 * kj::MILLISECONDS).wait(fixture.io.waitScope);
  CHECK(serial_of(fixture, *fixture.engine->state().find_lease(lease.id)) == serial);
  REQUIRE(fixture.submit(ReleasePart{lease.id, "t", 1, 1, *process}).ok());
  CHECK(fixture.eventually(
      [&] { return serial_of(fixture, *fixture.engine->state().find_lease(lease.id)) != serial; }));
}

TEST_CASE("Engine: a lease that is attached while it is copied stays where it is") {
  EngineFixture fixture;
  fixture.start(busy_house);
  fixture.compose(true);
  const LeaseRow lease = grant_movable(fixture, 4 * mib);
  fixture.backend.during_copy = [&fixture, id = lease.id] { fixture.notifier.late = id.value; };
  REQUIRE(fixture.submit(DrainDevice{serial_of(fixture, lease)}).ok());
  CHECK(fixture.eventually([&] { return fixture.notifier.late != 0; }));
  CHECK(fixture.eventually([&] { return fixture.engine->state().leases().size() == 1; }));
  CHECK(fixture.engine->state().find_lease(lease.id)->extents == lease.extents);
  CHECK(fixture.engine->state().find_lease(lease.id)->object == lease.object);
}

TEST_CASE("Engine: after a start nothing is moved before holders had the time to say that they are there") {
  EngineFixture fixture;
  fixture.start();
  fixture.compose(true);
  const LeaseRow lease = grant_movable(fixture, 4 * mib);
  REQUIRE(fixture.submit(DrainDevice{serial_of(fixture, lease)}).ok());
  fixture.start(
      {.housekeeping_ns = 5 * ns_per_ms});  // another process finds the lease, and no session that holds it
  fixture.io.provider->getTimer().afterDelay(200 * kj::MILLISECONDS).wait(fixture.io.waitScope);
  CHECK(fixture.engine->state().find_lease(lease.id)->extents == lease.extents);
  CHECK(fixture.engine->state().leases().size() == 1);
}
