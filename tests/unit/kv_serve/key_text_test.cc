// SPDX-License-Identifier: Apache-2.0
// Keys as text, and back.
#include "cli/kv/key_text.h"

#include <doctest/doctest.h>

using namespace terrace;
using namespace terrace::cli;

TEST_CASE("Key text: what is shown is taken back, whatever the key") {
  const std::string keys[] = {
      "a",  "prompt/7", "k\xc3\xa9y", std::string("\0", 1), "a\n", "\xff\xfe",           "0x", "0x12", " a",
      "a ", "a b",      "\x7f",       "\xc2\x9b",           "-",   std::string(512, 'k')};
  for (const std::string& key : keys) {
    const std::string text = text_of_key(key);
    CAPTURE(text);
    const Result<std::string> back = key_of_text(text, "test");
    REQUIRE(back.ok());
    CHECK(*back == key);
    for (const char c : text) CHECK((static_cast<unsigned char>(c) >= ' ' && c != 0x7f));
  }
  CHECK(text_of_key("a b") == "a b");
  CHECK(text_of_key("0x12") == "0x30783132");
  CHECK(text_of_key("\xff") == "0xff");
  CHECK(*key_of_text("0xFF00", "test") == std::string("\xff\0", 2));
}

TEST_CASE("Key text: what is no key is refused with what it should be") {
  for (const std::string& wrong : {std::string(), std::string("0x"), std::string("0x1"), std::string("0xgg"),
                                   std::string(513, 'k'), "0x" + std::string(1026, 'a')}) {
    const Result<std::string> key = key_of_text(wrong, "test");
    REQUIRE(!key.ok());
    CHECK(key.error().code == ErrorCode::invalid_argument);
    CHECK(key.error().detail.starts_with("--key"));
  }
}
