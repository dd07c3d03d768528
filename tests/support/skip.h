// SPDX-License-Identifier: Apache-2.0
// A case that this machine, this user or this build cannot do is skipped, never passed.
//
//   if (::geteuid() != 0) {
//     TERRACE_SKIP(root, "acting as two users");
//     return;
//   }
//
// The runner lists and counts the skipped cases, and under CI fails where the machine has what a case lacked
// (scripts/devlib/skips.py: a word of Needs must stand there too). A program whose cases are all skipped exits
// with 77.
#pragma once

#include <doctest/doctest.h>

#include <map>
#include <sstream>
#include <string>

namespace terrace::test {

enum class Needs {
  root,          // to act as other users
  mount,         // a small file system of the test's own
  failpoints,    // a build with them
  userfaultfd,   // for this process
  pagemap_scan,  // Linux 6.7
  pins,          // a kernel that says which pages are pinned
  migration,     // all that moves memory under running code
  direct_io,     // on the file system of the test
  locked_memory,
  memory_policy,  // mbind
  seccomp,
  disk_tmp,       // a /tmp that is no tmpfs
  cpu_kinds,      // an instruction of newer processors
  refused_users,  // something that other users may not do here
  races,          // a build in which a race on purpose is no finding
  second_node,    // a memory node 1
  time_slice,     // of a thread's own, Linux 6.12
  shells,         // zsh, fish
  pidfds,         // that the kernel counts, Linux 6.9
};

struct SkippedCase {
  bool whole = false;
  std::string lines;
};
// By the case's name. Of the thread that runs the cases.
inline std::map<std::string, SkippedCase>& skipped_cases() {
  static std::map<std::string, SkippedCase> cases;
  return cases;
}

// Notes that the running case is skipped, `whole` or in part, and says so. doctest_main.cc reports it.
inline void note_skip(Needs, const char* word, bool whole, const std::string& why) {
  MESSAGE("skipped: " << why);
  const char* name = doctest::getContextOptions()->currentTest->m_name;
  SkippedCase& entry = skipped_cases()[name];
  entry.whole = entry.whole || whole;
  const std::string line =
      std::string(whole ? "skipped case\t" : "skipped in part\t") + word + "\t" + name + "\t" + why + "\n";
  if (entry.lines.find(line) == std::string::npos) entry.lines += line;
}

}  // namespace terrace::test

// `why` may be a chain of <<.
#define TERRACE_SKIP(needs, why) TERRACE_SKIP_AS(needs, true, why)
// The case goes on with what it can do.
#define TERRACE_SKIP_IN_PART(needs, why) TERRACE_SKIP_AS(needs, false, why)

#define TERRACE_SKIP_AS(needs, whole, why)                                                             \
  do {                                                                                                 \
    std::ostringstream terrace_skip_text;                                                              \
    terrace_skip_text << why;                                                                          \
    ::terrace::test::note_skip(::terrace::test::Needs::needs, #needs, whole, terrace_skip_text.str()); \
  } while (false)
