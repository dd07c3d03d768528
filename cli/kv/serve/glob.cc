// SPDX-License-Identifier: Apache-2.0
#include "cli/kv/serve/glob.h"

#include <algorithm>
#include <cstddef>

namespace terrace::kv_serve {
namespace {

// Whether `c` is in the set that begins behind the '[' at `at`; `at` ends behind its ']', or with the pattern.
bool in_set(std::string_view pattern, size_t& at, char c) {
  const bool negated = at < pattern.size() && pattern[at] == '^';
  if (negated) ++at;
  bool found = false;
  while (at < pattern.size() && pattern[at] != ']') {
    if (pattern[at] == '\\' && at + 1 < pattern.size()) {
      found = found || pattern[at + 1] == c;
      at += 2;
    } else if (at + 2 < pattern.size() && pattern[at + 1] == '-' && pattern[at + 2] != ']') {
      const auto one = static_cast<unsigned char>(c), from = static_cast<unsigned char>(pattern[at]),
                 to = static_cast<unsigned char>(pattern[at + 2]);
      found = found || (one >= std::min(from, to) && one <= std::max(from, to));
      at += 3;
    } else {
      found = found || pattern[at] == c;
      ++at;
    }
  }
  if (at < pattern.size()) ++at;
  return found != negated;
}

// Whether the piece of the pattern at `at`, no *, takes `c`; `at` ends behind it.
bool takes(std::string_view pattern, size_t& at, char c) {
  const char piece = pattern[at++];
  if (piece == '?') return true;
  if (piece == '[') return in_set(pattern, at, c);
  if (piece == '\\' && at < pattern.size()) return pattern[at++] == c;
  return piece == c;
}

}  // namespace

bool glob_matches(std::string_view pattern, std::string_view text) {
  size_t in_pattern = 0, in_text = 0;
  size_t star = std::string_view::npos,
         star_text = 0;  // behind the last *, and where its rest begins in the text
  while (in_text < text.size()) {
    size_t next = in_pattern;
    if (in_pattern < pattern.size() && pattern[in_pattern] == '*') {
      star = ++in_pattern;
      star_text = in_text;
    } else if (in_pattern < pattern.size() && takes(pattern, next, text[in_text])) {
      in_pattern = next;
      ++in_text;
    } else if (star != std::string_view::npos) {
      in_pattern = star;
      in_text = ++star_text;
    } else {
      return false;
    }
  }
  while (in_pattern < pattern.size() && pattern[in_pattern] == '*') ++in_pattern;
  return in_pattern == pattern.size();
}

}  // namespace terrace::kv_serve
