// SPDX-License-Identifier: Apache-2.0
// The policy of a space of several members, where not all of them have got the same one.
#include <chrono>
#include <thread>

#include "libclient/kv/member_space.h"
#include "tests/support/eventually.h"
#include "tests/unit/kv/joined/joined_fixture.h"

using namespace terrace;
using namespace terrace::test;

namespace {

constexpr uint64_t wait_ns = 1'000'000'000;

KvPolicy budget_of(uint64_t bytes) {
  return {.budgets = {{.namespaces = "test", .bytes = bytes}}};
}

std::unique_ptr<MemberKvSpace> member_alone(JoinedScene& scene, const std::string& where) {
  const auto memory = scene.open(where);
  REQUIRE(memory.ok());
  auto space = attach_member(memory->bytes, {.ownership = memory->ownership, .tends_itself = false});
  REQUIRE_MESSAGE(space.ok(), space.error().to_string());
  return std::move(*space);
}

KvPolicy policy_in(JoinedScene& scene, const std::string& where) {
  const auto policy = member_alone(scene, where)->policy();
  REQUIRE(policy.ok());
  return *policy;
}

// By index of the members.
std::vector<bool> older(JoinedKvSpace& space) {
  std::vector<bool> older;
  for (const KvMemberInfo& member : space.members()) older.push_back(member.older_policy);
  return older;
}

using Flags = std::vector<bool>;

// As who sets a policy leaves it that dies behind the first member, or that could not reach the others.
void put_newer(JoinedScene& scene, const std::string& where, const KvPolicy& policy) {
  const auto member = member_alone(scene, where);
  const uint64_t next = kv::next_policy_generation(member->policy_text()->generation, 0);
  REQUIRE(member->put_policy({.generation = next, .policy = policy}, wait_ns).ok());
}

}  // namespace

TEST_CASE(
    "JoinedKvSpace: a policy that reached one member only is brought to the others by who has parts there") {
  for (const std::string first : {"a", "c"}) {
    CAPTURE(first);
    JoinedScene scene;
    scene.grow_to(3);
    REQUIRE(scene.attach()->set_policy(budget_of(1 << 20)).ok());
    put_newer(scene, first, budget_of(2 << 20));
    const Flags behind = {first != "a", true, first != "c"};
    const auto space = scene.attach("b");
    CHECK(*space->policy() == budget_of(2 << 20));
    CHECK(older(*space) == behind);
    const auto stat = space->stat();
    REQUIRE(stat.ok());
    CHECK(stat->members[1].older_policy);
    for (int look = 0; look < 5; ++look) space->look();
    CHECK(older(*space) == behind);  // it has no part
    CHECK(policy_in(scene, "b") == budget_of(1 << 20));
    REQUIRE(put_keys(*space, scene.name_space, 100) == 100);
    for (int look = 0; look < 5; ++look) space->look();
    CHECK(older(*space) == Flags{false, false, false});
    for (const char* where : {"a", "b", "c"}) CHECK(policy_in(scene, where) == budget_of(2 << 20));
  }
}

TEST_CASE("JoinedKvSpace: a policy that reached one member only is the same everywhere once one is set again") {
  for (const uint64_t next : {2 << 20, 3 << 20}) {
    JoinedScene scene;
    scene.grow_to(3);
    REQUIRE(scene.attach()->set_policy(budget_of(1 << 20)).ok());
    put_newer(scene, "c", budget_of(2 << 20));
    const auto space = scene.attach("b");
    REQUIRE(space->set_policy(budget_of(next)).ok());
    space->look();
    CHECK(older(*space) == Flags{false, false, false});
    for (const char* where : {"a", "b", "c"}) CHECK(policy_in(scene, where) == budget_of(next));
  }
}

