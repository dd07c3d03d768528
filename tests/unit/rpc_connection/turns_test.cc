// SPDX-License-Identifier: Apache-2.0
// Shares of the event loop's time, and of what it accepts.
#include <doctest/doctest.h>

#include <kj/vector.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "daemon/rpc/connection/listen.h"
#include "daemon/rpc/connection/turns.h"
#include "tests/support/manager_fixture.h"

using namespace terrace;
using namespace terrace::test;
using daemon::ShareKey;
using daemon::Turns;

namespace {

// A clock that goes on by this much with each look at it: a pass is over after a few messages.
uint64_t slow_now_ns = 0;
uint64_t slow_clock() {
  return slow_now_ns += Turns::pass_ns / 4;
}

// One that goes on when a test says so.
uint64_t still_now_ns = 1;
uint64_t still_clock() {
  return still_now_ns;
}

struct TurnsOfTest {
  explicit TurnsOfTest(Turns::NowNs clock = slow_clock) : turns(io.provider->getTimer(), clock) {}

  kj::AsyncIoContext io = kj::setupAsyncIo();
  Turns turns;
  std::vector<ShareKey> order;
  kj::Vector<kj::Promise<void>> asked;

  // A message as a connection has it: read, put together, a call, its answer, over a dozen turns of the queue; all of it
  // takes that long.
  void ask_costly(ShareKey key, uint64_t cost_ns) {
    kj::Promise<void> handled = turns.turn(key);
    for (int i = 0; i < 12; ++i) handled = handled.then([] { return kj::evalLater([] {}); });
    asked.add(handled
                  .then([this, key, cost_ns] {
                    still_now_ns += cost_ns;
                    order.push_back(key);
                  })
                  .eagerlyEvaluate(nullptr));
  }
  void ask(ShareKey key) {
    asked.add(turns.turn(key).then([this, key] { order.push_back(key); }).eagerlyEvaluate(nullptr));
  }
};

std::vector<UniqueFd> connect_many(const std::string& path, size_t count) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  std::vector<UniqueFd> all;
  for (size_t i = 0; i < count; ++i) {
    UniqueFd one(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(one.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    all.push_back(std::move(one));
  }
  return all;
}

struct ListeningFixture : ManagerFixture {
  ListeningFixture() {
    start();
    char name[] = "/tmp/terrace-turns-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    folder = name;
    path = folder + "/s.sock";
    auto made = daemon::listen_unix({path, 0600, {}, {}});
    REQUIRE(made.ok());
    bound.emplace(std::move(made).value());
    server->listen(std::move(bound->listener), nullptr);
  }
  ~ListeningFixture() {
    server.reset();
    bound.reset();
    ::rmdir(folder.c_str());
  }

  // Runs the loop until as many are connected; false: never within ten seconds.
  bool until_connected(uint32_t count) {
    kj::Timer& timer = io.provider->getTimer();
    for (int i = 0; i < 6000 && service->connections() != count; ++i)
      timer.afterDelay(10 * kj::MILLISECONDS).wait(io.waitScope);
    return service->connections() == count;
  }

  std::string folder, path;
  std::optional<daemon::BoundSocket> bound;
};

void greet(FixtureClient& client, kj::WaitScope& scope) {
  auto request = client.gateway.helloRequest();
  request.setOldest(1);
  request.setNewest(1);
  REQUIRE(request.send().wait(scope).getError().getCode() == 0);
}

}  // namespace

TEST_CASE("Turns: where nobody waits, a message is handled at once") {
  TurnsOfTest test;
  CHECK(test.turns.take(1) == nullptr);
  test.turns.look().wait(test.io.waitScope);
  test.turns.look().wait(test.io.waitScope);
  CHECK(test.turns.take(2) == nullptr);
  KJ_IF_MAYBE (later, test.turns.take(3))
    later->wait(test.io.waitScope);  // soon
  else
    FAIL("two are handled at a time");
}

// A look may bring the messages of hundreds of connections, which ask before the first of them was handled.
TEST_CASE("Turns: of hundreds that ask in the same moment all but one stand in line") {
  TurnsOfTest test(still_clock);
  for (int i = 0; i < 300; ++i) test.ask_costly(1, Turns::pass_ns / 8);
  test.ask_costly(2, Turns::pass_ns / 8);
  kj::joinPromises(test.asked.releaseAsArray()).wait(test.io.waitScope);
  REQUIRE(test.order.size() == 301);
  CHECK(std::find(test.order.begin(), test.order.end(), ShareKey{2}) - test.order.begin() <= 2);
}

TEST_CASE("Turns: what a message costs is its own uid's, though it goes on over several turns of the queue") {
  TurnsOfTest test(still_clock);
  for (int i = 0; i < 20; ++i) {
    test.ask_costly(1, 10 * Turns::pass_ns);
    test.ask_costly(2, Turns::pass_ns / 100);
  }
  kj::joinPromises(test.asked.releaseAsArray()).wait(test.io.waitScope);
  REQUIRE(test.order.size() == 40);
  // Twenty of the one cost less than one of the other's.
  CHECK(std::count(test.order.begin(), test.order.begin() + 23, ShareKey{2}) == 20);
}

TEST_CASE("Turns: a hundred messages of one uid do not delay another's first") {
  TurnsOfTest test;
  for (int i = 0; i < 100; ++i) test.ask(1);
  test.ask(2);
  kj::joinPromises(test.asked.releaseAsArray()).wait(test.io.waitScope);
  REQUIRE(test.order.size() == 101);
  const auto second = std::find(test.order.begin(), test.order.end(), ShareKey{2});
  CHECK(second - test.order.begin() <= 8);  // those handled before anybody waited, and one
}

TEST_CASE("Turns: a uid that always has one message more does not keep the loop from hearing others") {
  TurnsOfTest test;
  bool heard = false;
  uint64_t handled = 0;
  kj::Function<kj::Promise<void>()> again = [&]() -> kj::Promise<void> {
    if (heard || ++handled > 1'000'000) return kj::READY_NOW;
    return test.turns.turn(1).then([&again] { return again(); });
  };
  auto pipe = test.io.provider->newOneWayPipe();
  char byte = 0;
  auto hears = pipe.in->read(&byte, 1).then([&heard] { heard = true; }).eagerlyEvaluate(nullptr);
  auto flood = again().eagerlyEvaluate(nullptr);
  pipe.out->write("x", 1).wait(test.io.waitScope);
  flood.wait(test.io.waitScope);
  CHECK(heard);
  CHECK(handled < 1000);
}

TEST_CASE("Turns: a connection that is gone takes no turn") {
  TurnsOfTest test;
  for (int i = 0; i < 20; ++i) test.ask(1);
  { const auto given_up = test.turns.turn(2); }
  test.ask(3);
  kj::joinPromises(test.asked.releaseAsArray()).wait(test.io.waitScope);
  CHECK(test.order.size() == 21);
}

// Found by a program that connected and closed as fast as it could: the loop accepted, and heard nobody else.
TEST_CASE("RpcServer: a call is answered before a long line of connections is accepted") {
  ListeningFixture fixture;
  FixtureClient client(fixture, 1000, 1);
  greet(client, fixture.io.waitScope);
  constexpr uint32_t line = 900;
  REQUIRE(daemon::raise_descriptors_allowed() > 2 * line + 200);
  const auto silent = connect_many(fixture.path, line);
  greet(client, fixture.io.waitScope);
  CHECK(fixture.service->connections() < line * 2 / 3);  // a few handfuls of 64
  CHECK(fixture.until_connected(line + 1));
}

TEST_CASE(
    "RpcServer: connections that are gone before they are accepted are not counted, silent ones are until they "
    "end") {
  ListeningFixture fixture;
  { const auto gone = connect_many(fixture.path, 200); }
  auto silent = connect_many(fixture.path, 3);
  CHECK(fixture.until_connected(3));
  silent.pop_back();
  CHECK(fixture.until_connected(2));
  silent.clear();
  CHECK(fixture.until_connected(0));
}

TEST_CASE("RpcServer: a connection that speaks late is served") {
  ListeningFixture fixture;
  auto& scope = fixture.io.waitScope;
  auto fds = connect_many(fixture.path, 1);
  CHECK(fixture.until_connected(1));
  auto stream = fixture.io.lowLevelProvider->wrapUnixSocketFd(
      fds[0].release(),
      kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP | kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC);
  capnp::TwoPartyClient rpc(*stream);
  auto request = rpc.bootstrap().castAs<terrace::rpc::Gateway>().helloRequest();
  request.setOldest(1);
  request.setNewest(1);
  CHECK(request.send().wait(scope).getError().getCode() == 0);
}
