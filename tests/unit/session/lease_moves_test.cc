// SPDX-License-Identifier: Apache-2.0
// Moves of a lease to other memory: with a manager that answers, and with one that goes away at each step.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "core/base/unique_fd.h"
#include "core/base/units.h"
#include "core/os/persist.h"
#include "libclient/guarded_copy.h"
#include "terrace/mapping.h"
#include "tests/support/eventually.h"
#include "tests/support/fake_gateway.h"

using namespace terrace;
using test::eventually;
using test::FakeGateway;
using test::Fault;

namespace {

constexpr auto unpaused = [](const std::function<void()>& body) { body(); };

// A manager, a session and one movable lease of 4 MiB, mapped and filled.
struct Scene {
  explicit Scene(uint64_t call_timeout_ns = 10 * ns_per_s) {
    gateway.start();
    SessionOptions options;
    options.socket_path = gateway.socket_path();
    options.call_timeout_ns = call_timeout_ns;
    auto connected = Session::connect(options);
    REQUIRE(connected.ok());
    session = std::move(*connected);
    LeaseRequest request;
    request.bytes = 4 * mib;
    request.movable = true;
    auto granted = session->grant(request);
    REQUIRE(granted.ok());
    lease = std::move(*granted);
    auto mapped = Mapping::map(lease);
    REQUIRE(mapped.ok());
    mapping = std::move(*mapped);
    fill(0x42);
    address = mapping->bytes().data();
  }
  void fill(int value) { std::memset(mapping->bytes().data(), value, mapping->bytes().size()); }
  bool all(int value) const {
    for (const std::byte byte : mapping->const_bytes())
      if (byte != static_cast<std::byte>(value)) return false;
    return true;
  }
  // That the mapping is the lease's memory: what is stored in one is found in the other.
  bool mapping_is_the_lease() {
    fill(0x43);
    char seen = 0;
    return ::pread(lease->fd(), &seen, 1, 4 * mib - 1) == 1 && seen == 0x43;
  }

  FakeGateway gateway;
  std::unique_ptr<Session> session;
  std::shared_ptr<Lease> lease;
  std::unique_ptr<Mapping> mapping;
  std::byte* address = nullptr;
};

bool same_file(int one, int other) {
  struct stat a {};
  struct stat b {};
  return ::fstat(one, &a) == 0 && ::fstat(other, &b) == 0 && a.st_ino == b.st_ino;
}

}  // namespace

TEST_CASE("Mapping: a move keeps address and bytes and steps the LeaseEpoch; the old memory is dead") {
  Scene scene;
  auto old_map = Mapping::map(scene.lease);
  const int old_fd = ::fcntl(scene.lease->fd(), F_DUPFD_CLOEXEC, 0);
  const int fd = scene.lease->fd();
  const LeaseEpoch before = scene.lease->epoch();
  bool paused = false;
  const Status moved = scene.mapping->move([&](const std::function<void()>& body) {
    paused = true;
    body();
  });
  REQUIRE_MESSAGE(moved.ok(), moved.error().to_string());
  CHECK(paused);
  CHECK(scene.mapping->bytes().data() == scene.address);
  CHECK(scene.all(0x42));
  CHECK(scene.lease->fd() == fd);
  CHECK(scene.lease->epoch() > before);
  CHECK_FALSE(same_file(old_fd, fd));
  CHECK(scene.mapping_is_the_lease());
  CHECK(scene.gateway.lease(1).moves == 1);
  CHECK(scene.lease->info().ok());
  ::close(old_fd);
  REQUIRE(scene.mapping->move(unpaused).ok());  // and again
  CHECK(scene.all(0x43));
  // The lease's later changes find it: attached again under the new epoch, resized, renewed.
  scene.gateway.restart();
  REQUIRE(scene.lease->resize(6 * mib).ok());
  REQUIRE(scene.mapping->resize().ok());
  CHECK(scene.mapping->bytes()[4 * mib - 1] == std::byte{0x43});
  CHECK(scene.lease->state() == LeaseState::live);
}