TEST_CASE("JoinedKvSpace: of two policies that were set at once all take one") {
  JoinedScene scene;
  scene.grow_to(2);
  REQUIRE(member_alone(scene, "a")->put_policy({.generation = 7, .policy = budget_of(1 << 20)}, wait_ns).ok());
  REQUIRE(member_alone(scene, "b")->put_policy({.generation = 7, .policy = budget_of(9 << 20)}, wait_ns).ok());
  const auto by_a = scene.attach("a"), by_b = scene.attach("b");
  REQUIRE(put_keys(*by_a, scene.name_space, 50) == 50);
  const KvPolicy chosen = budget_of(9 << 20);  // the higher text
  CHECK(*by_a->policy() == chosen);
  CHECK(*by_b->policy() == chosen);
  for (int look = 0; look < 5; ++look) by_a->look();
  for (const char* where : {"a", "b"}) CHECK(policy_in(scene, where) == chosen);
}

TEST_CASE("JoinedKvSpace: who sets a policy that a member cannot take says which, and it gets it later") {
  JoinedScene scene;
  scene.grow_to(2);
  std::vector<std::unique_ptr<MemberKvSpace>> of_b;
  for (int part = 0; part < 3; ++part) {
    of_b.push_back(member_alone(scene, "b"));
    REQUIRE(kv_put(*of_b.back(), scene.name_space, "held" + std::to_string(part)).ok());
  }
  const auto space = scene.attach();
  const Status set = space->set_policy(budget_of(1 << 20));
  REQUIRE_FALSE(set.ok());
  CHECK(set.error().code == ErrorCode::busy);
  CHECK_MESSAGE(set.error().detail.find("not in b yet") != std::string::npos, set.error().detail);
  CHECK(*space->policy() == budget_of(1 << 20));
  space->look();
  CHECK(older(*space) == Flags{false, true});
  of_b.clear();
  space->look();
  REQUIRE(put_keys(*space, scene.name_space, 50) == 50);
  CHECK(eventually([&] {
    space->look();
    return older(*space) == Flags{false, false} && policy_in(scene, "b") == budget_of(1 << 20);
  }));
}

TEST_CASE("JoinedKvSpace: a member that comes back with an older policy gets the newer one, and spreads none") {
  JoinedScene scene;
  scene.grow_to(3);
  REQUIRE(scene.attach()->set_policy(budget_of(1 << 20)).ok());
  scene.at("b").opens = false;
  REQUIRE(scene.attach()->set_policy(budget_of(2 << 20)).ok());
  scene.at("b").opens = true;
  CHECK(policy_in(scene, "b") == budget_of(1 << 20));
  const auto space = scene.attach("b");
  CHECK(*space->policy() == budget_of(2 << 20));
  REQUIRE(put_keys(*space, scene.name_space, 100) == 100);
  for (int look = 0; look < 5; ++look) space->look();
  for (const char* where : {"a", "b", "c"}) CHECK(policy_in(scene, where) == budget_of(2 << 20));
}

TEST_CASE("JoinedKvSpace: a policy that was set later counts, also where a lost member has another one") {
  JoinedScene scene;
  scene.grow_to(3);
  REQUIRE(scene.attach()->set_policy(budget_of(1 << 20)).ok());
  put_newer(scene, "a", budget_of(9 << 20));
  scene.at("a").opens = false;
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  REQUIRE(scene.attach("b")->set_policy(budget_of(2 << 20)).ok());
  scene.at("a").opens = true;
  CHECK(*scene.attach("a")->policy() == budget_of(2 << 20));
}

TEST_CASE("JoinedKvSpace: a member that is new has the policy of the others, and of the same age") {
  JoinedScene scene;
  scene.grow_to(2);
  const auto space = scene.attach();
  REQUIRE(space->set_policy(budget_of(1 << 20)).ok());
  scene.add("c");
  REQUIRE(space->grow("c").ok());
  CHECK(policy_in(scene, "c") == budget_of(1 << 20));
  CHECK(member_alone(scene, "c")->policy_text()->generation ==
        member_alone(scene, "a")->policy_text()->generation);
}
