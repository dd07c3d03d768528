// SPDX-License-Identifier: Apache-2.0
// Parts of leases over RPC: who calls, whether the owner lives, and that others' parts and leases stay out of
// reach.
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "core/base/unique_fd.h"
#include "daemon/event_loop/processes.h"
#include "tests/unit/rpc/rpc_fixture.h"

using namespace terrace;
using namespace terrace::test;

namespace {

constexpr auto shared = terrace::rpc::LeaseMode::SHARED_COHERENT;

// A process that does nothing until it is killed.
class Child {
 public:
  Child() : pid_(::fork()) {
    if (pid_ == 0) {
      for (;;) ::pause();
    }
  }
  ~Child() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

struct Owners : Rpc {
  auto claim(terrace::rpc::Lease::Client lease, uint32_t part, uint64_t key, uint64_t last = 0) {
    auto request = lease.claimPartRequest();
    request.setPart(part);
    request.setKey(key);
    request.setLastEpoch(last);
    return call(request);
  }
  auto release(terrace::rpc::Lease::Client lease, uint32_t part, uint64_t epoch) {
    auto request = lease.releasePartRequest();
    request.setPart(part);
    request.setEpoch(epoch);
    return call(request);
  }
  bool dead(terrace::rpc::Lease::Client lease, uint32_t part, uint64_t epoch) {
    auto request = lease.partIsDeadRequest();
    request.setPart(part);
    request.setEpoch(epoch);
    const auto reply = call(request);
    REQUIRE(reply.getError().getCode() == 0);
    return reply.getDead();
  }
};

}  // namespace

TEST_CASE("Processes: one that has ended is told from one that lives, and from a later one of its number") {
  Child child;
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  UniqueFd ours(ends[0]), theirs(ends[1]);
  const auto id = daemon::peer_process(ours.get(), child.pid());
  REQUIRE_MESSAGE(id.ok(), id.error().to_string());
  CHECK(id->pid == static_cast<uint64_t>(child.pid()));
  CHECK_FALSE(daemon::process_has_ended(*id));
  daemon::ProcessId earlier = *id;
  --earlier.started;
  CHECK(daemon::process_has_ended(earlier));
  daemon::ProcessId elsewhere = earlier;  // of another pid namespace: nobody knows
  ++elsewhere.space;
  CHECK_FALSE(daemon::process_has_ended(elsewhere));
  CHECK_FALSE(daemon::process_has_ended({}));
  ::kill(child.pid(), SIGKILL);
  const UniqueFd process(static_cast<int>(::syscall(434, child.pid(), 0)));  // pidfd_open
  pollfd ended{.fd = process.get(), .events = POLLIN, .revents = 0};
  REQUIRE(::poll(&ended, 1, 30'000) == 1);
  CHECK(daemon::process_has_ended(*id));  // a zombie
  child.kill();
  CHECK(daemon::process_has_ended(*id));
  theirs.reset();
  CHECK(daemon::peer_process(ours.get(), ::getpid()).error().code == ErrorCode::unavailable);
  CHECK(daemon::peer_process(-1, ::getpid()).error().code == ErrorCode::unavailable);
  CHECK(daemon::peer_process(ours.get(), 0).error().code == ErrorCode::unsupported);
}

TEST_CASE("Processes: one that was told to another machine is asked about later, also after another boot") {
  Child child;
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const UniqueFd ours(ends[0]), theirs(ends[1]);
  const auto seen = daemon::peer_process(ours.get(), child.pid());
  REQUIRE(seen.ok());
  const auto told = daemon::told_elsewhere(*seen);
  REQUIRE_MESSAGE(told.ok(), told.error().to_string());
  CHECK_FALSE(daemon::told_process_has_ended(*told));
  CHECK_FALSE(daemon::process_has_ended(*told));  // as it is known here: of another namespace
  daemon::ProcessId other_boot = *told, elsewhere = *told, no_boot = *told, earlier = *told;
  other_boot.space += uint64_t{1} << 32;
  CHECK(daemon::told_process_has_ended(other_boot));
  no_boot.space &= UINT32_MAX;
  CHECK_FALSE(daemon::told_process_has_ended(no_boot));
  --earlier.started;
  CHECK(daemon::told_process_has_ended(earlier));
  elsewhere.space ^= 1;
  daemon::ProcessId container = elsewhere;  // with a boot id of its own
  container.space += uint64_t{1} << 32;
  CHECK_FALSE(daemon::told_process_has_ended(container));
  child.kill();
  CHECK(daemon::told_process_has_ended(*told));
  CHECK_FALSE(daemon::told_process_has_ended(elsewhere));
  CHECK_FALSE(daemon::told_process_has_ended({}));

  // An owner of another host is nobody whom this machine knows, whatever its numbers are.
  daemon::OwnerRow owner{.id = daemon::part_id(LeaseId{1}, 0), .epoch = 1, .process = *seen};
  CHECK(daemon::owner_has_ended(owner));
  owner.host = "hostb";
  CHECK_FALSE(daemon::owner_has_ended(owner));
}

TEST_CASE("Processes: a number that only a thread, or a group without its leader, has by now is no process") {
  Child child;
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const UniqueFd ours(ends[0]), theirs(ends[1]);
  const auto id = daemon::peer_process(ours.get(), child.pid());
  REQUIRE_MESSAGE(id.ok(), id.error().to_string());

  std::mutex mutex;
  std::condition_variable changed;
  pid_t number = 0;
  bool done = false;
  std::thread thread([&] {
    std::unique_lock lock(mutex);
    number = static_cast<pid_t>(::syscall(SYS_gettid));
    changed.notify_all();
    changed.wait(lock, [&] { return done; });
  });
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return number != 0; });
    daemon::ProcessId taken = *id;
    taken.pid = static_cast<uint64_t>(number);
    CHECK(daemon::process_has_ended(taken));
    done = true;
    changed.notify_all();
  }
  thread.join();

