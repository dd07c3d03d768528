// SPDX-License-Identifier: Apache-2.0
// The operator's connection to a daemon, for verbs: blocking calls; messages of the schema as results.
//
// Place     cli verbs -> AdminClient -> unix socket -> daemon/rpc.
// Threads   The thread that connected; one AdminClient a process is enough (it owns an event loop).
// Errors    Every call can end with
//             unavailable       the daemon went away or did not answer within the time limit; a change may or
//                               may not have happened, look before doing it again
//             version_mismatch  the daemon does not know the call, or answers with a word of an enum that
//                               this program does not know
//           besides those that the daemon reports as data.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/client/lease_client.h"
#include "cli/client/statuses.h"
#include "core/base/unique_fd.h"
#include "core/litmus/report.h"

namespace terrace::cli {

struct Connection;

struct PoolOptions {
  std::string name;
  std::vector<std::string> devices;
  rpc::Placement placement = rpc::Placement::LINEAR;
  uint64_t stripe_bytes = 0;
  rpc::Coherence coherence = rpc::Coherence::UNKNOWN;
  rpc::Trust trust = rpc::Trust::NONE;
};

struct RegionOptions {
  std::vector<std::string> memdevs;  // serials, in their order of interleaving
  uint64_t granularity_bytes = 0;    // 0: the most that all decoders can do
  uint64_t bytes = 0;                // 0: all there is
};

struct RevokeOptions {
  uint64_t grace_ns = 0;
  std::string reason;
};

struct ReservationOptions {
  std::string pool, tenant;
  uint64_t bytes = 0;
  uint64_t ttl_ns = 0;  // 0: until it is removed
};

struct AuditFilter {
  std::string tenant, verb, subject;  // empty matches all; `verb` is a prefix
  uint64_t since_ns = 0;              // CLOCK_REALTIME
};

// Empty fields match all.
struct EventQuery {
  uint64_t since = 0;  // ids greater than this
  std::string run;     // that `since` is of; empty: of any
  uint32_t limit = 0;  // 0: as many as one answer has
  uint32_t wait_ms = 0;
  uint64_t since_wall_ns = 0;  // CLOCK_REALTIME
  std::string kind;            // a prefix
  rpc::EventSeverity severity = rpc::EventSeverity::INFO;
  uint64_t lease = 0;
  std::string tenant, pool, device, host;
  bool newest = false;
};

struct ReceivedBackup {
  BackupStatus contents;
  UniqueFd file;  // open for reading
};

struct LitmusStatus {
  std::string device;  // serial
  litmus::Report report;
  uint64_t age_ns = 0;  // how long ago it ended
};

// The socket that `context` means: --socket, else default_socket_path().
std::string socket_path_of(const Context& context);

class AdminClient final : public LeaseClient {
 public:
  // Connects, settles the protocol version and asks for the operator's interface.
  // Errors    unavailable        nobody listens; names the socket and how to start a daemon
  //           permission_denied  the socket or the daemon refuses this user
  //           version_mismatch   no protocol version in common
  static Result<std::unique_ptr<AdminClient>> connect(const Context& context);
  // The same for whom need not be an operator: null for who is none, and no refused call is noted.
  static Result<std::unique_ptr<AdminClient>> connect_if_admitted(const Context& context);
  static Result<std::unique_ptr<AdminClient>> open(std::unique_ptr<Connection> connection);
  ~AdminClient() override;
  AdminClient(const AdminClient&) = delete;
  AdminClient& operator=(const AdminClient&) = delete;

  Result<StatusReply> status();
  Result<HealthReply> health();
  Result<EventsReply> events(const EventQuery& query);
  Result<DoctorReply> doctor();              // of the manager's machine
  Result<RunsReply> runs();                  // programs that report what their memory does
  Result<std::vector<std::string>> check();  // broken invariants in words; empty when all hold

