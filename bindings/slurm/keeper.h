// SPDX-License-Identifier: Apache-2.0
// The process that keeps a step's lease on this host: `terrace lease hold`, as the job's user.
//
// It is no child of slurmstepd: what Slurm sends to a job (scancel, suspend) must not reach it before the tasks have
// ended. It ends when its input does, which slurmstepd holds, and when slurmstepd has (--pid), however that ended.
#pragma once

#include <sys/types.h>

#include "bindings/slurm/request.h"

struct terrace_keeper_order {
  const struct terrace_site* site;
  const char* label;
  const char* pool;  // empty: the only one
  uint64_t bytes;
  uid_t uid;
  gid_t gid;
  const gid_t* groups;
  int group_count;
  uint32_t job;
  // Asked every few seconds while the lease is waited for: whether nobody wants the step any more.
  int (*is_given_up)(const struct terrace_keeper_order* order);
};

struct terrace_keeper {
  int input;   // -1: there is none
  int output;  // its end says that the lease was given back
  uint64_t lease;
  uint64_t bytes;
};

// Returns when the lease is there. A label that is taken is waited for, 10 s and the site's wait long: a step that was
// started again follows one whose lease is just going.
// Errors    the manager's sentence, with its code, in `why`
int terrace_keeper_start(const struct terrace_keeper_order* order, struct terrace_keeper* keeper, char* why,
                         size_t why_bytes);

// Tells it to end, and waits until it has, 10 s at most. 0: it has.
int terrace_keeper_end(struct terrace_keeper* keeper);
