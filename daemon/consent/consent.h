// SPDX-License-Identifier: Apache-2.0
// A process that agreed to be ended before the memory of an object is taken from it, and the ending of it.
//
// Which process is meant must not change with time: numbers of processes are used again. While this daemon lives it is
// known by a pidfd. After a restart it is known by its number, the moment that it was started at, the boot (the record
// is dropped with it) and, where the kernel counts pidfds (6.9), the number of its pidfd, which is never used again.
//
// Place     ConsentedHolders keeps them; the guard of a host reads the file.
// Threads   Any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "daemon/model/rows.h"

namespace terrace::daemon {

struct Consent {
  ProcessId process = {};
  uint64_t number = 0;  // of its pidfd's inode; 0: this kernel has none
  uint32_t uid = 0;     // of whoever agreed
  // It gave the memory back by itself: no fence ends it for that.
  bool spared = false;
  std::string holder = {};  // for people: "python3[1234]"
  std::shared_ptr<const UniqueFd> pidfd = {};

  bool same_process(const Consent& other) const { return process == other.process && number == other.number; }
};

// The consent of the process that opened the connection: only it can agree, and only for itself.
// `told_pid`: what the caller calls itself (getpid), which tells a forked child that uses its parent's connection.
// Errors    permission_denied  it is another process, or one that must not be ended (the first one, this daemon)
//           unsupported        it cannot be seen from here; unavailable: it has ended
Result<Consent> consent_of_peer(int socket, int32_t peer_pid, uint32_t uid, uint32_t told_pid,
                                std::string holder);

// ended    it runs no instruction any more, and has let go of its memory and files
// killed   it was told to end, and has not yet
// exempt   it runs, and may not be ended: it is another user's by now (a set-user-ID program), or out of sight
enum class EndOf : uint8_t { ended, killed, exempt };

// Tells it to end (SIGKILL), by its pidfd. Can be repeated.
EndOf end_process(Consent& consent);

// Whether it runs no more. false when in doubt.
bool has_ended(const Consent& consent);

// "python3[1234] (state D)": with what the kernel says that it does.
std::string shown_with_state(const Consent& consent);

}  // namespace terrace::daemon
