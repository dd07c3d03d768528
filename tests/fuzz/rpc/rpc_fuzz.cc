// SPDX-License-Identifier: Apache-2.0
// Bytes of a hostile peer against the manager's RPC. Each input is one connection's stream, cut into pieces
// by its own content; afterwards a well-behaved client must still be served and every invariant must hold.
//
// The same function runs under libFuzzer (fuzz preset) and over the corpus as an ordinary test.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "tests/support/manager_fixture.h"

using namespace terrace;
using namespace terrace::test;

namespace {

void check_still_served(ManagerFixture& fixture) {
  FixtureClient client(fixture, 0, 1);
  auto hello = client.gateway.helloRequest();
  hello.setOldest(1);
  hello.setNewest(1);
  hello.send().wait(fixture.io.waitScope);
  auto admin = client.gateway.openAdminRequest().send().wait(fixture.io.waitScope).getAdmin();
  if (admin.statusRequest().send().wait(fixture.io.waitScope).getError().getCode() != 0) std::abort();
  if (!fixture.engine->state().check_all().empty()) std::abort();  // as Admin.check does, without its process
}

ManagerFixture& manager() {
  static ManagerFixture* fixture = [] {
    auto* made = new ManagerFixture;
    made->backend.device_bytes = 8 * mib;
    made->start();
    return made;
  }();
  return *fixture;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ManagerFixture& fixture = manager();
  {
    auto pipe = fixture.io.provider->newCapabilityPipe();
    // An administrator's connection: everything that bytes can reach is reached.
    auto served = fixture.server->serve(kj::mv(pipe.ends[0]), {0, 7}).eagerlyEvaluate([](kj::Exception&&) {});
    auto drained = pipe.ends[1]->readAllBytes().ignoreResult().eagerlyEvaluate([](kj::Exception&&) {});
    size_t at = 0;
    while (at < size) {
      const size_t piece = std::min<size_t>(size - at, 1 + data[at] * 16);
      try {
        pipe.ends[1]->write(data + at, piece).wait(fixture.io.waitScope);
      } catch (const kj::Exception&) {
        break;  // the manager has closed the connection
      }
      at += piece;
      fixture.io.waitScope.poll();
    }
    fixture.io.provider->getTimer().afterDelay(200 * kj::MICROSECONDS).wait(fixture.io.waitScope);
  }
  fixture.io.waitScope.poll();
  static int inputs = 0;
  if (++inputs % 64 == 1) check_still_served(fixture);
  return 0;
}
