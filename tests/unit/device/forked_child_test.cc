// SPDX-License-Identifier: Apache-2.0
// Streams, events and replicas in a child of fork: the threads behind them are the parent's.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <thread>

#include "terrace/device_replicas.h"
#include "tests/unit/device/device_fixture.h"

namespace terrace {
namespace {

using test::must;

// 0 when `body` came to its end in time; a hang is SIGALRM.
int in_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    body();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

#define CHILD_CHECK(condition) \
  if (!(condition)) ::_exit(__LINE__ % 250 + 1)

ErrorCode code_of(const Status& status) {
  return status.ok() ? ErrorCode::ok : status.error().code;
}

}  // namespace

TEST_CASE("DeviceStream: a child of fork can destroy it, is refused its use, and waits for nothing") {
  const auto device = test::emulated();
  auto stream = must(device->make_stream());
  const auto buffer = must(device->allocate(1 * mib, "buffer"));
  const test::Bytes bytes = test::random_bytes(1 * mib, 1);
  std::atomic<bool> let_go = false;
  // The stream's thread is in the middle of this one, and a thread of the parent waits for it.
  DeviceEvent held = must(stream->upload(buffer, 0, bytes, [&](Status copied) {
    while (!let_go) std::this_thread::yield();
    return copied;
  }));
  std::thread waiting([&] { (void)held.wait(); });
  CHECK(in_child([&] {
          CHILD_CHECK(!stream->upload(buffer, 0, bytes).ok());
          std::vector<std::byte> into(bytes.size());
          CHILD_CHECK(!stream->download(into, buffer, 0).ok());
          CHILD_CHECK(!stream->copy(buffer, 0, buffer, 0, 64).ok());
          CHILD_CHECK(code_of(stream->record().wait()) == ErrorCode::unavailable);
          CHILD_CHECK(code_of(held.wait()) == ErrorCode::unavailable && !held.wait_for(1'000'000).ok());
          CHILD_CHECK(!held.fd().ok());
          stream->wait(held);
          stream.reset();
          held = {};
        }) == 0);
  let_go = true;
  waiting.join();
  CHECK(held.wait().ok());
  CHECK(stream->record().wait().ok());
  CHECK(in_child([&] {
          held = {};
          stream.reset();
          std::exit(0);
        }) == 0);
}

TEST_CASE("DeviceReplicas: a child of fork can destroy them, is refused their use, and the parent goes on") {
  const auto device = test::emulated({.capacity_bytes = 64 * mib, .latency_ns = 1'000'000});
  const test::Bytes bytes =
      test::random_bytes(1 * mib, 1);  // outlives the replicas, which still copy it at the end
  auto replicas = must(DeviceReplicas::make(device, {}));
  Replica held = must(replicas->fetch({.id = 1, .name = "a", .bytes = bytes}, 1));
  std::atomic<bool> over = false;
  std::thread busy([&] {  // has the mutex, most of the time
    for (uint64_t version = 2; !over; ++version)
      (void)replicas->fetch({.id = 2, .name = "b", .bytes = bytes}, version);
  });
  for (int round = 0; round < 20; ++round)
    CHECK(in_child([&] {
            CHILD_CHECK(!replicas->fetch({.id = 3, .name = "c", .bytes = bytes}, 1).ok());
            CHILD_CHECK(replicas->state(1, 1) == ReplicaState::invalid);
            CHILD_CHECK(!replicas->mark_modified(held).ok());
            replicas->discard(1);
            replicas->set_budget(mib);
            (void)replicas->stats();
            held.release();
            replicas.reset();
          }) == 0);
  over = true;
  busy.join();
  CHECK(held.ready().wait().ok());
  CHECK(replicas->state(1, 1) == ReplicaState::shared);
}

}  // namespace terrace
