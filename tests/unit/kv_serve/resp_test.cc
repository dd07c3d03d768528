// SPDX-License-Identifier: Apache-2.0
// Requests of the redis protocol, cut at every byte, too long, in a row, and wrong.
#include "cli/kv/serve/resp.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace terrace::kv_serve;

namespace {

using Words = std::vector<std::string>;

// A connection's side of the parser: what came, piece by piece, and the requests that were complete.
struct Reader {
  explicit Reader(const RespLimits& limits = {}) : parser(limits) {}

  // Values that are announced as large are diverted where `divert` says so.
  bool give(std::string_view piece) {
    if (piece.size() <= to_come) {
      value += piece;
      to_come -= piece.size();
      if (to_come > 0) return true;
      piece = {};
    } else if (to_come > 0) {
      value += piece.substr(0, to_come);
      piece.remove_prefix(to_come);
      to_come = 0;
    }
    buffer += piece;
    for (;;) {
      const RespStep step = parser.advance(buffer);
      if (step == RespStep::more) return true;
      if (step == RespStep::wrong) return false;
      if (step == RespStep::large) {
        ++large;
        if (!divert) continue;
        value = buffer.substr(parser.position());
        to_come = parser.large_bytes() - value.size();
        buffer.resize(parser.position());
        parser.divert();
        if (to_come > 0) return true;
        continue;
      }
      Words words;
      for (size_t index = 0; index < parser.arguments(); ++index)
        words.push_back(parser.diverted(index) ? value : std::string(parser.argument(buffer, index)));
      requests.push_back(words);
      buffer.erase(0, parser.request_bytes());
      parser.restart();
    }
  }

  RespParser parser;
  std::string buffer, value;
  uint64_t to_come = 0;
  bool divert = false;
  int large = 0;
  std::vector<Words> requests;
};

std::string encoded(const Words& words) {
  std::string text = "*" + std::to_string(words.size()) + "\r\n";
  for (const std::string& word : words) text += "$" + std::to_string(word.size()) + "\r\n" + word + "\r\n";
  return text;
}

std::string problem_of(std::string_view bytes, const RespLimits& limits = {}) {
  Reader reader(limits);
  if (reader.give(bytes)) return "";
  CHECK(!reader.give("*1\r\n$4\r\nPING\r\n"));  // it stays wrong
  return reader.parser.problem();
}

}  // namespace

TEST_CASE("RESP: a request is the same wherever it is cut") {
  const Words words = {"SET", std::string("k\0\r\n$", 5), "", "value"};
  const std::string text = encoded(words) + "PING  'a b'\r\n*0\r\n" + encoded({"GET", "x"});
  const std::vector<Words> all = {words, {"PING", "a b"}, {}, {"GET", "x"}};
  Reader whole;
  CHECK(whole.give(text));
  CHECK(whole.requests == all);
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Reader two;
    CHECK(two.give(text.substr(0, cut)));
    CHECK(two.give(text.substr(cut)));
    CHECK(two.requests == all);
  }
  Reader bytes;
  for (const char c : text) CHECK(bytes.give({&c, 1}));
  CHECK(bytes.requests == all);
  CHECK(bytes.buffer.empty());
}

TEST_CASE("RESP: a long value is announced, and diverted at every cut or kept") {
  const RespLimits limits{.large_bytes = 10};
  const Words words = {"SET", "key", "0123456789abcdef", "NX"};
  const std::string text = encoded(words) + encoded({"PING"});
  for (const bool divert : {true, false}) {
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      Reader reader(limits);
      reader.divert = divert;
      CHECK(reader.give(text.substr(0, cut)));
      CHECK(reader.give(text.substr(cut)));
      CHECK(reader.requests == std::vector<Words>{words, {"PING"}});
      CHECK(reader.large <= 1);
    }
    Reader bytes(limits);
    bytes.divert = divert;
    for (const char c : text) CHECK(bytes.give({&c, 1}));
    CHECK(bytes.requests == std::vector<Words>{words, {"PING"}});
    CHECK(bytes.large == 1);
  }
}

TEST_CASE("RESP: what is announced is bounded, and costs nothing before it comes") {
  CHECK(problem_of("*4097\r\n").empty());
  CHECK(problem_of("*4098\r\n").find("invalid multibulk length") != std::string::npos);
  CHECK(problem_of("*-1\r\n").empty());  // no request
  for (const char* wrong : {"*99999999999999999999\r\n", "*x\r\n", "*\r\n", "*1x\r\n", "*+1\r\n", "* 1\r\n"})
    CHECK(problem_of(wrong) == "Protocol error: invalid multibulk length");
  for (const char* wrong : {"$-1\r\n", "$536870913\r\n", "$9223372036854775808\r\n", "$\r\n", "$1 \r\n"})
    CHECK(problem_of("*1\r\n" + std::string(wrong)) == "Protocol error: invalid bulk length");
  CHECK(problem_of("*1\r\n$" + std::string(40, '1')) == "Protocol error: invalid bulk length");
  CHECK(problem_of("*" + std::string(40, '1')) == "Protocol error: invalid multibulk length");
  CHECK(problem_of("*1\r\nGET\r\n") == "Protocol error: expected '$', got 'G'");
  CHECK(problem_of("*1\r\n\x01") == "Protocol error: expected '$', got a byte that is no text");
  CHECK(problem_of("*1\r\n$3\r\nGETx\r\n") == "Protocol error: an argument that is longer than its length");
  CHECK(problem_of("*1\r\n$3\r\nGET\rx") == "Protocol error: an argument that is longer than its length");
}

TEST_CASE("RESP: a request has an end, whatever it is made of") {
  const RespLimits limits{.arguments_max = 100, .request_bytes_max = 1000, .large_bytes = 500};
  CHECK(problem_of("*2\r\n$3\r\nGET\r\n$990\r\n", limits).find("more than 1000 bytes") != std::string::npos);
  CHECK(problem_of("*2\r\n$3\r\nGET\r\n$536870912\r\n", limits).find("more than 1000 bytes") !=
        std::string::npos);
  CHECK(problem_of(encoded(Words(90, "0123456789")), limits).find("more than 1000 bytes") != std::string::npos);
  CHECK(problem_of(encoded(Words(40, "0123456789")), limits).empty());
  Reader many(limits);  // requests in a row do not add up
  for (int round = 0; round < 100; ++round) CHECK(many.give(encoded({"SET", "a", std::string(400, 'x')})));
  CHECK(many.requests.size() == 100);
}

TEST_CASE("RESP: lines are words, in quotes or not") {
  Reader reader;
  CHECK(reader.give("  set key\t\"a b\\x41\\n\\\"\\q\" 'it\\'s \\n' \r\n\r\nget a\"b c\"\n"));
  CHECK(reader.requests == std::vector<Words>{{"set", "key", "a bA\n\"q", "it's \\n"}, {}, {"get", "ab c"}});
  for (const char* wrong : {"get \"a\r\n", "get 'a\r\n", "get \"a\"b\r\n", "get \"a\\\r\n"})
    CHECK(problem_of(wrong) == "Protocol error: unbalanced quotes in request");
  CHECK(problem_of(std::string(64 << 10, 'x') + "\r\n").empty() == false);
  CHECK(problem_of(std::string((64 << 10) + 1, 'x')) == "Protocol error: too big inline request");
  std::string words;
  for (int index = 0; index < 5000; ++index) words += "a ";
  CHECK(problem_of(words + "\r\n") == "Protocol error: too many words in a line");
}
