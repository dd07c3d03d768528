// SPDX-License-Identifier: Apache-2.0
// Changes of the list of members, stopped in the middle: by a thread that waits, by another space in a member's place, by a mark.
#include <atomic>
#include <chrono>
#include <thread>

#include "libclient/kv/kv_base.h"
#include "tests/support/eventually.h"
#include "tests/unit/kv/joined/joined_fixture.h"

using namespace terrace;
using namespace terrace::test;

TEST_CASE("JoinedKvSpace: a member that leaves takes no new blocks, and gives those that it has") {
  JoinedScene scene;
  scene.grow_to(2);
  const auto other = scene.attach();
  REQUIRE(put_keys(*other, scene.name_space, 50) == 50);
  scene.look_ns = 300'000'000;  // so long it is leaving
  const auto space = scene.attach();
  std::atomic<bool> left = false;
  std::thread leaves([&] {
    const auto shrunk = space->shrink("b", 0);
    CHECK_MESSAGE(shrunk.ok(), shrunk.error().to_string());
    left = true;
  });
  std::vector<KvMemberInfo> members;
  REQUIRE(eventually([&] {
    other->look();
    other->tend();
    members = other->members();
    return members.size() < 2 || members[1].state == "leaving";
  }));
  // Where the machine was so slow that it has left, there is nothing to see.
  if (members.size() == 2) {
    const std::vector<uint64_t> before = blocks_of_members(*other);
    REQUIRE(put_keys(*other, scene.name_space, 150) == 100);
    const std::vector<uint64_t> after = blocks_of_members(*other);
    if (after.size() == 2) CHECK(after[1] <= before[1]);
  }
  while (!left) other->tend();  // what it waits for
  leaves.join();
  other->look();
  CHECK(other->members().size() == 1);
  CHECK(right_keys(*other, scene.name_space, 50) == 50);
}

TEST_CASE("JoinedKvSpace: what lies in a member's place and belongs to another space is no member") {
  JoinedScene scene;
  scene.grow_to(2);
  {
    const Status formatted = KvSpace::format(scene.add("x").memory.span(), KvFixture::small());
    REQUIRE(formatted.ok());
    scene.add("y");
    const auto another = scene.attach("x");
    REQUIRE(another->grow("y").ok());
    REQUIRE(put_keys(*another, scene.name_space, 100) == 100);
  }
  std::swap(scene.places["b"], scene.places["y"]);
  const auto space = scene.attach();
  const auto members = space->members();
  REQUIRE(members.size() == 2);
  CHECK(members[0].where == "a");
  CHECK(members[1].state == "lost");
  CHECK(members[1].loss == "what is there now is not this member");
  CHECK(right_keys(*space, scene.name_space, 100) == 0);
  std::swap(scene.places["b"], scene.places["y"]);
  CHECK(scene.attach()->members()[1].state == "filling");
}

TEST_CASE("JoinedKvSpace: who finds another one's mark in a member changes nothing until it is gone") {
  JoinedScene scene;
  scene.add("b");
  const auto space = scene.attach();
  const auto marked = scene.open("a");
  REQUIRE(marked.ok());
  const auto editor = KvSpace::attach(marked->bytes, {.ownership = marked->ownership, .tends_itself = false});
  REQUIRE(editor.ok());
  const KvNamespace& own = KvSpaceBase::own_name_space();
  const std::byte mark{1};
  REQUIRE((*editor)->put(own, {.key = kv::member_edit_key, .bytes = std::span(&mark, 1)}).ok());
  std::atomic<bool> grown = false;
  std::thread grows([&] {
    CHECK(space->grow("b").ok());
    grown = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK_FALSE(grown);
  CHECK(space->members().size() == 1);
  REQUIRE((*editor)->erase(own, kv::member_edit_key).ok());
  grows.join();
  CHECK(space->members().size() == 2);
}

TEST_CASE(
    "JoinedKvSpace: a member that missed a change has the newer list once somebody with a part of it looks") {
  JoinedScene scene;
  scene.grow_to(2);
  scene.at("b").opens = false;
  {
    const auto space = scene.attach();
    scene.add("c");
    REQUIRE(space->grow("c").ok());
  }
  scene.at("b").opens = true;
  const auto listed_in_b = [&] {
    scene.at("a").opens = scene.at("c").opens = false;
    const size_t listed = scene.attach("b")->members().size();
    scene.at("a").opens = scene.at("c").opens = true;
    return listed;
  };
  CHECK(listed_in_b() == 2);
  const auto keeps = scene.attach("b");
  CHECK(keeps->members().size() == 3);  // "a" knows more
  REQUIRE(put_keys(*keeps, scene.name_space, 100) == 100);
  CHECK(eventually([&] {
    keeps->look();
    keeps->tend();
    return listed_in_b() == 3;
  }));
}
