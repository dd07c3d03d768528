// SPDX-License-Identifier: Apache-2.0
// What one session has to be told, bounded: at most one notice of a lease is under way, at most a window
// of them in all, and what comes meanwhile is kept as one entry a lease, in which the newer word replaces
// the older.
//
// Place     ClientSession -> here -> LeaseListener.
// Threads   The event loop's thread only.
// Invariant Every lease in ready_ has an entry in leases_ that is not under way and has something to say.
#pragma once

#include <kj/async.h>

#include <deque>
#include <map>
#include <optional>
#include <string>

#include "daemon/rpc/connection.h"

namespace terrace::daemon {

class Notices final : private kj::TaskSet::ErrorHandler {
 public:
  Notices(Connection& connection, rpc::LeaseListener::Client listener);
  ~Notices() noexcept(false);

  void revoking(LeaseId lease, uint64_t grace_ns, std::string reason);
  void fenced(LeaseId lease, std::string reason, LeaseCause cause);
  void move_requested(LeaseId lease, std::string reason);

  // Drops the listener and all notices.
  void stop();

 private:
  struct Revoking {
    uint64_t until_ns = 0;
    std::string reason;
  };
  struct Fenced {
    std::string reason;
    LeaseCause cause = LeaseCause::none;
  };
  struct Entry {
    std::optional<Fenced> fenced;  // said first: what follows is about the lease as it was attached again
    std::optional<Revoking> revoking;
    std::optional<std::string> move;
    bool under_way = false;
    bool move_under_way = false;

    bool silent() const { return !fenced.has_value() && !revoking.has_value() && !move.has_value(); }
  };

  Entry* entry_of(LeaseId lease);
  void speak(LeaseId lease, Entry& entry);
  void send_ready();
  kj::Promise<void> send(LeaseId lease, Entry& entry);
  void taken(LeaseId lease);
  void taskFailed(kj::Exception&& exception) override;

  Connection& connection_;
  kj::Maybe<rpc::LeaseListener::Client> listener_;  // none once stopped
  std::map<LeaseId, Entry> leases_;
  std::deque<LeaseId> ready_;
  size_t under_way_ = 0;
  kj::Own<kj::TaskSet> tasks_;
};

}  // namespace terrace::daemon