  Child member;
  REQUIRE(::setpgid(child.pid(), child.pid()) == 0);
  REQUIRE(::setpgid(member.pid(), child.pid()) == 0);
  child.kill();
  CHECK(daemon::process_has_ended(*id));
}

TEST_CASE("Owners: a part is its process's until that has ended, whatever becomes of the connection") {
  Owners t;
  Child writer, other;
  FixtureClient root(t, 0, 1);
  auto operator_ = t.admin(root);
  t.make_pool(operator_);
  auto first = kj::heap<FixtureClient>(t, 0, writer.pid());
  uint64_t id = 0;
  {
    auto writers = t.session(*first);
    auto granted = t.grant(writers, 2 * mib, shared);
    REQUIRE(granted.getError().getCode() == 0);
    id = granted.getInfo().getId();
    CHECK(t.claim(granted.getLease(), 3, 11).getEpoch() == 1);
    CHECK(t.claim(granted.getLease(), 3, 11).getEpoch() == 1);  // repeated
  }

  FixtureClient second(t, 0, other.pid());
  auto tenant = t.session(second);
  auto lease = t.attach(tenant, id, terrace::rpc::Access::READ_WRITE).getLease();
  const auto refused = t.claim(lease, 3, 12);
  CHECK(refused.getError().getCode() == code(ErrorCode::busy));
  CHECK(std::string(refused.getError().getDetail().cStr()).find(std::to_string(writer.pid())) !=
        std::string::npos);
  CHECK(t.release(lease, 3, 1).getError().getCode() == code(ErrorCode::permission_denied));
  CHECK_FALSE(t.dead(lease, 3, 1));
  CHECK_FALSE(t.dead(lease, 3, 2));  // never was
  CHECK_FALSE(t.dead(lease, 4, 1));
  CHECK_FALSE(t.dead(lease, 99, 1));
  first = nullptr;  // the connection is gone, the process is not
  t.pump(20);
  CHECK(t.claim(lease, 3, 12).getError().getCode() == code(ErrorCode::busy));
  CHECK_FALSE(t.dead(lease, 3, 1));

  auto about = t.call(lease.infoRequest());
  REQUIRE(about.getInfo().getOwners().size() == 1);
  CHECK(about.getInfo().getOwners()[0].getPart() == 3);
  CHECK(about.getInfo().getOwners()[0].getPid() == static_cast<uint32_t>(writer.pid()));
  CHECK_FALSE(about.getInfo().getOwners()[0].getEnded());
  writer.kill();
  CHECK(t.call(lease.infoRequest()).getInfo().getOwners()[0].getEnded());
  CHECK(t.dead(lease, 3, 1));
  CHECK(t.claim(lease, 3, 12).getEpoch() == 2);
  CHECK(t.dead(lease, 3, 1));
  CHECK_FALSE(t.dead(lease, 3, 2));
  REQUIRE(t.release(lease, 3, 2).getError().getCode() == 0);
  CHECK(t.dead(lease, 3, 2));
  CHECK(t.claim(lease, 3, 13, 40).getEpoch() == 41);
}

