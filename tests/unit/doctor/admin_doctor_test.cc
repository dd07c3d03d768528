// SPDX-License-Identifier: Apache-2.0
// Admin.doctor: one look for all who ask within some seconds, on a thread that holds nobody up.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/unit/rpc/rpc_fixture.h"

using namespace terrace;
using namespace terrace::test;
using daemon::MachineDoctor;

namespace {

struct Looks {
  std::atomic<int> begun{0};
  std::atomic<bool> blocked{false}, stopped{false}, failing{false};
};

void look_with(Rpc& t, Looks& looks) {
  t.service->doctor().set_look(
      [&looks]() -> Result<std::vector<doctor::Check>> {
        ++looks.begun;
        while (looks.blocked && !looks.stopped) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        if (looks.failing)
          return Error{.code = ErrorCode::limit_exceeded, .where = "test", .detail = "too slow"};
        return std::vector<doctor::Check>{
            {.name = "kernel", .found = "Linux", .meaning = "fine", .essential = true},
            {.name = "memory", .state = doctor::CheckState::missing, .fix = "buy some", .essential = true}};
      },
      [&looks] { looks.stopped = true; });
}

}  // namespace

TEST_CASE("Doctor: what a helper saw is answered, for an operator; a second question costs no second look") {
  Looks looks;
  Rpc t;
  look_with(t, looks);
  FixtureClient root(t, 0, 1);
  auto admin = t.admin(root);
  const auto first = admin.doctorRequest().send().wait(t.io.waitScope);
  REQUIRE(first.getError().getCode() == 0);
  REQUIRE(first.getChecks().size() == 2);
  CHECK(first.getChecks()[0].getName() == "kernel");
  CHECK(first.getChecks()[0].getGroup() == "machine");
  CHECK(first.getChecks()[0].getState() == terrace::rpc::CheckState::OK);
  CHECK(first.getChecks()[1].getState() == terrace::rpc::CheckState::MISSING);
  CHECK(first.getChecks()[1].getFix() == "buy some");
  CHECK(!first.getBasicService());
  CHECK(admin.doctorRequest().send().wait(t.io.waitScope).getChecks().size() == 2);
  CHECK(looks.begun == 1);
}

TEST_CASE("Doctor: while a look hangs others are answered, and all who ask wait for the one look") {
  Looks looks;
  Rpc t;
  looks.blocked = true;
  look_with(t, looks);
  FixtureClient root(t, 0, 1);
  auto admin = t.admin(root);
  auto one = admin.doctorRequest().send();
  {
    auto left = admin.doctorRequest().send();  // goes before it is answered
    CHECK(admin.poolsRequest().send().wait(t.io.waitScope).getError().getCode() == 0);
  }
  auto two = admin.doctorRequest().send();
  CHECK(!one.poll(t.io.waitScope));
  looks.blocked = false;
  CHECK(one.wait(t.io.waitScope).getChecks().size() == 2);
  CHECK(two.wait(t.io.waitScope).getChecks().size() == 2);
  CHECK(looks.begun == 1);
}

TEST_CASE("Doctor: a look that failed is told as it is, and is not tried again at once") {
  Looks looks;
  Rpc t;
  looks.failing = true;
  look_with(t, looks);
  FixtureClient root(t, 0, 1);
  auto admin = t.admin(root);
  for (int i = 0; i < 3; ++i) {
    const auto reply = admin.doctorRequest().send().wait(t.io.waitScope);
    CHECK(reply.getError().getCode() == static_cast<uint16_t>(ErrorCode::limit_exceeded));
    CHECK(reply.getError().getDetail() == "too slow");
  }
  CHECK(looks.begun == 1);
}

TEST_CASE("Doctor: a manager that ends does not wait for a look that hangs") {
  Looks looks;
  {
    Rpc t;
    looks.blocked = true;
    look_with(t, looks);
    FixtureClient root(t, 0, 1);
    auto admin = t.admin(root);
    auto asked = admin.doctorRequest().send();
    CHECK(admin.poolsRequest().send().wait(t.io.waitScope).getError().getCode() == 0);
  }
  CHECK(looks.stopped);
}

TEST_CASE("Doctor: where nobody looks that is said") {
  Rpc t;
  FixtureClient root(t, 0, 1);
  auto admin = t.admin(root);
  const auto reply = admin.doctorRequest().send().wait(t.io.waitScope);
  CHECK(reply.getError().getCode() == static_cast<uint16_t>(ErrorCode::unsupported));
}
