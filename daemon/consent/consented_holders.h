// SPDX-License-Identifier: Apache-2.0
// Who agreed to be ended before the memory of which object is taken: recorded when they are given it, ended when the engine
// is about to fence it (docs/design/0047-kill-then-fence.md).
//
//   hand-over -> agreed(): in the file, then the descriptor goes out
//   a fence   -> end_holders(): SIGKILL by pidfd, the wait for the ends -> only then the engine takes the memory
//
// Nobody else is ended: children, or whom a descriptor was passed to, agreed to nothing.
//
// Place     daemon/role_manager.cc and daemon/role_agent.cc have one each.
// Threads   The event loop's thread only.
#pragma once

#include <kj/async.h>
#include <kj/timer.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/consent/consent_file.h"
#include "daemon/event_loop/engine.h"

namespace terrace::daemon {

class ConsentedHolders final : public HolderEnder {
 public:
  // `file`: where consents are recorded, for the next run; empty: nowhere. Those of an earlier run in this boot count.
  ConsentedHolders(kj::Timer& timer, std::string file, std::string boot_id);

  // Before the object's memory is handed to the process. Told again it changes nothing, but for one that was spared.
  // Errors    io_error   it cannot be recorded: the memory must not be handed over
  Status agreed(const std::string& object, Consent consent);
  bool has_agreed(const std::string& object, const ProcessId& process) const;
  // The process gives the memory back by itself: a fence of the object leaves it alone. false: undoes it.
  void spare(const std::string& object, const ProcessId& process, bool spared);
  // Consents for other objects than these are of no use any more.
  void keep_only(const std::set<std::string>& objects);

  kj::Promise<HoldersEnded> end_holders(const std::string& object) override;
  void forget(const std::string& object) override;

 private:
  struct Ending;
  kj::Promise<HoldersEnded> wait(kj::Own<Ending> ending);
  void write(const Status& status) const;

  kj::Timer& timer_;
  ConsentFile file_;
  ConsentsByObject all_;
  // One descriptor a process, however many leases it has. By number and start.
  std::map<std::pair<uint64_t, uint64_t>, std::weak_ptr<const UniqueFd>> pidfds_;
};

// Ends all processes that the file names, whatever object it is for, and waits at most `wait_ns`: for a host whose memory
// is all taken away. Threads: any.
void end_all_consented(const std::string& file, const std::string& boot_id, uint64_t wait_ns);

}  // namespace terrace::daemon
