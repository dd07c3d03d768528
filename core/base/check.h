// SPDX-License-Identifier: Apache-2.0
// TERRACE_CHECK: a broken invariant ends the process, in every build. A daemon that stops is recovered
// from its store; one that goes on can grant an extent twice. Never used on untrusted bytes.
#pragma once

namespace terrace {

// Prints "<file>:<line>: invariant broken: <expression>: <message>" to stderr and aborts.
// Async-signal-safe; allocates nothing.
[[noreturn]] void check_failed(const char* expression, const char* file, int line, const char* message);

}  // namespace terrace

#define TERRACE_CHECK(expression, message)                               \
  do {                                                                   \
    if (!(expression)) [[unlikely]]                                      \
      ::terrace::check_failed(#expression, __FILE__, __LINE__, message); \
  } while (false)
