// SPDX-License-Identifier: Apache-2.0
// The owner's side of a part by itself: what two threads of a holder, a late caller or a former owner could do.
#include "libclient/kv/block_part.h"

#include "libclient/coherence/formatting.h"
#include "libclient/coherence/memory/coherent_memory.h"
#include "libclient/coherence/seat.h"
#include "tests/unit/kv/kv_fixture.h"

namespace terrace {
namespace {

using coherence::CoherentMemory;
using coherence::Outcome;
using OnePart = kv::BlockPart<CoherentMemory>;

struct PartScene {
  PartScene() : geometry(*coherence::read_geometry(fixture.memory.span(), coherence::SpaceContent::blocks)) {}

  std::unique_ptr<OnePart> own(uint64_t epoch, uint32_t part = 0) {
    auto made = std::make_unique<OnePart>(CoherentMemory(), geometry, part, epoch, 0,
                                          [](uint32_t, uint64_t) { return false; });
    made->take_over();
    return made;
  }
  // Nothing: there was no room, or it was not published.
  std::optional<kv::Block> put(OnePart& part, const std::string& key, Outcome expected = Outcome::done) {
    kv::Room room;
    REQUIRE(part.reserve(kv::extent_bytes(64, "", key), &room) == Outcome::done);
    kv::Block block{.key = kv::key_of(0, key), .bytes = 64};
    CHECK(part.publish(room, &block, 1) == expected);
    return expected == Outcome::done ? std::optional(block) : std::nullopt;
  }
  Outcome find(uint32_t part, const std::string& key, kv::Block* block) {
    return kv::BlockReader<CoherentMemory>(CoherentMemory(), geometry).find(part, kv::key_of(0, key), 1, block);
  }

  KvFixture fixture;
  coherence::Geometry geometry;
};

TEST_CASE("part: of two threads that put one key the second has its room back") {
  PartScene scene;
  const auto part = scene.own(1);
  REQUIRE(scene.put(*part, "k"));
  CHECK(!scene.put(*part, "k", Outcome::exists));
  CHECK(part->live() == 1);
  kv::Block there;
  REQUIRE(scene.find(0, "k", &there) == Outcome::done);
  CHECK(part->remove(there) == Outcome::done);
  CHECK(scene.find(0, "k", &there) == Outcome::gone);  // it was the only one
  CHECK(part->live() == 0);
  CHECK(part->chunks_owned() == 0);  // nor has it room
}

TEST_CASE("part: who comes late to a record that another block has changes nothing of it") {
  PartScene scene;
  const auto part = scene.own(1);
  const auto old = *scene.put(*part, "k");
  REQUIRE(part->remove(old) == Outcome::done);
  const auto next = *scene.put(*part, "k");
  REQUIRE(next.record == old.record);
  CHECK(part->remove(old) == Outcome::gone);
  kv::Block late = old;
  late.expires_unix_s = 77;
  part->note_use(late, 88);
  kv::Block there;
  REQUIRE(scene.find(0, "k", &there) == Outcome::done);
  CHECK(there.expires_unix_s == 0);
  CHECK(there.used_unix_s == next.used_unix_s);
  part->note_use(next, 99);
  REQUIRE(scene.find(0, "k", &there) == Outcome::done);
  CHECK(there.used_unix_s == 99);
}

TEST_CASE("part: a former owner does nothing any more") {
  PartScene scene;
  const auto former = scene.own(1);
  const auto block = *scene.put(*former, "k");
  kv::Room room;
  REQUIRE(former->reserve(4096, &room) == Outcome::done);
  const auto owner = scene.own(2);
  kv::Room more;
  CHECK(former->reserve(4096, &more) == Outcome::disowned);
  kv::Block other{.key = kv::key_of(0, "other"), .bytes = 64};
  CHECK(former->publish(room, &other, 1) == Outcome::disowned);
  CHECK(former->remove(block) == Outcome::disowned);
  kv::Block there;
  CHECK(scene.find(0, "other", &there) == Outcome::gone);
  CHECK(scene.find(0, "k", &there) == Outcome::done);
  CHECK(owner->live() == 1);
}

TEST_CASE("part: a block that stays because it is pinned can be pinned and removed later") {
  PartScene scene;
  const auto part = scene.own(1);
  const auto reader = scene.own(1, 1);
  const auto block = *scene.put(*part, "k");
  const auto pin = reader->pins().hold(coherence::pin_word(0, block.record, 0));
  REQUIRE(pin);
  CHECK(part->remove(block) == Outcome::pinned);
  kv::Block there;
  REQUIRE(scene.find(0, "k", &there) == Outcome::done);
  CHECK(there.word == block.word);  // not retiring
  reader->pins().drop(*pin);
  CHECK(part->remove(block) == Outcome::done);
}

TEST_CASE("part: a take-over clears pins, retiring and chunks without a block") {
  PartScene scene;
  const auto part = scene.own(1);
  const auto block = *scene.put(*part, "k");
  auto dead = scene.own(1, 1);
  kv::Room filling;
  REQUIRE(dead->reserve(4096, &filling) == Outcome::done);
  CHECK(dead->chunks_owned() == 1);
  REQUIRE(dead->pins().hold(coherence::pin_word(0, block.record, 0)));
  const auto next = scene.own(2, 1);
  CHECK(next->chunks_owned() == 0);
  CHECK(part->remove(block) == Outcome::done);
  // Killed between retiring and the version.
  const auto kept = *scene.put(*part, "k");
  scene.geometry.block(0, kept.record)->word |= layout::word_retiring;
  const auto successor = scene.own(2);
  kv::BlockReader<CoherentMemory> reads(CoherentMemory(), scene.geometry);
  kv::Block there;
  REQUIRE(scene.find(0, "k", &there) == Outcome::done);
  CHECK(reads.holds_after_pin(there));
}

TEST_CASE("part: a version that nobody reaches by publishing is no block") {
  PartScene scene;
  auto part = scene.own(1);
  const auto block = *scene.put(*part, "k");
  layout::BlockRecord record = kv::record_of(block, layout::word_version_mask / 2 + 1);
  std::memcpy(scene.geometry.block(0, block.record), &record, sizeof record);
  part = scene.own(2);
  CHECK(part->live() == 0);
}

TEST_CASE("part: what is given up is free again, and directories keep room for their chains") {
  PartScene scene;
  const auto part = scene.own(1);
  for (int index = 0; index < 1000; ++index) {
    kv::Room room;
    REQUIRE(part->reserve(60 << 10, &room, index == 0) == Outcome::done);
    part->cancel(room);
    if (index == 0) REQUIRE(scene.put(*part, "stays"));  // and the chunk with it
  }
  uint32_t live = part->live();
  kv::Room room;
  while (live < scene.geometry.records &&
         part->reserve(kv::extent_bytes(64, "", "k"), &room) == Outcome::done) {
    kv::Block block{.key = kv::key_of(0, "n" + std::to_string(live)), .bytes = 64};
    REQUIRE(part->publish(room, &block, 1) == Outcome::done);
    ++live;
  }
  CHECK(live == scene.geometry.records - scene.geometry.records / 4);
  CHECK(part->reserve(4096, &room) == Outcome::no_record);
}

}  // namespace
}  // namespace terrace
