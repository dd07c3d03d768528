// SPDX-License-Identifier: Apache-2.0
// What events cost a grant: pairs of grant and release over the RPC, of a manager that tells events and of one that does not,
// in one process and in turns. Store and memory are in memory, so that no disk hides the cost: it is an upper bound.
//
//   bench_events [--smoke] [--json FILE]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/base/check.h"
#include "daemon/log/log.h"
#include "tests/support/manager_fixture.h"

using namespace terrace;
using SteadyClock = std::chrono::steady_clock;

namespace {

// As test::ManagerFixture, with the event loop of another.
struct Manager {
  Manager(kj::AsyncIoContext& loop, bool tell_events) : io(loop) {
    daemon::ServiceOptions options;
    options.admin_uids = {0};
    options.host = "here";
    daemon::EngineOptions engine_options;
    engine_options.tell_events = tell_events;
    engine_options.housekeeping_ns = 0;
    engine = std::make_unique<daemon::Engine>(store, backend, clock, io.provider->getTimer(), engine_options);
    TERRACE_CHECK(engine->start().wait(io.waitScope).ok(), "the engine starts");
    service = std::make_unique<daemon::Service>(*engine, options);
    server = std::make_unique<daemon::RpcServer>(*service, io);
    pipe = io.provider->newCapabilityPipe();
    served = server->serve(kj::mv(pipe.ends[0]), {0, 1, nullptr}).eagerlyEvaluate([](kj::Exception&&) {});
    client = std::make_unique<capnp::TwoPartyClient>(*pipe.ends[1], 4);
    prepare(client->bootstrap().castAs<rpc::Gateway>());
  }

  void prepare(rpc::Gateway::Client gateway) {
    auto hello = gateway.helloRequest();
    hello.setOldest(1);
    hello.setNewest(1);
    hello.setClient("bench");
    hello.send().wait(io.waitScope);
    auto admin = gateway.openAdminRequest().send().wait(io.waitScope).getAdmin();
    auto adopt = admin.adoptRequest();
    adopt.setSerial("emu:a");
    adopt.send().wait(io.waitScope);
    auto create = admin.createPoolRequest();
    create.setName("p");
    create.initDevices(1).set(0, "emu:a");
    create.send().wait(io.waitScope);
    auto open = gateway.openSessionRequest();
    open.setListener(kj::heap<test::CollectingListener>(notices));
    session = open.send().wait(io.waitScope).getSession();
  }

  // In microseconds, of each grant.
  void run(int pairs, std::vector<double>& grants) {
    for (int i = 0; i < pairs; ++i) {
      auto request = session.grantRequest();
      request.getRequest().setPool("p");
      request.getRequest().setBytes(2 << 20);
      const auto begin = SteadyClock::now();
      auto granted = request.send().wait(io.waitScope);
      grants.push_back(std::chrono::duration<double, std::micro>(SteadyClock::now() - begin).count());
      TERRACE_CHECK(granted.getError().getCode() == 0, "a lease is granted");
      granted.getLease().releaseRequest().send().wait(io.waitScope);
    }
    engine->drain().wait(io.waitScope);
  }

  kj::AsyncIoContext& io;
  SystemClock clock;
  test::MemoryStore store;
  test::MemoryBackend backend;
  std::unique_ptr<daemon::Engine> engine;
  std::unique_ptr<daemon::Service> service;
  std::unique_ptr<daemon::RpcServer> server;
  kj::CapabilityPipe pipe;
  kj::Promise<void> served = kj::READY_NOW;
  std::unique_ptr<capnp::TwoPartyClient> client;
  std::vector<test::CollectingListener::Notice> notices;
  rpc::TenantSession::Client session = nullptr;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What events cost a grant");
  bool smoke = false;
  std::string json;
  app.add_flag("--smoke", smoke, "A few pairs: shows that it runs");
  app.add_option("--json", json, "Where the numbers go");
  CLI11_PARSE(app, argc, argv);
  log::silence();
  auto io = kj::setupAsyncIo();
  Manager with(io, true), without(io, false);
  const int rounds = smoke ? 2 : 100, pairs = 10;  // 20 granules of 2 MiB are erased between two rounds
  std::vector<double> told, silent;
  for (int round = 0; round < rounds; ++round) {
    with.run(pairs, told);
    without.run(pairs, silent);
  }
  TERRACE_CHECK(with.engine->events().ring().newest() >= static_cast<uint64_t>(4 * rounds * pairs),
                "four events a pair");
  TERRACE_CHECK(without.engine->events().ring().newest() == 0, "none");
  const double with_us = median(told), without_us = median(silent);
  std::printf("grant, median of %d: %.1f us with events, %.1f us without: %+.1f %%\n", rounds * pairs, with_us,
              without_us, (with_us / without_us - 1) * 100);
  // What is behind it, apart: an event told, kept and dropped again.
  daemon::EventLog events(with.clock);
  const int count = smoke ? 1000 : 1'000'000;
  const auto begin = SteadyClock::now();
  for (int i = 0; i < count; ++i) {
    daemon::Event event{.kind = daemon::EventKind::lease_granted};
    event.message = "lease 1000 of 2 MiB, 'training'";
    event.lease = 1000;
    event.tenant = "uid-0";
    event.pool = "p";
    event.host = "here";
    events.tell(std::move(event));
  }
  const double each_ns = std::chrono::duration<double, std::nano>(SteadyClock::now() - begin).count() / count;
  std::printf("an event: %.0f ns\n", each_ns);
  if (!json.empty())
    std::ofstream(json) << nlohmann::json{{"grant_us_with", with_us},
                                          {"grant_us_without", without_us},
                                          {"grant_ratio", with_us / without_us},
                                          {"event_ns", each_ns}}
                        << "\n";
  return 0;
}
