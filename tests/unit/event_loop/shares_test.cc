// SPDX-License-Identifier: Apache-2.0
#include "daemon/event_loop/shares.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using terrace::daemon::ShareKey;
using terrace::daemon::Shares;

namespace {

// Takes `count` items, each of which costs what `cost` says of its key; their keys, in order.
template <typename Cost>
std::vector<ShareKey> served(Shares<int>& shares, int count, const Cost& cost) {
  std::vector<ShareKey> keys;
  for (int i = 0; i < count; ++i) {
    const auto taken = shares.take();
    if (!taken.has_value()) break;
    keys.push_back(taken->key);
    shares.charge(taken->key, cost(taken->key));
  }
  return keys;
}

uint64_t same_cost(ShareKey) {
  return 10;
}

}  // namespace

TEST_CASE("Shares: a thousand items of one owner delay another's first by one of them") {
  Shares<int> shares;
  for (int i = 0; i < 1000; ++i) shares.add(1, i);
  CHECK(served(shares, 20, same_cost) == std::vector<ShareKey>(20, 1));
  shares.add(2, 0);
  const auto next = served(shares, 2, same_cost);
  CHECK((next[0] == 2 || next[1] == 2));
}

TEST_CASE("Shares: items of one owner keep their order") {
  Shares<int> shares;
  for (int i = 0; i < 5; ++i) {
    shares.add(7, i);
    shares.add(8, 100 + i);
  }
  int last = -1, last_of_other = 99;
  while (const auto taken = shares.take()) {
    int& before = taken->key == 7 ? last : last_of_other;
    CHECK(taken->item == before + 1);
    before = taken->item;
    shares.charge(taken->key, 3);
  }
  CHECK(last == 4);
  CHECK(last_of_other == 104);
}

TEST_CASE("Shares: it is time that is shared, not the number of items") {
  Shares<int> shares;
  for (int i = 0; i < 200; ++i) {
    shares.add(1, i);
    shares.add(2, i);
  }
  int cheap = 0, dear = 0;
  for (const ShareKey key : served(shares, 110, [](ShareKey one) -> uint64_t { return one == 1 ? 100 : 10; }))
    ++(key == 1 ? dear : cheap);
  CHECK(dear >= 9);
  CHECK(dear <= 11);
  CHECK(cheap >= 99);
}

TEST_CASE("Shares: who was away for long saved nothing up for a flood, and owes nothing") {
  Shares<int> shares;
  shares.add(1, 0);
  served(shares, 1, same_cost);
  for (int i = 0; i < 100; ++i) shares.add(2, i);
  served(shares, 100, same_cost);
  for (int i = 0; i < 100; ++i) {
    shares.add(1, i);
    shares.add(2, i);
  }
  int of_first = 0;
  for (const ShareKey key : served(shares, 20, same_cost)) of_first += key == 1 ? 1 : 0;
  CHECK(of_first >= 9);
  CHECK(of_first <= 11);
}

TEST_CASE("Shares: time taken while nobody else was there is not paid back to who comes later") {
  Shares<int> shares;
  for (int i = 0; i < 1000; ++i) shares.charge(1, 1000);  // as one that is handled at once, each time
  for (int i = 0; i < 100; ++i) {
    shares.add(2, i);
    shares.add(1, i);
  }
  int of_first = 0;
  for (const ShareKey key : served(shares, 40, [](ShareKey) -> uint64_t { return 1000; }))
    of_first += key == 1 ? 1 : 0;
  CHECK(of_first >= 18);
}

TEST_CASE("Shares: owners that have nothing here are forgotten") {
  Shares<std::string> shares;
  for (ShareKey key = 0; key < 10'000; ++key) {
    shares.add(key, "x");
    const auto taken = shares.take();
    shares.charge(taken->key, 1);
  }
  CHECK(shares.owners_known() < 200);
  CHECK(shares.empty());
}
