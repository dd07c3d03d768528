// SPDX-License-Identifier: Apache-2.0
// Litmus runs by the manager: their memory is nobody's, is erased, and is given back whatever becomes of the
// call.
#include <future>

#include "core/schema/litmus.capnp.h"
#include "tests/unit/rpc/rpc_fixture.h"

using namespace terrace;
using namespace terrace::test;

namespace {

struct Operator {
  explicit Operator(Rpc& fixture)
      : t(fixture),
        client(fixture, 0, 1),
        admin(fixture.admin(client)),
        litmus(admin.castAs<terrace::rpc::LitmusAdmin>()) {}

  void adopt(const char* serial) {
    auto request = admin.adoptRequest();
    request.setSerial(serial);
    REQUIRE(t.call(request).getError().getCode() == 0);
  }
  auto look_at(const char* serial, uint32_t rounds) {
    auto request = litmus.lookAtRequest();
    request.setSerial(serial);
    request.setRounds(rounds);
    return request;
  }
  uint16_t make_pool(const char* name, const char* serial, terrace::rpc::Coherence coherence) {
    auto request = admin.createPoolRequest();
    request.setName(name);
    request.setCoherence(coherence);
    request.initDevices(1).set(0, serial);
    return t.call(request).getError().getCode();
  }

  Rpc& t;
  FixtureClient client;
  terrace::rpc::Admin::Client admin;
  terrace::rpc::LitmusAdmin::Client litmus;
};

}  // namespace

TEST_CASE("Litmus: what a run overwrote of a device in no pool is erased where it lies, and nothing stays") {
  Rpc t;
  t.backend.in_place = true;
  Operator one(t);
  CHECK(t.call(one.look_at("emu:a", 64)).getError().getCode() == code(ErrorCode::not_found));
  one.adopt("emu:a");
  const auto reply = t.call(one.look_at("emu:a", 64));
  REQUIRE(reply.getError().getCode() == 0);
  CHECK(reply.getLitmus().getShapes().size() == 7);
  for (const auto shape : reply.getLitmus().getShapes()) {
    CHECK(shape.getRounds() == 64);
    CHECK(shape.getForbidden() == 0);
  }
  CHECK(t.backend.erasures == 1);
  CHECK(t.backend.list()->empty());
  const auto looked = t.call(one.litmus.lookedRequest());
  REQUIRE(looked.getDevices().size() == 1);
  CHECK(std::string(looked.getDevices()[0].getDevice().cStr()) == "emu:a");
  CHECK(t.call(one.admin.checkRequest()).getProblems().size() == 0);
}

TEST_CASE("Litmus: memory that cannot be erased afterwards is an error, and stays an object of nobody's") {
  Rpc t;
  t.backend.in_place = true;
  t.backend.fail_erase = true;
  Operator one(t);
  one.adopt("emu:a");
  CHECK(t.call(one.look_at("emu:a", 64)).getError().getCode() == code(ErrorCode::io_error));
  REQUIRE(t.backend.list()->size() == 1);
  CHECK(t.call(one.litmus.lookedRequest()).getDevices().size() == 0);
  CHECK(one.make_pool("p", "emu:a", terrace::rpc::Coherence::COHERENT) == code(ErrorCode::io_error));
  CHECK(t.call(one.admin.poolsRequest()).getPools().size() == 0);
}

TEST_CASE("Litmus: a run of a device in a pool is a lease, which is gone afterwards") {
  Rpc t;
  t.backend.in_place = true;
  Operator one(t);
  t.make_pool(one.admin);
  const uint64_t free_before = t.free_bytes(one.admin);
  REQUIRE(t.call(one.look_at("emu:b", 64)).getError().getCode() == 0);
  for (int tries = 0; t.free_bytes(one.admin) != free_before && tries < 5000; ++tries)
    t.io.provider->getTimer().afterDelay(2 * kj::MILLISECONDS).wait(t.io.waitScope);
  CHECK(t.free_bytes(one.admin) == free_before);
  CHECK(t.engine->state().leases().empty());
  CHECK(t.backend.list()->empty());
}

TEST_CASE("Litmus: nothing changes the device meanwhile; a call that is dropped keeps nothing") {
  Rpc t;
  Operator one(t);
  one.adopt("emu:a");
  std::promise<void> gate;
  // The run's turn at the worker comes when all has been asked.
  auto held = t.engine->run_blocking([opened = gate.get_future().share()] {
    opened.wait();
    return Status();
  });
  {
    auto dropped = one.look_at("emu:a", 64).send();
    CHECK(one.make_pool("p", "emu:a", terrace::rpc::Coherence::UNKNOWN) == code(ErrorCode::busy));
    CHECK(one.make_pool("p", "emu:a", terrace::rpc::Coherence::COHERENT) == code(ErrorCode::busy));
    CHECK(t.call(one.look_at("emu:a", 64)).getError().getCode() == code(ErrorCode::busy));
    auto remove = one.admin.removeDeviceRequest();
    remove.setSerial("emu:a");
    CHECK(t.call(remove).getError().getCode() == code(ErrorCode::busy));
  }
  gate.set_value();
  CHECK(held.wait(t.io.waitScope).ok());
  CHECK(t.call(one.admin.checkRequest()).getProblems().size() == 0);
  uint16_t made = code(ErrorCode::busy);
  for (int tries = 0; made == code(ErrorCode::busy) && tries < 20'000; ++tries) {
    made = one.make_pool("p", "emu:a", terrace::rpc::Coherence::UNKNOWN);
    t.io.provider->getTimer().afterDelay(2 * kj::MILLISECONDS).wait(t.io.waitScope);
  }
  CHECK(made == 0);
  CHECK(t.backend.list()->empty());
}

TEST_CASE(
    "Litmus: no run while a device is being adopted; an adoption that is refused leaves one of ours as it "
    "was") {
  Rpc t;
  Operator one(t);
  one.adopt("emu:a");
  std::promise<void> gate;
  auto held = t.engine->run_blocking([opened = gate.get_future().share()] {
    opened.wait();
    return Status();
  });
  auto again = one.admin.adoptRequest();
  again.setSerial("emu:a");
  auto adopting = again.send();
  CHECK(t.call(one.look_at("emu:a", 64)).getError().getCode() == code(ErrorCode::busy));
  t.backend.used = true;
  gate.set_value();
  CHECK(held.wait(t.io.waitScope).ok());
  CHECK(adopting.wait(t.io.waitScope).getError().getCode() == code(ErrorCode::busy));
  CHECK(t.call(one.look_at("emu:a", 64)).getError().getCode() == 0);
  // Somebody's until it is ours.
  auto other = one.admin.adoptRequest();
  other.setSerial("emu:b");
  CHECK(t.call(other).getError().getCode() == code(ErrorCode::busy));
  CHECK(t.call(one.look_at("emu:b", 64)).getError().getCode() == code(ErrorCode::not_found));
  t.backend.used = false;
  one.adopt("emu:b");
  CHECK(t.call(one.look_at("emu:b", 64)).getError().getCode() == 0);
}
