// Failpoints: named places where a test makes the process die, fail or wait. There is one before and
// after every persist, kernel step, reply and switch. The list is typed, so that a misspelt name does
// not compile and a test can go through all of them (tests/crash does; declared must equal covered).
//
// Armed by the environment: TERRACE_FAILPOINTS="store_before_commit=crash@3,carve_after_create=error:EIO"
//   name=crash[@N]          the process kills itself with SIGKILL at the N-th hit (default 1)
//   name=error:ERRNO[@N]    the place reports that errno, from the N-th hit on
//   name=delay:MS[@N]       the place waits that many milliseconds, from the N-th hit on
// Builds without TERRACE_FAILPOINTS_ENABLED (release) contain no trace of them; arming one there is
// refused loudly rather than ignored.
//
// Threads   Hits are counted atomically; arming happens before threads start.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/base/result.h"

// X(name, process, what a crash here must leave behind)
#define TERRACE_FAILPOINT_LIST(X)                                                                       \
  X(carve_before_create, daemon, "nothing: the grant was never acknowledged")                           \
  X(carve_after_create, daemon, "an empty orphan object, destroyed at start")                           \
  X(carve_after_reserve, daemon, "a full orphan object, destroyed at start")                            \
  X(store_before_begin, daemon, "the previous state; nothing of this batch was acknowledged")           \
  X(store_before_commit, daemon, "the previous state; SQLite rolls the batch back")                     \
  X(store_after_commit, daemon, "the new state, unacknowledged: a retry with the same key finds it")    \
  X(reply_before_send, daemon, "the new state, unacknowledged")                                         \
  X(reply_after_send, daemon, "the new state, acknowledged")                                            \
  X(notify_before_send, daemon, "a revoking lease whose holder was not told; told again after start")   \
  X(fence_before_truncate, daemon, "a fencing lease; fenced at start before anything is granted")       \
  X(fence_after_truncate, daemon, "a fenced object still recorded as fencing; fenced again")            \
  X(scrub_before_verify, daemon, "a scrubbing lease; scrubbed again at start")                          \
  X(scrub_before_unlink, daemon, "a scrubbed object; scrubbed again")                                   \
  X(scrub_after_unlink, daemon, "a scrubbing lease without object; recorded free at start")             \
  X(recover_before_orphans, daemon, "recovery that did nothing yet; runs again")                        \
  X(recover_after_orphans, daemon, "orphans destroyed; recovery runs again")                            \
  X(recover_before_serve, daemon, "a recovered daemon that served nobody yet")                          \
  X(import_before_publish, client, "a lease whose catalog was never published; readers refuse it")      \
  X(import_after_publish, client, "a complete catalog")                                                 \
  X(export_before_rename, client, "no file of the final name, or the older one; a temporary to delete") \
  X(export_after_rename, client, "the complete file")

namespace terrace {

enum class Failpoint : uint16_t {
#define TERRACE_FAILPOINT_ENUM(name, process, leaves) name,
  TERRACE_FAILPOINT_LIST(TERRACE_FAILPOINT_ENUM)
#undef TERRACE_FAILPOINT_ENUM
      count
};

struct FailpointInfo {
  Failpoint id;
  std::string_view name;
  std::string_view process;  // "daemon" or "client": where a hit happens
  std::string_view leaves;   // what recovery finds after a crash here
};

// All declared failpoints, in the order of the list; the same in every build.
std::span<const FailpointInfo> failpoint_list();

// Whether this build can arm them.
bool failpoints_enabled();

// Arms what `specification` names (syntax above); an empty one does nothing.
// Errors    invalid_argument  unknown name or action, with the list of known names
//           unsupported       this build has no failpoints
Status arm_failpoints(std::string_view specification);

// Arms from the environment variable TERRACE_FAILPOINTS; absent means nothing.
Status arm_failpoints_from_environment();

// Counts one hit and performs the armed action. Returns the errno to report, or 0.
int hit_failpoint(Failpoint id);

}  // namespace terrace

#if defined(TERRACE_FAILPOINTS_ENABLED)
// Evaluates to the errno that the place should report, or 0.
#define TERRACE_FAILPOINT(name) ::terrace::hit_failpoint(::terrace::Failpoint::name)
#else
#define TERRACE_FAILPOINT(name) 0
#endif
