// SPDX-License-Identifier: Apache-2.0
// One space of several members: every call works over all of them, and they come and go while it is used.
#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "tests/unit/kv/joined/joined_fixture.h"

namespace terrace {
namespace {

TEST_CASE("JoinedKvSpace: a space of one lease is as it was, and has one member") {
  JoinedScene scene;
  const auto space = scene.attach();
  CHECK(put_keys(*space, scene.name_space, 100) == 100);
  CHECK(right_keys(*space, scene.name_space, 120) == 100);
  const auto stat = space->stat();
  REQUIRE(stat.ok());
  REQUIRE(stat->members.size() == 1);
  CHECK(stat->members[0].where == "a");
  CHECK(stat->members[0].state == "filling");
  CHECK(stat->members[0].blocks == 100);
  CHECK(space->counters().misses == 20);
  CHECK(space->counters().puts == 100);
  CHECK(space->health().ok());
}

TEST_CASE("JoinedKvSpace: every call works over all members") {
  JoinedScene scene;
  scene.grow_to(3);
  const auto space = scene.attach("b");
  CHECK(put_keys(*space, scene.name_space, 300) == 300);
  for (const uint64_t blocks : blocks_of_members(*space)) CHECK(blocks > 50);  // spread by the keys' hashes
  CHECK(right_keys(*space, scene.name_space, 310) == 300);
  CHECK(space->counters().misses == 10);

  std::vector<std::string> names;
  for (int index = 0; index < 310; ++index) names.push_back(key_number(index));
  const std::vector<std::string_view> keys(names.begin(), names.end());
  const auto found = std::make_unique<bool[]>(keys.size());
  REQUIRE(space->exists(scene.name_space, keys, {found.get(), keys.size()}).ok());
  for (size_t index = 0; index < keys.size(); ++index) CHECK(found[index] == (index < 300));
  CHECK(*space->prefix(scene.name_space, keys) == 300);
  CHECK(*space->length(scene.name_space, "key7") == 4096);
  CHECK(space->length(scene.name_space, "none").error().code == ErrorCode::not_found);

  std::vector<std::vector<std::byte>> into(keys.size(), std::vector<std::byte>(4096));
  std::vector<KvGet> gets;
  for (size_t index = 0; index < keys.size(); ++index)
    gets.push_back({.key = keys[index], .into = into[index]});
  const auto got = space->get_many(scene.name_space, gets);
  for (size_t index = 0; index < keys.size(); ++index) {
    REQUIRE(got[index].ok() == (index < 300));
    if (index < 300)
      CHECK(into[index] == kv_bytes(keys[index], 4096));
    else
      CHECK(got[index].error().code == ErrorCode::not_found);
  }
  for (int index = 0; index < 300; ++index) {
    const auto view = space->view(scene.name_space, key_number(index));
    REQUIRE(view.ok());
    const std::vector<std::byte> bytes(view->bytes().begin(), view->bytes().end());
    CHECK(bytes == kv_bytes(key_number(index), 4096));
  }
  CHECK(space->view(scene.name_space, "none").error().code == ErrorCode::not_found);
  CHECK(kv_put(*space, scene.name_space, "key5").error().code == ErrorCode::already_exists);

  int listed = 0;
  std::set<uint32_t> members;
  REQUIRE(space
              ->list([&](const KvBlockInfo& block) {
                ++listed;
                members.insert(block.member);
                return true;
              })
              .ok());
  CHECK(listed == 300);
  CHECK(members == std::set<uint32_t>{0, 1, 2});
  const auto verified = space->verify();
  REQUIRE(verified.ok());
  CHECK(verified->blocks == 300);
  CHECK(verified->wrong.empty());

  for (int index = 0; index < 300; index += 3) CHECK(space->erase(scene.name_space, key_number(index)).ok());
  CHECK(space->erase(scene.name_space, "key0").error().code == ErrorCode::not_found);
  CHECK(right_keys(*space, scene.name_space, 300) == 200);
  const auto evicted = space->evict(50 * 4096);
  REQUIRE(evicted.ok());
  CHECK(*evicted == 50);
  CHECK(*space->flush(*KvNamespace::of("other")) == 0);
  CHECK(*space->flush(scene.name_space) == 150);
  CHECK(space->stat()->blocks == 0);
}

TEST_CASE("JoinedKvSpace: memory without coherent caches has members, too") {
  KvFormatOptions as = KvFixture::small();
  as.coherence = SpaceCoherence::noncoherent;
  JoinedScene scene(as);
  scene.grow_to(2);
  const auto space = scene.attach("b"), other = scene.attach();
  CHECK(put_keys(*space, scene.name_space, 200) == 200);
  const auto stat = space->stat();
  REQUIRE(stat.ok());
  CHECK(stat->coherence == SpaceCoherence::noncoherent);
  CHECK(stat->checksums);
  for (const KvMemberInfo& member : stat->members) CHECK(member.blocks > 50);
  CHECK(right_keys(*other, scene.name_space, 200) == 200);
  REQUIRE(space->shrink("a", 0).ok());
  other->look();
  CHECK(other->members().size() == 1);
  CHECK(right_keys(*other, scene.name_space, 200) == 200);
}

TEST_CASE("JoinedKvSpace: any member leads to all, and holders hear of a new one") {
  JoinedScene scene;
  const auto early = scene.attach();
  REQUIRE(put_keys(*early, scene.name_space, 50) == 50);
  scene.grow_to(4);
  CHECK(early->members().size() == 1);
  early->look();
  REQUIRE(early->members().size() == 4);
  for (const char* where : {"a", "b", "c", "d"}) {
    const auto space = scene.attach(where);
    const auto members = space->members();
    REQUIRE(members.size() == 4);
    for (const KvMemberInfo& member : members) CHECK(member.state == "filling");
    CHECK(right_keys(*space, scene.name_space, 50) == 50);
  }
  CHECK(early->counters().members_joined == 3);
}

TEST_CASE("JoinedKvSpace: blocks go where there is room before any goes") {
  JoinedScene scene;
  const auto space = scene.attach();
  int fit = 0;
  while (space->counters().evicted == 0) REQUIRE(kv_put(*space, scene.name_space, key_number(fit++)).ok());
  scene.add("b", 16 << 20);
  REQUIRE(space->grow("b").ok());
  const uint64_t evicted = space->counters().evicted;
  for (int index = 0; index < 2 * fit; ++index)
    REQUIRE(kv_put(*space, scene.name_space, "more" + std::to_string(index)).ok());
  CHECK(space->counters().evicted == evicted);
  CHECK(right_keys(*space, scene.name_space, fit) == fit - static_cast<int>(evicted));
  // No want of room takes the list.
  for (int index = 0; index < 3000; ++index)
    (void)kv_put(*space, scene.name_space, "even more" + std::to_string(index), 8192);
  CHECK(space->counters().evicted > evicted + 1000);
  REQUIRE(space->evict(100 << 20).ok());
  REQUIRE(space->flush(std::nullopt).ok());
  for (const char* where : {"a", "b"}) CHECK(scene.attach(where)->members().size() == 2);
}

TEST_CASE("JoinedKvSpace: more members, more holders") {
  KvFormatOptions small = KvFixture::small();
  small.parts = 2;
  JoinedScene scene(small);
  scene.grow_to(3);
  std::vector<std::unique_ptr<JoinedKvSpace>> holders;
  for (int index = 0; index < 6; ++index) {
    holders.push_back(scene.attach());
    bool done = false;
    for (int attempt = 0; attempt < 200 && !done; ++attempt) {
      const Status put = kv_put(*holders.back(), scene.name_space, key_number(index));
      if (put.ok())
        done = true;
      else
        CHECK(put.error().code == ErrorCode::busy);
      for (const auto& holder : holders) holder->look();  // who has two parts gives one
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    REQUIRE(done);
    // It takes parts beside its first one while there are some.
    for (int more = 0; more < 30; ++more)
      (void)kv_put(*holders.back(), scene.name_space, std::to_string(index) + " " + std::to_string(more));
    if (index == 0) {
      const auto stat = holders.back()->stat();
      REQUIRE(stat.ok());
      CHECK(std::count_if(stat->parts.begin(), stat->parts.end(),
                          [](const KvPartInfo& part) { return part.state == "owned"; }) == 3);
    }
  }
  for (const auto& holder : holders) {
    CHECK(holder->part().has_value());
    CHECK(right_keys(*holder, scene.name_space, 6) == 6);
  }
  const auto one_more = scene.attach();
  const Status none = kv_put(*one_more, scene.name_space, "seventh");
  REQUIRE_FALSE(none.ok());
  CHECK(none.error().code == ErrorCode::busy);
  CHECK(right_keys(*one_more, scene.name_space, 6) == 6);
}

TEST_CASE("JoinedKvSpace: a budget holds over the sum, and what is kept stays") {
  constexpr uint64_t extent = 4096 + 64;
  JoinedScene scene;
  scene.grow_to(3);
  const auto space = scene.attach();
  REQUIRE(space
              ->set_policy(
                  {.budgets = {{.namespaces = "test", .bytes = 90 * extent}}, .kept = {{.namespaces = "k"}}})
              .ok());
  const KvNamespace kept = *KvNamespace::of("k");
  REQUIRE(put_keys(*space, kept, 30) == 30);
  CHECK(put_keys(*space, scene.name_space, 600) == 600);
  const auto stat = space->stat();
  REQUIRE(stat->budgets.size() == 1);
  CHECK(stat->budgets[0].budget.bytes == 90 * extent);
  CHECK(stat->budgets[0].used_bytes <= 90 * extent);
  CHECK(stat->budgets[0].used_bytes >= 85 * extent);
  CHECK(stat->kept_bytes == 30 * extent);
  CHECK(right_keys(*space, kept, 30) == 30);
  CHECK(scene.attach("c")->policy()->budgets.size() == 1);
  scene.add("d");
  REQUIRE(space->grow("d").ok());
  CHECK(put_keys(*space, scene.name_space, 600) > 500);
  CHECK(space->stat()->budgets[0].used_bytes <= 90 * extent);
}

TEST_CASE("JoinedKvSpace: a member that leaves takes no useful block with it") {
  JoinedScene scene;
  scene.grow_to(3);
  const auto space = scene.attach(), other = scene.attach("b");
  REQUIRE(put_keys(*space, scene.name_space, 300) == 300);
  REQUIRE(kv_put(*space, scene.name_space, "short", 4096, {.parent = "key1", .ttl_s = 1000}).ok());
  SUBCASE("the first one, which all others came by") {
    const auto shrunk = space->shrink("a", 0);
    REQUIRE_MESSAGE(shrunk.ok(), shrunk.error().to_string());
    CHECK(shrunk->moved > 50);
    CHECK(shrunk->left_behind == 0);
    CHECK(scene.attach("a")->members().size() == 2);  // it knows where the others are
  }
  SUBCASE("another one") {
    REQUIRE(space->shrink("c", 0).ok());
  }
  CHECK(space->members().size() == 2);
  other->look();
  CHECK(other->members().size() == 2);
  CHECK(right_keys(*space, scene.name_space, 300) == 300);
  CHECK(right_keys(*other, scene.name_space, 300) == 300);
  int shorts = 0;
  REQUIRE(other
              ->list([&](const KvBlockInfo& block) {
                if (block.key != "short") return true;
                ++shorts;
                CHECK(block.has_parent);
                CHECK(block.expires_unix_s > 0);
                return true;
              })
              .ok());
  CHECK(shorts == 1);
  const auto again = space->shrink("nowhere", 0);
  CHECK(again.error().code == ErrorCode::not_found);
}

TEST_CASE("JoinedKvSpace: holders let go of a member that left, but for what they read in place") {
  JoinedScene scene;
  scene.grow_to(2);
  const auto space = scene.attach(), reader = scene.attach();
  REQUIRE(put_keys(*space, scene.name_space, 100) == 100);
  std::map<uint32_t, std::vector<std::string>> keys;  // of each member
  REQUIRE(space
              ->list([&](const KvBlockInfo& block) {
                keys[block.member].push_back(block.key);
                return true;
              })
              .ok());
  std::vector<KvView> views;
  std::vector<std::string> viewed;
  for (auto& [member, names] : keys)
    for (size_t index = 0; index < std::min<size_t>(names.size(), 5); ++index) {
      auto view = reader->view(scene.name_space, names[index]);
      REQUIRE(view.ok());
      views.push_back(std::move(*view));
      viewed.push_back(names[index]);
    }
  REQUIRE(keys.size() == 2);
  const auto shrunk = space->shrink("b", 100'000'000);
  REQUIRE_MESSAGE(shrunk.ok(), shrunk.error().to_string());
  CHECK(shrunk->holders == 1);
  reader->look();
  CHECK(reader->members().size() == 1);
  for (size_t index = 0; index < views.size(); ++index) {
    const std::vector<std::byte> bytes(views[index].bytes().begin(), views[index].bytes().end());
    CHECK(bytes == kv_bytes(viewed[index], 4096));
  }
  views.clear();
  reader->look();
  const auto again = space->shrink("b", 100'000'000);
  REQUIRE_MESSAGE(again.ok(), again.error().to_string());
  CHECK(again->holders == 0);
  CHECK(right_keys(*reader, scene.name_space, 100) == 100);
}

TEST_CASE("JoinedKvSpace: the best blocks stay where there is no room for all") {
  JoinedScene scene;
  scene.grow_to(2);
  const auto space = scene.attach();
  const KvNamespace kept = *KvNamespace::of("k");
  REQUIRE(put_keys(*space, kept, 40) == 40);
  REQUIRE(space->set_policy({.kept = {{.namespaces = "k"}}}).ok());
  int puts = 0;
  while (space->counters().evicted == 0) REQUIRE(kv_put(*space, scene.name_space, key_number(puts++)).ok());
  REQUIRE(space->evict(400 * 4096).ok());
  const auto shrunk = space->shrink("b", 0);
  REQUIRE_MESSAGE(shrunk.ok(), shrunk.error().to_string());
  CHECK(shrunk->moved > 100);
  CHECK(shrunk->left_behind > 100);
  CHECK(right_keys(*space, kept, 40) == 40);
  (void)right_keys(*space, scene.name_space, puts);
}

TEST_CASE("JoinedKvSpace: what is erased while it moves does not come back") {
  JoinedScene scene;
  scene.grow_to(2);
  const auto space = scene.attach("a", true, true), other = scene.attach();
  for (int round = 0; round < 4; ++round) {
    REQUIRE(put_keys(*space, scene.name_space, 400) == 400);
    const uint64_t before = blocks_of_members(*space)[0];
    std::thread leaves([&] { CHECK(space->shrink("b", 0).ok()); });
    while (blocks_of_members(*other)[0] < before + 20)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (int index = 399; index >= 0; --index) {
      const Status erased = other->erase(scene.name_space, key_number(index), 10'000'000'000);
      CHECK_MESSAGE(erased.ok(), erased.error().to_string());
    }
    leaves.join();
    other->look();
    CHECK(right_keys(*other, scene.name_space, 400) == 0);
    REQUIRE(other->flush(std::nullopt).ok());
    space->look();
    scene.add("b");
    REQUIRE(space->grow("b").ok());
    other->look();
  }
}

TEST_CASE("JoinedKvSpace: what cannot become a member, and what cannot leave") {
  JoinedScene scene;
  const auto space = scene.attach();
  CHECK(space->shrink("a", 0).error().code == ErrorCode::not_found);
  CHECK(space->grow("nowhere").error().code == ErrorCode::not_found);
  CHECK(space->grow("").error().code == ErrorCode::invalid_argument);
  scene.add("x").memory.span()[100] = std::byte{1};
  CHECK(space->grow("x").error().code == ErrorCode::already_exists);
  REQUIRE(KvSpace::format(scene.add("y").memory.span(), KvFixture::small()).ok());
  {
    const auto others = scene.attach("y");
    REQUIRE(put_keys(*others, scene.name_space, 5) == 5);
    CHECK(space->grow("y").error().code == ErrorCode::already_exists);
    REQUIRE(others->flush(std::nullopt).ok());
  }
  REQUIRE(space->grow("y").ok());  // an empty one is as good as none
  REQUIRE(space->grow("y").ok());
  CHECK(space->members().size() == 2);
  JoinedScene strange;
  strange.grow_to(2);
  scene.places["z"] = std::move(strange.places["b"]);
  CHECK(space->grow("z").error().code == ErrorCode::already_exists);
  REQUIRE(space->shrink("a", 0).ok());
  CHECK(space->shrink("y", 0).error().code == ErrorCode::invalid_argument);
  REQUIRE(space->grow("a").ok());  // formatted anew
  CHECK(space->members().size() == 2);
}

TEST_CASE("JoinedKvSpace: a member that cannot be opened is lost, and the others go on") {
  JoinedScene scene;
  scene.grow_to(3);
  {
    const auto space = scene.attach();
    REQUIRE(put_keys(*space, scene.name_space, 300) == 300);
  }
  scene.at("b").opens = false;
  const auto space = scene.attach();
  const auto members = space->members();
  REQUIRE(members.size() == 3);
  CHECK(members[1].state == "lost");
  CHECK(members[1].loss == "no memory b");
  const int there = right_keys(*space, scene.name_space, 300);
  CHECK(there > 100);
  CHECK(there < 300);
  CHECK(put_keys(*space, scene.name_space, 300) == 300 - there);
  CHECK(right_keys(*space, scene.name_space, 300) == 300);
  CHECK(space->health().ok());
  SUBCASE("it leaves") {
    REQUIRE(space->shrink("b", 0).ok());
    CHECK(space->members().size() == 2);
    CHECK(scene.attach("c")->members().size() == 2);
  }
  SUBCASE("its memory is another one by now") {
    scene.add("b");
    REQUIRE(KvSpace::format(scene.at("b").memory.span(), KvFixture::small()).ok());
    CHECK(scene.attach("c")->members()[1].loss == "what is there now is not this member");
    REQUIRE(space->grow("b").ok());
    CHECK(scene.attach("c")->members().size() == 3);
    CHECK(scene.attach("b")->members()[2].state == "filling");
  }
}

TEST_CASE("JoinedKvSpace: two who change the list at once both get their way") {
  JoinedScene scene;
  for (const char* where : {"b", "c", "d", "e", "f", "g"}) scene.add(where, 2 << 20);
  const auto grow = [&](const std::vector<std::string>& places) {
    const auto space = scene.attach();
    for (const std::string& where : places) {
      const Status grown = space->grow(where);
      CHECK_MESSAGE(grown.ok(), grown.error().to_string());
    }
  };
  std::thread one(grow, std::vector<std::string>{"b", "c", "d"});
  std::thread other(grow, std::vector<std::string>{"e", "f", "g"});
  one.join();
  other.join();
  for (const char* where : {"a", "d", "g"}) CHECK(scene.attach(where)->members().size() == 7);
}

TEST_CASE("JoinedKvSpace: nothing torn and no failed call while members come and go") {
  JoinedScene scene;
  scene.add("b");
  std::atomic<bool> ends = false;
  std::atomic<uint64_t> hits = 0, wrong = 0, failed = 0;
  const auto use = [&](int seed) {
    const auto space = scene.attach("a", true, true);
    for (int index = seed; !ends; index = (index * 31 + 7) % 500) {
      const std::string key = key_number(index);
      const Status put = kv_put(*space, scene.name_space, key, 4096, {.wait_ns = 0});
      if (!put.ok() && put.error().code != ErrorCode::already_exists &&
          put.error().code != ErrorCode::capacity_exhausted)
        ++failed;
      const int found = kv_check(*space, scene.name_space, key);
      if (found == -1) ++wrong;
      if (found == 1) ++hits;
      if (const auto view = space->view(scene.name_space, key_number(index / 2)); view.ok()) {
        const std::vector<std::byte> bytes(view->bytes().begin(), view->bytes().end());
        if (bytes != kv_bytes(key_number(index / 2), 4096)) ++wrong;
      }
    }
  };
  std::thread one(use, 1), other(use, 2);
  const auto space = scene.attach();
  for (int round = 0; round < 5; ++round) {
    const Status grown = space->grow("b");
    CHECK_MESSAGE(grown.ok(), grown.error().to_string());
    const auto shrunk = space->shrink("b", 10'000'000'000);
    REQUIRE_MESSAGE(shrunk.ok(), shrunk.error().to_string());
    CHECK(shrunk->holders == 0);
  }
  ends = true;
  one.join();
  other.join();
  CHECK(wrong == 0);
  CHECK(failed == 0);
  CHECK(hits > 1000);
}

}  // namespace
}  // namespace terrace
