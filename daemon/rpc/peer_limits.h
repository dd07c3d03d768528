// SPDX-License-Identifier: Apache-2.0
// Who may connect to a socket of ours, as whom, and how much each uid takes: of connections, of memory for answers it has
// not taken, of leases looked through. The role of the socket comes before the uid (authority_of); over TLS there is no
// uid, and the certificate's rights, bounded by the socket, are in its place.
//
// Place     The manager's Service and an agent's LocalService are both one; RpcServer knows nothing more of
// them.
// Threads   The event loop's thread only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/limits.h"
#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/base/units.h"
#include "daemon/model/latency_histogram.h"
#include "daemon/model/remote_client.h"
#include "daemon/model/socket_role.h"
#include "daemon/model/userfaultfd_rule.h"
#include "daemon/rpc/handed_memory.h"
#include "daemon/rpc/peer_log.h"
#include "daemon/traces/tracer.h"

namespace terrace::daemon {

// Who is who, at a socket of the role by-uid.
struct PeerIdentities {
  std::set<uint32_t> admin_uids;
  std::map<uint32_t, std::string> tenants;  // uid -> tenant
  bool allow_unmapped_uids = true;          // others become tenant "uid-N"
};

inline constexpr uint32_t no_uid = UINT32_MAX;

struct PeerCredentials {
  uint32_t uid = 0;  // no_uid where `remote` says who it is
  int32_t pid = 0;
  std::shared_ptr<const ServedSocket> socket = nullptr;  // that it came through; null: by uid
  // As they were when it connected: what is counted for a peer is given back under the same key. Null: as they are.
  std::shared_ptr<const PeerIdentities> identities = nullptr;
  std::shared_ptr<const RemoteClient> remote = nullptr;  // over TLS from another machine

  SocketRole role() const {
    if (remote != nullptr) return remote->role;
    return socket == nullptr ? SocketRole::by_uid : socket->role;
  }
  // "uid 1000", "client ops"
  std::string text() const {
    return remote == nullptr ? "uid " + std::to_string(uid) : "client " + remote->name;
  }
};

// Whom what a peer takes is counted for: a uid; the name in a certificate; the socket of one tenant, whose callers' uids say nothing of who they
// are; and operators and administrators apart from both, so that nobody of the same uid takes their share.
using PeerKey = uint64_t;

struct PeerOptions : PeerIdentities {
  std::vector<std::shared_ptr<const ServedSocket>> sockets;  // the main one first
  uint32_t connections_max = limits::rpc_connections_max;
  uint32_t calls_outstanding_max = limits::rpc_calls_outstanding_max;
  uint32_t leases_max = limits::rpc_leases_max;   // lease and move capabilities of one connection
  uint32_t notices_max = limits::rpc_leases_max;  // not taken yet by one connection; then it is closed
  uint64_t write_stall_ns_max = 30 * ns_per_s;    // a peer that takes nothing for so long is closed
  uint64_t rows_looked_at_per_s = 2'000'000;      // leases that one uid's lists go through
  uint64_t unwritten_bytes_uid_max = 64 * mib;    // answers that one uid has not taken; then no more pages
  UserfaultfdRule userfaultfd = UserfaultfdRule::kernel;  // which sessions are given the device below
  std::string userfaultfd_path = "/dev/userfaultfd";
  std::string unprivileged_userfaultfd_path = "/proc/sys/vm/unprivileged_userfaultfd";
  uint64_t descriptors_max = 0;  // that this process may have open; 0: more than it will need
};

class Peers;

// Says in the log what the limit of open files allows, where it bounds connections.
void tell_connections(const Peers& peers);

// How many descriptors this process may have open, and raises that as far as it may: RLIMIT_NOFILE.
uint64_t raise_descriptors_allowed();

class Peers {
 public:
  explicit Peers(PeerOptions options) { set_peer_options(std::move(options)); }
  virtual ~Peers() noexcept(false) = default;
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  virtual uint64_t now_ns() const = 0;  // CLOCK_BOOTTIME

