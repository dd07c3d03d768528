// SPDX-License-Identifier: Apache-2.0
// Sequences worked out by hand. Before anything is learned the order is that of the last use.
#include "tiering/eviction/block_order.h"

#include <doctest/doctest.h>

#include <string>

namespace terrace::eviction {
namespace {

// Blocks are letters; an id is the letter's number, a key the letter itself.
struct Letters {
  BlockOrder order;
  static uint32_t id(char letter) { return static_cast<uint32_t>(letter - 'a'); }
  static uint64_t key(char letter) { return static_cast<uint64_t>(letter); }
  void insert(char letter, char parent = 0) {
    order.insert(id(letter), {.key = key(letter), .parent = key(parent), .bytes = 4096});
  }
  // Each follows the one before it.
  void insert_chain(const std::string& letters) {
    for (size_t at = 0; at < letters.size(); ++at) insert(letters[at], at == 0 ? '\0' : letters[at - 1]);
  }
  void use(const std::string& letters) {
    for (const char letter : letters) order.use(id(letter));
  }
  char victim() {
    const auto found = order.victim();
    return found ? static_cast<char>('a' + *found) : '-';
  }
  std::string evict(size_t count) {
    std::string gone;
    for (size_t at = 0; at < count; ++at) {
      gone += victim();
      order.erase(id(gone.back()), true);
    }
    return gone;
  }
};

TEST_CASE("BlockOrder: blocks that know nothing of each other go in the order of their last use") {
  Letters letters;
  CHECK(letters.victim() == '-');
  for (const char letter : std::string("abcde")) letters.insert(letter);
  letters.use("ac");
  CHECK(letters.order.size() == 5);
  CHECK(letters.victim() == 'b');
  CHECK(letters.victim() == 'b');  // it stays until it is erased
  CHECK(letters.evict(5) == "bdeac");
  CHECK(letters.order.size() == 0);
  CHECK(letters.victim() == '-');
}

TEST_CASE("BlockOrder: the deepest block of a chain goes first") {
  Letters letters;
  letters.insert_chain("abcd");
  CHECK(letters.evict(4) == "dcba");
  letters.insert_chain("abcd");
  letters.insert('x');
  letters.insert('y');
  CHECK(letters.evict(6) == "dcbaxy");
}

TEST_CASE("BlockOrder: a shared prefix stays until both of its ends are gone") {
  Letters letters;
  letters.insert_chain("abc");
  letters.use("a");
  letters.insert('p', 'a');  // a second prompt: a p q
  letters.insert('q', 'p');
  letters.insert('z');
  CHECK(letters.evict(6) == "cbqpaz");
}

TEST_CASE("BlockOrder: a chain that is used again goes after one that is not") {
  Letters letters;
  letters.insert_chain("abc");
  letters.insert_chain("pqr");
  letters.use("abc");
  letters.insert('z');
  CHECK(letters.evict(7) == "rqpcbaz");
}

TEST_CASE("BlockOrder: a parent that is not there is no parent, then or later") {
  Letters letters;
  letters.insert('b', 'a');
  letters.insert('a');  // comes after its child, which goes on as a first block
  letters.insert('c', 'c');
  letters.insert('z');
  CHECK(letters.evict(4) == "bacz");
}

TEST_CASE("BlockOrder: children of an erased block are first blocks, even if its key or its id comes back") {
  Letters letters;
  letters.insert_chain("abc");
  letters.order.erase(Letters::id('b'), false);  // c has no parent now, a no child
  letters.insert('b', 'a');                      // the same key and id, but not the parent of c
  letters.insert('d', 'b');
  letters.insert('z');
  // c leaves no mark on the new b, which has one child: d
  letters.order.erase(Letters::id('c'), true);
  CHECK(letters.evict(4) == "dbaz");
}

TEST_CASE("BlockOrder: a block that is pinned is offered after all others") {
  Letters letters;
  for (const char letter : std::string("abcd")) letters.insert(letter);
  letters.order.skip(Letters::id('a'));
  CHECK(letters.victim() == 'b');
  letters.order.skip(Letters::id('b'));
  CHECK(letters.victim() == 'c');
  letters.order.skip(Letters::id('c'));
  letters.order.skip(Letters::id('d'));
  CHECK(letters.victim() == 'a');  // nothing else is left: the first one skipped
  letters.use("a");                // a hit: no longer skipped, and used last
  CHECK(letters.evict(4) == "bcda");
}

TEST_CASE("BlockOrder: a skipped block comes back after a sixteenth of the blocks went") {
  BlockOrder order;
  for (uint32_t id = 0; id < 160; ++id) order.insert(id, {.key = id + 1u});
  order.skip(0);
  for (uint32_t id = 1; id <= 11; ++id) {
    CHECK(order.victim() == id);
    order.erase(id, true);
  }
  CHECK(order.victim() == 0u);
}

TEST_CASE("BlockOrder: a pinned last block of a chain keeps the chain, not the others") {
  Letters letters;
  letters.insert_chain("abc");
  letters.insert('x');
  letters.insert('y');
  CHECK(letters.victim() == 'c');
  letters.order.skip(Letters::id('c'));
  CHECK(letters.victim() == 'x');
  letters.order.skip(Letters::id('b'));  // waits for c anyway
  letters.order.erase(Letters::id('x'), true);
  letters.order.skip(Letters::id('y'));
  CHECK(letters.victim() == 'c');
  CHECK(letters.evict(4).substr(0, 1) == "c");
}

TEST_CASE(
    "BlockOrder: what counts is the use of a byte, so a much larger block goes before an older small one") {
  BlockOrder order;
  order.insert(0, {.key = 1, .bytes = 4096});
  order.insert(1, {.key = 2, .bytes = uint64_t{1} << 30});
  order.use(1);  // another class than 0, so that the two are compared
  order.insert(2, {.key = 3, .bytes = 4096});
  CHECK(order.victim() == 1u);
  order.erase(1, true);
  CHECK(order.victim() == 0u);
}

}  // namespace
}  // namespace terrace::eviction
