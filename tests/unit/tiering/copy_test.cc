// SPDX-License-Identifier: Apache-2.0
#include "tiering/migration/copy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "tiering/migration/copy_team.h"

using namespace terrace::tiering;

TEST_CASE("copy_streamed: every kind this processor can copies every byte and no other") {
  constexpr size_t room = 1 << 20;
  auto* from = static_cast<unsigned char*>(std::aligned_alloc(4096, room));
  auto* to = static_cast<unsigned char*>(std::aligned_alloc(4096, room));
  for (size_t i = 0; i < room; ++i) from[i] = static_cast<unsigned char>(i * 131 >> 3);
  for (const CopyKind kind : {CopyKind::plain, CopyKind::nt_avx2, CopyKind::nt_avx512}) {
    if (kind > best_copy_kind()) continue;
    for (const size_t bytes :
         {size_t{512}, size_t{4096}, size_t{65536}, size_t{512 * 1024 + 512}, size_t{1000}, size_t{1}}) {
      for (const size_t offset : {size_t{0}, size_t{64}, size_t{8}}) {
        std::memset(to, 0xee, room);
        copy_streamed(to + offset, from + offset, bytes, kind);
        REQUIRE_MESSAGE(std::memcmp(to + offset, from + offset, bytes) == 0,
                        copy_kind_name(kind) << " " << bytes << " at " << offset);
        REQUIRE(to[offset + bytes] == 0xee);
        if (offset > 0) REQUIRE(to[offset - 1] == 0xee);
      }
    }
  }
  std::free(from);
  std::free(to);
}

TEST_CASE(
    "CopyBudget: allows as much as the time that passed, saves up a tenth of a second, and remembers debt") {
  CopyBudget budget;
  CHECK(budget.allowance(1) == UINT64_MAX);  // no bound
  budget.spend(1'000'000'000'000);           // and no debt from that time
  constexpr uint64_t per_s = 1'000'000'000;
  budget.set(per_s);
  uint64_t now_ns = 5'000'000'000;
  budget.allowance(now_ns);
  now_ns += 50'000'000;
  CHECK(budget.allowance(now_ns) == per_s / 20);
  now_ns += 10'000'000'000;
  CHECK(budget.allowance(now_ns) == per_s / 10);
  budget.spend(per_s / 10 + per_s / 2);
  CHECK(budget.allowance(now_ns) == 0);
  now_ns += 400'000'000;
  CHECK(budget.allowance(now_ns) == 0);  // the debt is not paid yet
  now_ns += 150'000'000;
  CHECK(budget.allowance(now_ns) == per_s / 20);
}

TEST_CASE("CopyBudget: a small one lets two granules trade now and then, and an absurd one does no harm") {
  CopyBudget budget;
  budget.set(1 << 20);
  uint64_t now_ns = 1'000'000'000;
  budget.allowance(now_ns);
  for (int second = 0; second < 20; ++second) budget.allowance(now_ns += 1'000'000'000);
  CHECK(budget.allowance(now_ns) == 8u << 20);
  budget.set(UINT64_MAX - 1);
  budget.allowance(now_ns);
  CHECK(budget.allowance(now_ns + 1'000'000'000) > 1u << 30);
  budget.set(1 << 20);
  budget.allowance(now_ns);
  CHECK(budget.allowance(now_ns + 2'000'000'000) == 2u << 20);
}

TEST_CASE("CopyTeam: several threads copy every byte, one block after the other") {
  constexpr size_t bytes = 9 << 20;
  auto* from = static_cast<unsigned char*>(std::aligned_alloc(4096, bytes));
  auto* to = static_cast<unsigned char*>(std::aligned_alloc(4096, bytes));
  CopyTeam team;
  for (const uint32_t threads : {1u, 2u, 3u, 8u, 20u}) {
    REQUIRE(team.start(threads) == 0);
    CHECK(team.threads() == std::min(threads, 8u));
    for (unsigned round = 0; round < 20; ++round) {
      std::memset(from, static_cast<int>(round + threads), bytes);
      from[bytes - 1] = 77;
      team.copy(reinterpret_cast<char*>(to), reinterpret_cast<const char*>(from),
                bytes - (round % 2) * 4096 * 3);
      REQUIRE(std::memcmp(to, from, bytes - (round % 2) * 4096 * 3) == 0);
    }
  }
  team.stop();
  std::free(from);
  std::free(to);
}
