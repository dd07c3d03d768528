// SPDX-License-Identifier: Apache-2.0
// Sockets that are read in turns, and the report of which have something.
#include "daemon/rpc/connection/unix_stream.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <kj/debug.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

using namespace terrace;
using daemon::ReadySockets;
using daemon::UnixStream;

namespace {

struct Pair {
  UniqueFd ours, theirs;
};

Pair make_pair() {
  std::array<int, 2> fds{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()) == 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

struct Streams {
  kj::AsyncIoContext io = kj::setupAsyncIo();
  ReadySockets sockets{io.unixEventPort, io.provider->getTimer()};
  int turns = 0;

  std::unique_ptr<UnixStream> over(UniqueFd fd) {
    return std::make_unique<UnixStream>(sockets, std::move(fd), [this]() -> kj::Promise<void> {
      ++turns;
      return kj::READY_NOW;
    });
  }
  // The loop looks at its descriptors once, and goes on until nothing is left to do.
  void look() { io.provider->getTimer().afterDelay(0 * kj::NANOSECONDS).wait(io.waitScope); }
};

void say(const UniqueFd& fd, const std::string& text) {
  REQUIRE(::send(fd.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
}

}  // namespace

TEST_CASE_FIXTURE(Streams, "ReadySockets: however many have something, one look finds all") {
  constexpr size_t many = 1200;  // more than one round
  std::vector<Pair> pairs;
  std::vector<std::unique_ptr<UnixStream>> streams;
  std::vector<kj::Promise<void>> reads;
  size_t read = 0;
  char byte = 0;
  for (size_t i = 0; i < many; ++i) {
    pairs.push_back(make_pair());
    streams.push_back(over(std::move(pairs.back().ours)));
    reads.push_back(streams.back()
                        ->tryRead(&byte, 1, 1)
                        .then([&read](size_t bytes) { read += bytes; })
                        .eagerlyEvaluate(nullptr));
  }
  look();
  CHECK(read == 0);
  for (const Pair& one : pairs) say(one.theirs, "x");
  look();
  look();  // what the first one armed has run
  CHECK(read == many);
  CHECK(turns == many);
}

TEST_CASE_FIXTURE(Streams, "UnixStream: nothing is read before the turn has come") {
  Pair pair = make_pair();
  const int ours = pair.ours.get();
  auto turn = kj::newPromiseAndFulfiller<void>();
  UnixStream stream(sockets, std::move(pair.ours), [&turn] { return kj::mv(turn.promise); });
  std::string got(5, '-');
  auto read = stream.tryRead(got.data(), 5, 5).eagerlyEvaluate(nullptr);
  say(pair.theirs, "hello");
  look();
  look();
  CHECK_FALSE(read.poll(io.waitScope));
  CHECK(::recv(ours, got.data(), 1, MSG_PEEK | MSG_DONTWAIT) == 1);  // it lies in the kernel still
  turn.fulfiller->fulfill();
  CHECK(read.wait(io.waitScope) == 5);
  CHECK(got == "hello");
  CHECK(stream.had_turn());
  CHECK_FALSE(stream.had_turn());
}

TEST_CASE_FIXTURE(Streams, "UnixStream: what lies there already is read at once, and the end is none") {
  Pair pair = make_pair();
  const auto stream = over(std::move(pair.ours));
  say(pair.theirs, "ab");
  std::array<char, 8> buffer{};
  CHECK(stream->tryRead(buffer.data(), 1, 8).wait(io.waitScope) == 2);
  CHECK(turns == 0);
  say(pair.theirs, "c");
  pair.theirs.reset();
  CHECK(stream->tryRead(buffer.data(), 4, 8).wait(io.waitScope) == 1);  // fewer than asked: the end
  CHECK(stream->tryRead(buffer.data(), 1, 8).wait(io.waitScope) == 0);
  stream->whenWriteDisconnected().wait(io.waitScope);
  CHECK_THROWS_AS(stream->write("x", 1).wait(io.waitScope), kj::Exception);
}

TEST_CASE_FIXTURE(Streams,
                  "UnixStream: more than a socket holds goes out in order, from any number of pieces") {
  Pair pair = make_pair();
  const auto stream = over(std::move(pair.ours));
  std::vector<kj::byte> sent(3 << 20);
  std::iota(sent.begin(), sent.end(), kj::byte{0});
  std::vector<kj::ArrayPtr<const kj::byte>> pieces;
  for (size_t begin = 0, size = 1; begin < sent.size(); begin += size, size = size * 3 % 70'001)
    pieces.emplace_back(sent.data() + begin, std::min(size, sent.size() - begin));
  CHECK(pieces.size() > 50);
  std::vector<kj::byte> got;
  std::thread reader([&] {
    ::fcntl(pair.theirs.get(), F_SETFL, 0);
    std::vector<kj::byte> part(100'000);
    while (got.size() < sent.size()) {
      const ssize_t bytes = ::read(pair.theirs.get(), part.data(), part.size());
      if (bytes <= 0) break;
      got.insert(got.end(), part.begin(), part.begin() + bytes);
    }
  });
  stream->write(kj::arrayPtr(pieces.data(), pieces.size())).wait(io.waitScope);
  reader.join();
  CHECK(got == sent);
}

TEST_CASE_FIXTURE(Streams, "UnixStream: descriptors go with the first byte, and those of a peer are closed") {
  Pair pair = make_pair();
  const auto stream = over(std::move(pair.ours));
  const UniqueFd memory(::memfd_create("sent", MFD_CLOEXEC));
  REQUIRE(::ftruncate(memory.get(), 12345) == 0);
  const std::array<int, 2> fds{memory.get(), memory.get()};
  const std::array<kj::byte, 3> bytes{1, 2, 3};
  const auto data = kj::arrayPtr(bytes.data(), bytes.size());
  const auto both = kj::arrayPtr(fds.data(), fds.size());
  stream->writeWithFds(data, nullptr, both).wait(io.waitScope);

  // The other end, by kj's own stream.
  auto theirs = io.lowLevelProvider->wrapUnixSocketFd(
      pair.theirs.release(),
      kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP | kj::LowLevelAsyncIoProvider::ALREADY_NONBLOCK);
  std::array<kj::byte, 3> got{};
  std::array<kj::AutoCloseFd, 4> received;
  const auto result =
      theirs->tryReadWithFds(got.data(), 3, 3, received.data(), received.size()).wait(io.waitScope);
  CHECK(result.byteCount == 3);
  CHECK(result.capCount == 2);
  CHECK(::lseek(received[1].get(), 0, SEEK_END) == 12345);

  theirs->writeWithFds(data, nullptr, both).wait(io.waitScope);
  const UniqueFd before(::dup(0));
  const int next = before.get();
  CHECK(stream->tryRead(got.data(), 3, 3).wait(io.waitScope) == 3);
  const UniqueFd after(::dup(0));
  CHECK(after.get() <= next + 1);  // none took a place in between
}

TEST_CASE_FIXTURE(Streams, "UnixStream: one that is gone while it waits for its turn leaves nothing behind") {
  Pair pair = make_pair();
  auto turn = kj::newPromiseAndFulfiller<void>();
  auto stream =
      std::make_unique<UnixStream>(sockets, std::move(pair.ours), [&turn] { return kj::mv(turn.promise); });
  char byte = 0;
  kj::Maybe<kj::Promise<size_t>> read = stream->tryRead(&byte, 1, 1).eagerlyEvaluate(nullptr);
  say(pair.theirs, "x");
  look();
  look();
  read = nullptr;
  CHECK_FALSE(turn.fulfiller->isWaiting());
  stream.reset();
  say(make_pair().theirs, "y");
  look();
}
