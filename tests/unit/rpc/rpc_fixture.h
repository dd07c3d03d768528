// SPDX-License-Identifier: Apache-2.0
// A manager with two devices of 64 MiB, and what a test says to it over a pipe.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/manager_fixture.h"

namespace terrace::test {

inline uint16_t code(ErrorCode value) {
  return static_cast<uint16_t>(value);
}

struct Rpc : ManagerFixture {
  struct Later {};  // start() is called once all is as it should be
  explicit Rpc(Later) {}
  Rpc() { start(); }
  explicit Rpc(daemon::ServiceOptions wanted) {
    options = std::move(wanted);
    options.admin_uids = {0};
    start();
  }

  template <typename Request>
  auto call(Request&& request) {
    return request.send().wait(io.waitScope);
  }
  void hello(FixtureClient& client) {
    auto request = client.gateway.helloRequest();
    request.setOldest(1);
    request.setNewest(1);
    request.setClient("test");
    REQUIRE(call(request).getError().getCode() == 0);
  }
  terrace::rpc::Admin::Client admin(FixtureClient& client) {
    hello(client);
    auto reply = call(client.gateway.openAdminRequest());
    REQUIRE(reply.getError().getCode() == 0);
    return reply.getAdmin();
  }
  void make_pool(terrace::rpc::Admin::Client& operator_) {
    for (const char* serial : {"emu:a", "emu:b"}) {
      auto adopt = operator_.adoptRequest();
      adopt.setSerial(serial);
      REQUIRE(call(adopt).getError().getCode() == 0);
    }
    auto create = operator_.createPoolRequest();
    create.setName("p");
    auto devices = create.initDevices(2);
    devices.set(0, "emu:a");
    devices.set(1, "emu:b");
    REQUIRE(call(create).getError().getCode() == 0);
  }
  terrace::rpc::TenantSession::Client session(FixtureClient& client) { return session(client, notices); }
  terrace::rpc::TenantSession::Client session(FixtureClient& client,
                                              std::vector<CollectingListener::Notice>& told) {
    hello(client);
    auto open = client.gateway.openSessionRequest();
    open.setListener(kj::heap<CollectingListener>(told));
    auto reply = call(open);
    REQUIRE(reply.getError().getCode() == 0);
    return reply.getSession();
  }
  auto grant(terrace::rpc::TenantSession::Client& tenant, uint64_t bytes,
             terrace::rpc::LeaseMode mode = terrace::rpc::LeaseMode::EXCLUSIVE) {
    auto request = tenant.grantRequest();
    request.getRequest().setPool("p");
    request.getRequest().setBytes(bytes);
    request.getRequest().setMode(mode);
    return call(request);
  }
  auto attach(terrace::rpc::TenantSession::Client& tenant, uint64_t lease, terrace::rpc::Access access) {
    auto request = tenant.attachRequest();
    request.setLease(lease);
    request.setAccess(access);
    return call(request);
  }
  uint64_t free_bytes(terrace::rpc::Admin::Client& operator_) {
    return call(operator_.poolsRequest()).getPools()[0].getFreeBytes();
  }
  // A request whose argument is one serial.
  template <typename Request>
  auto with_serial(Request&& request, const char* serial) {
    request.setSerial(serial);
    return call(request);
  }
  // In steps, each with a look at the descriptors: a test that was not running for that long has handled nothing else. Where
  // something should have happened after it, other threads have some more.
  void pump(int milliseconds) {
    const int steps = milliseconds < 5 ? milliseconds : std::max(milliseconds, 25);
    for (int i = 0; i < steps; ++i) io.provider->getTimer().afterDelay(1 * kj::MILLISECONDS).wait(io.waitScope);
  }

  std::vector<CollectingListener::Notice> notices;
};

}  // namespace terrace::test
