// What every connection shares: the engine, who may do what, who holds which lease, what holders reported, how
// much of the manager's memory each uid takes.
//
// Place     daemon/main builds one; gateway, tenant session, admin and lease capabilities refer to it.
// Threads   The event loop's thread only.
#pragma once

#include <kj/async.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/limits.h"
#include "daemon/event_loop/engine.h"
#include "daemon/rpc/holders.h"
#include "daemon/rpc/peer_log.h"
#include "daemon/rpc/waiting_grants.h"

namespace terrace::daemon {

struct PeerCredentials {
  uint32_t uid = 0;
  int32_t pid = 0;
};

struct ServiceOptions {
  std::string host = "localhost";  // this machine's name, for sessions that give none
  std::string runtime_directory;
  std::string state_file;
  std::string object_directory;
  std::set<uint32_t> admin_uids;
  std::map<uint32_t, std::string> tenants;  // uid -> tenant
  bool allow_unmapped_uids = true;          // others become tenant "uid-N"
  uint64_t ttl_ns_max = limits::ttl_ns_max;
  uint32_t connections_max = limits::rpc_connections_max;
  uint32_t calls_outstanding_max = limits::rpc_calls_outstanding_max;
  uint32_t leases_max = limits::rpc_leases_max;   // lease and move capabilities of one connection
  uint32_t notices_max = limits::rpc_leases_max;  // not taken yet by one connection; then it is closed
  uint64_t write_stall_ns_max = 30 * ns_per_s;    // a peer that takes nothing for so long is closed
  uint64_t rows_looked_at_per_s = 2'000'000;      // leases that one uid's lists go through
  uint64_t unwritten_bytes_uid_max = 64 * mib;    // answers that one uid has not taken; then no more pages
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

class Service final : public HolderNotifier, private kj::TaskSet::ErrorHandler {
 public:
  Service(Engine& engine, ServiceOptions options);
  ~Service() noexcept override;

  Engine& engine() { return engine_; }
  const ServiceOptions& options() const { return options_; }
  uint64_t started_ns() const { return started_ns_; }

  bool is_admin(const PeerCredentials& peer) const { return options_.admin_uids.contains(peer.uid); }
  // The tenant that a peer acts for; nullopt: it has none here.
  std::optional<std::string> tenant_of(const PeerCredentials& peer) const;

  // --- who holds what ---
  Holders& holders() { return holders_; }
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
  // The lease's memory is another now (it was moved or handed over): whoever attached it under an earlier
  // LeaseEpoch is told that it is fenced. `keeper`: the session that moved it, which has the new memory.
  void epoch_stepped(const LeaseRow& lease, const std::string& reason, LeaseCause cause,
                     HolderListener* keeper);
  // A move of the lease by its holder is under way, from first to last.
  void move_began(LeaseId lease, const HolderListener* mover) { moving_[lease] = mover; }
  void move_ended(LeaseId lease) { moving_.erase(lease); }
  bool move_under_way(LeaseId lease) const { return moving_.contains(lease); }

  // Opens the lease's memory, or shares the descriptor that others have of it.
  Result<SharedFd> open_memory(const LeaseRow& lease, ObjectAccess access);
  Result<SharedFd> open_object(const std::string& object, ObjectAccess access);

  // Locks as long as the service lives: for destructors of what a cut-off call owns, which may run after that.
  std::weak_ptr<Service*> handle() const { return self_; }
  WaitingGrants& waiting_grants() { return waiting_grants_; }
  // For what a peer left behind: nobody waits for the outcome.
  void submit_unasked(Command command, Actor actor);
  PeerLog& peer_log() { return peer_log_; }

  void report_usage(LeaseId lease, ReportedUsage usage);
  const ReportedUsage* usage_of(LeaseId lease) const;

  // Free runs of a pool by class, ascending. Of a pool with very many runs it may be a fifth of a second old:
  // any tenant may ask, as often as it likes.
  const std::vector<FreeClass>& free_classes(PoolId pool);

  // --- how much each uid takes ---
  uint32_t connections() const { return connections_; }
  // Counts a connection in. Refused: as many as there may be, of this uid or of all that are no
  // administrator's.
  bool connection_opened(const PeerCredentials& peer);
  void connection_closed(const PeerCredentials& peer);
  // Bytes of answers that were made and that the peers of a uid have not taken yet.
  void answer_made(uint32_t uid, uint64_t bytes) { unwritten_bytes_[uid] += bytes; }
  void answer_taken(uint32_t uid, uint64_t bytes);
  uint64_t unwritten_bytes(uint32_t uid) const;
  // Leases that calls of a uid have the manager look at: a list looks at all of them, however few are its
  // tenant's. One that is no administrator gets `rows_looked_at_per_s`, and may run up a second's debt at once.
  // Errors    limit_exceeded   it has no more for now
  Status may_look(const PeerCredentials& peer);
  void looked_at(const PeerCredentials& peer, uint64_t rows);

 private:
  void taskFailed(kj::Exception&& exception) override;

  struct Looks {
    uint64_t paid_until_ns = 0;  // by which moment all that was looked at will have been allowed
  };
  struct FreeClasses {
    std::vector<FreeClass> classes;
    uint64_t made_ns = 0;
  };
  // By object and access. An entry goes with the last of its descriptors, so that it needs no forgetting.
  using MemoryCache = std::map<std::pair<std::string, ObjectAccess>, std::weak_ptr<const UniqueFd>>;

  Engine& engine_;
  std::shared_ptr<Service*> self_ = std::make_shared<Service*>(this);
  ServiceOptions options_;
  uint64_t started_ns_;
  uint32_t connections_ = 0;
  std::unordered_map<uint32_t, uint32_t> connections_of_uid_;
  std::unordered_map<uint32_t, uint64_t> unwritten_bytes_;  // by uid
  std::unordered_map<uint32_t, Looks> looks_;               // by uid
  std::shared_ptr<MemoryCache> memory_ = std::make_shared<MemoryCache>();
  Holders holders_;
  std::unordered_map<LeaseId, const HolderListener*> moving_;
  WaitingGrants waiting_grants_;
  PeerLog peer_log_;
  std::unordered_map<uint64_t, ReportedUsage> usage_;
  std::unordered_map<PoolId, FreeClasses> free_classes_;
  kj::TaskSet tasks_;
};

}  // namespace terrace::daemon
