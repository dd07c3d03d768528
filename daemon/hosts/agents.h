// SPDX-License-Identifier: Apache-2.0
// The manager's further hosts: listens for their agents over mutual TLS, knows the connected ones, sends them
// RemoteBackend's orders, and decides when an absent agent has fenced all its leases.
//
//   AgentPeer (one connection) ─ register, report, heartbeat ─► Agents ─ hosts ─► Service (Admin.hosts, grants)
//   RemoteBackend on a worker ─ order() ─► queue ─► event loop ─► HostAgent of that host's connection
//
// Invariants  A1  an order goes only over the connection that registered last and counts (state connected):
//                 before that every object there that no row wants was destroyed
//             A2  a host is `lapsed` only when its host lease (daemon/model/host_lease.h) has run out by the
//                 manager's count; a heartbeat that comes later is refused, so that the agent fences
//             A3  while a host is lapsed all its live leases are being ended
//             A4  the certificate alone says a connection's host; one host has one connection that counts
//             A5  no connection stays whose certificate is revoked, or whose host was removed
//
// Threads   order() and wait_until_forgotten() from workers; all else on the event loop's thread.
#pragma once

#include <kj/async-io.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/clock.h"
#include "core/base/sync/mutex.h"
#include "core/base/unique_fd.h"
#include "daemon/hosts/agent_wire.h"
#include "daemon/hosts/hosts_file.h"
#include "daemon/memory/remote/remote_memory.h"
#include "daemon/model/host_lease.h"
#include "daemon/rpc/connection/turns.h"
#include "daemon/rpc/service.h"
#include "daemon/tls/credentials.h"
#include "daemon/tls/handshakes.h"

namespace terrace::daemon {

struct AgentsOptions {
  HostLeaseTerms terms{30 * ns_per_s};
  // What agents may still rely on from the last run of the manager, if that was longer.
  uint64_t earlier_length_ns = 0;
  std::map<std::string, std::set<std::string>> tenants;  // host -> those it may act for; none named: all
  std::string store;                                     // the id of the manager's store, as agents are told
  bool destroy_orphans = false;                          // what no lease has goes, whoever had it
  std::string hosts_file;                                // hosts_file.h; empty: remembered nowhere
};

class AgentPeer;

class Agents final : public AgentOrders, public HostDirectory, private kj::TaskSet::ErrorHandler {
 public:
  Agents(AgentsOptions options, const Clock& clock, kj::Timer& timer);
  ~Agents() noexcept override;

  // Begins to count the hosts that leases are on, and to look after them. After Engine::start().
  void begin(Service& service);
  // What it tells of when the manager's own certificates end. They outlive it.
  void tell_ends_of(const Credentials& credentials) { own_ = &credentials; }
  // Accepts agents at `port`, with `credentials` until end().
  void listen(kj::Own<kj::ConnectionReceiver> port, Credentials& credentials);
  // Answers every order that waits, and all that come, so that workers can end.
  void stop();
  // Closes all connections as well. Before the Service goes.
  void end();

  // --- AgentOrders: from workers ---
  AgentAnswer order(const std::string& host, const AgentOrder& order) override;
  bool wait_until_forgotten(const std::string& host) override;
  bool wait_until_settled() override;
  bool has_proved(const std::string& host, const std::string& serial) const override;
  void set_proved(const std::string& host, const std::string& serial) override;

  // --- HostDirectory ---
  Status may_grant(const std::string& host, PoolId pool) const override;
  std::vector<std::string> unproved(const std::string& name, const LeaseRow& lease) const override;
  Result<std::optional<std::string>> agent_for(const LeaseRow& lease, const std::string& to_host,
                                               const std::string& to_tenant) const override;
  kj::Promise<bool> has_ended(const std::string& host, const ProcessId& process) override;
  Status may_act_for(const std::string& host, const std::string& tenant) const;
  std::vector<HostStatus> list() const override;
  std::vector<HostStatus> states() const override;
  bool names_tenant(const std::string& tenant) const override;
  std::vector<CertificateEnd> certificate_ends() const override;
  Status remove(const std::string& host, bool revoke, const Actor& actor) override;
  Status allow(const std::string& host) override;

  // Whom which host may act for from now on; what one has leased stays.
  void set_tenants(std::map<std::string, std::set<std::string>> tenants) {
    options_.tenants = std::move(tenants);
  }

  const HostLeaseTerms& terms() const { return options_.terms; }
  const std::string& store_text() const { return options_.store; }
  void tell(Event event);
  void log(const std::string& line);  // about peers, within bounds

 private:
  friend class AgentPeer;

  struct Pending {
    std::string host;
    AgentOrder order;
    bool until_forgotten = false;
    bool until_settled = false;
    Mutex mutex;
    ConditionVariable ready;
    bool done TERRACE_GUARDED_BY(mutex) = false;
    AgentAnswer answer TERRACE_GUARDED_BY(mutex);
  };
  using PendingPtr = std::shared_ptr<Pending>;

