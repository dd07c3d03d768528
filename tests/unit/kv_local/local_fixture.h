// SPDX-License-Identifier: Apache-2.0
// A KV space with holders that have local copies of its blocks.
#pragma once

#include <doctest/doctest.h>

#include "terrace/kv_local.h"
#include "tests/unit/kv/kv_fixture.h"

namespace terrace {

struct LocalFixture {
  explicit LocalFixture(SpaceCoherence coherence = SpaceCoherence::coherent, size_t bytes = 4 << 20)
      : scene(options(coherence), bytes) {}
  static KvFormatOptions options(SpaceCoherence coherence) {
    KvFormatOptions made = KvFixture::small();
    made.coherence = coherence;
    return made;
  }
  static std::shared_ptr<KvLocal> open(KvLocalOptions options = {.bytes = 1 << 20}) {
    auto local = KvLocal::open(options);
    REQUIRE_MESSAGE(local.ok(), local.error().to_string());
    return std::move(*local);
  }
  std::unique_ptr<KvSpace> attach(std::shared_ptr<KvLocal> local, bool puts = true, bool tends = false) {
    auto space =
        KvSpace::attach(scene.memory.span(), {.ownership = std::make_shared<KvTestOwnership>(scene.book),
                                              .puts = puts,
                                              .tends_itself = tends,
                                              .local = std::move(local)});
    REQUIRE_MESSAGE(space.ok(), space.error().to_string());
    return std::move(*space);
  }
  // Reads a block until it has a copy.
  void warm(KvSpace& space, const std::string& key, size_t bytes = 4096) {
    const uint64_t copied = space.counters().local_copied;
    for (int time = 0; time < 2; ++time) REQUIRE(kv_check(space, names, key, bytes) == 1);
    REQUIRE(space.counters().local_copied == copied + 1);
  }
  // Whether the next get is answered by a copy, with the right bytes.
  bool is_local(KvSpace& space, const std::string& key, size_t bytes = 4096) {
    const uint64_t hits = space.counters().local_hits;
    CHECK(kv_check(space, names, key, bytes) == 1);
    return space.counters().local_hits == hits + 1;
  }
  // Of another content than kv_put() gives the key.
  Status put_other(KvSpace& space, const std::string& key, size_t bytes = 4096) {
    const auto made = kv_bytes("another " + key, bytes);
    return space.put(names, {.key = key, .bytes = made});
  }
  bool has_other(KvSpace& space, const std::string& key, size_t bytes = 4096) {
    std::vector<std::byte> into(bytes);
    const auto got = space.get(names, {.key = key, .into = into});
    return got.ok() && *got == bytes && into == kv_bytes("another " + key, bytes);
  }
  static bool has_bytes(const KvView& view, std::string_view key, size_t bytes = 4096) {
    const auto expected = kv_bytes(key, bytes);
    return std::equal(view.bytes().begin(), view.bytes().end(), expected.begin(), expected.end());
  }

  KvFixture scene;
  KvNamespace names = *KvNamespace::of("test");
};

inline constexpr SpaceCoherence both_coherences[] = {SpaceCoherence::coherent, SpaceCoherence::noncoherent};

}  // namespace terrace