TEST_CASE("Owners: a lease is not moved from under an owner who lives and has no session now") {
  Owners t;
  Child writer, other;
  FixtureClient root(t, 0, 1);
  auto operator_ = t.admin(root);
  t.make_pool(operator_);
  auto first = kj::heap<FixtureClient>(t, 0, writer.pid());
  uint64_t id = 0;
  {
    auto writers = t.session(*first);
    auto granted = t.grant(writers, 2 * mib, shared);
    REQUIRE(granted.getError().getCode() == 0);
    id = granted.getInfo().getId();
    REQUIRE(t.claim(granted.getLease(), 3, 11).getEpoch() == 1);
    CHECK(t.call(granted.getLease().beginMoveRequest()).getError().getCode() == 0);  // its own part; given up
  }
  first = nullptr;
  FixtureClient second(t, 0, other.pid());
  auto tenant = t.session(second);
  terrace::rpc::Lease::Client lease = nullptr;
  bool absent = true;
  for (int i = 0; i < 500 && absent; ++i) {  // until the move is given up
    auto attached = t.attach(tenant, id, terrace::rpc::Access::READ_WRITE);
    absent = attached.getError().getCode() != 0;
    if (!absent) lease = attached.getLease();
    t.pump(10);
  }
  REQUIRE_FALSE(absent);
  const auto refused = t.call(lease.beginMoveRequest());
  CHECK(refused.getError().getCode() == code(ErrorCode::busy));
  CHECK(std::string(refused.getError().getDetail().cStr()).find("part 3") != std::string::npos);
  writer.kill();
  CHECK(t.call(lease.beginMoveRequest()).getError().getCode() == 0);
}

TEST_CASE("Owners: parts out of range, read-only and foreign leases, and thousands of claims disturb nobody") {
  Owners t;
  Child honest, hostile;
  FixtureClient root(t, 0, 1);
  auto operator_ = t.admin(root);
  t.make_pool(operator_);
  FixtureClient good(t, 0, honest.pid());
  auto tenant = t.session(good);
  auto granted = t.grant(tenant, 2 * mib, shared);
  const uint64_t id = granted.getInfo().getId();
  REQUIRE(t.claim(granted.getLease(), 0, 1).getEpoch() == 1);

  FixtureClient bad(t, 0, hostile.pid());
  auto intruder = t.session(bad);
  auto read_only = t.attach(intruder, id, terrace::rpc::Access::READ_ONLY).getLease();
  CHECK(t.claim(read_only, 1, 1).getError().getCode() == code(ErrorCode::permission_denied));
  auto lease = t.attach(intruder, id, terrace::rpc::Access::READ_WRITE).getLease();
  for (const uint32_t part : {64u, 65u, UINT32_MAX})
    CHECK(t.claim(lease, part, 1).getError().getCode() == code(ErrorCode::invalid_argument));
  CHECK(t.claim(lease, 1, 0).getError().getCode() == code(ErrorCode::invalid_argument));
  CHECK(t.claim(lease, 1, 1, UINT64_MAX).getError().getCode() == code(ErrorCode::invalid_argument));
  CHECK(t.release(lease, 0, 1).getError().getCode() == code(ErrorCode::permission_denied));
  CHECK(t.release(lease, 7, 1).getError().getCode() == code(ErrorCode::invalid_argument));
  for (uint64_t key = 1; key <= 3000; ++key)
    REQUIRE(t.claim(lease, 0, key).getError().getCode() == code(ErrorCode::busy));
  for (uint64_t key = 1; key <= 500; ++key) {
    REQUIRE(t.claim(lease, 2, key).getEpoch() == key);
    REQUIRE(t.release(lease, 2, key).getError().getCode() == 0);
  }
  for (uint32_t part = 1; part < 64; ++part) REQUIRE(t.claim(lease, part, 9).getError().getCode() == 0);
  auto exclusive = t.grant(intruder, 2 * mib);
  CHECK(t.claim(exclusive.getLease(), 0, 1).getError().getCode() == code(ErrorCode::unsupported));
  CHECK_FALSE(t.dead(granted.getLease(), 0, 1));
  CHECK(t.claim(granted.getLease(), 0, 1).getEpoch() == 1);
  CHECK(t.call(operator_.checkRequest()).getProblems().size() == 0);
}

TEST_CASE("Owners: a pool says its coherence, and its leases with it") {
  Owners t;
  FixtureClient root(t, 0, 1);
  auto operator_ = t.admin(root);
  t.make_pool(operator_);
  const auto set = [&](const char* pool) {
    auto request = operator_.setPoolCoherenceRequest();
    request.setName(pool);
    request.setCoherence(terrace::rpc::Coherence::COHERENT);
    return t.call(request);
  };
  CHECK(set("p").getPool().getCoherence() == terrace::rpc::Coherence::COHERENT);
  CHECK(t.call(operator_.poolsRequest()).getPools()[0].getCoherence() == terrace::rpc::Coherence::COHERENT);
  FixtureClient client(t, 0, ::getpid());
  auto tenant = t.session(client);
  auto granted = t.grant(tenant, 2 * mib, shared);
  CHECK(granted.getInfo().getCoherence() == terrace::rpc::Coherence::COHERENT);
  CHECK(set("q").getError().getCode() == code(ErrorCode::not_found));
}