  // Whether a process of a host has ended, as its agent is asked or was a moment ago.
  struct Asked {
    kj::ForkedPromise<bool> answer;
    std::shared_ptr<uint64_t> until_ns;
  };
  struct Host {
    explicit Host(HostLeaseTerms terms) : count(terms) {}
    HostLeaseCount count;
    AgentPeer* peer = nullptr;         // the connection that counts
    AgentPeer* registering = nullptr;  // one on its way there
    uint64_t heard_ns = 0;
    uint64_t instance = 0;  // of the agent that was connected last
    std::string address, version, detail;
    std::vector<SeenDevice> devices;
    HostFencing fencing;
    std::vector<PendingPtr> until_forgotten;
    std::map<std::tuple<uint64_t, uint64_t, uint64_t>, Asked> asked;  // by the process' numbers
    std::set<std::string> kept;  // objects there that this store does not know, and somebody had
    bool lapse_told = false;
    uint64_t looked_at_ns = 0;  // for live leases, since it has lapsed
    uint32_t uid = 0;           // what its sessions count as, among peers
  };

  // agents.cc
  Host& host(const std::string& name);
  uint64_t now_ns() const { return clock_.now_ns(); }
  kj::Promise<void> watch_loop();
  void watch(const std::string& name, Host& host);
  void end_live_leases(const std::string& name, const std::string& reason);
  void end_view(const ViewRow& view, const std::string& reason);
  void end_views(const std::string& name, const std::string& reason);
  uint64_t leases_on(const std::string& name) const;  // O(leases)
  void end_lease(LeaseId lease, const std::string& reason);
  void taskFailed(kj::Exception&& exception) override;
  std::string describe_absence(const std::string& name, Host& host) const;

  // agents_listen.cc
  struct Served;
  kj::Promise<void> accept_loop();
  kj::Promise<void> greet(kj::AuthenticatedStream stream);
  kj::Promise<void> serve(kj::Own<kj::AsyncIoStream> stream, const CertificateFacts& certificate,
                          const std::string& name, const std::string& address);
  kj::Promise<void> linger(std::shared_ptr<UniqueFd> refused);
  uint32_t uid_of(const std::string& name) const;

  // agents_removal.cc: who is not let in any more
  bool is_removed(const std::string& name) const { return hosts_file_.removed().contains(name); }
  void close_peers(const std::string& host, const std::string& reason);
  void close_revoked();
  void forget_removed();
  void warn_of_certificates();

  // agents_orders.cc
  AgentAnswer wait_for(const PendingPtr& pending);
  kj::Promise<void> order_loop();
  void dispatch(const PendingPtr& pending);
  kj::Promise<AgentAnswer> send(rpc::HostAgent::Client& agent, const AgentOrder& order);
  void answer(const PendingPtr& pending, AgentAnswer answer);
  void forgotten(Host& host);
  void forget_proofs(const std::string& host);
  void settle_hosts();

  // agents_registration.cc
  struct Plan;
  Plan plan_of(const AgentPeer& peer, const std::map<std::string, uint64_t>& observed) const;
  void plan_views(const std::string& name, const std::map<std::string, uint64_t>& observed,
                  std::set<std::string>& known, std::set<std::string>& ending, Plan& plan) const;
  Status may_register(const std::string& name, AgentPeer& peer, uint64_t instance);
  kj::Promise<Status> settle(AgentPeer& peer, std::shared_ptr<std::map<std::string, uint64_t>> observed,
                             uint64_t received_ns, int rounds_left);
  void connected(AgentPeer& peer, uint64_t received_ns);
  void disconnected(AgentPeer& peer);

  AgentsOptions options_;
  const Clock& clock_;
  kj::Timer& timer_;
  Turns turns_;  // a host's share of the loop's time among hosts
  Service* service_ = nullptr;
  std::map<std::string, Host> hosts_;
  std::set<AgentPeer*> peers_;  // of every connection that has shown a certificate
  // Hosts of earlier runs that were not heard of yet, and who waits for them.
  std::set<std::string> unsettled_;
  HostsFile hosts_file_;
  std::deque<PendingPtr> until_settled_;
  std::atomic<bool> settled_ = false;
  Handshakes handshakes_;
  std::map<std::string, uint32_t> connections_;  // of each host, that have shown its certificate
  uint32_t lingering_ = 0;
  PeerLog peer_log_;

  mutable Mutex queue_mutex_;
  std::set<std::pair<std::string, std::string>> proved_ TERRACE_GUARDED_BY(queue_mutex_);  // hosts and serials
  std::deque<PendingPtr> queue_ TERRACE_GUARDED_BY(queue_mutex_);                          // not looked at yet
  std::set<PendingPtr> unanswered_ TERRACE_GUARDED_BY(queue_mutex_);                       // all of them
  bool stopping_ TERRACE_GUARDED_BY(queue_mutex_) = false;
  kj::Own<kj::CrossThreadPromiseFulfiller<void>> wake_ TERRACE_GUARDED_BY(queue_mutex_);

  kj::Own<kj::ConnectionReceiver> port_;
  const Credentials* own_ = nullptr;
  Credentials* credentials_ = nullptr;
  uint64_t warned_ns_ = 0;  // of agents' certificates
  std::unique_ptr<kj::TaskSet> tasks_;
};

}  // namespace terrace::daemon