TEST_CASE("Mapping: a move whose commit took place is found out when its answer is lost") {
  Scene scene;
  scene.gateway.fail_next("commit", Fault::drop_after);
  SUBCASE("at once") {}
  SUBCASE("when the manager is back") {}
  SUBCASE("with another handle") {
    auto reader = scene.session->attach(scene.lease->id(), "", LeaseAccess::read_only);
    REQUIRE(reader.ok());
    REQUIRE(scene.mapping->move(unpaused).ok());
    CHECK(eventually([&] { return same_file((*reader)->fd(), scene.lease->fd()); }));
    CHECK((*reader)->state() == LeaseState::live);
    return;
  }
  const LeaseEpoch before = scene.lease->epoch();
  const Status moved = scene.mapping->move(unpaused);
  REQUIRE_MESSAGE(moved.ok(), moved.error().to_string());
  CHECK(scene.all(0x42));
  CHECK(scene.mapping->bytes().data() == scene.address);
  CHECK(scene.mapping_is_the_lease());
  CHECK(scene.lease->epoch() > before);
  CHECK(scene.lease->state() == LeaseState::live);
}

TEST_CASE("Mapping: a move whose commit did not take place leaves the old memory mapped") {
  Scene scene;
  const LeaseEpoch before = scene.lease->epoch();
  ErrorCode expected = ErrorCode::cancelled;
  SUBCASE("the connection broke before") {
    scene.gateway.fail_next("commit", Fault::drop_before);
  }
  SUBCASE("refused") {
    expected = ErrorCode::io_error;
    scene.gateway.refuse_with(ErrorCode::io_error, "the store is full");
    scene.gateway.fail_next("commit", Fault::refuse);
  }
  SUBCASE("a defect") {
    expected = ErrorCode::unavailable;
    scene.gateway.fail_next("commit", Fault::defect);
  }
  const Status moved = scene.mapping->move(unpaused);
  REQUIRE_FALSE(moved.ok());
  CHECK_MESSAGE(moved.error().code == expected, moved.error().to_string());
  CHECK(scene.all(0x42));
  CHECK(scene.mapping->bytes().data() == scene.address);
  CHECK(scene.lease->epoch() == before);
  CHECK(scene.mapping_is_the_lease());
  CHECK(scene.lease->state() == LeaseState::live);
  REQUIRE(eventually([&] { return scene.gateway.lease(1).moves_given_up == 1; }));
  scene.gateway.clear_faults();
  CHECK(scene.mapping->move(unpaused).ok());
}

TEST_CASE("LeaseMove: while the manager is away the outcome is unknown, and asking again settles it") {
  Scene scene(1500 * ns_per_ms);
  auto move = scene.lease->begin_move();
  REQUIRE(move.ok());
  CHECK((*move)->bytes() == 4 * mib);
  bool happened = false;
  SUBCASE("it had happened") {
    happened = true;
    scene.gateway.fail_next("commit", Fault::drop_after);
  }
  SUBCASE("it had not") {
    scene.gateway.fail_next("commit", Fault::drop_before);
  }
  std::thread killer([&] {
    eventually([&] { return scene.gateway.calls("commit") == 1; });
    scene.gateway.stop();
  });
  scene.gateway.fail_always("openSession", Fault::drop_before);
  const Status unknown = (*move)->commit();
  killer.join();
  REQUIRE_FALSE(unknown.ok());
  CHECK(unknown.error().code == ErrorCode::unavailable);
  CHECK((*move)->state() == LeaseMoveState::unknown);
  CHECK((*move)->abandon().error().code == ErrorCode::invalid_argument);
  scene.gateway.clear_faults();
  scene.gateway.start();
  Status status = (*move)->commit();
  for (int i = 0; i < 20 && !status.ok() && status.error().code == ErrorCode::unavailable; ++i)
    status = (*move)->commit();
  CHECK(status.ok() == happened);
  CHECK((*move)->state() == (happened ? LeaseMoveState::committed : LeaseMoveState::ended));
  CHECK(same_file((*move)->fd(), scene.lease->fd()) == happened);
  CHECK((*move)->commit().ok() == happened);  // the same answer again
  CHECK(scene.lease->state() == LeaseState::live);
}

