// The operator's connection to a daemon, for verbs: blocking calls, plain structs, no kj in this header.
//
// Place     cli verbs -> AdminClient -> unix socket -> daemon/rpc.
// Threads   The thread that connected; one AdminClient a process is enough (it owns an event loop).
// Errors    Every call can end with
//             unavailable       the daemon went away or did not answer within the time limit; a change may or
//                               may not have happened, look before doing it again
//             version_mismatch  the daemon does not know the call
//           besides those that the daemon reports as data.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/output.h"
#include "core/base/result.h"
#include "terrace/session.h"

namespace terrace::cli {

struct ServerStatus {
  std::string version, boot_id, runtime_directory, state_file, object_directory;
  std::string huge_pages;  // what the object directory's mount allows, in words
  std::string recovered;   // what the last start found and did
  uint32_t pid = 0;
  uint64_t uptime_ns = 0;
  uint64_t store_commits = 0;
  uint64_t commands_applied = 0;
  uint32_t connections = 0;
  bool failpoints = false;
};

struct StatusReply {
  ServerStatus server;
  std::vector<PoolInfo> pools;
  uint32_t leases = 0;
};

struct DeviceStatus {
  std::string serial, backend, pool, detail;
  uint64_t capacity_bytes = 0;
  uint64_t granule_bytes = 0;
  uint64_t free_bytes = 0;
  bool adopted = false;
  bool present = false;
};

struct RevokeOptions {
  uint64_t grace_ns = 0;
  std::string reason;
};

// The socket that `context` means: --socket, else default_socket_path().
std::string socket_path_of(const Context& context);

class AdminClient {
 public:
  // Connects, settles the protocol version and asks for the operator's interface.
  // Errors    unavailable        nobody listens; names the socket and how to start a daemon
  //           permission_denied  the socket or the daemon refuses this user
  //           version_mismatch   no protocol version in common
  static Result<std::unique_ptr<AdminClient>> connect(const Context& context);
  ~AdminClient();
  AdminClient(const AdminClient&) = delete;
  AdminClient& operator=(const AdminClient&) = delete;

  Result<StatusReply> status();
  Result<std::vector<DeviceStatus>> devices();
  Result<DeviceStatus> adopt(const std::string& serial);
  Result<PoolInfo> create_pool(const std::string& name, const std::vector<std::string>& devices);
  Result<std::vector<PoolInfo>> pools();
  Status delete_pool(const std::string& name);
  // All leases that match, ascending by id, fetched in pages; empty filters match all.
  Result<std::vector<LeaseInfo>> leases(const std::string& pool, const std::string& tenant);
  // By id, or by label when the id is 0.
  Result<LeaseInfo> lease(LeaseId id, const std::string& label);
  Result<LeaseInfo> revoke(LeaseId id, const RevokeOptions& options);
  Result<LeaseInfo> renew(LeaseId id, uint64_t ttl_ns);
  Status release(LeaseId id);
  Result<std::vector<std::string>> check();  // broken invariants in words; empty when all hold

  // Grants as a tenant (empty: the one that this uid maps to). The lease does not depend on this
  // connection: it lives by its ttl.
  Result<LeaseInfo> grant(const std::string& tenant, const LeaseRequest& request);

 private:
  struct Impl;
  explicit AdminClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace::cli
