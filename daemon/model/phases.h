// SPDX-License-Identifier: Apache-2.0
// The phases of a lease: which may follow which, in one table. Each change of a phase goes through change_phase(),
// which asserts it (I14).
//
//   waiting ─► pending ─► active ─► transferring ─► active
//                 │          ├─► revoking
//                 ▼          ▼
//              fencing ◄── each of those ── and of quarantined, scrubbing
//              fencing ─► scrubbing ─► the row is gone;  fencing, scrubbing ─► quarantined
//
// Place     daemon/state; pure.
#pragma once

#include "core/base/check.h"
#include "daemon/model/rows.h"

namespace terrace::daemon {

struct PhaseChange {
  LeasePhase from;
  LeasePhase to;
};

inline constexpr PhaseChange phase_changes[] = {
    {LeasePhase::waiting, LeasePhase::pending},        // served from the queue
    {LeasePhase::pending, LeasePhase::active},         // carved
    {LeasePhase::pending, LeasePhase::fencing},        // a device was lost meanwhile, or a move's target ends
    {LeasePhase::active, LeasePhase::revoking},        //
    {LeasePhase::active, LeasePhase::transferring},    //
    {LeasePhase::active, LeasePhase::fencing},         //
    {LeasePhase::revoking, LeasePhase::revoking},      // a second revocation may shorten the grace
    {LeasePhase::revoking, LeasePhase::fencing},       //
    {LeasePhase::transferring, LeasePhase::active},    // the new tenant's
    {LeasePhase::transferring, LeasePhase::fencing},   //
    {LeasePhase::fencing, LeasePhase::scrubbing},      //
    {LeasePhase::fencing, LeasePhase::quarantined},    //
    {LeasePhase::scrubbing, LeasePhase::fencing},      // its second object, or everything again after a restart
    {LeasePhase::scrubbing, LeasePhase::quarantined},  //
    {LeasePhase::quarantined, LeasePhase::fencing},    // tried again
};

constexpr bool may_follow(LeasePhase from, LeasePhase to) {
  for (const PhaseChange& change : phase_changes)
    if (change.from == from && change.to == to) return true;
  return false;
}

// In which a row may come into being; scrubbing: the end that is cut off a lease; quarantined: memory that a restored
// store does not know (daemon/state/restored.cc).
constexpr bool may_begin(LeasePhase phase) {
  return phase == LeasePhase::pending || phase == LeasePhase::waiting || phase == LeasePhase::scrubbing ||
         phase == LeasePhase::quarantined;
}

inline void change_phase(LeaseRow& lease, LeasePhase to) {
  TERRACE_CHECK(may_follow(lease.phase, to), "I14: no lease changes from this phase to that one");
  lease.phase = to;
}

// Whether a lease answers to its label and its request key.
constexpr bool is_named(LeasePhase phase) {
  return phase == LeasePhase::pending || phase == LeasePhase::waiting || phase == LeasePhase::active ||
         phase == LeasePhase::revoking || phase == LeasePhase::transferring;
}

}  // namespace terrace::daemon
