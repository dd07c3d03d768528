// SPDX-License-Identifier: Apache-2.0
// A tenant that speaks the protocol and means harm: one kind of attack a run, until it is killed. What the
// bytes alone can do (garbage, descriptors, connections) is in attacks.py.
//
//   deaf         asks for lists and never takes an answer
//   flood        keeps 512 calls under way, answers taken
//   liar         names other tenants, asks for the operator's interface, attaches others' leases by number
//   attach       attaches one lease as often as it can and keeps every capability
//   queue        fills the waiting queue of its tenant, and goes on asking
//   move         begins moves and never finishes them
//   swarm        two hundred connections, each with calls under way
//   churn        connects, opens a session and leaves, sixteen at a time, over and over
//   grow         keeps the descriptor of a lease that is fenced: grows the file and writes to it, over and over
//
// Lines     attack KIND COUNT, now and then; "breach WHAT" when it got something it must not have: exit code 3
//           "ended KIND COUNT REASON" when the manager closed the connection; it then begins again
#include <kj/async-unix.h>
#include <kj/vector.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstring>
#include <vector>

#include "capnp/rpc-twoparty.h"
#include "core/base/units.h"
#include "core/schema/terrace.capnp.h"
#include "tests/support/holder.h"

namespace terrace::test {
namespace {

// It got what it must not have.
[[noreturn]] void breach(const std::string& what) {
  say("breach " + what);
  ::_exit(3);
}

struct Options {
  std::string socket, kind;
  uint64_t others_lease = 1;
};

// Only the sending half of it works.
struct Deaf final : public kj::AsyncIoStream {
  explicit Deaf(kj::AsyncCapabilityStream& to_in) : to(to_in) {}
  kj::Promise<size_t> tryRead(void*, size_t, size_t) override { return kj::NEVER_DONE; }
  kj::Promise<void> write(const void* bytes, size_t size) override { return to.write(bytes, size); }
  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override {
    return to.write(pieces);
  }
  kj::Promise<void> whenWriteDisconnected() override { return to.whenWriteDisconnected(); }
  void shutdownWrite() override {}
  kj::AsyncCapabilityStream& to;
};

struct NoListener final : public rpc::LeaseListener::Server {};

int connect_to(const std::string& path) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), std::min(path.size(), sizeof(address.sun_path) - 1));
  if (fd < 0 || ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (fd >= 0) ::close(fd);
    return -1;
  }
  return fd;
}

kj::Own<kj::AsyncCapabilityStream> stream_of(kj::AsyncIoContext& io, int fd) {
  return io.lowLevelProvider->wrapUnixSocketFd(fd, kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP |
                                                       kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC |
                                                       kj::LowLevelAsyncIoProvider::ALREADY_NONBLOCK);
}

// One of many connections of an attack.
struct Another {
  Another(kj::AsyncIoContext& io, int fd) : stream(stream_of(io, fd)), client(*stream, 4) {
    auto gateway = client.bootstrap().castAs<rpc::Gateway>();
    auto hello = gateway.helloRequest();
    hello.setOldest(1);
    hello.setNewest(1);
    hello.setClient("attacker");
    greeted = hello.send().ignoreResult();
    auto open = gateway.openSessionRequest();
    open.setListener(kj::heap<NoListener>());
    auto reply = open.send();
    session = reply.getSession();
    opened = reply.ignoreResult();
  }

  kj::Own<kj::AsyncCapabilityStream> stream;
  capnp::TwoPartyClient client;
  kj::Promise<void> greeted = nullptr, opened = nullptr;
  rpc::TenantSession::Client session = nullptr;
};

class Attack {
 public:
  Attack(const Options& options, kj::AsyncIoContext& io, kj::Own<kj::AsyncCapabilityStream> stream)
      : options_(options),
        io_(io),
        scope_(io.waitScope),
        timer_(io.provider->getTimer()),
        stream_(kj::mv(stream)) {
    if (options_.kind == "deaf") {
      deaf_ = kj::heap<Deaf>(*stream_);
      client_ = kj::heap<capnp::TwoPartyClient>(*deaf_);
    } else {
      client_ = kj::heap<capnp::TwoPartyClient>(*stream_, 4);
    }
  }

  void run(uint64_t& count) {
    auto gateway = client_->bootstrap().castAs<rpc::Gateway>();
    auto hello = gateway.helloRequest();
    hello.setOldest(1);
    hello.setNewest(1);
    hello.setClient("attacker-" + options_.kind);
    auto greeted = hello.send();
    if (options_.kind == "deaf") return be_deaf(gateway, count);
    greeted.wait(scope_);
    if (options_.kind == "liar") return lie(gateway, count);
    if (options_.kind == "swarm") return swarm(count);
    if (options_.kind == "churn") return churn(count);
    auto session = open_session(gateway, "");
    if (options_.kind == "flood") return flood(session, count);
    if (options_.kind == "attach") return attach(session, count);
    if (options_.kind == "queue") return queue(session, count);
    if (options_.kind == "move") return move(session, count);
    grow(session, count);
  }

