// SPDX-License-Identifier: Apache-2.0
// KV spaces: what one holder and several see.
#include <array>
#include <thread>

#include "tests/unit/kv/kv_fixture.h"

namespace terrace {
namespace {

TEST_CASE("what one holder puts every other one finds, whole") {
  for (const SpaceCoherence coherence : {SpaceCoherence::coherent, SpaceCoherence::noncoherent}) {
    KvFormatOptions options = KvFixture::small();
    options.coherence = coherence;
    KvFixture scene(options);
    const auto writer = scene.attach(), reader = scene.attach(false, false);
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{4096}, size_t{65536}}) {
      const std::string key = "block " + std::to_string(bytes);
      CHECK(kv_check(*reader, scene.name_space, key, bytes) == 0);
      REQUIRE(kv_put(*writer, scene.name_space, key, bytes).ok());
      CHECK(kv_check(*writer, scene.name_space, key, bytes) == 1);
      CHECK(kv_check(*reader, scene.name_space, key, bytes) == 1);
      CHECK(*reader->length(scene.name_space, key) == bytes);
      const auto view = reader->view(scene.name_space, key);
      REQUIRE(view.ok());
      const auto expected = kv_bytes(key, bytes);
      CHECK(std::equal(view->bytes().begin(), view->bytes().end(), expected.begin(), expected.end()));
    }
    CHECK(writer->part().has_value());
    CHECK(!reader->part().has_value());
    const auto stat = reader->stat();
    REQUIRE(stat.ok());
    CHECK(stat->blocks == 6);
    CHECK(stat->coherence == coherence);
    CHECK(stat->parts[*writer->part()].state == "owned");
    const auto verified = reader->verify();
    REQUIRE(verified.ok());
    CHECK(verified->blocks == 6);
    CHECK(verified->wrong.empty());
    CHECK(verified->without_checksum == (coherence == SpaceCoherence::coherent ? 6 : 0));
  }
}

TEST_CASE("a key is published once, whoever puts it") {
  KvFixture scene;
  const auto one = scene.attach(), other = scene.attach();
  REQUIRE(kv_put(*one, scene.name_space, "k").ok());
  CHECK(kv_put(*one, scene.name_space, "k").error().code == ErrorCode::already_exists);
  CHECK(kv_put(*other, scene.name_space, "k").error().code == ErrorCode::already_exists);
  const auto elsewhere = *KvNamespace::of("other model");
  CHECK(kv_check(*other, elsewhere, "k") == 0);
  CHECK(kv_put(*other, elsewhere, "k").ok());
  CHECK(*KvNamespace::of("t", "a/b", "", "l", "f16") != *KvNamespace::of("t", "a", "b", "l", "f16"));
  CHECK(KvNamespace::of("t", "a/b", "", "l", "f16")->name() == "t/a%2Fb//l/f16");
  CHECK(!KvNamespace::of(std::string(256, 'x')).ok());
  CHECK(!KvNamespace::of("a\nb").ok());
}

