// SPDX-License-Identifier: Apache-2.0
// Commands on a space that is full, busy, damaged, or changed by others in between.
#include "cli/kv/serve/commands.h"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include "tests/unit/kv_serve/fake_kv_space.h"

using namespace terrace;
using namespace terrace::kv_serve;

namespace {

struct Fixture {
  explicit Fixture(bool read_only = false)
      : commands(space, {.name_space = {}, .read_only = read_only, .max_block_bytes = 1 << 20}, figures) {}

  // The reply as it is sent; a command in steps is called until it is done.
  std::string ask(const std::vector<std::string>& words) {
    const std::vector<std::string_view> views(words.begin(), words.end());
    Replies replies;
    while (commands.execute(client, views, replies) == Progress::again) ++again;
    return replies.empty() ? "" : replies.text();
  }
  std::string stored(const std::string& key) {
    const FakeKvSpace::Block* block = space.find({}, key);
    return block == nullptr ? "nothing" : block->bytes;
  }

  FakeKvSpace space;
  ServerFigures figures;
  Commands commands;
  ClientState client;
  int again = 0;
};

}  // namespace

TEST_CASE("KV commands: a SET of the same bytes leaves the block, one of others replaces it") {
  Fixture f;
  CHECK(f.ask({"set", "k", "one"}) == "+OK\r\n");
  CHECK(f.ask({"SET", "k", "one"}) == "+OK\r\n");
  CHECK(f.space.erased == 0);
  CHECK(f.ask({"Set", "k", "two"}) == "+OK\r\n");
  CHECK(f.space.erased == 1);
  CHECK(f.stored("k") == "two");
  CHECK(f.ask({"set", "k", "six", "nx"}) == "$-1\r\n");
  CHECK(f.ask({"setnx", "k", "six"}) == ":0\r\n");
  CHECK(f.stored("k") == "two");
}

TEST_CASE("KV commands: what others do between two steps of a SET is as if it had been before or after") {
  Fixture f;
  int times = 0;
  f.space.before_put = [&] {
    if (++times <= 2) f.space.blocks[FakeKvSpace::name_of({}, "k")] = {"another's"};
  };
  CHECK(f.ask({"set", "k", "mine"}) == "+OK\r\n");
  CHECK(f.stored("k") == "mine");
  f.space.before_put = [&] { f.space.blocks[FakeKvSpace::name_of({}, "k")] = {"always another's"}; };
  CHECK(f.ask({"set", "k", "mine"}).starts_with("-ERR "));  // it does not go on for ever
}

TEST_CASE("KV commands: errors of the space have the words that clients know") {
  Fixture f;
  f.space.put_fails = ErrorCode::capacity_exhausted;
  CHECK(f.ask({"set", "k", "v"}).starts_with("-OOM "));
  CHECK(f.ask({"mset", "a", "1", "b", "2"}).find("MSET ended at pair 1 of 2") != std::string::npos);
  f.space.put_fails = ErrorCode::busy;
  CHECK(f.ask({"setnx", "k", "v"}).starts_with("-BUSY "));
  f.space.put_fails.reset();
  CHECK(f.ask({"set", "k", "v"}) == "+OK\r\n");
  f.space.erase_fails = ErrorCode::busy;
  CHECK(f.ask({"set", "k", "w"}).starts_with("-BUSY "));
  CHECK(f.ask({"del", "k"}).starts_with("-BUSY "));
  CHECK(f.stored("k") == "v");
  f.space.get_fails = ErrorCode::corrupt;
  CHECK(f.ask({"get", "k"}).starts_with("-ERR "));
  f.space.erase_fails.reset();
  CHECK(f.ask({"set", "k", "v"}) == "+OK\r\n");  // what is damaged is replaced
  CHECK(f.space.erased == 1);
}