TEST_CASE("LeaseMove: \"not moved\" waits until the old connection holds the lease no more") {
  Scene scene;
  scene.gateway.set_holders(1, 2);
  auto move = scene.lease->begin_move();
  REQUIRE(move.ok());
  scene.gateway.fail_next("commit", Fault::drop_before);
  std::atomic<bool> answered{false};
  std::thread caller([&] {
    (void)(*move)->commit().ok();
    answered = true;
  });
  REQUIRE(eventually([&] { return scene.gateway.calls("attach") >= 3; }));
  CHECK_FALSE(answered);
  CHECK((*move)->state() == LeaseMoveState::unknown);
  scene.gateway.set_holders(1, 1);
  caller.join();
  CHECK((*move)->state() == LeaseMoveState::ended);
}

TEST_CASE("LeaseMove: it ends with its connection, its handle, its lease or by word") {
  Scene scene;
  auto move = scene.lease->begin_move();
  REQUIRE_MESSAGE(move.ok(), move.error().to_string());
  CHECK((*move)->state() == LeaseMoveState::open);
  CHECK(scene.lease->begin_move().error().code == ErrorCode::busy);
  SUBCASE("connection") {
    scene.gateway.drop_connections();
    REQUIRE(eventually([&] { return (*move)->state() == LeaseMoveState::ended; }));
    CHECK((*move)->commit().error().code == ErrorCode::cancelled);
    CHECK(scene.gateway.calls("commit") == 0);
    CHECK((*move)->abandon().ok());
  }
  SUBCASE("handle") {
    move->reset();
    CHECK(eventually([&] { return scene.gateway.lease(1).moves_given_up == 1; }));
  }
  SUBCASE("word") {
    REQUIRE((*move)->abandon().ok());
    CHECK(scene.gateway.lease(1).moves_given_up == 1);
    CHECK((*move)->state() == LeaseMoveState::ended);
    CHECK((*move)->commit().error().code == ErrorCode::cancelled);
  }
  SUBCASE("lease") {
    scene.gateway.fence(1, "drained", LeaseCause::revoked);
    REQUIRE(eventually([&] { return (*move)->state() == LeaseMoveState::ended; }));
    CHECK((*move)->commit().error().code == ErrorCode::lease_revoked);
    return;
  }
  SUBCASE("session") {
    scene.session.reset();
    CHECK((*move)->commit().error().code == ErrorCode::cancelled);
    return;
  }
  CHECK(scene.lease->state() == LeaseState::live);
  CHECK(scene.all(0x42));
  CHECK(scene.mapping->move(unpaused).ok());
}

TEST_CASE("Mapping: a move that loses the new memory during the copy fails without a signal") {
  Scene scene;
  const Status moved = scene.mapping->move([&](const std::function<void()>& body) {
    scene.gateway.drop_connections();  // the manager gives the move up and fences the new memory
    eventually([&] { return scene.gateway.lease(1).moves_given_up == 1; });
    body();
  });
  REQUIRE_FALSE(moved.ok());
  CHECK_MESSAGE(moved.error().code == ErrorCode::cancelled, moved.error().to_string());
  CHECK(scene.all(0x42));
  CHECK(scene.mapping_is_the_lease());
}

TEST_CASE("Mapping: a pause that does nothing moves nothing") {
  Scene scene;
  CHECK(scene.mapping->move([](const std::function<void()>&) {}).error().code == ErrorCode::invalid_argument);
  CHECK(eventually([&] { return scene.gateway.lease(1).moves_given_up == 1; }));
  REQUIRE(scene.lease->resize(6 * mib).ok());
  CHECK(scene.mapping->move(unpaused).error().code == ErrorCode::invalid_argument);
  CHECK(scene.all(0x42));
}

TEST_CASE("Mapping: readers find the same bytes at every moment of a move") {
  Scene scene;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> wrong{0}, rounds{0};
  std::thread reader([&] {
    const auto bytes = scene.mapping->const_bytes();
    while (!stop) {
      for (size_t at = 0; at < bytes.size(); at += 4096) wrong += bytes[at] != std::byte{0x42};
      ++rounds;
    }
  });
  for (int i = 0; i < 5; ++i) CHECK(scene.mapping->move(unpaused).ok());
  CHECK(eventually([&] { return rounds > 1; }));
  stop = true;
  reader.join();
  CHECK(wrong == 0);
}

