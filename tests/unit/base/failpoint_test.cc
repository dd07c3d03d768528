// SPDX-License-Identifier: Apache-2.0
// Failpoints: the typed list, and what the environment may arm.
#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <set>

#include "core/base/failpoint.h"
#include "tests/support/skip.h"

using namespace terrace;

TEST_CASE("failpoint: names are unique and every one says what it leaves behind") {
  std::set<std::string_view> names;
  for (const FailpointInfo& info : failpoint_list()) {
    CHECK(names.insert(info.name).second);
    CHECK_FALSE(info.leaves.empty());
    const bool known_process = info.process == "daemon" || info.process == "client" ||
                               info.process == "guest" || info.process == "host" || info.process == "agent";
    CHECK(known_process);
  }
}

TEST_CASE("failpoint: a wrong specification is refused with what is wrong") {
  if (!failpoints_enabled()) {
    TERRACE_SKIP(failpoints, "this build has no failpoints");
    return;
  }
  CHECK(arm_failpoints("").ok());
  for (const char* text : {"nonsense", "no_such_point=crash", "journal_after_sync=explode",
                           "journal_after_sync=error:EWHAT", "journal_after_sync=crash@0"}) {
    const Status status = arm_failpoints(text);
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ErrorCode::invalid_argument);
  }
}

TEST_CASE("failpoint: an armed error begins at its hit, an armed crash kills with SIGKILL") {
  if (!failpoints_enabled()) {
    TERRACE_SKIP(failpoints, "this build has no failpoints");
    return;
  }
  REQUIRE(arm_failpoints("export_after_rename=error:EIO@2").ok());
  CHECK(TERRACE_FAILPOINT(export_after_rename) == 0);
  CHECK(TERRACE_FAILPOINT(export_after_rename) == EIO);
  CHECK(TERRACE_FAILPOINT(export_before_rename) == 0);

  const pid_t child = fork();
  if (child == 0) {
    if (!arm_failpoints("export_before_rename=crash").ok()) _exit(1);
    [[maybe_unused]] const int armed = TERRACE_FAILPOINT(export_before_rename);
    _exit(2);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGKILL);
}
