// A tenant's process: asks for leases, maps and writes them, renews, releases, retries with the same key after
// a lost reply. Some renew late, ignore revocations, go on writing after a release, or freeze and come back.
// Whatever it reads and every answer it gets is checked.
//
// Place     tests/sim. Speaks to SimDaemon over a lossy, slow connection; touches SimBackend directly.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/sim/sim_daemon.h"

namespace terrace::sim {

// Delivers commands to the daemon and replies back, in their order, late or never. The daemon's clock stamps
// the command.
class Connection {
 public:
  Connection(Environment& environment, SimDaemon& daemon) : environment_(environment), daemon_(daemon) {}

  // `received` runs at most once, and not after cut().
  void send(const daemon::Command& command, ReplyAction received);
  // Messages under way in either direction are lost.
  void cut() { ++life_; }

 private:
  // How long a message takes that follows the one which arrives at `last_ns`.
  uint64_t delay_ns(uint64_t& last_ns);
  bool lost() { return environment_.chance_percent(environment_.faults().message_loss_percent); }

  Environment& environment_;
  SimDaemon& daemon_;
  uint64_t life_ = 0;
  uint64_t last_request_ns_ = 0;
  uint64_t last_reply_ns_ = 0;
};

class SimClient {
 public:
  SimClient(Environment& environment, SimDaemon& daemon, SimBackend& backend, Ledger& ledger, uint64_t index);

  // One turn of the process. Schedules nothing itself.
  void act();
  void notice(const daemon::NotifyHolders& notice);
  // The process ends, as in a machine restart: mappings and requests are gone.
  void end();
  // Makes no more requests, but goes on using its memory.
  void fall_silent() { silent_ = true; }

 private:
  struct Held {
    daemon::LeaseRow lease;
    Incarnation mapping = 0;
    bool leaving = false;  // to be released when there is time
    bool over = false;     // released; a well-behaved client would have unmapped it
  };
  enum class Asking : uint8_t { nothing, grant, renew, release };

  void touch_all();
  // False once the mapping is dead.
  bool touch(const Held& held, uint64_t granule, bool write);
  void ask_something();
  void ask_grant();
  void ask(Asking kind, LeaseId lease, daemon::Command command);
  void send();
  void received(const Result<daemon::Reply>& result);
  void granted(const daemon::LeaseRow& lease);
  void refused(const Error& error);
  Held* find(LeaseId id);

  Environment& environment_;
  SimBackend& backend_;
  Ledger& ledger_;
  Connection connection_;
  uint64_t index_;
  std::string tenant_;
  bool hostile_;  // ignores notices, writes after release
  bool lazy_;     // renews by chance only
  bool silent_ = false;
  uint64_t frozen_until_ns_ = 0;
  std::vector<Held> held_;
  std::optional<daemon::Grant> last_grant_;  // one that was answered

  Asking asking_ = Asking::nothing;
  LeaseId asked_lease_;
  daemon::Command asked_;
  uint64_t attempt_ = 0;
  uint64_t sent_ns_ = 0;
  uint64_t tries_ = 0;
};

}  // namespace terrace::sim
