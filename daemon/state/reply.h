// SPDX-License-Identifier: Apache-2.0
// What the state machine replies. Two say that the answer comes later: the shell keeps the client until then.
//
// Place     daemon/state; command.h says which reply a command is answered with in the end (Answer).
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "daemon/model/rows.h"

namespace terrace::daemon {

struct Done {};  // nothing more to say

// The client is answered when CarveFinished for this lease was applied, or at RefuseGrant: with a LeaseReply for a
// Grant, with MoveReady for BeginMove (then it is the target's id).
struct GrantPending {
  LeaseId lease;
  bool queued = false;  // in the queue of its pool after this step: the answer may take as long as it may wait
};
struct
    ChangePending {  // the client is answered when ResizeFinished or RebindFinished for this lease was applied
  LeaseId lease;
};

struct MoveReady {  // the target is carved: copy, then FinishMove
  LeaseId lease;
  LeaseId target;
  std::string object;  // of the target
  uint64_t bytes = 0;
};
struct LeaseReply {  // the lease as the command left it
  LeaseRow lease;
};
struct RenewalsReply {
  std::vector<std::pair<LeaseId, Error>> failed;  // in the command's order; the others are renewed
};
struct DeviceReply {
  DeviceRow device;
};
struct PoolReply {
  PoolRow pool;
};
struct ReservationReply {
  ReservationRow reservation;
};
struct OwnerReply {
  OwnerRow owner;
};
struct ViewReply {
  ViewRow view;  // opening: ViewOpened tells what came of it
};
struct CompactionReply {
  DeviceId device;  // invalid: nothing has to move (a run of that length is free, or the compaction was ended)
  uint64_t first_granule = 0;
  uint64_t granules = 0;
  std::vector<LeaseId> leases;  // that must move
  uint64_t bytes_to_move = 0;
};

using Reply = std::variant<Done, GrantPending, ChangePending, MoveReady, LeaseReply, DeviceReply, PoolReply,
                           ReservationReply, OwnerReply, CompactionReply, RenewalsReply, ViewReply>;

}  // namespace terrace::daemon