TEST_CASE("KV commands: keys and values that cannot be are misses, or refused") {
  Fixture f;
  const std::string key(kv_key_bytes_max + 1, 'k');
  CHECK(f.ask({"get", key}) == "$-1\r\n");
  CHECK(f.ask({"mget", key, ""}) == "*2\r\n$-1\r\n$-1\r\n");
  CHECK(f.ask({"exists", key, ""}) == ":0\r\n");
  CHECK(f.ask({"strlen", key}) == ":0\r\n");
  CHECK(f.ask({"ttl", ""}) == ":-2\r\n");
  CHECK(f.ask({"type", key}) == "+none\r\n");
  CHECK(f.ask({"del", key}) == ":0\r\n");
  CHECK(f.ask({"set", key, "v"}).find("a key has 1 to 512 bytes, this one 513") != std::string::npos);
  CHECK(f.ask({"set", "k", std::string((1 << 20) + 1, 'v')}).starts_with("-ERR a value of 1048577 bytes"));
}

TEST_CASE("KV commands: times are whole seconds, rounded up") {
  Fixture f;
  const auto ttl_of = [&](const std::vector<std::string>& words) {
    f.space.blocks.clear();
    return f.ask(words) == "+OK\r\n" ? f.ask({"ttl", "k"}) : "refused";
  };
  CHECK(ttl_of({"set", "k", "v"}) == ":-1\r\n");
  CHECK(ttl_of({"set", "k", "v", "ex", "100"}) == ":100\r\n");
  CHECK(ttl_of({"set", "k", "v", "px", "99001", "nx"}) == ":100\r\n");
  for (const char* wrong : {"0", "-1", "", "x", "1x", "99999999999999999999", "2147483649"})
    CHECK(ttl_of({"set", "k", "v", "ex", wrong}) == "refused");
  CHECK(ttl_of({"set", "k", "v", "px", "9223372036854775807"}) == "refused");
  CHECK(ttl_of({"set", "k", "v", "ex", "1", "px", "1"}) == "refused");
}

TEST_CASE("KV commands: a long block without a pin is copied") {
  Fixture f;
  const std::string value(100'000, 'v');
  f.ask({"set", "k", value});
  CHECK(f.ask({"get", "k"}) == "$100000\r\n" + value + "\r\n");
}

TEST_CASE("KV commands: one that only reads says so, and one of another namespace sees nothing") {
  Fixture f(true);
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{{"set", "k", "v"},
                                                                                     {"setnx", "k", "v"},
                                                                                     {"mset", "k", "v"},
                                                                                     {"del", "k"},
                                                                                     {"unlink", "k"},
                                                                                     {"flushall"}})
    CHECK(f.ask(words).starts_with("-READONLY "));
  f.space.blocks[FakeKvSpace::name_of(*KvNamespace::of("other"), "k")] = {"v"};
  CHECK(f.ask({"keys", "*"}) == "*0\r\n");
  CHECK(f.ask({"dbsize"}) == ":0\r\n");
}

TEST_CASE("KV commands: HELLO 3 is for this client, from this reply on; 2 goes back") {
  Fixture f;
  f.figures.version = "1";
  f.client.id = 7;
  const std::string_view rest =
      "$2\r\nid\r\n:7\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n"
      "$7\r\nmodules\r\n*0\r\n";
  const std::string_view begin = "$6\r\nserver\r\n$7\r\nterrace\r\n$7\r\nversion\r\n$1\r\n1\r\n$5\r\nproto\r\n";
  const std::string two = "*14\r\n" + std::string(begin) + ":2\r\n" + std::string(rest),
                    three = "%7\r\n" + std::string(begin) + ":3\r\n" + std::string(rest);
  CHECK(f.ask({"hello"}) == two);
  CHECK(f.ask({"get", "none"}) == "$-1\r\n");
  CHECK(f.ask({"HELLO", "3"}) == three);
  CHECK(f.ask({"hello"}) == three);
  CHECK(f.ask({"get", "none"}) == "_\r\n");
  CHECK(f.ask({"mget", "none", "", "more"}) == "*3\r\n_\r\n_\r\n_\r\n");
  CHECK(f.ask({"set", "k", "v"}) == "+OK\r\n");
  CHECK(f.ask({"set", "k", "w", "nx"}) == "_\r\n");
  CHECK(f.ask({"setnx", "k", "w"}) == ":0\r\n");  // no boolean of redis either
  CHECK(f.ask({"get", "k"}) == "$1\r\nv\r\n");
  CHECK(f.ask({"keys", "*"}) == "*1\r\n");  // and the keys behind it
  CHECK(f.ask({"client", "getname"}) == "_\r\n");
  CHECK(f.ask({"config", "get", "save"}) == "%0\r\n");
  CHECK(f.ask({"command", "docs"}) == "%0\r\n");
  CHECK(f.ask({"command"}) == "*0\r\n");
  const std::string info = f.ask({"info"});
  const size_t end = info.find("\r\n");
  CHECK(info.starts_with("="));
  CHECK(info.substr(end + 2, 4) == "txt:");
  CHECK(std::stoul(info.substr(1)) == info.size() - end - 4);
  ClientState other;
  Replies replies;
  const std::vector<std::string_view> get = {"get", "none"};
  f.commands.execute(other, get, replies);
  CHECK(replies.text() == "$-1\r\n");
  CHECK(f.ask({"hello", "2"}) == two);
  CHECK(f.ask({"get", "none"}) == "$-1\r\n");
  CHECK(f.ask({"config", "get", "save"}) == "*0\r\n");
  CHECK(f.ask({"info"}).starts_with("$"));
}

