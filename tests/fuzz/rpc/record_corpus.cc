// SPDX-License-Identifier: Apache-2.0
// Writes the client's side of real conversations as files, the seeds of the RPC fuzzer's corpus:
//   record_rpc_corpus DIRECTORY
#include <cstdio>
#include <fstream>
#include <functional>

#include "tests/support/manager_fixture.h"

using namespace terrace;
using namespace terrace::test;

namespace {

// Passes bytes on in both directions and keeps those of the client.
struct Recorder {
  kj::Promise<void> copy(kj::AsyncIoStream& from, kj::AsyncIoStream& to, bool keep) {
    return from.tryRead(buffer(keep), 1, sizeof(forward))
        .then([this, &from, &to, keep](size_t n) -> kj::Promise<void> {
          if (n == 0) return kj::READY_NOW;
          if (keep) bytes.append(forward, n);
          return to.write(buffer(keep), n).then([this, &from, &to, keep] { return copy(from, to, keep); });
        });
  }
  char* buffer(bool keep) { return keep ? forward : backward; }

  std::string bytes;
  char forward[65536];
  char backward[65536];
};

void converse(const std::string& file,
              const std::function<void(rpc::Gateway::Client&, kj::WaitScope&)>& conversation) {
  ManagerFixture fixture;
  fixture.backend.device_bytes = 8 * mib;
  fixture.start();
  auto client_side = fixture.io.provider->newTwoWayPipe();
  auto server_side = fixture.io.provider->newCapabilityPipe();
  Recorder recorder;
  auto served =
      fixture.server->serve(kj::mv(server_side.ends[0]), {0, 7}).eagerlyEvaluate([](kj::Exception&&) {});
  auto there =
      recorder.copy(*client_side.ends[1], *server_side.ends[1], true).eagerlyEvaluate([](kj::Exception&&) {});
  auto back =
      recorder.copy(*server_side.ends[1], *client_side.ends[1], false).eagerlyEvaluate([](kj::Exception&&) {});
  {
    capnp::TwoPartyClient client(*client_side.ends[0]);
    auto gateway = client.bootstrap().castAs<rpc::Gateway>();
    auto hello = gateway.helloRequest();
    hello.setOldest(1);
    hello.setNewest(1);
    hello.setClient("corpus");
    hello.send().wait(fixture.io.waitScope);
    conversation(gateway, fixture.io.waitScope);
  }
  std::ofstream(file, std::ios::binary) << recorder.bytes;
  std::printf("%s: %zu bytes\n", file.c_str(), recorder.bytes.size());
}

void compose(rpc::Admin::Client& admin, kj::WaitScope& scope) {
  auto adopt = admin.adoptRequest();
  adopt.setSerial("emu:a");
  adopt.send().wait(scope);
  auto create = admin.createPoolRequest();
  create.setName("p");
  create.initDevices(1).set(0, "emu:a");
  create.send().wait(scope);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: record_rpc_corpus DIRECTORY\n");
    return 2;
  }
  const std::string directory = argv[1];
  converse(directory + "/hello", [](auto&, auto&) {});
  converse(directory + "/admin", [](rpc::Gateway::Client& gateway, kj::WaitScope& scope) {
    auto admin = gateway.openAdminRequest().send().wait(scope).getAdmin();
    compose(admin, scope);
    admin.statusRequest().send().wait(scope);
    admin.devicesRequest().send().wait(scope);
    admin.leasesRequest().send().wait(scope);
    auto remove = admin.deletePoolRequest();
    remove.setName("p");
    remove.send().wait(scope);
  });
  converse(directory + "/lease", [](rpc::Gateway::Client& gateway, kj::WaitScope& scope) {
    auto admin = gateway.openAdminRequest().send().wait(scope).getAdmin();
    compose(admin, scope);
    std::vector<CollectingListener::Notice> notices;
    auto open = gateway.openSessionRequest();
    open.setListener(kj::heap<CollectingListener>(notices));
    auto session = open.send().wait(scope).getSession();
    auto grant = session.grantRequest();
    grant.getRequest().setPool("p");
    grant.getRequest().setBytes(2 * mib);
    grant.getRequest().setLabel("x");
    grant.getRequest().setRequestLow(1);
    auto granted = grant.send().wait(scope);
    auto lease = granted.getLease();
    lease.renewRequest().send().wait(scope);
    auto usage = lease.reportUsageRequest();
    usage.getUsage().setHolder("holder[1]");
    usage.send().wait(scope);
    auto renew = session.renewManyRequest();
    renew.initLeases(1).set(0, granted.getInfo().getId());
    renew.send().wait(scope);
    auto attach = session.attachRequest();
    attach.setLabel("x");
    attach.send().wait(scope);
    auto revoke = admin.revokeRequest();
    revoke.setLease(granted.getInfo().getId());
    revoke.setGraceNs(1);
    revoke.send().wait(scope);
    lease.releaseRequest().send().wait(scope);
  });
  converse(directory + "/run", [](rpc::Gateway::Client& gateway, kj::WaitScope& scope) {
    std::vector<CollectingListener::Notice> notices;
    auto open = gateway.openSessionRequest();
    open.setListener(kj::heap<CollectingListener>(notices));
    auto session = open.send().wait(scope).getSession();
    for (const uint64_t promotions : {7, 9, 8}) {  // the last one is refused: a counter that falls
      auto report = session.reportRunRequest();
      auto figures = report.initFigures();
      figures.setProgram("holder");
      figures.setProcesses(1);
      figures.setCxlBytes(2 * mib);
      figures.initCounters().setPromotions(promotions);
      figures.initToldBefore().setPromotions(2);
      report.send().wait(scope);
    }
    gateway.openAdminRequest().send().wait(scope).getAdmin().runsRequest().send().wait(scope);
  });
  return 0;
}