TEST_CASE("a block that is filled in place is found once it is published") {
  KvFixture scene;
  const auto writer = scene.attach(), reader = scene.attach();
  {
    auto writing = writer->begin_put(scene.name_space, "k", 4096, {});
    REQUIRE(writing.ok());
    const auto made = kv_bytes("k", 4096);
    std::memcpy(writing->bytes().data(), made.data(), made.size());
    CHECK(kv_check(*reader, scene.name_space, "k") == 0);
    REQUIRE(writing->publish().ok());
    CHECK(kv_check(*reader, scene.name_space, "k") == 1);
  }
  const uint64_t free_before = writer->stat()->free_bytes;
  { CHECK(writer->begin_put(scene.name_space, "given up", 4096, {}).ok()); }
  CHECK(kv_check(*reader, scene.name_space, "given up") == 0);
  CHECK(writer->stat()->free_bytes == free_before);
  // Two at once: the second one finds the first one's.
  auto first = writer->begin_put(scene.name_space, "both", 64, {});
  auto second = writer->begin_put(scene.name_space, "both", 64, {});
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  CHECK(first->fill(kv_bytes("both", 64)).ok());
  CHECK(second->fill(kv_bytes("both", 63)).error().code == ErrorCode::invalid_argument);
  CHECK(first->publish().ok());
  CHECK(second->publish().error().code == ErrorCode::already_exists);
  CHECK(kv_check(*reader, scene.name_space, "both", 64) == 1);
  // The same by two holders.
  auto mine = writer->begin_put(scene.name_space, "each", 64, {}),
       others = reader->begin_put(scene.name_space, "each", 64, {});
  REQUIRE(mine.ok());
  REQUIRE(others.ok());
  CHECK(others->fill(kv_bytes("each", 64)).ok());
  CHECK(others->publish().ok());
  CHECK(mine->publish().error().code == ErrorCode::already_exists);
}

TEST_CASE("many keys in one call") {
  KvFixture scene;
  const auto one = scene.attach(), other = scene.attach();
  std::vector<std::string> keys;
  for (int index = 0; index < 200; ++index) keys.push_back("key " + std::to_string(index));
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  for (int index = 0; index < 130; ++index)
    REQUIRE(kv_put(index % 2 == 0 ? *one : *other, scene.name_space, keys[index], 512).ok());
  std::array<bool, 200> found{};
  REQUIRE(one->exists(scene.name_space, views, found).ok());
  for (int index = 0; index < 200; ++index) CHECK(found[index] == (index < 130));
  CHECK(*other->prefix(scene.name_space, views) == 130);
  REQUIRE(one->erase(scene.name_space, keys[64], 0).ok());
  CHECK(*other->prefix(scene.name_space, views) == 64);
  CHECK(one->exists(scene.name_space, views, std::span(found).first(3)).error().code ==
        ErrorCode::invalid_argument);
}

TEST_CASE("what is read in place stays, and goes afterwards") {
  KvFixture scene;
  const auto writer = scene.attach(), reader = scene.attach(false, false);
  REQUIRE(kv_put(*writer, scene.name_space, "k").ok());
  auto view = reader->view(scene.name_space, "k");
  REQUIRE(view.ok());
  CHECK(writer->erase(scene.name_space, "k", 2'000'000).error().code == ErrorCode::busy);
  // Under pressure everything else goes.
  for (int index = 0; index < 4000; ++index)
    REQUIRE(kv_put(*writer, scene.name_space, "filler " + std::to_string(index)).ok());
  const auto expected = kv_bytes("k", 4096);
  CHECK(std::equal(view->bytes().begin(), view->bytes().end(), expected.begin(), expected.end()));
  CHECK(kv_check(*reader, scene.name_space, "k") == 1);
  CHECK(writer->counters().evicted > 2000);
  view->reset();
  CHECK(writer->erase(scene.name_space, "k", 0).ok());
  CHECK(kv_check(*reader, scene.name_space, "k") == 0);
}

TEST_CASE("what another holder's part has is erased by its owner") {
  KvFixture scene;
  const auto owner = scene.attach(true), other = scene.attach();
  REQUIRE(kv_put(*owner, scene.name_space, "k").ok());
  CHECK(other->erase(scene.name_space, "k").ok());
  CHECK(kv_check(*other, scene.name_space, "k") == 0);
  CHECK(other->erase(scene.name_space, "k").error().code == ErrorCode::not_found);
  for (int index = 0; index < 300; ++index)
    REQUIRE(kv_put(*owner, scene.name_space, std::to_string(index), 100).ok());
  REQUIRE(kv_put(*owner, KvNamespace(), "stays", 100).ok());
  CHECK(*other->flush(scene.name_space) == 300);
  CHECK(kv_check(*other, KvNamespace(), "stays", 100) == 1);
  CHECK(*other->flush(std::nullopt) == 1);
}

