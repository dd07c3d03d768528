// SPDX-License-Identifier: Apache-2.0
// What every connection of a manager shares: the engine, who holds which lease, what holders reported; and, as
// Peers, who may do what and how much each uid takes.
//
// Place     daemon/role_manager.cc builds one; gateway, tenant session, admin and lease capabilities refer to it.
// Threads   The event loop's thread only.
#pragma once

#include <kj/async.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/limits.h"
#include "daemon/event_loop/engine.h"
#include "daemon/event_loop/one_at_a_time.h"
#include "daemon/history/history.h"
#include "daemon/litmus/litmus_runs.h"
#include "daemon/model/certificate_end.h"
#include "daemon/rpc/event_waiters.h"
#include "daemon/rpc/health_watch.h"
#include "daemon/rpc/holders/holder_table.h"
#include "daemon/rpc/machine_doctor.h"
#include "daemon/rpc/peer_limits.h"
#include "daemon/rpc/waiting_grants.h"
#include "daemon/runs/run_table.h"

namespace terrace::daemon {

struct ServiceOptions : PeerOptions {
  std::string host = "localhost";  // this machine's name, for sessions that give none
  std::string runtime_directory;
  std::string state_file;
  std::string store_id;
  std::string object_directory;
  HealthLimits health = {};
  bool memdev_health = false;  // whether CXL memdevs are asked how they are, once a minute
};

// A descriptor of a lease's memory, one for all capabilities of the same access.
using SharedFd = std::shared_ptr<const UniqueFd>;

// What a holder said of its use of a lease. Volatile: after a restart holders report again.
struct ReportedUsage {
  uint64_t ddr_bytes = 0;
  uint64_t cxl_bytes = 0;
  uint64_t live_bytes = 0;
  uint64_t reported_ns = 0;
  std::string holder;
};

// Free runs of one power-of-two class of lengths.
struct FreeClass {
  uint64_t run_bytes_min = 0;
  uint64_t runs = 0;
  uint64_t bytes = 0;
};

// A further host, for `terrace host list`.
// What its agent has said of taking away all that is leased on it; zeros: nothing.
struct HostFencing {
  uint64_t fence_ns = 0, margin_ns = 0, margin_max_ns = 0;
};

struct HostStatus {
  std::string name, state, address, version, detail;
  uint64_t silent_ns = 0;
  uint64_t ends_in_ns = 0;
  uint64_t host_lease_ns = 0;  // how long it keeps its leases without word from the manager
  uint64_t leases = 0;
  uint64_t bytes = 0;
  std::vector<std::string> devices;
  HostFencing fencing;
  int64_t certificate_days_left = -1;  // of the connected agent's; -1: none is
  bool certificate_ends_soon = false;
};

// Who knows the further hosts: Agents.
class HostDirectory {
 public:
  virtual ~HostDirectory() = default;
  // Whether a lease of the pool can have its memory object on that host now.
  // Errors    unavailable   its agent is away, or does not see all devices of the pool; says which
  virtual Status may_grant(const std::string& host, PoolId pool) const = 0;
  // Where the lease's object goes when it is handed to `to_host`: that host's agent, or "" for the manager's
  // own machine; nullopt: it stays where it is, the host's name is no agent's.
  // Errors    unavailable, unsupported   it cannot go there, and why
  virtual Result<std::optional<std::string>> agent_for(const LeaseRow& lease, const std::string& to_host,
                                                       const std::string& to_tenant) const = 0;
  // Devices of the lease whose memory that host has not proved to see (docs/design/0006-agents.md).
  virtual std::vector<std::string> unproved(const std::string& host, const LeaseRow& lease) const {
    (void)host, (void)lease;
    return {};
  }
  // Whether a process of that host, as its agent told of it, has ended. false when in doubt: its agent is away.
  virtual kj::Promise<bool> has_ended(const std::string& host, const ProcessId& process) {
    (void)host, (void)process;
    return false;
  }
  virtual std::vector<HostStatus> list() const = 0;
  // The same without what is leased there, which takes a walk over all leases.
  virtual std::vector<HostStatus> states() const = 0;
  // Whether the configuration names it as one that a host may act for.
  virtual bool names_tenant(const std::string&) const { return false; }
  virtual std::vector<CertificateEnd> certificate_ends() const { return {}; }
  // Has the host forgotten, and its agent refused until allow(). `revoke`: what it leases is taken back.
  // Errors    not_found      there is no such host
  //           busy           it has leases; says how many
  //           io_error, ...  what is to be remembered cannot be written; nothing changed
  virtual Status remove(const std::string& host, bool revoke, const Actor& actor) = 0;
  virtual Status allow(const std::string& host) = 0;
};

class ConsentedHolders;
class EndedHolders;

class Service final : public Peers, public HolderNotifier, private kj::TaskSet::ErrorHandler {
 public:
  Service(Engine& engine, ServiceOptions options);
  ~Service() noexcept override;

