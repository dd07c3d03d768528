// SPDX-License-Identifier: Apache-2.0
// Admin.check and Admin.fsck: what is wrong is told, what is only under way is not, and nobody waits meanwhile.
#include <sys/stat.h>

#include "tests/unit/rpc/rpc_fixture.h"

using namespace terrace;
using namespace terrace::test;

namespace {

constexpr const char* stray = "lease-4711";

// What a list shows besides what there is, for so many times.
void show_stray(Rpc& t, int times) {
  t.backend.while_listed = [&t, left = times]() mutable {
    if (left-- > 0) {
      CHECK(t.backend.carve(stray, 2 * mib, {}).ok());
    } else {
      (void)t.backend.scrub(stray);
    }
  };
}

size_t problems(Rpc& t, terrace::rpc::Admin::Client& operator_) {
  const auto checked = t.call(operator_.checkRequest());
  REQUIRE(checked.getError().getCode() == 0);
  return checked.getProblems().size();
}

}  // namespace

TEST_CASE("Check: an object that is there for one look is no problem, one that stays is") {
  Rpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  auto tenant = t.session(client);
  t.make_pool(operator_);
  CHECK(t.grant(tenant, 4 * mib).getError().getCode() == 0);
  CHECK(problems(t, operator_) == 0);

  CHECK(t.backend.carve(stray, 2 * mib, {}).ok());
  const auto checked = t.call(operator_.checkRequest());
  REQUIRE(checked.getProblems().size() == 1);
  CHECK(std::string(checked.getProblems()[0].cStr()) ==
        std::string("object ") + stray + " belongs to no lease");
  const auto found = t.call(operator_.fsckRequest());
  CHECK(found.getError().getCode() == 0);
  bool named = false;
  for (const auto finding : found.getFindings())
    named = named || (std::string(finding.getSubject().cStr()) == std::string("object ") + stray &&
                      std::string(finding.getSeverity().cStr()) == "warning");
  CHECK(named);
  CHECK(t.backend.scrub(stray).ok());

  show_stray(t, 1);
  CHECK(problems(t, operator_) == 0);

  // Under load each look finds something under way, and never the same.
  t.backend.while_listed = [&t, number = 5000]() mutable {
    (void)t.backend.scrub("lease-" + std::to_string(number++));
    CHECK(t.backend.carve("lease-" + std::to_string(number), 2 * mib, {}).ok());
  };
  CHECK(problems(t, operator_) == 0);
  const auto looked = t.call(operator_.fsckRequest());
  CHECK(looked.getError().getCode() == 0);
  for (const auto finding : looked.getFindings())
    CHECK(std::string(finding.getSubject().cStr()).find("lease-500") == std::string::npos);
  t.backend.while_listed = nullptr;
}

TEST_CASE("Check: commands are answered while one is under way, and checks wait for each other") {
  Rpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  auto tenant = t.session(client);
  t.make_pool(operator_);
  std::atomic<int> listing = 0, at_once = 0;
  std::atomic<bool> go_on = false;
  t.backend.while_listed = [&] {
    if (++listing > 1) ++at_once;
    while (!go_on) ::usleep(1000);
    --listing;
  };
  auto one = operator_.checkRequest().send();
  auto other = operator_.checkRequest().send();
  for (int i = 0; i < 5000 && listing == 0; ++i) t.pump(1);
  REQUIRE(listing == 1);
  CHECK(t.grant(tenant, 4 * mib).getError().getCode() == 0);  // the list is not that long held up
  CHECK(t.call(operator_.statusRequest()).getError().getCode() == 0);
  go_on = true;
  CHECK(one.wait(t.io.waitScope).getProblems().size() == 0);
  CHECK(other.wait(t.io.waitScope).getProblems().size() == 0);
  CHECK(at_once == 0);
  t.backend.while_listed = nullptr;
}