TEST_CASE("one that expires is gone, and makes room for another") {
  KvFixture scene;
  const auto one = scene.attach();
  REQUIRE(kv_put(*one, scene.name_space, "short", 64, {.ttl_s = 1}).ok());
  REQUIRE(kv_put(*one, scene.name_space, "long", 64, {.ttl_s = 1000}).ok());
  CHECK(kv_check(*one, scene.name_space, "short", 64) == 1);
  for (int waited = 0; waited < 300 && kv_check(*one, scene.name_space, "short", 64) == 1; ++waited)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(kv_check(*one, scene.name_space, "short", 64) == 0);
  CHECK(kv_check(*one, scene.name_space, "long", 64) == 1);
  CHECK(kv_put(*one, scene.name_space, "short", 64, {.ttl_s = 1}).ok());
  for (int waited = 0; waited < 300 && one->counters().expired == 0; ++waited) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    for (int tick = 0; tick < 16; ++tick) one->tend();
  }
  CHECK(one->counters().expired == 1);
}

void wait_until_expired(KvSpace& space, const KvNamespace& name_space, std::string_view key) {
  for (int waited = 0; waited < 3000 && kv_check(space, name_space, key) == 1; ++waited)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  REQUIRE(kv_check(space, name_space, key) == 0);
}

TEST_CASE("one that has expired and is read in place is in nobody's way") {
  for (const SpaceCoherence coherence : {SpaceCoherence::coherent, SpaceCoherence::noncoherent}) {
    KvFormatOptions options = KvFixture::small();
    options.coherence = coherence;
    KvFixture scene(options);
    auto owner = scene.attach();
    const auto reader = scene.attach(false, false);
    REQUIRE(kv_put(*owner, scene.name_space, "k", 4096, {.ttl_s = 1}).ok());
    auto old = reader->view(scene.name_space, "k");
    REQUIRE(old.ok());
    wait_until_expired(*reader, scene.name_space, "k");
    const auto put = kv_put(*owner, scene.name_space, "k");
    REQUIRE_MESSAGE(put.ok(), put.error().to_string());
    CHECK(old->bytes().data() != reader->view(scene.name_space, "k")->bytes().data());
    CHECK(kv_check(*reader, scene.name_space, "k") == 1);
    CHECK(*reader->length(scene.name_space, "k") == 4096);
    const std::string_view key = "k";
    bool found = false;
    CHECK(reader->exists(scene.name_space, {&key, 1}, {&found, 1}).ok());
    CHECK(found);
    CHECK(kv_put(*owner, scene.name_space, "k").error().code == ErrorCode::already_exists);
    const auto expected = kv_bytes("k", 4096);
    CHECK(std::equal(old->bytes().begin(), old->bytes().end(), expected.begin(), expected.end()));
    // Both outlive their owner, and the next one clears up the older.
    owner->tend();
    scene.die(std::move(owner));
    const auto next = scene.attach();
    REQUIRE(kv_put(*next, scene.name_space, "next").ok());
    CHECK(kv_check(*reader, scene.name_space, "k") == 1);
    old->reset();
    for (int tick = 0; tick < 16; ++tick) next->tend();
    CHECK(next->counters().expired == 1);
    CHECK(kv_check(*reader, scene.name_space, "k") == 1);
    CHECK(next->erase(scene.name_space, "k", 0).ok());
    CHECK(kv_check(*reader, scene.name_space, "k") == 0);
    CHECK(next->verify()->wrong.empty());
  }
}

