// SPDX-License-Identifier: Apache-2.0
#include "core/base/check.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace terrace {
namespace {

void put(const char* text) {
  size_t left = std::strlen(text);
  while (left > 0) {
    const ssize_t n = ::write(STDERR_FILENO, text, left);
    if (n <= 0) return;
    text += n;
    left -= static_cast<size_t>(n);
  }
}

}  // namespace

void check_failed(const char* expression, const char* file, int line, const char* message) {
  char digits[16];
  char* end = digits + sizeof(digits) - 1;
  *end = '\0';
  char* begin = end;
  do {
    *--begin = static_cast<char>('0' + line % 10);
    line /= 10;
  } while (line > 0);
  put(file);
  put(":");
  put(begin);
  put(": invariant broken: ");
  put(expression);
  put(": ");
  put(message);
  put("\n");
  std::abort();
}

}  // namespace terrace
