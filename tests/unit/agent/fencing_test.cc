// SPDX-License-Identifier: Apache-2.0
// What an agent knows of what it would have to fence.
#include "daemon/agent/fencing.h"

#include <doctest/doctest.h>

#include "core/base/units.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

constexpr uint64_t now_ns = 1000 * ns_per_s;

}  // namespace

TEST_CASE("Fencing: what there is follows carves, growths, fences and scrubs, and asking changes nothing") {
  Fencing fencing;
  CHECK(fencing.estimate(now_ns).fence_ns == 0);
  fencing.reset({{"lease-1", 64 * mib, 0}, {"lease-2", 0, 0}});
  CHECK(fencing.estimate(now_ns).load.objects == 2);
  CHECK(fencing.estimate(now_ns).load.bytes == 64 * mib);
  const uint64_t before_ns = fencing.estimate(now_ns).fence_ns;
  const FenceEstimate with = fencing.estimate_with("devdax:lease-3", 1 * gib, now_ns);
  CHECK(with.load.objects == 3);
  CHECK(with.load.bytes == 1 * gib + 64 * mib);
  CHECK(with.fence_ns > 0);
  CHECK(fencing.estimate(now_ns).fence_ns == before_ns);
  // One that is there is not counted twice.
  CHECK(fencing.estimate_with("lease-1", 128 * mib, now_ns).load.objects == 2);
  CHECK(fencing.estimate_with("lease-1", 128 * mib, now_ns).load.bytes == 128 * mib);
  fencing.set("lease-1", 128 * mib);
  fencing.set("devdax:lease-3", 1 * gib);
  CHECK(fencing.estimate(now_ns).load.bytes == 1 * gib + 128 * mib);
  fencing.observe("lease-1", 10, now_ns);  // nothing of it can be mapped any more
  CHECK(fencing.estimate(now_ns).load.objects == 3);
  CHECK(fencing.estimate(now_ns).load.bytes == 1 * gib);
  for (const char* name : {"lease-1", "lease-2", "devdax:lease-3", "lease-4"}) fencing.forget(name);
  CHECK(fencing.estimate(now_ns).load.objects == 0);
  CHECK(fencing.estimate(now_ns).fence_ns == 0);
}

TEST_CASE("Fencing: kinds are measured apart, and only of what there was to take away") {
  Fencing fencing;
  fencing.set("lease-1", 2 * mib);
  const uint64_t files_ns = fencing.estimate(now_ns).fence_ns;
  fencing.set("devdax:lease-2", 2 * mib);
  const uint64_t both_ns = fencing.estimate(now_ns).fence_ns;
  fencing.observe("lease-9", 5 * ns_per_s, now_ns);
  CHECK(fencing.estimate(now_ns).fence_ns == both_ns);
  fencing.observe("devdax:lease-2", 5 * ns_per_s, now_ns);
  const uint64_t slow_ns = fencing.estimate(now_ns).fence_ns;
  CHECK(slow_ns > both_ns + 4 * ns_per_s);
  fencing.observe("devdax:lease-2", 5 * ns_per_s, now_ns);  // it was fenced before
  CHECK(fencing.estimate(now_ns).fence_ns == slow_ns);
  fencing.forget("devdax:lease-2");
  CHECK(fencing.estimate(now_ns).fence_ns == files_ns);
}

TEST_CASE("Fencing: a directory in which nothing can be measured leaves what is assumed") {
  Fencing fencing;
  fencing.set("lease-1", 1 * gib);
  const uint64_t assumed_ns = fencing.estimate(now_ns).fence_ns;
  CHECK(assumed_ns > 0);
  fencing.measure("/proc/nowhere");
  CHECK(fencing.estimate(now_ns).fence_ns == assumed_ns);
  fencing.measure("/dev/shm");
  CHECK(fencing.estimate(now_ns).fence_ns > 0);
}