TEST_CASE("KV commands: HELLO takes a name and the user that has no password, or nothing of it") {
  Fixture f;
  CHECK(f.ask({"hello", "3", "auth", "default", "any", "setname", "me"}).starts_with("%7\r\n"));
  CHECK(f.client.name == "me");
  CHECK(f.ask({"hello", "3", "SETNAME", "you", "AUTH", "default", ""}).starts_with("%7\r\n"));
  CHECK(f.client.name == "you");
  CHECK(f.ask({"hello", "2", "setname", "she", "auth", "root", "any"}).starts_with("-WRONGPASS "));
  CHECK(f.ask({"hello", "2", "setname", "two words"}).starts_with("-ERR Client names"));
  CHECK(f.ask({"hello", "2", "setname", "she", "auth", "default"}) ==
        "-ERR Syntax error in HELLO option 'auth'\r\n");
  CHECK(f.ask({"hello", "2", "setname"}).starts_with("-ERR Syntax error"));
  for (const char* version : {"1", "4", "-3"}) CHECK(f.ask({"hello", version}).starts_with("-NOPROTO "));
  CHECK(f.ask({"hello", "three"}).starts_with("-ERR Protocol version"));
  CHECK(f.client.name == "you");
  CHECK(f.client.resp3);
  CHECK(f.ask({"auth", "default", "any"}) == "+OK\r\n");
  CHECK(f.ask({"auth", "root", "any"}).starts_with("-WRONGPASS "));
  CHECK(f.ask({"auth", "any"}).starts_with("-ERR AUTH "));
}

TEST_CASE("KV commands: a browser is not answered") {
  Fixture f;
  CHECK(f.ask({"POST", "/", "HTTP/1.1"}).empty());
  CHECK(f.client.closing);
  Fixture g;
  CHECK(g.ask({"Host:", "localhost"}).empty());
  CHECK(g.client.closing);
}

TEST_CASE("KV scan: every key that stays is given once, while others come and go") {
  FakeKvSpace space;
  const KvNamespace name_space;
  KeyScan scan(space, name_space);
  constexpr int keys = 150'000;  // of more than two listings
  for (int index = 0; index < keys; ++index) space.blocks[FakeKvSpace::name_of({}, std::to_string(index))];
  std::set<std::string> seen;
  uint64_t cursor = 0, now_ns = 1, rounds = 0;
  do {
    const Result<KeyScan::Step> step = scan.next(cursor, 1000, now_ns);
    REQUIRE(step.ok());
    for (const std::string& key : step->keys) CHECK(seen.insert(key).second);
    cursor = step->cursor;
    space.blocks[FakeKvSpace::name_of({}, "new" + std::to_string(++rounds))];
    now_ns += 100'000'000;
  } while (cursor != 0);
  std::erase_if(seen, [](const std::string& key) { return key.starts_with("new"); });
  CHECK(seen.size() == keys);
  CHECK(space.listed < 10);
}

TEST_CASE("KV scan: an empty space, and cursors that nobody gave") {
  FakeKvSpace space;
  const KvNamespace name_space;
  KeyScan scan(space, name_space);
  CHECK(scan.next(0, 10, 1)->cursor == 0);
  CHECK(scan.next(12345, 10, 2)->keys.empty());
  CHECK(scan.next(UINT64_MAX, 10, 3)->cursor == 0);
}
