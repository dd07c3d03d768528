// SPDX-License-Identifier: Apache-2.0
// What a snapshot of the process finds, what it does to the process, and how its failures show.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <kj/async-io.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/event_loop/one_at_a_time.h"
#include "daemon/event_loop/snapshot_process.h"

using namespace terrace;
using namespace terrace::daemon;

using Found = SnapshotProcess::Found;

TEST_CASE("SnapshotProcess: its work sees the process as it was, and changes nothing in it") {
  int value = 1;
  auto started = SnapshotProcess::start([&]() -> Found {
    ::usleep(50'000);  // the parent has gone on by now
    const int before = value;
    value = 7;
    return {std::to_string(before), "", std::string("a\0b", 3), std::string(300'000, 'x')};
  });
  REQUIRE(started.ok());
  value = 2;
  const auto found = started->wait();
  REQUIRE(found.ok());
  CHECK(*found == Found{"1", "", std::string("a\0b", 3), std::string(300'000, 'x')});
  CHECK(value == 2);
}

TEST_CASE("SnapshotProcess: the child has no descriptor of the process but standard ones and its pipe") {
  int held[2];
  REQUIRE(::pipe2(held, 0) == 0);
  auto started = SnapshotProcess::start([]() -> Found {
    int open = 0;
    for (int fd = STDERR_FILENO + 1; fd < 4096; ++fd) open += ::fcntl(fd, F_GETFD) >= 0;
    return {std::to_string(open)};
  });
  REQUIRE(started.ok());
  const auto found = started->wait();
  REQUIRE(found.ok());
  CHECK(found->at(0) == "1");
  ::close(held[0]);
  ::close(held[1]);
}

TEST_CASE("SnapshotProcess: a child that ends early, or stands still, is an error and leaves nothing") {
  const std::vector<std::pair<const char*, std::function<Found()>>> cases = {
      {"exit code 3",
       [] {
         ::_exit(3);
         return Found();
       }},
      {"signal 9",
       [] {
         ::raise(SIGKILL);
         return Found();
       }},
      {"signal 9",
       [] {
         ::pause();
         return Found();
       }},
  };
  for (const auto& [how, work] : cases) {
    auto started = SnapshotProcess::start(work);
    REQUIRE(started.ok());
    const auto found = started->wait();
    REQUIRE(!found.ok());
    CHECK(found.error().code == ErrorCode::io_error);
    CHECK(found.error().detail.find(how) != std::string::npos);
  }
  {
    auto spinning = SnapshotProcess::start([]() -> Found {
      for (;;) ::sched_yield();
    });
    REQUIRE(spinning.ok());
    const auto found = spinning->wait(2);
    REQUIRE(!found.ok());
    CHECK(found.error().detail.find("signal 9") != std::string::npos);
  }
  {
    auto dropped = SnapshotProcess::start([] {
      ::pause();
      return Found();
    });
    REQUIRE(dropped.ok());
  }
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);  // no child is left, not even as a zombie
}

TEST_CASE("OneAtATime: the next one's turn comes with the end of one, and whoever has gone is passed over") {
  auto io = kj::setupAsyncIo();
  OneAtATime one;
  std::string order;
  auto first = one.turn().wait(io.waitScope);
  auto second = one.turn().then([&](kj::Own<OneAtATime::Turn>) { order += '2'; });
  auto gone = one.turn().then([&](kj::Own<OneAtATime::Turn>) { order += 'x'; });
  auto fulfilled_and_gone = one.turn();
  auto last = one.turn().then([&](kj::Own<OneAtATime::Turn>) { order += '3'; });
  CHECK(!second.poll(io.waitScope));
  gone = nullptr;
  first = nullptr;
  second.wait(io.waitScope);
  fulfilled_and_gone = nullptr;  // its turn has come, and nobody took it
  last.wait(io.waitScope);
  CHECK(order == "23");
  CHECK(one.turn().poll(io.waitScope));
}
