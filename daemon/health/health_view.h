// SPDX-License-Identifier: Apache-2.0
// What a manager, or a host's agent, knows of itself at one moment, for HealthEngine: facts and counters, no judgement.
//
// Place     daemon/rpc/health_watch.cc fills one in each few seconds, from counters: never by a walk over leases.
// Units     Counters grow from the start of the process on. `..._ns` without "for" are of the clock of `now_ns`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace terrace::daemon {

struct HealthView {
  struct Store {
    bool serving = true;
    std::string refusal = {};        // why not, in words
    uint64_t commits = 0;            // that ended
    uint64_t slow_commits = 0;       // of those, that took longer than HealthLimits::commit_max_ns
    uint64_t commit_for_ns = 0;      // how long the one under way has taken; 0: none is
    uint64_t slowest_commit_ns = 0;  // of all
    uint64_t journal_bytes = 0;      // 0: the store has no journal
    uint64_t journal_used_bytes = 0;
  };
  struct Disk {
    std::string path = {};    // of the state
    uint64_t free_bytes = 0;  // that the manager may use
  };
  struct Device {
    std::string serial = {}, pool = {};
    bool absent = false;
    bool draining = false;
    uint64_t used_bytes = 0;  // by leases, whatever their phases
    uint64_t capacity_bytes = 0;
  };
  struct Memdev {
    std::string serial = {};
    std::string health = {};  // in words: "ok", "not readable: ...", or what is wrong
  };
  struct Pool {
    std::string name = {};
    uint64_t capacity_bytes = 0;
    uint64_t grantable_bytes = 0;     // free on devices that are present and in service
    uint64_t longest_runs_bytes = 0;  // of those devices: the longest free run of each, together
    uint64_t quarantined_bytes = 0;
    uint64_t waiting = 0;
    uint64_t waiting_bytes = 0;
    uint64_t oldest_wait_ns = 0;  // since when the oldest of them waits
  };
  struct Scrub {
    uint64_t erased_bytes = 0;
    uint64_t queued_bytes = 0;
  };
  struct Fences {
    uint64_t failed = 0;
    std::string last_failure = {};  // which lease, and what was wrong
    uint64_t oldest_lease = 0;      // of those under way; 0: none is
    uint64_t oldest_for_ns = 0;     // how long it has taken
    uint64_t under_way = 0;
  };
  enum class HostState : uint8_t { connected, away, self_fenced };
  struct Host {
    std::string name = {}, version = {};
    HostState state = HostState::connected;
    uint64_t silent_ns = 0;      // since it was heard of; 0: not since the start
    uint64_t lease_ns = 0;       // how long a host lease is
    uint64_t lease_left_ns = 0;  // while it is away
    int64_t certificate_days_left = 0;
    bool certificate_ends_soon = false;
  };
  struct Certificate {
    std::string what = {}, name = {};
    int64_t days_left = 0;  // less than 0: it has ended
    bool ends_soon = false;
  };
  struct Denials {
    std::string tenant = {};
    uint64_t calls = 0;
    std::string last = {};  // what was refused last
  };

  struct Programs {  // of a tenant, that report what they do with their memory (daemon/runs)
    std::string tenant = {};
    uint64_t ddr_bytes = 0;        // what they have there now
    uint64_t exchanged_bytes = 0;  // a counter: rose to DDR, while as much sank
    bool sampled = false;          // whether somebody looks at their accesses
    double ddr_hits = 0;           // of these, 0 to 1
  };

  struct Lack {             // of this machine's kernel, or of what the manager may do there
    std::string what = {};  // the check of `terrace doctor`
    std::string found = {}, advice = {};
  };

  struct Agent {  // the agent of a further host that looks at itself
    std::string manager = {};
    bool connected = true;
    std::string trouble = {};    // why not, in words
    uint64_t lease_ns = 0;       // how long a host lease is; 0: it never had one
    uint64_t lease_left_ns = 0;  // 0: nothing is promised
    bool guarded = true;
    std::string guard_trouble = {};
  };

  std::string version = {};  // the manager's
  std::optional<Agent> agent = {};
  Store store;
  std::optional<Disk> disk = {};  // nullopt: it could not be looked at, or not yet
  // What follows is empty while the store fails: the state in memory may be ahead of it.
  std::vector<Device> devices = {};
  std::vector<Memdev> memdevs = {};
  std::vector<Pool> pools = {};
  Scrub scrub;
  Fences fences;
  std::vector<Host> hosts = {};
  std::vector<Certificate> certificates = {};
  std::vector<Certificate> clients = {};  // with which clients came; `what` is "client"
  std::vector<Denials> denials = {};
  std::vector<Programs> programs = {};
  std::vector<Lack> lacks = {};
};

}  // namespace terrace::daemon