  // admin_pool_calls.cc: devices and pools
  Result<std::vector<DeviceStatus>> devices();
  Result<Hardware> inventory();               // of the manager's machine
  Status offline(const std::string& serial);  // a node's memory becomes a dax device again
  Result<DeviceStatus> adopt(const std::string& serial);
  Result<DrainProgress> drain(const std::string& serial);  // again: where it stands
  Result<DrainProgress> progress(const std::string& serial);
  Result<DeviceStatus> undrain(const std::string& serial);
  Result<DeviceStatus> fail_device(const std::string& serial);
  Status remove_device(const std::string& serial, bool forget_quarantined);
  // Returns the serial of the region, which is a device from then on.
  Result<std::string> create_region(const RegionOptions& options);
  Status destroy_region(const std::string& serial);
  // Gives a dax device to the kernel as memory; the serial of the node that leases then come from.
  Result<std::string> online(const std::string& serial);
  Result<PoolStatus> create_pool(const PoolOptions& options);
  Result<PoolStatus> set_pool_coherence(const std::string& name, rpc::Coherence coherence);
  Result<PoolStatus> set_pool_trust(const std::string& name, rpc::Trust trust);
  Result<PoolStatus> add_device(const std::string& pool, const std::string& serial);
  Result<std::vector<PoolStatus>> pools();
  Status delete_pool(const std::string& name);
  // admin_litmus_calls.cc. Looks at a device now (rounds of each shape; 0: the usual number), or tells of the
  // last look at each since the manager's start.
  Result<LitmusStatus> litmus(const std::string& serial, uint32_t rounds);
  Result<std::vector<LitmusStatus>> litmus_runs();
  // Begins a compaction for a free run of `run_bytes`; 0 bytes: reports. timeout_ns 0: the daemon's hour.
  Result<CompactionStatus> compact(const std::string& pool, uint64_t run_bytes, uint64_t timeout_ns);
  Status end_compaction(const std::string& pool);

  Result<std::vector<LeaseStatus>> leases(const std::string& pool, const std::string& tenant) override;
  Result<LeaseStatus> lease(LeaseId id, const std::string& label) override;
  Result<LeaseStatus> grant(const GrantOptions& options, const WaitReport& waiting) override;
  Result<LeaseStatus> renew(LeaseId id, uint64_t ttl_ns) override;
  Status release(LeaseId id) override;
  Result<LeaseStatus> resize(LeaseId id, uint64_t bytes) override;
  Result<LeaseStatus> transfer(LeaseId id, const std::string& tenant, const std::string& host) override;
  Result<std::vector<LeaseStatus>> offers() override;
  Result<LeaseStatus> accept_offer(LeaseId id) override;
  Status withdraw_offer(LeaseId id) override;
  Result<LeaseStatus> revoke(LeaseId id, const RevokeOptions& options);
  Result<std::vector<LeaseStatus>> quarantined();

  // admin_preview_calls.cc: what an act would do, and be refused with
  Result<PreviewStatus> preview_grant(const GrantOptions& options);
  Result<PreviewStatus> preview_revoke(LeaseId id, const RevokeOptions& options);
  Result<PreviewStatus> preview_drain(const std::string& serial);
  Result<PreviewStatus> preview_compaction(const std::string& pool, uint64_t run_bytes);
  Result<PreviewStatus> preview_quota(const QuotaStatus& quota);

  // admin_policy_calls.cc: quotas, reservations, queues, audit, consistency, hosts
  Result<std::vector<QuotaStatus>> quotas();
  Status set_quota(const QuotaStatus& quota);  // both bounds 0: removed
  Result<ReservationStatus> reserve(const ReservationOptions& wanted);
  Result<std::vector<ReservationStatus>> reservations();
  Status unreserve(uint64_t id);
  // Grants that wait, by pool and then by place; empty filters match all.
  Result<std::vector<WaitingStatus>> queue(const std::string& pool, const std::string& tenant);
  // Errors    not_found   there is no such request; busy: it waits no more
  Status cancel_waiting(LeaseId id, const std::string& reason);
  // The newest `limit` entries that match, oldest of them first; 0: all there are.
  Result<std::vector<AuditRecord>> audit_newest(const AuditFilter& filter, uint64_t limit);
  // Entries with a sequence above `after`, ascending; at most one page of the daemon's.
  Result<std::vector<AuditRecord>> audit_after(const AuditFilter& filter, uint64_t after);
  Result<std::vector<FindingStatus>> fsck();
  Result<ReceivedBackup> backup();
  Result<std::vector<HostRecord>> hosts();
  // Errors    not_found   there is no such host; busy: it has leases
  Status remove_host(const std::string& name, bool revoke);
  Status allow_host(const std::string& name);

 private:
  struct Impl;
  explicit AdminClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace::cli
