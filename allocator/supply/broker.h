// SPDX-License-Identifier: Apache-2.0
// The supervisor's broker: turns one run's budgets into leases of a pool manager, and hands their descriptors
// to the processes of the run.
//
// Place     cli/run/run.cc owns one, above libclient's Session. Programs talk to it through allocator/preload.
// Threads   start, stats, in_use and processes from any thread. Inside: one thread accepts, one serves each
//           connection (a grant may wait for the pool manager), one watches processes and reports usage.
//
// A lease is granted when a process needs it, and belongs to that process. It is released once no process maps
// it, neither the owner nor a forked child. Invariants:
//   S5  A lease is released only after two scans of all processes found no mapping of it, and never while a
//       connection over which its descriptor went is open, or while a process of the run lives whose mappings
//       cannot be read.
//   S6  The sum of leases held or being asked for never passes cxl_bytes, but by the rounding of the last grant
//       to the pool's granules.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "allocator/supply/control.h"
#include "allocator/supply/history.h"
#include "allocator/supply/proc.h"
#include "allocator/supply/report.h"
#include "core/base/result.h"
#include "core/base/sync/mutex.h"
#include "core/base/units.h"
#include "terrace/session.h"

namespace terrace::supply {

struct BrokerOptions {
  uint64_t ddr_bytes = 0;
  uint64_t cxl_bytes = 0;
  bool fallback = false;  // tells programs to use the next malloc when the window is full
  std::string pool;       // empty: the only one
  uint64_t ttl_ns = 0;    // 0: the manager's default
  std::string label;      // of the leases: "<label>", "<label>#2", ...; empty: no labels
  uint64_t tick_ns = ns_per_s;
  uint64_t grant_patience_ns = 10 * ns_per_s;  // how long a full pool is asked again while memory comes back
  Migration migration;
  // DDR that processes may use beyond the budget to save what lies in leases that are taken back; asked each
  // time.
  std::function<uint64_t()> spare_bytes;
  // A line for the person who runs the program. Any thread; must not call back.
  std::function<void(const std::string&)> warn;
};

class Broker {
 public:
  // `session` outlives the Broker.
  // Errors    those of making a directory, a socket and a memfd; no lease is asked for yet.
  static Result<std::unique_ptr<Broker>> start(Session& session, BrokerOptions options);
  // Releases the leases that nobody maps. Others lapse when their TTL ends.
  ~Broker();
  Broker(const Broker&) = delete;
  Broker& operator=(const Broker&) = delete;

  // For the program's environment (TERRACE_SUPPLY). In a directory that only this uid can enter.
  const std::string& socket_path() const { return socket_path_; }

  // Looks now instead of at the next tick: what ended, what is mapped, what can be released.
  void scan();
  // A process of the run uses the window, or a lease is held.
  bool in_use();
  std::vector<pid_t> processes();  // that use the window
  RunStats stats();
  // Everything, as it is now; processes are asked at each tick.
  RunReport report();

 private:
  struct Segment {
    uint64_t key = 0;
    std::shared_ptr<Lease> lease;
    std::string label;
    uint64_t device = 0, inode = 0;
    pid_t owner = 0;
    std::string owner_name;
    uint32_t index = 0;       // in its owner
    uint64_t connection = 0;  // not 0: its descriptor is on the way over this connection
    int scans_unmapped = 0;
    bool taken_back = false;  // it is being taken back; with room for this much beyond the budget
    uint64_t spare_bytes = 0;
    bool leaving = false;  // and its owner moves out
  };
  // The memory file of one process's DDR part. Its memory lives as long as somebody maps it.
  struct Front {
    uint64_t key = 0;
    pid_t owner = 0;
    UniqueFd fd;
  };
  // What tells a process whether children of before have ended; see RequestKind::token.
  struct Token {
    uint64_t key = 0;
    pid_t owner = 0;
    UniqueFd fd;
  };
  struct Connection {
    uint64_t id = 0;
    UniqueFd socket;
    std::atomic<bool> done{false};
    std::thread thread;
  };
  // What one process maps of this run, from its (s)maps.
  struct View {
    pid_t pid = 0;
    bool known = false;   // they could be read
    bool hidden = false;  // they could not, of a process that uses the window: it may map any lease of the run
    bool slot = false;
    bool control = false;
    // Its engine samples by taking translations away: what is resident says nothing, what the slot says counts.
    bool moves = false;
    uint64_t ddr_bytes = 0;
    uint64_t outside_bytes = 0;              // anonymous, beside the window
    std::map<uint64_t, uint64_t> cxl_bytes;  // by segment key
  };

