#include "tiering/migration/copy.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

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

TEST_CASE("CopyBudget: allows as much as the time that passed, at most a tenth of a second's worth at once") {
  CopyBudget budget;
  CHECK(budget.allowance(1) == UINT64_MAX);  // no bound
  budget.set(1000);
  uint64_t now_ns = 5'000'000'000;
  budget.allowance(now_ns);
  now_ns += 50'000'000;
  CHECK(budget.allowance(now_ns) == 50);
  now_ns += 10'000'000'000;
  CHECK(budget.allowance(now_ns) == 100);
  budget.spend(600);
  CHECK(budget.allowance(now_ns) == 0);
  now_ns += 400'000'000;
  CHECK(budget.allowance(now_ns) == 0);  // the debt is not paid yet
  now_ns += 150'000'000;
  CHECK(budget.allowance(now_ns) == 50);
}