  Engine& engine() { return engine_; }
  // None: this manager has no further hosts.
  void set_hosts(HostDirectory* hosts) { hosts_ = hosts; }
  HostDirectory* hosts() const { return hosts_; }
  // None: it keeps none.
  void set_history(const History* history) { history_ = history; }
  const History* history() const { return history_; }
  // Whether pages pinned in the pool's memory may outlast a fence, and no operator said that its tenants trust each
  // other. `pool`: null if there is none.
  bool pins_outlast(const PoolRow* pool) const;
  // Where the memory object of a lease that is handed over goes, and what its memory is like.
  Status place_transfer(Transfer& request) const;
  Status place_accepted(AcceptOffer& request) const;
  // Whether there is such a tenant: a uid maps to it, a host's certificate names it, or an operator or a lease does.
  bool knows_tenant(const std::string& tenant) const;
  const ServiceOptions& options() const { return options_; }
  uint64_t started_ns() const { return started_ns_; }
  uint64_t now_ns() const override { return engine_.now_ns(); }

  // --- who holds what ---
  Holders& holders() { return holders_; }
  EndedHolders& ended_holders() { return *ended_holders_; }
  // Who agreed to be ended at a fence. Outlives it; none: leases whose holders are ended can be attached by nobody here.
  void set_consents(ConsentedHolders* consents) { consents_ = consents; }
  ConsentedHolders* consents() const { return consents_; }
  // Whether `listener` may attach `lease` now: beside those who hold it (Holders::may_hold), and no move of it
  // is under way: what a newcomer wrote would be lost with the old memory.
  Status may_hold(const LeaseRow& lease, ObjectAccess access, const HolderListener& listener) const;
  // From the engine: tells the sessions concerned.
  void revoking(LeaseId lease, uint64_t grace_ns, const std::string& reason) override;
  void fenced(LeaseId lease, const std::string& reason, LeaseCause cause) override;
  bool move_requested(LeaseId lease, const std::string& reason) override {
    return holders_.ask_to_move(lease, reason);
  }
  size_t holders(LeaseId lease) const override { return holders_.count(lease); }
  kj::Promise<std::set<LeaseId>> nobody_has(std::set<LeaseId> leases) override;
  // The lease's memory is another now (it was moved or handed over): whoever attached it under an earlier
  // LeaseEpoch is told that it is fenced. `keeper`: the session that moved it, which has the new memory.
  void epoch_stepped(const LeaseRow& lease, const std::string& reason, LeaseCause cause,
                     HolderListener* keeper);
  // The lease was handed to another tenant or host, and is that one's: whoever had it is told.
  void handed_over(const LeaseRow& lease);
  // A move of the lease by its holder is under way, from first to last.
  void move_began(LeaseId lease, const HolderListener* mover) { moving_[lease] = mover; }
  void move_ended(LeaseId lease) { moving_.erase(lease); }
  bool move_under_way(LeaseId lease) const { return moving_.contains(lease); }

  // Opens the lease's memory, or shares the descriptor that others have of it.
  // `object`: one of a lease's, on this machine.
  Result<SharedFd> open_memory(const std::string& object, ObjectAccess access);
  Result<SharedFd> open_object(const std::string& object, ObjectAccess access);

  // Locks as long as the service lives: for destructors of what a cut-off call owns, which may run after that.
  std::weak_ptr<Service*> handle() const { return self_; }
  WaitingGrants& waiting_grants() { return waiting_grants_; }
  LitmusRuns& litmus_runs() { return litmus_runs_; }
  HealthWatch& health() { return health_; }
  EventWaiters& event_waiters() { return event_waiters_; }
  OneAtATime& checks() { return checks_; }      // of the whole state
  OneAtATime& previews() { return previews_; }  // of what an act would do: a snapshot of the process each
  MachineDoctor& doctor() { return doctor_; }
  // For what a peer left behind: nobody waits for the outcome.
  template <Asked C>
  void submit_unasked(C command, Actor actor) {
    tasks_.add(engine_.submit(std::move(command), std::move(actor)).ignoreResult());
  }

  RunTable& runs() { return runs_; }
  void report_usage(LeaseId lease, ReportedUsage usage);
  const ReportedUsage* usage_of(LeaseId lease) const;

  // Free runs of a pool by class, ascending. Of a pool with very many runs it may be a fifth of a second old:
  // any tenant may ask, as often as it likes.
  const std::vector<FreeClass>& free_classes(PoolId pool);

 private:
  void taskFailed(kj::Exception&& exception) override;

  struct FreeClasses {
    std::vector<FreeClass> classes;
    uint64_t made_ns = 0;
  };
  // By object and access. An entry goes with the last of its descriptors, so that it needs no forgetting.
  using MemoryCache = std::map<std::pair<std::string, ObjectAccess>, std::weak_ptr<const UniqueFd>>;

  Engine& engine_;
  HostDirectory* hosts_ = nullptr;
  const History* history_ = nullptr;
  std::shared_ptr<Service*> self_ = std::make_shared<Service*>(this);
  ServiceOptions options_;
  uint64_t started_ns_;
  std::shared_ptr<MemoryCache> memory_ = std::make_shared<MemoryCache>();
  Holders holders_;
  std::unordered_map<LeaseId, const HolderListener*> moving_;
  WaitingGrants waiting_grants_;
  LitmusRuns litmus_runs_;
  OneAtATime checks_, previews_;
  MachineDoctor doctor_;
  kj::Own<EndedHolders> ended_holders_;
  ConsentedHolders* consents_ = nullptr;
  std::unordered_map<uint64_t, ReportedUsage> usage_;
  RunTable runs_;
  std::unordered_map<PoolId, FreeClasses> free_classes_;
  HealthWatch health_;
  EventWaiters event_waiters_;
  kj::TaskSet tasks_;
};

}  // namespace terrace::daemon
