// SPDX-License-Identifier: Apache-2.0
// An operator's policy: budgets of namespaces, what is kept, and how both outlive who said them.
#include <atomic>
#include <thread>

#include "core/base/prng.h"
#include "libclient/kv/rules.h"
#include "tests/unit/kv/kv_fixture.h"

namespace terrace {
namespace {

constexpr uint64_t block_extent = 4096 + 64;

KvNamespace names(const char* name) {
  return *KvNamespace::of(name);
}

void set(KvSpace& space, const KvPolicy& policy) {
  const Status done = space.set_policy(policy);
  REQUIRE_MESSAGE(done.ok(), done.error().to_string());
}

// What a thread of the library's would have done in some seconds.
void tend(std::initializer_list<KvSpace*> spaces, int times = 420) {
  for (int time = 0; time < times; ++time)
    for (KvSpace* const space : spaces) space->tend();
}

uint64_t used(KvSpace& space, size_t budget = 0) {
  const auto stat = space.stat();
  REQUIRE(stat.ok());
  REQUIRE(stat->budgets.size() > budget);
  return stat->budgets[budget].used_bytes;
}

int there(KvSpace& space, const KvNamespace& name_space, const std::string& prefix, int count) {
  int found = 0;
  for (int index = 0; index < count; ++index) {
    const int one = kv_check(space, name_space, prefix + std::to_string(index));
    CHECK(one != -1);
    found += one;
  }
  return found;
}

// Whether each was put.
int put_many(KvSpace& space, const KvNamespace& name_space, const std::string& prefix, int count) {
  int done = 0;
  for (int index = 0; index < count; ++index)
    done += kv_put(space, name_space, prefix + std::to_string(index), 4096, {.wait_ns = 0}).ok() ? 1 : 0;
  return done;
}

TEST_CASE("a budget makes room among its own blocks, and no others go for it") {
  KvFixture scene;
  const auto space = scene.attach();
  set(*space, {.budgets = {{.namespaces = "a", .bytes = 50 * block_extent}}});
  CHECK(put_many(*space, names("b"), "b", 300) == 300);
  CHECK(put_many(*space, names("ab"), "ab", 60) == 60);
  for (int index = 0; index < 200; ++index) {
    REQUIRE(kv_put(*space, names(index % 2 == 0 ? "a/x" : "a"), "a" + std::to_string(index)).ok());
    REQUIRE(used(*space) <= 50 * block_extent);
  }
  CHECK(used(*space) > 45 * block_extent);
  CHECK(there(*space, names("b"), "b", 300) == 300);
  CHECK(there(*space, names("ab"), "ab", 60) == 60);
}

TEST_CASE("a tenant's budget and its model's both hold") {
  KvFixture scene;
  const auto space = scene.attach();
  set(*space, {.budgets = {{.namespaces = "t", .bytes = 80 * block_extent},
                           {.namespaces = "t/m", .bytes = 20 * block_extent}}});
  CHECK(put_many(*space, names("t/m/q"), "m", 100) == 100);
  CHECK(used(*space, 0) == used(*space, 1));
  CHECK(put_many(*space, names("t/n"), "n", 200) == 200);
  CHECK(used(*space, 0) <= 80 * block_extent);
  CHECK(used(*space, 1) <= 20 * block_extent);
  CHECK(used(*space, 0) > 75 * block_extent);
}

TEST_CASE("a policy that comes later holds for what is there already") {
  KvFixture scene;
  const auto space = scene.attach(), operator_ = scene.attach();
  CHECK(put_many(*space, names("a"), "a", 300) == 300);
  set(*operator_, {.budgets = {{.namespaces = "a", .bytes = 30 * block_extent}}});
  tend({space.get()});
  CHECK(used(*space) <= 30 * block_extent);
  CHECK(used(*space) > 20 * block_extent);
  set(*operator_, {});
  tend({space.get()});
  CHECK(put_many(*space, names("a"), "again", 200) == 200);
  CHECK(there(*space, names("a"), "again", 200) == 200);
}

TEST_CASE("two holders share a budget") {
  KvFixture scene;
  const auto one = scene.attach(), other = scene.attach();
  set(*one, {.budgets = {{.namespaces = "a", .bytes = 100 * block_extent}}});
  REQUIRE(put_many(*one, names("b"), "b", 1) == 1);
  REQUIRE(put_many(*other, names("b"), "c", 1) == 1);
  tend({one.get(), other.get()});
  CHECK(put_many(*one, names("a"), "one", 300) == 300);
  CHECK(used(*one) > 90 * block_extent);
  tend({one.get(), other.get()});
  CHECK(put_many(*other, names("a"), "other", 300) > 200);
  tend({one.get(), other.get()});
  CHECK(used(*one) <= 100 * block_extent);
  CHECK(there(*other, names("a"), "other", 300) >= 45);
  CHECK(there(*other, names("a"), "one", 300) >= 40);
}

TEST_CASE("what the dead and those that left have of a budget makes room for the living") {
  KvFixture scene;
  auto victim = scene.attach();
  const auto heir = scene.attach();
  set(*heir, {.budgets = {{.namespaces = "a", .bytes = 100 * block_extent}}});
  REQUIRE(put_many(*victim, names("a"), "old", 300) == 300);
  SUBCASE("it died") {
    scene.die(std::move(victim));
  }
  SUBCASE("it left") {
    victim.reset();
  }
  set(*heir, {.budgets = {{.namespaces = "a", .bytes = 100 * block_extent}},
              .kept = {{.namespaces = "a", .key = "old299"}}});
  for (int round = 0; round < 3; ++round) {
    CHECK(put_many(*heir, names("a"), "new" + std::to_string(round) + " ", 150) > 0);
    tend({heir.get()});
    CHECK(used(*heir) <= 100 * block_extent);
  }
  CHECK(there(*heir, names("a"), "new2 ", 150) > 60);
  CHECK(kv_check(*heir, names("a"), "old299") == 1);
  CHECK(there(*heir, names("a"), "old", 300) < 50);
}

TEST_CASE("what is kept stays, and so does what comes before it in its chain") {
  KvFixture scene;
  const auto space = scene.attach();
  REQUIRE(kv_put(*space, names("a"), "first").ok());
  REQUIRE(kv_put(*space, names("a"), "second", 4096, {.parent = "first"}).ok());
  REQUIRE(kv_put(*space, names("a"), "third", 4096, {.parent = "second"}).ok());
  REQUIRE(put_many(*space, names("k/x"), "all", 20) == 20);
  KvPolicy policy{.kept = {{.namespaces = "a", .key = "third"}, {.namespaces = "k"}}};
  set(*space, policy);
  CHECK(put_many(*space, names("b"), "b", 4000) == 4000);
  for (const char* key : {"first", "second", "third"}) CHECK(kv_check(*space, names("a"), key) == 1);
  CHECK(there(*space, names("k/x"), "all", 20) == 20);
  CHECK(space->stat()->kept_bytes == 21 * block_extent);
  CHECK(space->evict(8 << 20).ok());
  CHECK(kv_check(*space, names("a"), "third") == 1);
  CHECK(there(*space, names("b"), "b", 4000) == 0);

  policy.kept.clear();
  set(*space, policy);
  CHECK(space->evict(8 << 20).ok());
  CHECK(there(*space, names("k/x"), "all", 20) == 0);
  set(*space, {.kept = {{.namespaces = "b"}}});
  CHECK(put_many(*space, names("b"), "full", 8000) > 500);
  const Status full = kv_put(*space, names("b"), "one more", 4096, {.wait_ns = 0});
  REQUIRE_FALSE(full.ok());
  CHECK(full.error().code == ErrorCode::capacity_exhausted);
  CHECK(space->erase(names("b"), "full0").ok());  // who has the key may erase it
  CHECK(space->flush(names("b")).ok());
  CHECK(space->stat()->blocks < 30);
}

TEST_CASE("what is kept stays when others want room, also in parts that nobody owns") {
  KvFixture scene;
  auto rich = scene.attach();
  const auto poor = scene.attach(true);
  REQUIRE(put_many(*poor, names("b"), "own", 1) == 1);
  REQUIRE(put_many(*rich, names("k"), "k", 5) == 5);
  set(*rich, {.kept = {{.namespaces = "k"}}});
  REQUIRE(put_many(*rich, names("b"), "b", 3000) == 3000);
  SUBCASE("its owner lives") {
    for (int index = 0; index < 600; ++index) {
      (void)kv_put(*poor, names("b"), "poor" + std::to_string(index), 4096, {.wait_ns = 20'000'000});
      rich->tend();
    }
  }
  SUBCASE("its owner left") {
    rich.reset();
    CHECK(put_many(*poor, names("b"), "poor", 4000) == 4000);
    CHECK(poor->counters().parts_adopted >= 1);
  }
  SUBCASE("its owner died") {
    scene.die(std::move(rich));
    CHECK(put_many(*poor, names("b"), "poor", 4000) == 4000);
    CHECK(poor->counters().parts_adopted >= 1);
  }
  CHECK(there(*poor, names("k"), "k", 5) == 5);
  CHECK(poor->policy()->kept.size() == 1);
}

TEST_CASE("a policy outlives who set it, is not seen among the blocks, and the last one counts") {
  KvFixture scene;
  auto one = scene.attach();
  const auto other = scene.attach();
  CHECK(other->policy()->budgets.empty());
  set(*one, {.budgets = {{.namespaces = "n", .bytes = 1}}});
  const auto reader = scene.attach(false, false);
  std::atomic<bool> ends = false;
  std::atomic<uint64_t> gaps = 0;
  std::thread reads([&] {
    while (!ends) gaps += reader->policy()->budgets.empty() ? 1 : 0;
  });
  for (uint64_t bytes = 1; bytes <= 20; ++bytes) {
    KvSpace& setter = bytes % 3 == 0 ? *other : *one;
    // The other one's part has the older policy: its owner gives it up as it tends.
    std::thread tends([&] { tend({bytes % 3 == 0 ? one.get() : other.get()}, 200); });
    set(setter, {.budgets = {{.namespaces = "n", .bytes = bytes << 20}}});
    tends.join();
    CHECK(other->policy()->budgets.at(0).bytes == bytes << 20);
    CHECK(one->policy()->budgets.at(0).bytes == bytes << 20);
  }
  ends = true;
  reads.join();
  CHECK(gaps == 0);
  scene.die(std::move(one));
  CHECK(other->flush(std::nullopt).ok());
  CHECK(other->evict(16 << 20).ok());
  CHECK(other->stat()->blocks == 0);
  CHECK(other->list([](const KvBlockInfo&) { return false; }).ok());
  const auto heir = scene.attach();
  CHECK(heir->policy()->budgets.at(0).bytes == 20ull << 20);
  CHECK(heir->verify()->wrong.empty());
}

TEST_CASE("a policy that makes no sense is refused, and says why") {
  KvFixture scene;
  const auto space = scene.attach(), reader = scene.attach(false, false);
  const auto refused = [&](KvSpace& of, const KvPolicy& policy, ErrorCode code, const char* text) {
    const Status status = of.set_policy(policy);
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == code);
    CHECK_MESSAGE(status.error().detail.find(text) != std::string::npos, status.error().detail);
  };
  refused(*space, {.budgets = {{.namespaces = "a", .bytes = 0}}}, ErrorCode::invalid_argument, "'a' is 0");
  refused(*space, {.budgets = {{.namespaces = "a", .bytes = 1}, {.namespaces = "a", .bytes = 2}}},
          ErrorCode::invalid_argument, "two budgets");
  refused(*space, {.budgets = {{.namespaces = "a\n", .bytes = 1}}}, ErrorCode::invalid_argument, "control");
  refused(*space, {.kept = std::vector<KvKept>(257)}, ErrorCode::invalid_argument, "256");
  refused(*space, {.kept = {{.namespaces = "", .key = std::string(513, 'k')}}}, ErrorCode::invalid_argument,
          "512");
  refused(*reader, {}, ErrorCode::permission_denied, "to copy only");
  CHECK(space->policy()->budgets.empty());
  set(*space, {.budgets = {{.namespaces = "a", .bytes = 1000}}});
  const Status large = kv_put(*space, names("a"), "large");
  REQUIRE_FALSE(large.ok());
  CHECK(large.error().code == ErrorCode::limit_exceeded);
  CHECK_MESSAGE(large.error().detail.find("budget of 'a' is 1000") != std::string::npos, large.error().detail);
}

TEST_CASE("a policy's text comes back as it was; anything else is nothing or sensible") {
  const kv::PolicyText said{
      .generation = 7,
      .policy = {.budgets = {{.namespaces = "a b/c", .bytes = 1}, {.namespaces = "", .bytes = UINT64_MAX}},
                 .kept = {{.namespaces = "x", .key = {"\0\n \xff", 4}}, {.namespaces = ""}}}};
  const std::string text = kv::text_of(said);
  const auto again = kv::policy_of(text);
  REQUIRE(again);
  CHECK(again->generation == 7);
  CHECK(again->policy == said.policy);
  for (size_t length = 0; length < text.size(); ++length) {
    const auto cut = kv::policy_of(text.substr(0, length));
    if (cut) CHECK(kv::check_policy(cut->policy).ok());
  }
  Prng random(5);
  for (int round = 0; round < 20000; ++round) {
    std::string changed = text;
    for (uint64_t change = random.below(4) + 1; change > 0; --change)
      changed[random.below(changed.size())] = static_cast<char>(random.below(256));
    const auto read = kv::policy_of(changed);
    if (read) CHECK(kv::policy_of(kv::text_of(*read))->policy == read->policy);
  }
}

}  // namespace
}  // namespace terrace
