// SPDX-License-Identifier: Apache-2.0
// Patterns of KEYS and SCAN.
#include "cli/kv/serve/glob.h"

#include <doctest/doctest.h>

#include <string>

using namespace terrace::kv_serve;

TEST_CASE("Glob: the usual patterns") {
  struct Case {
    const char *pattern, *text;
    bool matches;
  };
  for (const Case& one : {Case{"*", "", true},
                          Case{"*", "abc", true},
                          Case{"a*c", "abbc", true},
                          Case{"a*c", "abbd", false},
                          Case{"h?llo", "hello", true},
                          Case{"h?llo", "hllo", false},
                          Case{"h[ae]llo", "hallo", true},
                          Case{"h[ae]llo", "hillo", false},
                          Case{"h[^e]llo", "hallo", true},
                          Case{"h[^e]llo", "hello", false},
                          Case{"h[a-c]llo", "hbllo", true},
                          Case{"h[c-a]llo", "hbllo", true},
                          Case{"h[a-c]llo", "hdllo", false},
                          Case{"a\\*c", "a*c", true},
                          Case{"a\\*c", "abc", false},
                          Case{"[\\]]", "]", true},
                          Case{"[a-]", "-", true},
                          Case{"**b**", "abc", true},
                          Case{"", "", true},
                          Case{"", "a", false},
                          Case{"a", "", false},
                          Case{"a*b*c", "aXbYc", true},
                          Case{"*ab", "aab", true},
                          Case{"*[", "a[", false},
                          Case{"a\\", "a\\", true}}) {
    CAPTURE(one.pattern);
    CAPTURE(one.text);
    CHECK(glob_matches(one.pattern, one.text) == one.matches);
  }
}

TEST_CASE("Glob: a pattern of stars does not take for ever") {
  std::string pattern;
  for (int index = 0; index < 1000; ++index) pattern += "a*";
  CHECK(!glob_matches(pattern + "b", std::string(500, 'a')));
}
