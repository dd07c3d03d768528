// SPDX-License-Identifier: Apache-2.0
// The manager without its process: engine, service and RPC server over a memory store and backend, reached
// through pipes on one event loop.
#pragma once

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include <memory>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/schema/terrace.capnp.h"
#include "daemon/rpc/connection/server.h"
#include "tests/support/memory_backend.h"
#include "tests/support/memory_store.h"

namespace terrace::test {

struct ManagerFixture {
  ManagerFixture() {
    options.admin_uids = {0};
    options.host = "here";
  }
  // Starts the engine; everything above may be changed before.
  void start() {
    engine = std::make_unique<daemon::Engine>(store, backend, clock, io.provider->getTimer(), engine_options);
    const Status status = engine->start().wait(io.waitScope);
    TERRACE_CHECK(status.ok(), "the fixture's engine starts");
    service = std::make_unique<daemon::Service>(*engine, options);
    server = std::make_unique<daemon::RpcServer>(*service, io);
  }

  kj::AsyncIoContext io = kj::setupAsyncIo();
  SystemClock clock;
  MemoryStore store;
  MemoryBackend backend;
  daemon::ServiceOptions options;
  daemon::EngineOptions engine_options;
  std::unique_ptr<daemon::Engine> engine;
  std::unique_ptr<daemon::Service> service;
  std::unique_ptr<daemon::RpcServer> server;
};

// Collects what a session was told.
class CollectingListener final : public rpc::LeaseListener::Server {
 public:
  struct Notice {
    uint64_t lease;
    bool fenced;
    std::string reason;
    rpc::LeaseCause cause = rpc::LeaseCause::NONE;
    bool move_requested = false;
  };
  explicit CollectingListener(std::vector<Notice>& notices) : notices_(notices) {}
  kj::Promise<void> revoking(RevokingContext context) override {
    notices_.push_back({context.getParams().getLease(), false, context.getParams().getReason().cStr()});
    return kj::READY_NOW;
  }
  kj::Promise<void> fenced(FencedContext context) override {
    notices_.push_back({context.getParams().getLease(), true, context.getParams().getReason().cStr(),
                        context.getParams().getCause()});
    return kj::READY_NOW;
  }
  kj::Promise<void> moveRequested(MoveRequestedContext context) override {
    notices_.push_back({context.getParams().getLease(), false, context.getParams().getReason().cStr(),
                        rpc::LeaseCause::NONE, true});
    return kj::READY_NOW;
  }

 private:
  std::vector<Notice>& notices_;
};

// One client connection of the fixture, as uid `uid` and process `pid`, through `socket` (null: by uid).
struct FixtureClient {
  FixtureClient(ManagerFixture& fixture, uint32_t uid, int32_t pid,
                std::shared_ptr<const daemon::ServedSocket> socket = nullptr)
      : pipe(fixture.io.provider->newCapabilityPipe()),
        served(fixture.server->serve(kj::mv(pipe.ends[0]), {uid, pid, std::move(socket)})
                   .eagerlyEvaluate([](kj::Exception&&) {})),
        rpc(*pipe.ends[1], 4),
        gateway(rpc.bootstrap().castAs<rpc::Gateway>()) {}

  kj::CapabilityPipe pipe;
  kj::Promise<void> served;
  capnp::TwoPartyClient rpc;
  terrace::rpc::Gateway::Client gateway;
};

}  // namespace terrace::test
