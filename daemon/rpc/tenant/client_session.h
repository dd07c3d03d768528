// SPDX-License-Identifier: Apache-2.0
// What the capabilities of one tenant's session share: on whose behalf they act, and who is told of its leases.
// It hands leases over: descriptor, capability, and the session as one to be told.
//
// Place     TenantSession, Lease and LeaseMove servers each keep a reference; the connection knows it as a
// part.
// Threads   The event loop's thread only.
#pragma once

#include <kj/refcount.h>

#include <optional>
#include <string>

#include "daemon/consent/consent.h"
#include "daemon/rpc/answers.h"
#include "daemon/rpc/tenant/hold_terms.h"
#include "daemon/rpc/tenant/notice_queue.h"

namespace terrace::daemon {

class ClientSession final : public kj::Refcounted, public HolderListener, private EndsWithConnection {
 public:
  ClientSession(kj::Own<Connection> connection, std::string tenant, std::string host,
                rpc::LeaseListener::Client listener);
  ~ClientSession() noexcept(false);

  Connection& connection() { return *connection_; }
  Service& service() { return connection_->service; }
  Engine& engine() { return connection_->service.engine(); }
  const StateMachine& state() { return connection_->service.engine().state(); }
  const std::string& tenant() const { return tenant_; }
  const std::string& host() const { return host_; }

  // The tenant's lease, whatever its phase; nullptr: it has none of that id, or one that was not granted yet.
  const LeaseRow* find(LeaseId lease);

  // Errors    limit_exceeded   the connection has as many lease and move capabilities as it may, or its user as much
  //                            memory on the way
  //           cancelled        the session has ended
  Status may_take_one_more();

  // Lease.openPath: admits `user` to the lease's memory by the path that is returned.
  // Errors    as allow_by_path(); lease_expired, lease_revoked; busy: another session may not be joined
  Result<std::string> open_path(LeaseId lease, ObjectAccess access, uint32_t user);

  // Hands the lease over: `answer` gets the description and a capability with a fresh descriptor. Over TLS the capability
  // has none, and makes nobody a holder: what was granted or resized there can be renewed, resized and released there.
  // Errors    lease_expired, lease_revoked, limit_exceeded, busy, cancelled, or the backend's; as may_end_holder()
  Result<rpc::Lease::Client> hand_over(LeaseId lease, ObjectAccess access, const HoldTerms& terms);
  // Returns whether it was.
  template <typename Context>
  bool hand_over(Context& context, LeaseId lease, ObjectAccess access, const HoldTerms& terms = {}) {
    auto handed = hand_over(lease, access, terms);
    if (!handed.ok()) {
      refuse(context, handed.error());
      return false;
    }
    write_info(context.getResults().initInfo(), *state().find_lease(lease), false);
    context.getResults().setLease(kj::mv(*handed));
    return true;
  }

  // write_lease(), with the memory object that this session's program has it by.
  void write_info(rpc::LeaseInfo::Builder out, const LeaseRow& lease, bool with_object);
  // Whether attaching it here takes a memory object of its own on this session's host first (OpenView).
  bool needs_view(const LeaseRow& lease);

  // Before a grant of a lease whose holders are ended: whether this session could be given it.
  // Errors    those of consent_of_peer(); unsupported: this manager ends nobody
  Status may_agree(const HoldTerms& terms);
  // It gives the lease back by itself, which does not end it; `spared` false: it did not after all.
  void spare(LeaseId lease, bool spared);

  // Holds nothing and is told nothing from now on.
  void end();
  bool ended() const { return ended_; }

  void revoking(LeaseId lease, uint64_t grace_ns, const std::string& reason) override;
  void fenced(LeaseId lease, const std::string& reason, LeaseCause cause) override;
  void move_requested(LeaseId lease, const std::string& reason) override;
  int32_t pid() const override { return connection_->peer.pid; }
  std::string describe() const override;

 private:
  void connection_ended() override { end(); }
  std::string object_here(const LeaseRow& lease);
  const ProcessId& process();
  Result<Consent> consent(const HoldTerms& terms);
  Status agree(const LeaseRow& lease, const HoldTerms& terms);
  // Errors    unsupported   its memory object is on another host than this session's program
  Status on_this_host(const LeaseRow& lease) const;

  kj::Own<Connection> connection_;
  const std::string tenant_;
  const std::string host_;
  Notices notices_;
  std::optional<ProcessId> process_;  // at the other end; a pid of 0: nobody would learn of its end
  bool ended_ = false;
};

// Why a call that needs memory at the other end is refused to a client over TLS.
Error memory_is_elsewhere(const char* where);

// getFd() hands `memory` over; null: the lease's memory is on the host of the agent that asks.
rpc::Lease::Client make_lease(kj::Own<ClientSession> session, LeaseId lease, ObjectAccess access,
                              SharedFd memory);

// Marks a lease as being moved by its holder, for as long as it lives: nobody else attaches it meanwhile.
class MoveMark {
 public:
  MoveMark(kj::Own<ClientSession> session, LeaseId lease) : session_(kj::mv(session)), lease_(lease) {
    session_->service().move_began(lease_, session_.get());
  }
  ~MoveMark() noexcept(false) {
    if (session_.get() == nullptr) return;
    if (const auto service = session_->connection().service_handle.lock()) (*service)->move_ended(lease_);
  }
  MoveMark(MoveMark&&) = default;
  MoveMark& operator=(MoveMark&&) = delete;

 private:
  kj::Own<ClientSession> session_;
  LeaseId lease_;
};

// getFd() hands the target's `memory` over.
rpc::LeaseMove::Client make_lease_move(kj::Own<ClientSession> session, MoveReady move, MoveMark mark,
                                       SharedFd memory);

}  // namespace terrace::daemon
