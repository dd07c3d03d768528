// SPDX-License-Identifier: Apache-2.0
// A tenant's process: asks for leases, queues for them, maps and writes them, renews, resizes, moves, hands
// over and releases them, retries with the same key after a lost reply. Some renew late, ignore revocations, go
// on writing after a release, or freeze and come back. Whatever it reads and every answer it gets is checked:
//   stale bytes   nothing is ever read that another lease's holder wrote, and a new lease is blank
//   lost bytes    what the holder wrote is what it reads, also after a resize, a move or a hand-over
//
// Place     tests/sim/actors. Speaks to the manager over a lossy, slow connection; touches SimBackend directly.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/ledger.h"
#include "tests/sim/manager/connection.h"
#include "tests/sim/manager/sim_backend.h"

namespace terrace::sim {

// What the holders of leases wrote into them last, granule by granule. It goes with a lease from one holder to
// the next.
struct Contents {
  static constexpr uint64_t unknown = UINT64_MAX;
  std::map<LeaseId, std::vector<uint64_t>> stamps;
  uint64_t last_stamp = 0;
};

class SimClient {
 public:
  // `hand_over` is told of leases that were transferred to a host.
  SimClient(Environment& environment, Manager& daemon, SimBackend& backend, Ledger& ledger, Contents& contents,
            uint64_t index, std::function<void(LeaseId, const std::string& host)> hand_over);

  // One turn of the process. Schedules nothing itself.
  void act();
  void notice(const daemon::NotifyHolders& notice);
  void move_requested(LeaseId lease);
  // A lease was handed to this host: it is attached when there is time.
  void given(LeaseId lease) { given_.push_back(lease); }
  // The process ends, as in a machine restart: mappings and requests are gone.
  void end();
  // Asks for nothing new, but keeps, moves and renews what it has.
  void settle() { settled_ = true; }
  // Makes no more requests, but goes on using its memory.
  void fall_silent() { silent_ = true; }
  std::string host() const { return "host-" + std::to_string(index_); }
  const std::string& tenant() const { return tenant_; }
  uint64_t index() const { return index_; }

 private:
  struct Held {
    daemon::LeaseRow lease;
    Incarnation mapping = 0;
    bool mapped = true;
    bool leaving = false;      // to be released when there is time
    bool over = false;         // not its any more; a well-behaved client would have unmapped it
    bool doubtful = false;     // what became of a change is not known: to be attached again
    bool move_wanted = false;  // the manager asked for it
    LeaseId target;            // of a move whose copy is made
    std::string target_object;
  };
  enum class Asking : uint8_t {
    nothing,
    grant,
    renew,
    release,
    resize,
    transfer,
    begin_move,
    finish_move,
    attach
  };

  // sim_client.cc: memory
  void touch_all();
  bool touch(Held& held, uint64_t granule, bool write);  // false once the mapping is dead
  bool verify(Held& held);
  void map_again(Held& held, const daemon::LeaseRow& lease);
  void detach(Held& held);
  void copy_to_target(Held& held, const daemon::MoveReady& ready);

  // sim_client_requests.cc
  void ask_something();
  bool ask_what_is_due(Held& held);
  daemon::RenewMany renew_all(LeaseId due);
  void ask_to_change(Held& held);
  void ask_grant();
  void ask(Asking kind, LeaseId lease, daemon::Command command);
  void send();
  void give_up();

  // sim_client_answers.cc
  static const char* name_of(Asking asking);
  void received(const Result<daemon::Reply>& result);
  void renewed(const daemon::RenewalsReply& renewals);
  void answered(Asking asked, const daemon::LeaseRow& lease);
  void granted(const daemon::LeaseRow& lease);
  void resized(Held& held, const daemon::LeaseRow& lease);
  void attached(const daemon::LeaseRow& lease);
  void refused(const Error& error);
  Held* find(LeaseId id);
  void drop(Held* held);
  uint64_t patience_ns() const;

  Environment& environment_;
  Manager& daemon_;
  SimBackend& backend_;
  Ledger& ledger_;
  Contents& contents_;
  Connection connection_;
  uint64_t index_;
  std::function<void(LeaseId, const std::string&)> hand_over_;
  std::string tenant_;
  bool hostile_;  // ignores notices, writes after release, keeps old mappings
  bool lazy_;     // renews by chance only
  bool settled_ = false;
  bool silent_ = false;
  uint64_t frozen_until_ns_ = 0;
  std::vector<Held> held_;
  std::vector<LeaseId> given_;
  std::optional<daemon::Grant> last_grant_;  // one that was answered

  Asking asking_ = Asking::nothing;
  LeaseId asked_lease_;
  daemon::Command asked_;
  uint64_t attempt_ = 0;
  uint64_t sent_ns_ = 0;
  uint64_t tries_ = 0;
};

}  // namespace terrace::sim
