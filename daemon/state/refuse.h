// SPDX-License-Identifier: Apache-2.0
// Refusals that several commands share, so that one state of a lease has one answer whoever asks.
//
// Place     daemon/state, for its own files.
#pragma once

#include <string>
#include <utility>

#include "core/base/units.h"
#include "daemon/state/command.h"
#include "daemon/state/names.h"

namespace terrace::daemon {

inline Error refusal(ErrorCode code, const char* where, std::string detail) {
  return Error{.code = code, .where = where, .detail = std::move(detail)};
}

inline Step refuse(Error error) {
  Step step;
  step.reply = std::move(error);
  return step;
}

inline Step refuse(ErrorCode code, const char* where, std::string detail) {
  return refuse(refusal(code, where, std::move(detail)));
}

inline std::string lease_name(LeaseId id) {
  return "lease " + std::to_string(id.value);
}

inline Error no_such_lease_error(const char* where, LeaseId id) {
  return refusal(ErrorCode::not_found, where, "there is no " + lease_name(id));
}

inline Step no_such_lease(const char* where, LeaseId id) {
  return refuse(no_such_lease_error(where, id));
}

// A reason stays within its bound whatever an error's text adds to it: the store checks it when loading.
inline void append_reason(std::string& reason, const std::string& more) {
  reason += more;
  for (char& c : reason)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  if (reason.size() > limits::reason_bytes_max) reason.resize(limits::reason_bytes_max);
  while (!valid_utf8(reason)) reason.pop_back();  // the cut went through a character
}

// Whether the lease is its holder's at this moment.
inline bool usable(const LeaseRow& lease) {
  return lease.phase == LeasePhase::active || lease.phase == LeasePhase::revoking;
}

// Not granted yet: nobody's to renew, change or take back.
inline bool ungranted(const LeaseRow& lease) {
  return lease.phase == LeasePhase::pending || lease.phase == LeasePhase::waiting;
}

// Why a granted lease cannot be used or changed at `now_ns`; ok when it is active and not lapsed.
inline Status check_live(const LeaseRow& lease, const char* where, uint64_t now_ns) {
  const std::string name = lease_name(lease.id);
  if (lease.phase == LeasePhase::transferring)
    return refusal(ErrorCode::busy, where, name + " is being handed to tenant " + lease.tenant + "; try again");
  if (lease.phase == LeasePhase::revoking)
    return refusal(ErrorCode::lease_revoked, where, name + " is being taken back: " + lease.reason);
  if (lease.phase != LeasePhase::active) {
    return refusal(lease.cause == LeaseCause::expired ? ErrorCode::lease_expired : ErrorCode::lease_revoked,
                   where, name + " has ended: " + lease.reason);
  }
  if (lease.expiry_ns != 0 && lease.expiry_ns <= now_ns) {
    return refusal(ErrorCode::lease_expired, where,
                   name + " lapsed " + format_duration(now_ns - lease.expiry_ns) + " ago");
  }
  return {};
}

}  // namespace terrace::daemon
