// SPDX-License-Identifier: Apache-2.0
// Failpoints: named places where a test makes the process die, fail or wait. There is one before and
// after every persist, kernel step, reply and switch. The list is typed, so that a misspelt name does
// not compile and a test can go through all of them (tests/crash does; declared must equal covered).
//
// Armed by the environment: TERRACE_FAILPOINTS="journal_before_append=crash@3,carve_after_create=error:EIO"
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

// X(name, process, what a crash here must leave behind). The process: `daemon` and `client` are covered by
// `scripts/dev crash`; `guest` is a daemon with real DAX devices, covered in a QEMU guest (`scripts/dev qemu`).
// `host` is a manager with agents and `agent` is one of those: covered by tests/integration/agents.
#define TERRACE_FAILPOINT_LIST(X)                                                                          \
  X(carve_before_create, daemon, "nothing: the grant was never acknowledged")                              \
  X(carve_after_create, daemon, "an empty orphan object, destroyed at start")                              \
  X(carve_after_reserve, daemon, "a full orphan object, destroyed at start")                               \
  X(reply_before_send, daemon, "the new state, unacknowledged")                                            \
  X(reply_after_send, daemon, "the new state, acknowledged")                                               \
  X(notify_before_send, daemon, "a revoking lease whose holder was not told; told again after start")      \
  X(fence_after_end, daemon, "a fencing lease whose holders have ended; fenced at start")                  \
  X(fence_before_truncate, daemon, "a fencing lease; fenced at start before anything is granted")          \
  X(fence_after_truncate, daemon, "a fenced object still recorded as fencing; fenced again")               \
  X(scrub_before_verify, daemon, "a scrubbing lease; scrubbed again at start")                             \
  X(scrub_before_unlink, daemon, "a scrubbed object; scrubbed again")                                      \
  X(scrub_after_unlink, daemon, "a scrubbing lease without object; recorded free at start")                \
  X(resize_before_apply, daemon, "the old size; a shrink that was begun goes on at start")                 \
  X(resize_after_apply, daemon, "a grown object whose row says to cut it; or a shrink that goes on")       \
  X(rebind_before_copy, daemon, "a transferring lease; the hand-over goes on at start")                    \
  X(rebind_during_copy, daemon, "bytes in both objects, each piece whole in one; goes on at start")        \
  X(rebind_after_copy, daemon, "all bytes in the new object; recorded at start")                           \
  X(move_before_copy, daemon, "an orphan target, destroyed at start; the lease stays where it is")         \
  X(move_after_copy, daemon, "an orphan target, destroyed at start; the lease stays where it is")          \
  X(journal_before_append, daemon, "the previous state; nothing of this batch was acknowledged")           \
  X(journal_after_append, daemon, "one of both states, unacknowledged: the record is there or torn")       \
  X(journal_after_sync, daemon, "the new state, unacknowledged: a retry with the same key finds it")       \
  X(fold_before_commit, daemon, "the journal as it was; folded into the database at start")                \
  X(fold_after_commit, daemon, "a folded database with a journal of old records, skipped at start")        \
  X(backup_before_copy, daemon, "the store as it was; a begun copy, removed at start")                     \
  X(backup_after_copy, daemon, "the store as it was; a finished copy, removed at start")                   \
  X(restore_before_switch, daemon, "the store that was there, and a prepared copy beside it")              \
  X(restore_after_switch, daemon, "the restored store, put in place by whoever opens it next")             \
  X(restore_after_aside, daemon, "the restored store, put in place by whoever opens it next")              \
  X(restore_after_place, daemon, "the restored store")                                                     \
  X(keep_older_copy, daemon, "the older store as it was, and a begun copy, made anew at start")            \
  X(recover_before_orphans, daemon, "recovery that did nothing yet; runs again")                           \
  X(recover_after_orphans, daemon, "orphans destroyed; recovery runs again")                               \
  X(recover_before_serve, daemon, "a recovered daemon that served nobody yet")                             \
  X(dax_after_create, guest, "an empty dax device of nobody's, destroyed at start")                        \
  X(dax_after_size, guest, "a dax device that no lease has, destroyed at start")                           \
  X(dax_after_enable, guest, "a finished dax device that no lease has, destroyed at start")                \
  X(dax_after_disable, guest, "a fencing lease whose device is disabled; fenced again")                    \
  X(dax_after_shrink, guest, "a fencing lease and an empty dax device; both are dealt with at start")      \
  X(dax_after_destroy, guest, "a fencing lease without a device; recorded as fenced at start")             \
  X(dax_during_erase, guest, "a scrubbing lease, and the manager's own device on its extents")             \
  X(namespace_after_create, guest, "a nameless namespace, destroyed at start")                             \
  X(namespace_after_label, guest, "a named namespace that is not enabled, destroyed at start")             \
  X(namespace_after_enable, guest, "a finished namespace that no lease has, destroyed at start")           \
  X(namespace_after_disable, guest, "a fencing lease whose namespace is disabled; fenced again")           \
  X(namespace_during_erase, guest, "a scrubbing lease whose namespace the manager has open")               \
  X(namespace_after_destroy, guest, "a scrubbing lease without a namespace; recorded free at start")       \
  X(region_after_record, guest, "a region on record that does not exist; made at start, or forgotten")     \
  X(region_after_create, guest, "an unfinished region; finished or deleted at start")                      \
  X(region_after_commit, guest, "a committed region without a driver; enabled at start")                   \
  X(online_after_bind, guest, "a dax device of the kmem driver with nothing online; brought online again") \
  X(offline_after_offline, guest, "offline memory of the kmem driver; given back again")                   \
  X(order_before_send, host, "a row whose order was never given; ordered again, a carve is undone")        \
  X(order_after_reply, host, "an order that was done and is not on record; ordered again, or undone")      \
  X(agent_after_carve, agent, "an object on its host that no row has; destroyed at registration")          \
  X(agent_after_fence, agent, "a fenced object still recorded as fencing; fenced again")                   \
  X(agent_after_erase, agent, "erased memory still recorded as scrubbing; erased again")                   \
  X(import_before_publish, client, "a lease whose catalog was never published; readers refuse it")         \
  X(import_after_publish, client, "a complete catalog")                                                    \
  X(export_before_rename, client, "no file of the final name, or the older one; a temporary to delete")    \
  X(export_after_rename, client, "the complete file")                                                      \
  X(checkpoint_before_manifest, client, "a hidden directory of a dead writer, removed by the next list")   \
  X(checkpoint_before_rename, client, "a hidden directory of a dead writer, removed by the next list")     \
  X(checkpoint_after_rename, client, "the complete checkpoint")                                            \
  X(checkpoint_after_unlist, client, "a hidden directory of what was removed, gone with the next list")

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
  std::string_view process;  // where a hit happens, as above
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