 private:
  using Session = rpc::TenantSession::Client;

  Session open_session(rpc::Gateway::Client& gateway, const std::string& tenant) {
    auto open = gateway.openSessionRequest();
    open.setTenant(tenant);
    open.setListener(kj::heap<NoListener>());
    auto reply = open.send().wait(scope_);
    if (reply.getError().getCode() != 0) KJ_FAIL_REQUIRE("no session", reply.getError().getDetail());
    return reply.getSession();
  }

  auto grant(Session& session, uint64_t wait_ns, bool movable) {
    auto request = session.grantRequest();
    auto fields = request.getRequest();
    fields.setPool("p");
    fields.setBytes(2 * mib);
    fields.setTtlNs(10 * ns_per_s);
    fields.setWaitNs(wait_ns);
    fields.setMovable(movable);
    return request.send();
  }

  void told(uint64_t count) {
    if (count % 64 == 0) say("attack " + options_.kind + ' ' + std::to_string(count));
  }
  void rest(int milliseconds) { timer_.afterDelay(milliseconds * kj::MILLISECONDS).wait(scope_); }

  void be_deaf(rpc::Gateway::Client& gateway, uint64_t& count) {
    auto open = gateway.openSessionRequest();
    open.setListener(kj::heap<NoListener>());
    auto session = open.send().getSession();  // pipelined: no answer is needed
    auto ended = stream_->whenWriteDisconnected();
    std::vector<kj::Promise<void>> asked;
    for (int i = 0; i < 20'000; ++i) {
      auto list = session.listRequest();
      list.setLimit(10'000);
      asked.push_back(list.send().ignoreResult());
      told(++count);
      if (i % 16 == 0) rest(1);
    }
    ended.wait(scope_);  // until the manager has enough of it
  }

  void flood(Session& session, uint64_t& count) {
    for (;;) {
      auto burst = kj::heapArrayBuilder<kj::Promise<void>>(512);
      for (uint64_t i = 0; i < 512; ++i) {
        if (i % 3 == 0) {
          burst.add(session.poolsRequest().send().ignoreResult());
        } else if (i % 3 == 1) {
          auto list = session.listRequest();
          list.setLimit(10'000);
          burst.add(list.send().ignoreResult());
        } else {
          auto renew = session.renewManyRequest();
          auto leases = renew.initLeases(100);
          for (uint32_t one = 0; one < 100; ++one) leases.set(one, one);
          burst.add(renew.send().ignoreResult());
        }
        told(++count);
      }
      kj::joinPromises(burst.finish()).wait(scope_);
    }
  }

  std::vector<kj::Own<Another>> connect_more(size_t number) {
    std::vector<kj::Own<Another>> all;
    for (size_t i = 0; i < number; ++i) {
      const int fd = connect_to(options_.socket);
      if (fd >= 0) all.push_back(kj::heap<Another>(io_, fd));
    }
    return all;
  }

  void swarm(uint64_t& count) {
    auto all = connect_more(200);
    KJ_REQUIRE(!all.empty(), "no connections");
    for (;;) {
      kj::Vector<kj::Promise<void>> burst;
      for (auto& one : all) {
        for (int i = 0; i < 4; ++i) {
          burst.add(one->session.poolsRequest().send().ignoreResult());
          told(++count);
        }
      }
      kj::joinPromises(burst.releaseAsArray()).wait(scope_);
    }
  }

  void churn(uint64_t& count) {
    for (;;) {
      auto all = connect_more(16);
      for (auto& one : all) {
        KJ_IF_MAYBE (ended, kj::runCatchingExceptions([&] { one->opened.wait(scope_); })) {
          (void)ended;
        }
        told(++count);
      }
      if (all.empty()) rest(1);
    }
  }

  void lie(rpc::Gateway::Client& gateway, uint64_t& count) {
    for (;;) {
      for (const char* name : {"victim", "uid-0", "admin", "../p", "*"}) {
        auto open = gateway.openSessionRequest();
        open.setTenant(name);
        open.setListener(kj::heap<NoListener>());
        if (open.send().wait(scope_).getError().getCode() == 0)
          breach(std::string("a session as tenant ") + name);
        told(++count);
      }
      if (gateway.openAdminRequest().send().wait(scope_).getError().getCode() == 0)
        breach("the operator's interface");
      auto session = open_session(gateway, "");
      for (uint64_t id = options_.others_lease; id < options_.others_lease + 8; ++id) {
        auto attach = session.attachRequest();
        attach.setLease(id);
        attach.setAccess(rpc::Access::READ_ONLY);
        auto reply = attach.send().wait(scope_);
        if (reply.getError().getCode() == 0 && reply.getInfo().getTenant() == "victim")
          breach("lease " + std::to_string(id) + " of another tenant");
        told(++count);
      }
      auto renew = session.renewManyRequest();
      renew.initLeases(1).set(0, options_.others_lease);
      if (renew.send().wait(scope_).getFailed().size() != 1) breach("another tenant's lease was renewed");
    }
  }

  void attach(Session& session, uint64_t& count) {
    auto granted = grant(session, 0, false).wait(scope_);
    KJ_REQUIRE(granted.getError().getCode() == 0, "no lease", granted.getError().getDetail());
    std::vector<rpc::Lease::Client> kept;
    kept.push_back(granted.getLease());
    for (;;) {
      auto attach = session.attachRequest();
      attach.setLease(granted.getInfo().getId());
      attach.setAccess(rpc::Access::READ_WRITE);
      auto reply = attach.send().wait(scope_);
      if (reply.getError().getCode() == 0) {
        kept.push_back(reply.getLease());
      } else {
        rest(20);
      }
      if (count % 256 == 0) kept.front().renewRequest().send().wait(scope_);
      told(++count);
    }
  }

  void queue(Session& session, uint64_t& count) {
    std::vector<kj::Promise<void>> waiting;
    for (;;) {
      for (int i = 0; i < 64; ++i) {
        auto asked = grant(session, 3600 * ns_per_s, false);
        waiting.push_back(asked.ignoreResult().eagerlyEvaluate([](kj::Exception&&) {}));
        told(++count);
      }
      rest(100);
      if (waiting.size() > 4096) waiting.erase(waiting.begin(), waiting.begin() + 2048);  // gives up half of it
    }
  }

  void move(Session& session, uint64_t& count) {
    std::vector<rpc::Lease::Client> leases;
    std::vector<rpc::LeaseMove::Client> begun;
    for (;;) {
      if (leases.size() < 8) {
        auto granted = grant(session, 0, true).wait(scope_);
        if (granted.getError().getCode() == 0) leases.push_back(granted.getLease());
      }
      for (auto& lease : leases) {
        auto reply = lease.beginMoveRequest().send().wait(scope_);
        if (reply.getError().getCode() == 0) begun.push_back(reply.getMove());
        told(++count);
      }
      if (begun.size() > 32) begun.clear();  // dropped: given up without a word
      rest(20);
    }
  }

  // Holds on to the descriptor for ever; the operator may take the lease back whenever it likes.
  void grow(Session& session, uint64_t& count) {
    auto granted = grant(session, 0, false).wait(scope_);
    KJ_REQUIRE(granted.getError().getCode() == 0, "no lease", granted.getError().getDetail());
    auto lease = granted.getLease();
    auto fd = lease.getFd().wait(scope_);
    KJ_IF_MAYBE (descriptor, fd) {
      install_sigbus_guard();
      void* memory = ::mmap(nullptr, 64 * mib, PROT_READ | PROT_WRITE, MAP_SHARED, *descriptor, 0);
      KJ_REQUIRE(memory != MAP_FAILED);
      auto* bytes = static_cast<volatile char*>(memory);
      for (;;) {
        for (uint64_t size = 2 * mib; size <= 8 * mib; size += 2 * mib) {
          [[maybe_unused]] const int grown = ::ftruncate(*descriptor, static_cast<off_t>(size));
          touch([&] {
            for (uint64_t at = 0; at < size; at += page_bytes) bytes[at] = 'x';
          });
        }
        told(++count);
        rest(1);
      }
    } else {
      KJ_FAIL_REQUIRE("no descriptor");
    }
  }

  const Options& options_;
  kj::AsyncIoContext& io_;
  kj::WaitScope& scope_;
  kj::Timer& timer_;
  kj::Own<kj::AsyncCapabilityStream> stream_;
  kj::Own<Deaf> deaf_;
  kj::Own<capnp::TwoPartyClient> client_;
};

int start(const Options& options) {
  ::signal(SIGPIPE, SIG_IGN);
  auto io = kj::setupAsyncIo();
  uint64_t count = 0;
  for (;;) {
    const int fd = connect_to(options.socket);
    if (fd >= 0) {
      std::string why = "done";
      KJ_IF_MAYBE (exception,
                   kj::runCatchingExceptions([&] { Attack(options, io, stream_of(io, fd)).run(count); }))
        why = exception->getDescription().cStr();
      say("ended " + options.kind + ' ' + std::to_string(count) + ' ' + why);
    }
    io.provider->getTimer().afterDelay(100 * kj::MILLISECONDS).wait(io.waitScope);
  }
}

}  // namespace
}  // namespace terrace::test

int main(int argc, char** argv) {
  terrace::test::Options options;
  CLI::App app{"Attacks a manager in one way, until it is killed."};
  app.add_option("kind", options.kind)
      ->required()
      ->check(CLI::IsMember({"deaf", "flood", "liar", "attach", "queue", "move", "swarm", "churn", "grow"}));
  app.add_option("--socket", options.socket)->required();
  app.add_option("--others-lease", options.others_lease, "the first lease of another tenant, for the liar");
  CLI11_PARSE(app, argc, argv);
  return terrace::test::start(options);
}
