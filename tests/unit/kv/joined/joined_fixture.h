// SPDX-License-Identifier: Apache-2.0
// Spaces of several members in ordinary memory, with holders that live in this process, and die when a test says so.
#pragma once

#include <map>
#include <string>

#include "terrace/kv_members.h"
#include "tests/unit/kv/kv_fixture.h"

namespace terrace {

struct JoinedScene {
  struct Place {
    explicit Place(size_t bytes) : memory(bytes) { std::memset(memory.span().data(), 0, bytes); }
    AlignedMemory memory;
    std::shared_ptr<KvBook> book = std::make_shared<KvBook>();
    bool opens = true;
  };

  explicit JoinedScene(KvFormatOptions as = KvFixture::small(), size_t bytes = 4 << 20) {
    const Status formatted = KvSpace::format(add("a", bytes).memory.span(), as);
    REQUIRE_MESSAGE(formatted.ok(), formatted.error().to_string());
  }
  Place& add(const std::string& where, size_t bytes = 4 << 20) {
    places[where] = std::make_unique<Place>(bytes);
    return *places[where];
  }
  Place& at(const std::string& where) { return *places.at(where); }

  Result<KvMemberMemory> open(const std::string& where) {
    const auto found = places.find(where);
    if (found == places.end() || !found->second->opens)
      return Error{.code = ErrorCode::not_found, .where = "test", .detail = "no memory " + where};
    Place& place = *found->second;
    return KvMemberMemory{.bytes = place.memory.span(),
                          .ownership = std::make_shared<KvTestOwnership>(place.book)};
  }
  Result<std::unique_ptr<JoinedKvSpace>> try_to_attach(const std::string& where = "a", bool puts = true,
                                                       bool tends = false) {
    TERRACE_ASSIGN_OR_RETURN(KvMemberMemory first, open(where));
    return JoinedKvSpace::attach(std::move(first), where,
                                 {.attach = {.puts = puts, .tends_itself = tends},
                                  .open = [this](const std::string& member) { return open(member); },
                                  .look_ns = look_ns});
  }
  std::unique_ptr<JoinedKvSpace> attach(const std::string& where = "a", bool puts = true, bool tends = false) {
    auto space = try_to_attach(where, puts, tends);
    REQUIRE_MESSAGE(space.ok(), space.error().to_string());
    return std::move(*space);
  }
  // A space of "a", "b" and so on.
  void grow_to(size_t members, size_t bytes = 4 << 20) {
    const auto space = attach();
    for (size_t index = 1; index < members; ++index) {
      const std::string where(1, static_cast<char>('a' + index));
      add(where, bytes);
      const Status grown = space->grow(where);
      REQUIRE_MESSAGE(grown.ok(), grown.error().to_string());
    }
  }

  uint64_t look_ns = 20'000'000;
  KvNamespace name_space = *KvNamespace::of("test");
  std::map<std::string, std::unique_ptr<Place>> places;
};

inline std::string key_number(int index) {
  return "key" + std::to_string(index);
}

inline int put_keys(KvSpace& space, const KvNamespace& name_space, int count, size_t bytes = 4096) {
  int done = 0;
  for (int index = 0; index < count; ++index)
    done += kv_put(space, name_space, key_number(index), bytes, {.wait_ns = 0}).ok() ? 1 : 0;
  return done;
}

// How many are there; none may be wrong.
inline int right_keys(KvSpace& space, const KvNamespace& name_space, int count, size_t bytes = 4096) {
  int there = 0;
  for (int index = 0; index < count; ++index) {
    const int found = kv_check(space, name_space, key_number(index), bytes);
    CHECK_MESSAGE(found != -1, key_number(index));
    there += found == 1 ? 1 : 0;
  }
  return there;
}

inline std::vector<uint64_t> blocks_of_members(KvSpace& space) {
  const auto stat = space.stat();
  REQUIRE_MESSAGE(stat.ok(), stat.error().to_string());
  std::vector<uint64_t> blocks;
  for (const KvMemberInfo& member : stat->members) blocks.push_back(member.blocks);
  return blocks;
}

}  // namespace terrace
