// SPDX-License-Identifier: Apache-2.0
// One lease as an agent's program holds it: the descriptor of the object here, the manager's capability while
// there is one, and what is promised while there is none.
//
// Threads   The event loop's thread only.
#pragma once

#include <capnp/message.h>

#include <memory>
#include <string>

#include "daemon/agent/local_session.h"

namespace terrace::daemon {

class LocalLease final : public rpc::Lease::Server {
 public:
  LocalLease(kj::Own<LocalSession> session, rpc::LeaseInfo::Reader info, rpc::Lease::Client upstream,
             ObjectAccess access, LocalFd memory, uint64_t sent_ns);
  ~LocalLease() noexcept(false);

  kj::Maybe<int> getFd() override { return session().connection().carried.carry(memory_); }

  kj::Promise<void> info(InfoContext context) override;
  kj::Promise<void> renew(RenewContext context) override;
  kj::Promise<void> release(ReleaseContext context) override;
  kj::Promise<void> reportUsage(ReportUsageContext context) override;
  kj::Promise<void> resize(ResizeContext context) override;
  kj::Promise<void> transfer(TransferContext context) override;
  kj::Promise<void> withdrawOffer(WithdrawOfferContext context) override;
  kj::Promise<void> openPath(OpenPathContext context) override;
  kj::Promise<void> beginMove(BeginMoveContext context) override;
  // By the manager, which asks this agent whether the process has ended.
  kj::Promise<void> claimPart(ClaimPartContext context) override;
  kj::Promise<void> releasePart(ReleasePartContext context) override;
  kj::Promise<void> partIsDead(PartIsDeadContext context) override;

  uint64_t id() const { return id_; }
  uint64_t number() const { return number_; }  // in its session
  uint64_t epoch() const { return epoch_; }
  const std::string& object() const { return object_; }
  ObjectAccess access() const { return access_; }
  bool ended() const { return ended_; }
  OnFence on_fence() const { return static_cast<OnFence>(info_->getRoot<rpc::LeaseInfo>().getOnFence()); }
  // Alive, and without the manager's capability.
  bool detached() const { return !ended_ && upstream_ == nullptr; }

  // The manager is away, back, or has ended the lease.
  void suspend() { upstream_ = nullptr; }
  void resume(rpc::Lease::Client upstream, rpc::LeaseInfo::Reader info, uint64_t sent_ns);
  void end(std::string reason);
  // When the manager's own expiry is; UINT64_MAX: it is persistent.
  uint64_t expiry_ns() const { return expiry_ns_; }
  void promised(uint64_t ttl_ns, uint64_t sent_ns);

 private:
  LocalSession& session() { return *session_; }
  LocalService& service() { return session_->service(); }
  Error ended_error(const char* where) const;
  bool movable() { return info_->getRoot<rpc::LeaseInfo>().getMovable(); }
  void take(rpc::LeaseInfo::Reader info, uint64_t sent_ns);
  void answer_promised(RenewContext& context);
  Status write_caller(rpc::HostProcess::Builder out);
  // Refuses what cannot be done now; null: go on, with the manager's capability.
  template <typename Context>
  kj::Maybe<rpc::Lease::Client> begin(Context& context, const char* where);

  kj::Own<LocalSession> session_;
  const uint64_t id_;
  uint64_t number_ = 0;
  const ObjectAccess access_;
  const std::shared_ptr<HandedMemory> memory_;
  kj::Maybe<rpc::Lease::Client> upstream_;
  std::unique_ptr<capnp::MallocMessageBuilder> info_;  // as the manager gave it last
  std::string object_;
  uint64_t epoch_ = 0;
  uint64_t ttl_ns_ = 0;
  uint64_t expiry_ns_ = 0;
  bool ended_ = false;
  std::string why_ended_;
};

}  // namespace terrace::daemon
