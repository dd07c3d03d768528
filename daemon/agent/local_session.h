// SPDX-License-Identifier: Apache-2.0
// One program's session at an agent: the manager's session that stands for it, and the leases that it holds. It
// survives the manager: the manager's session is opened again, and what the program holds attached again,
// whenever the manager is back.
//
// Threads   The event loop's thread only.
#pragma once

#include <kj/refcount.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "daemon/agent/local_service.h"
#include "daemon/rpc/tenant/hold_terms.h"

namespace terrace::daemon {

class LocalLease;

// A descriptor of a memory object here, shared by the capabilities of one hand-over.
using LocalFd = std::shared_ptr<const UniqueFd>;

class LocalSession final : public kj::Refcounted, private EndsWithConnection {
 public:
  LocalSession(kj::Own<LocalConnection> connection, std::string tenant, rpc::LeaseListener::Client listener);
  ~LocalSession() noexcept(false);

  LocalConnection& connection() { return *connection_; }
  LocalService& service() { return connection_->service; }
  // The manager's session; opened when there is none yet.
  // Errors    an exception of type DISCONNECTED when the manager is away
  kj::Promise<rpc::TenantSession::Client> upstream();
  bool ended() const { return ended_; }
  size_t lease_count() const { return leases_.size(); }
  // Why upstream() failed: the manager's refusal of this tenant, or that it is away.
  Error away(const char* where) const;

  // From LocalService.
  void resume();
  void suspend();
  void all_fenced(const std::string& reason);

  // From the manager.
  kj::Promise<void> forward_revoking(uint64_t lease, uint64_t grace_ns, capnp::Text::Reader reason);
  kj::Promise<void> forward_fenced(uint64_t lease, const std::string& reason, rpc::LeaseCause cause);
  kj::Promise<void> forward_move_requested(uint64_t lease, capnp::Text::Reader reason);

  // Returns by which number it is known here.
  uint64_t lease_began(LocalLease& lease);
  void lease_gone(uint64_t number) { leases_.erase(number); }
  // Until when the lease is promised to last, without the manager; 0: this session does not hold it.
  uint64_t promised_until_ns(uint64_t lease) const;
  void promised(uint64_t lease, uint64_t ttl_ns, uint64_t sent_ns);

  // Of a lease whose holders are ended at a fence: this program agrees, which is recorded on this host.
  // Errors    those of consent_of_peer(); io_error: it cannot be recorded
  Status may_agree(const HoldTerms& terms);
  Status agree(rpc::LeaseInfo::Reader info, const HoldTerms& terms);
  // The program gives the lease back by itself, which does not end it; `spared` false: it did not after all.
  void spare(const LocalLease& lease, bool spared);
  // Makes the capability for what the manager handed over: `info` names the object.
  Result<rpc::Lease::Client> adopt(rpc::LeaseInfo::Reader info, rpc::Lease::Client upstream,
                                   ObjectAccess access, uint64_t sent_ns);
  Result<LocalFd> open(capnp::Text::Reader object, ObjectAccess access);
  std::shared_ptr<HandedMemory> handed(LocalFd memory);  // to the peer
  Status may_take_one_more();
  void end();

 private:
  void connection_ended() override { end(); }
  kj::Promise<rpc::TenantSession::Client> open_upstream();
  void show_grace(uint64_t lease, uint64_t grace_ns);
  std::string client_text() const;
  struct Round;
  bool current(uint64_t link) const { return link == link_ && !ended_; }
  kj::Promise<void> reattach(uint64_t link, uint64_t pause_ns);
  kj::Promise<void> reattach_from(std::shared_ptr<Round> round, rpc::TenantSession::Client session);
  kj::Promise<bool> reattach_one(LocalLease& lease, uint64_t link, rpc::TenantSession::Client session);

  kj::Own<LocalConnection> connection_;
  const std::string tenant_;
  ProcessId process_ = {};  // that agreed to be ended with a lease; pid 0: it did not
  kj::Maybe<rpc::LeaseListener::Client> listener_;
  kj::Maybe<rpc::TenantSession::Client> upstream_;
  uint64_t link_ = 0;                       // counts connections of the manager
  std::map<uint64_t, LocalLease*> leases_;  // by number
  uint64_t last_number_ = 0;
  std::optional<Error> refused_;  // the manager's answer when this session was opened there last
  bool ended_ = false;
};

rpc::TenantSession::Client make_local_session(kj::Own<LocalConnection> connection, std::string tenant,
                                              rpc::LeaseListener::Client listener);

// How a call that needs the manager ends when the manager goes away meanwhile.
template <typename Context>
kj::Promise<void> refuse_when_disconnected(kj::Promise<void> call, LocalSession& session, Context context,
                                           const char* where) {
  return call.catch_([&session, context, where](kj::Exception&& exception) mutable {
    // Everything else is a defect, or the manager's refusal of the message; it passes on.
    if (exception.getType() != kj::Exception::Type::DISCONNECTED)
      kj::throwRecoverableException(kj::mv(exception));
    refuse(context, session.away(where));
  });
}

}  // namespace terrace::daemon