  // Asks the owners of leases that are being taken back, of which memory did not move so far.
  void ask_again_to_leave();
  Broker(Session& session, BrokerOptions options) : session_(session), options_(std::move(options)) {}
  Status listen();
  void accept_loop();
  void serve(Connection& connection);
  void answer(Connection& connection, const Request& request, pid_t peer, Reply* reply, int* fd);
  void grant(Connection& connection, const Request& request, pid_t peer, Reply* reply, int* fd);
  void make_front(const Request& request, pid_t peer, Reply* reply, int* fd);
  UniqueFd make_token(pid_t peer, Reply* reply);
  uint64_t preferred_bytes(pid_t peer);
  Result<std::shared_ptr<Lease>> grant_lease(pid_t peer, uint64_t needed, bool at_once, std::string* label);
  bool is_connection_ending();  // closed by the program, and its thread has not seen that yet
  bool manager_stays_away();
  std::string next_label();

  void watch_loop();
  void scan_locked();
  View look_at(pid_t pid, const Slot* slot);
  void note_outside(const std::vector<View>& views);
  void note_mappings(const std::vector<View>& views);
  std::set<uint64_t> mapped_by_anyone(const std::vector<Segment>& candidates);
  void release_unmapped();
  void on_notice(const LeaseNotice& notice);
  void note_migration(pid_t pid, const Slot& slot);
  void report_usage(const std::vector<View>& views);
  uint64_t leased_by(pid_t pid) TERRACE_REQUIRES(mutex_);
  void note_end(const Slot& slot, const ProcessStatistics& page) TERRACE_REQUIRES(mutex_);
  void note_peak() TERRACE_REQUIRES(mutex_);
  std::vector<ProcessReport> describe_running() TERRACE_REQUIRES(mutex_);
  RunStats stats_locked() TERRACE_REQUIRES(mutex_);
  void warn(const std::string& text);
  void wake_watcher();

  Session& session_;
  BrokerOptions options_;
  std::string directory_, socket_path_;
  std::unique_ptr<ControlPage> control_;
  UniqueFd listener_, wake_, stop_;
  std::thread accept_thread_, watch_thread_;
  std::atomic<bool> stopping_{false};

  Mutex scan_mutex_ TERRACE_ACQUIRED_BEFORE(mutex_);  // one scan at a time
  Mutex mutex_;  // everything below, and what is written to the control page
  std::list<Connection> connections_ TERRACE_GUARDED_BY(mutex_);
  uint64_t next_connection_ TERRACE_GUARDED_BY(mutex_) = 1;
  std::vector<Segment> segments_ TERRACE_GUARDED_BY(mutex_);
  std::list<Front> fronts_ TERRACE_GUARDED_BY(mutex_);
  std::list<Token> tokens_ TERRACE_GUARDED_BY(mutex_);
  std::set<pid_t> still_
      TERRACE_GUARDED_BY(mutex_);  // processes of which it was said that their memory does not move
  uint64_t next_key_ TERRACE_GUARDED_BY(mutex_) = 1;
  uint64_t label_serial_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint64_t leased_bytes_ TERRACE_GUARDED_BY(mutex_) = 0;  // held, asked for and not yet refused
  std::map<pid_t, UniqueFd> pidfds_ TERRACE_GUARDED_BY(mutex_);
  std::map<pid_t, uint64_t> outside_ TERRACE_GUARDED_BY(mutex_);  // by process, as of the last scan
  uint64_t other_processes_ TERRACE_GUARDED_BY(mutex_) = 0;       // likewise, of those without the window
  uint64_t other_bytes_ TERRACE_GUARDED_BY(mutex_) = 0;
  std::map<uint32_t, int> slot_misses_
      TERRACE_GUARDED_BY(mutex_);  // scans in a row in which a slot's process did not map the control page
  std::set<pid_t> greeting_ TERRACE_GUARDED_BY(mutex_);  // got a slot over a connection that is still open
  uint64_t released_ns_ TERRACE_GUARDED_BY(mutex_) = 0;  // when a lease was last given back
  bool outage_waited_ TERRACE_GUARDED_BY(mutex_) =
      false;  // somebody has waited for the manager in vain since it went away
  RunStats stats_ TERRACE_GUARDED_BY(mutex_);
  RunHistory history_ TERRACE_GUARDED_BY(mutex_);
};

}  // namespace terrace::supply