  const PeerOptions& peer_options() const { return peer_options_; }
  // For calls and connections from now on. Who connected before stays who it was.
  void set_peer_options(PeerOptions options) {
    peer_options_ = std::move(options);
    identities_ = std::make_shared<const PeerIdentities>(peer_options_);
  }
  const std::shared_ptr<const PeerIdentities>& identities() const { return identities_; }
  // What the peer may ask of the operator's interface: by its socket's role, and where that is by-uid by its uid.
  Authority authority_of(const PeerCredentials& peer) const;
  bool is_admin(const PeerCredentials& peer) const { return authority_of(peer) == Authority::administrator; }
  PeerKey key_of(const PeerCredentials& peer) const;
  // Why a peer has less than `needed`, what its socket gives, and which configuration would give it more.
  Error refused_authority(const PeerCredentials& peer, Authority needed, const char* what) const;
  // Whether a peer may act for `tenant`.
  // Errors    permission_denied   it is another's, or has none; says which configuration says so
  Status may_act_for(const PeerCredentials& peer, const std::string& tenant) const;
  // The tenant that a peer acts for; nullopt: it has none here.
  std::optional<std::string> tenant_of(const PeerCredentials& peer) const;
  // Under which name the audit log has what a peer was refused: its tenant, or where it has none "uid-7", "client:ops".
  std::string name_for_audit(const PeerCredentials& peer) const;
  // Whether some uid acts for it here.
  bool names_tenant(const std::string& tenant) const;
  PeerLog& peer_log() { return peer_log_; }

  // Which calls are traced; null: none.
  void set_tracer(std::shared_ptr<Tracer> tracer) { tracer_ = std::move(tracer); }
  const std::shared_ptr<Tracer>& tracer() const { return tracer_; }

  // How long calls took, by method ("Admin.status"), which lives as long as the program. Who counts one holds it: a call
  // that was cut off may end after everything else, with the event loop.
  using CallTimes = std::map<std::string_view, LatencyHistogram>;
  const CallTimes& call_times() const { return *call_times_; }
  const std::shared_ptr<CallTimes>& shared_call_times() const { return call_times_; }

  uint32_t connections() const { return connections_; }
  // As many may be: as configured, or half of the descriptors that are not our own.
  uint32_t connections_allowed() const;
  // Counts a connection in. Refused: as many as there may be, of this uid (or tenant's socket) or of all that are no
  // administrator's or operator's.
  bool connection_opened(const PeerCredentials& peer);
  void connection_closed(const PeerCredentials& peer);
  // Bytes of answers that were made and that the peers of a key have not taken yet.
  void answer_made(PeerKey key, uint64_t bytes) { unwritten_bytes_[key] += bytes; }
  void answer_taken(PeerKey key, uint64_t bytes);
  uint64_t unwritten_bytes(PeerKey key) const;
  // Leases that calls of a uid have the manager look at: a list looks at all of them, however few are its
  // tenant's. One that is no administrator or operator gets `rows_looked_at_per_s`, and may run up a second's debt at once.
  // Errors    limit_exceeded   it has no more for now
  Status may_look(const PeerCredentials& peer);
  void looked_at(const PeerCredentials& peer, uint64_t rows);
  // Whether memory may be opened for a peer now. What its answers carry stays open until they are written: a quarter
  // of what is left beside connections may be one uid's, and some of it is kept for administrators.
  // Errors    limit_exceeded   it has to take the answers under way first
  Status may_open_memory(const PeerCredentials& peer) const;
  std::shared_ptr<HandedMemory> hand(const PeerCredentials& peer, std::shared_ptr<const UniqueFd> memory);
  // The device, open, shared by all who have it. In userfaultfd_device.cc.
  // Errors    permission_denied   the configuration does not give it to this peer, or this process may not open it
  //           unsupported         there is none
  Result<std::shared_ptr<const UniqueFd>> userfaultfd_device(const PeerCredentials& peer);

 private:
  struct Looks {
    uint64_t paid_until_ns = 0;  // by which moment all that was looked at will have been allowed
  };

  uint64_t open_memory_max() const;
  bool kernel_gives_userfaultfd(const PeerCredentials& peer, const UniqueFd& device) const;
  const PeerIdentities& identities_of(const PeerCredentials& peer) const {
    return peer.identities == nullptr ? *identities_ : *peer.identities;
  }

  PeerOptions peer_options_;
  std::shared_ptr<const PeerIdentities> identities_;  // never null
  PeerLog peer_log_;
  std::shared_ptr<Tracer> tracer_;
  std::shared_ptr<CallTimes> call_times_ = std::make_shared<CallTimes>();
  uint32_t connections_ = 0;
  std::unordered_map<PeerKey, uint32_t> connections_of_;
  std::unordered_map<PeerKey, uint64_t> unwritten_bytes_;
  std::unordered_map<PeerKey, Looks> looks_;
  std::weak_ptr<const UniqueFd> userfaultfd_device_;
  std::shared_ptr<uint32_t> open_of_all_ = std::make_shared<uint32_t>(0);
  std::unordered_map<PeerKey, std::shared_ptr<uint32_t>> open_of_;
};

}  // namespace terrace::daemon
