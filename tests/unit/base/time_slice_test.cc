// SPDX-License-Identifier: Apache-2.0
#include "core/base/time_slice.h"

#include <doctest/doctest.h>
#include <sys/utsname.h>

#include <cstdio>
#include <thread>

#include "tests/support/skip.h"

using namespace terrace;

namespace {

bool kernel_has_slices() {
  utsname name{};
  unsigned major = 0, minor = 0;
  return ::uname(&name) == 0 && std::sscanf(name.release, "%u.%u", &major, &minor) == 2 &&
         major * 1000 + minor >= 6'012;
}

}  // namespace

TEST_CASE("take_short_slice: the thread that asks has it, and keeps it when it asks again") {
  if (!kernel_has_slices()) {
    TERRACE_SKIP(time_slice, "a slice of a thread's own");
    return;
  }
  std::thread([] {
    const Result<uint64_t> first = take_short_slice();
    REQUIRE(first.ok());
    CHECK(*first == short_slice_ns);
    const Result<uint64_t> again = take_short_slice();
    REQUIRE(again.ok());
    CHECK(*again == short_slice_ns);
  }).join();
}