TEST_CASE("flush takes what has expired as well") {
  KvFixture scene;
  const auto one = scene.attach();
  const uint64_t all = one->stat()->free_bytes;
  REQUIRE(kv_put(*one, scene.name_space, "short", 4096, {.ttl_s = 1}).ok());
  CHECK(one->stat()->free_bytes < all);
  wait_until_expired(*one, scene.name_space, "short");
  CHECK(one->stat()->free_bytes < all);
  CHECK(*one->flush(*KvNamespace::of("another"), 0) == 0);
  CHECK(*one->flush(scene.name_space, 0) == 1);
  CHECK(one->stat()->free_bytes == all);
  // The next one of its key does so, too.
  REQUIRE(kv_put(*one, scene.name_space, "short", 4096, {.ttl_s = 1}).ok());
  wait_until_expired(*one, scene.name_space, "short");
  REQUIRE(kv_put(*one, scene.name_space, "short", 4096).ok());
  CHECK(*one->flush(scene.name_space, 0) == 1);
}

TEST_CASE("errors say what is wrong") {
  KvFixture scene;
  const auto one = scene.attach();
  CHECK(kv_put(*one, scene.name_space, "").error().code == ErrorCode::invalid_argument);
  CHECK(kv_put(*one, scene.name_space, std::string(513, 'k')).error().code == ErrorCode::invalid_argument);
  CHECK(kv_put(*one, scene.name_space, std::string(512, 'k')).ok());
  CHECK(kv_put(*one, scene.name_space, "large", 1 << 20).error().code == ErrorCode::limit_exceeded);
  REQUIRE(kv_put(*one, scene.name_space, "k", 100).ok());
  std::vector<std::byte> into(99);
  const auto got = one->get(scene.name_space, {.key = "k", .into = into});
  CHECK(got.error().code == ErrorCode::invalid_argument);
  CHECK(got.error().detail.find("100 bytes") != std::string::npos);
  auto copies_only = KvSpace::attach(scene.memory.span(), {});
  REQUIRE(copies_only.ok());
  CHECK(kv_check(**copies_only, scene.name_space, "k", 100) == 1);
  CHECK((*copies_only)->view(scene.name_space, "k").error().code == ErrorCode::permission_denied);
  CHECK(kv_put(**copies_only, scene.name_space, "n").error().code == ErrorCode::permission_denied);
  CHECK((*copies_only)->erase(scene.name_space, "k").error().code == ErrorCode::permission_denied);
  CHECK(TensorSpace::attach(scene.memory.span()).error().code == ErrorCode::version_mismatch);
  AlignedMemory tensors(1 << 20);
  REQUIRE(TensorSpace::format(tensors.span(), {.parts = 2, .records_per_part = 16, .pins_per_part = 8}).ok());
  CHECK(KvSpace::attach(tensors.span()).error().code == ErrorCode::version_mismatch);
  AlignedMemory nothing(1 << 20);
  CHECK(KvSpace::attach(nothing.span()).error().code == ErrorCode::not_found);
  CHECK(KvSpace::format(nothing.span(), {.block_bytes = 100}).error().code == ErrorCode::invalid_argument);
  CHECK(KvSpace::format(nothing.span().first(8192)).error().code == ErrorCode::capacity_exhausted);
}

TEST_CASE("as many pins, parts and seats as there are") {
  KvFixture scene;
  const auto one = scene.attach(), two = scene.attach(), three = scene.attach(), four = scene.attach();
  REQUIRE(kv_put(*one, scene.name_space, "1").ok());
  REQUIRE(kv_put(*two, scene.name_space, "2").ok());
  REQUIRE(kv_put(*three, scene.name_space, "3").ok());
  CHECK(kv_put(*four, scene.name_space, "4").error().code == ErrorCode::busy);
  std::vector<KvView> views;
  for (int index = 0; index < 16; ++index) {
    auto view = four->view(scene.name_space, "1");  // from a seat
    REQUIRE(view.ok());
    views.push_back(std::move(*view));
  }
  CHECK(four->view(scene.name_space, "1").error().code == ErrorCode::limit_exceeded);
  views.pop_back();
  CHECK(four->view(scene.name_space, "1").ok());
}

}  // namespace
}  // namespace terrace
