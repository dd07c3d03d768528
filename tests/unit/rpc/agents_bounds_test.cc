// SPDX-License-Identifier: Apache-2.0
// What the agents' port bounds before a certificate is shown, and what it queues for one who reads nothing.
#include <capnp/any.h>
#include <capnp/message.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "core/base/unique_fd.h"
#include "daemon/rpc/connection/back_pressure.h"
#include "daemon/tls/handshakes.h"

using namespace terrace;
using daemon::BackPressureStream;
using daemon::Handshakes;

namespace {

// Handshakes that end only when they are given up.
struct Port {
  kj::AsyncIoContext io = kj::setupAsyncIo();
  Handshakes handshakes;
  std::vector<std::string> given_up;  // whose, in order
  std::vector<kj::Promise<void>> silent;

  void connect(const std::string& source) {
    kj::Promise<int> never = kj::NEVER_DONE;
    silent.push_back(handshakes.run(source, kj::mv(never))
                         .then([](int) {})
                         .catch_([this, source](kj::Exception&&) { given_up.push_back(source); })
                         .eagerlyEvaluate(nullptr));
  }
  void turn() { io.waitScope.poll(); }
};

class Known final : public daemon::Peers {
 public:
  explicit Known(daemon::PeerOptions options) : Peers(std::move(options)) {}
  uint64_t now_ns() const override { return 0; }
};

// One end of a pipe, whose other end reads only when told.
struct Wire {
  static constexpr uint32_t uid = 7;
  static constexpr size_t message_words = 1024;

  explicit Wire(daemon::PeerOptions options = {}) : peers(std::move(options)) {}

  kj::Promise<void> send() {
    auto message = kj::heap<capnp::MallocMessageBuilder>(message_words + 8);
    message->getRoot<capnp::AnyPointer>().initAs<capnp::Data>(message_words * sizeof(capnp::word));
    const auto segments = message->getSegmentsForOutput();
    return stream.writeMessage(nullptr, segments).attach(kj::mv(message));
  }
  kj::Promise<void> read() {
    return stream.tryReadMessage(nullptr, {}, nullptr).then([this](auto&& read) { taken += read != nullptr; });
  }

  kj::AsyncIoContext io = kj::setupAsyncIo();
  Known peers;
  kj::TwoWayPipe pipe = kj::newTwoWayPipe();
  BackPressureStream stream{kj::heap<capnp::AsyncIoMessageStream>(*pipe.ends[0]), *pipe.ends[0], 64 * kib,
                            peers, [] { return uid; }};
  int taken = 0;
};

std::string source_of_loopback(int family) {
  UniqueFd listener(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)), client;
  sockaddr_storage address{};
  address.ss_family = static_cast<sa_family_t>(family);
  if (family == AF_INET) reinterpret_cast<sockaddr_in&>(address).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (family == AF_INET6) reinterpret_cast<sockaddr_in6&>(address).sin6_addr = in6addr_loopback;
  socklen_t bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0) return "none";
  ::listen(listener.get(), 1);
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
  client = UniqueFd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(client.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0) return "none";
  return daemon::source_of(client.get());
}

}  // namespace

TEST_CASE("Handshakes: when all places are taken, the oldest gives way") {
  Port port;
  for (size_t i = 0; i < Handshakes::all_max; ++i) port.connect(std::to_string(i));
  port.turn();
  CHECK(port.given_up.empty());
  port.connect("late");
  port.connect("later");
  port.turn();
  CHECK(port.given_up == std::vector<std::string>{"0", "1"});
  CHECK(port.handshakes.under_way() == Handshakes::all_max);
}

TEST_CASE("Handshakes: one source costs others nothing, however often it comes") {
  Port port;
  port.connect("host");
  for (int i = 0; i < 1000; ++i) port.connect("silent");
  port.turn();
  CHECK(port.handshakes.under_way() == 1 + Handshakes::of_source_max);
  CHECK(port.given_up == std::vector<std::string>(1000 - Handshakes::of_source_max, "silent"));
}

TEST_CASE("Handshakes: one that is over gives its place back") {
  Port port;
  for (int i = 0; i < 3; ++i)
    CHECK(port.handshakes.run("host", kj::Promise<int>(i)).wait(port.io.waitScope) == i);
  CHECK(port.handshakes.under_way() == 0);
  port.connect("silent");
  port.silent.clear();
  CHECK(port.handshakes.under_way() == 0);
}

TEST_CASE("Handshakes: a source is an IPv4 address or an IPv6 network, without the port") {
  CHECK(source_of_loopback(AF_INET) == std::string("\x7f\0\0\1", 4));
  if (const std::string network = source_of_loopback(AF_INET6); network != "none")
    CHECK(network == std::string(8, '\0'));
  CHECK(daemon::source_of(-1).empty());
}

TEST_CASE(
    "BackPressureStream: nothing is read while the peer does not take what was sent, and that is counted") {
  Wire wire;
  auto written = wire.send().eagerlyEvaluate(nullptr);
  auto read = wire.read().eagerlyEvaluate(nullptr);
  capnp::AsyncIoMessageStream peer(*wire.pipe.ends[1]);
  capnp::MallocMessageBuilder call;
  call.getRoot<capnp::AnyPointer>().initAs<capnp::Data>(8);
  auto asked = peer.writeMessage(nullptr, call.getSegmentsForOutput()).eagerlyEvaluate(nullptr);
  wire.io.waitScope.poll();
  CHECK(wire.taken == 0);
  CHECK(wire.peers.unwritten_bytes(Wire::uid) >= Wire::message_words * sizeof(capnp::word));
  CHECK(wire.peers.unwritten_bytes(0) == 0);

  CHECK(peer.tryReadMessage(nullptr).wait(wire.io.waitScope) != nullptr);
  read.wait(wire.io.waitScope);
  CHECK(wire.taken == 1);
  CHECK(wire.peers.unwritten_bytes(Wire::uid) == 0);
}

TEST_CASE("BackPressureStream: a peer that takes nothing is found, one that is only silent is not") {
  daemon::PeerOptions options;
  options.write_stall_ns_max = 40 * ns_per_ms;
  Wire wire(options);
  kj::Timer& timer = wire.io.provider->getTimer();
  bool stalled = false;
  auto found = wire.stream.until_stalled(timer).then([&] { stalled = true; }).eagerlyEvaluate(nullptr);
  timer.afterDelay(120 * kj::MILLISECONDS).wait(wire.io.waitScope);
  CHECK_FALSE(stalled);
  auto written = wire.send().eagerlyEvaluate(nullptr);
  found.wait(wire.io.waitScope);
  CHECK(stalled);
}