TEST_CASE("Lease: a request to move is told with the lease live, but not during a move") {
  Scene scene;
  std::atomic<int> requests{0};
  scene.session->on_notice([&](const LeaseNotice& notice) {
    if (notice.move_requested && notice.state == LeaseState::live && notice.reason == "a is drained")
      ++requests;
  });
  scene.gateway.request_move(1, "a is drained");
  CHECK(eventually([&] { return requests == 1; }));
  auto move = scene.lease->begin_move();
  REQUIRE(move.ok());
  scene.gateway.request_move(1, "a is drained");
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the request comes on another thread's loop
  REQUIRE((*move)->abandon().ok());
  CHECK(requests == 1);
  // The fence of what it occupied before is no loss.
  REQUIRE(scene.mapping->move(unpaused).ok());
  scene.gateway.tell_fenced(1, "moved", LeaseCause::moved);
  REQUIRE(scene.lease->info().ok());
  CHECK(scene.lease->state() == LeaseState::live);
  // Moved by somebody else, it is.
  scene.gateway.change_epoch(1);
  scene.gateway.tell_fenced(1, "moved", LeaseCause::moved);
  CHECK(eventually([&] { return scene.lease->state() == LeaseState::lost; }));
  scene.session->on_notice(nullptr);
}

// As a dax device is written back: by lines, each of which is looked up.
TEST_CASE("guarded copy: memory that is fenced while the copy is made durable is an error, not a signal") {
  const uint64_t bytes = 3 * mib;
  const UniqueFd file(::memfd_create("to", MFD_CLOEXEC));
  REQUIRE(::ftruncate(file.get(), bytes) == 0);
  ::setenv("PMEM2_FORCE_GRANULARITY", "CACHE_LINE", 1);
  const auto map = os::FileMap::map(file.get());
  ::unsetenv("PMEM2_FORCE_GRANULARITY");
  REQUIRE(map.ok());
  REQUIRE(map->granularity() == os::StoreGranularity::cache_line);
  std::memset(map->bytes().data(), 1, bytes);
  CHECK(persist_guarded(*map, map->bytes()).ok());
  REQUIRE(::ftruncate(file.get(), mib) == 0);
  CHECK(persist_guarded(*map, map->bytes()).error().code == ErrorCode::cancelled);
  REQUIRE(::ftruncate(file.get(), bytes) == 0);
  CHECK(persist_guarded(*map, map->bytes()).ok());
}

TEST_CASE("guarded copy: fenced memory on either side is an error, not a signal") {
  const uint64_t bytes = 3 * mib;
  const int from = ::memfd_create("from", MFD_CLOEXEC), to = ::memfd_create("to", MFD_CLOEXEC);
  REQUIRE(::ftruncate(from, bytes) == 0);
  REQUIRE(::ftruncate(to, bytes) == 0);
  const auto mapped = [&](int fd) {
    void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REQUIRE(address != MAP_FAILED);
    return std::span<std::byte>(static_cast<std::byte*>(address), bytes);
  };
  const auto source = mapped(from), target = mapped(to);
  for (size_t i = 0; i < bytes; i += 4096) source[i] = static_cast<std::byte>(i / 4096);
  REQUIRE(copy_through_pipe(source, target).ok());
  CHECK(std::memcmp(source.data(), target.data(), bytes) == 0);
  std::memset(target.data(), 0, bytes);
  REQUIRE(copy_guarded(from, source, target).ok());
  CHECK(std::memcmp(source.data(), target.data(), bytes) == 0);
  REQUIRE(::ftruncate(to, mib) == 0);
  CHECK(copy_guarded(from, source, target).error().code == ErrorCode::cancelled);
  CHECK(copy_through_pipe(source, target).error().code == ErrorCode::cancelled);
  REQUIRE(::ftruncate(to, bytes) == 0);
  REQUIRE(::ftruncate(from, mib) == 0);
  CHECK(copy_guarded(from, source, target).error().code == ErrorCode::lease_expired);
  CHECK(copy_through_pipe(source, target).error().code == ErrorCode::lease_expired);
  for (const auto range : {source, target}) ::munmap(range.data(), range.size());
  ::close(from);
  ::close(to);
}
