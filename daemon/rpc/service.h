// What every connection shares: the engine, who may do what, who holds which lease, what holders reported.
//
// Place     daemon/main builds one; gateway, tenant session, admin and lease capabilities refer to it.
// Threads   The event loop's thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/base/limits.h"
#include "daemon/event_loop/engine.h"

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

// A connected session that wants to hear of its leases.
class HolderListener {
 public:
  virtual ~HolderListener() noexcept(false) = default;
  virtual void revoking(LeaseId lease, uint64_t grace_ns, const std::string& reason) = 0;
  virtual void fenced(LeaseId lease, const std::string& reason) = 0;
  virtual int32_t pid() const = 0;
};

class Service final : public HolderNotifier {
 public:
  Service(Engine& engine, ServiceOptions options);
  ~Service() override;

  Engine& engine() { return engine_; }
  const ServiceOptions& options() const { return options_; }
  uint64_t started_ns() const { return started_ns_; }

  bool is_admin(const PeerCredentials& peer) const { return options_.admin_uids.contains(peer.uid); }
  // The tenant that a peer acts for; nullopt: it has none here.
  std::optional<std::string> tenant_of(const PeerCredentials& peer) const;

  // Whether `listener` may hold `lease` with `access` beside those who hold it now: an exclusive lease has
  // one holding process, a shared read-only one has one that writes. A process that reconnects may be
  // here twice for a moment.
  Status may_hold(const LeaseRow& lease, ObjectAccess access, const HolderListener& listener) const;
  void add_holder(LeaseId lease, ObjectAccess access, HolderListener& listener);
  void remove_listener(HolderListener& listener);
  void revoking(LeaseId lease, uint64_t grace_ns, const std::string& reason) override;
  void fenced(LeaseId lease, const std::string& reason, LeaseCause cause) override;
  size_t holders(LeaseId lease) const override { return holders_.count(lease); }
  bool move_requested(LeaseId lease, const std::string& reason) override;

  // Opens the lease's memory, or shares the descriptor that others have of it.
  Result<SharedFd> open_memory(const LeaseRow& lease, ObjectAccess access);

  void report_usage(LeaseId lease, ReportedUsage usage);
  const ReportedUsage* usage_of(LeaseId lease) const;

  uint32_t connections() const { return connections_; }
  // Counts a connection in. Refused: as many as there may be, of this uid or of all that are no
  // administrator's.
  bool connection_opened(const PeerCredentials& peer);
  void connection_closed(const PeerCredentials& peer);

 private:
  Engine& engine_;
  ServiceOptions options_;
  uint64_t started_ns_;
  uint32_t connections_ = 0;
  std::unordered_map<uint32_t, uint32_t> connections_of_uid_;
  std::map<std::pair<LeaseId, ObjectAccess>, std::weak_ptr<const UniqueFd>> memory_;
  struct Holder {
    HolderListener* listener;
    ObjectAccess access;
  };
  std::multimap<LeaseId, Holder> holders_;
  std::unordered_map<uint64_t, ReportedUsage> usage_;
};

}  // namespace terrace::daemon
