// SPDX-License-Identifier: Apache-2.0
// Loop: calls that arrive from callers, sent until they are answered or their time is over.
#include <fcntl.h>

#include <algorithm>
#include <iterator>

#include "core/base/clock.h"
#include "core/base/limits.h"
#include "core/base/units.h"
#include "libclient/lease_ranges.h"
#include "libclient/session/loop.h"
#include "libclient/session/loop_templates.h"
#include "libclient/session/wire.h"

namespace terrace::client {
namespace {

using Leased = Result<std::shared_ptr<Lease>>;

}  // namespace

// Makes the caller's object for a lease that the manager gave: takes its descriptor and remembers it.
kj::Promise<Leased> Loop::hold(rpc::LeaseInfo::Reader info, rpc::Lease::Client capability, LeaseAccess access,
                               bool ends_with_holders, const char* where) {
  const LeaseFacts facts{.id = LeaseId{info.getId()},
                         .epoch = LeaseEpoch{info.getEpoch()},
                         .bytes = info.getBytes(),
                         .ttl_ns = info.getTtlNs(),
                         .access = access,
                         .on_fence = static_cast<OnFence>(info.getOnFence())};
  const bool revoking = info.getPhase() == rpc::LeasePhase::REVOKING;
  std::string reason = text_from_wire(info.getReason());
  auto descriptor = capability.getFd();
  return descriptor.then([this, facts, capability = kj::mv(capability), ends_with_holders, where, revoking,
                          reason = std::move(reason)](kj::Maybe<int> borrowed) mutable -> Leased {
    UniqueFd fd;
    KJ_IF_MAYBE (number, borrowed) {
      fd = UniqueFd(::fcntl(*number, F_DUPFD_CLOEXEC, 0));
    } else {
      return Error{ErrorCode::unsupported, 0, where,
                   "the manager sent no descriptor for lease " + std::to_string(facts.id.value)};
    }
    if (!fd.valid()) return os_error(errno, where, "cannot keep the descriptor of a lease");
    const uint64_t handle = next_handle_++;
    auto lease = std::make_shared<LeaseHandle>(facts, handle, std::move(fd), mailbox_);
    note_lease(lease);
    Held held;
    held.handle = lease;
    held.facts = facts;
    held.capability = kj::mv(capability);
    held.ends_with_holders = ends_with_holders;
    held_.add(handle, std::move(held));
    held_.renew_after_third(handle, timer_.now());
    if (const auto early = early_grace_ns_.extract(facts.id); revoking)
      on_revoking(facts.id, early ? early.mapped() : 0, reason);
    wake_renewal();
    return std::shared_ptr<Lease>(std::move(lease));
  });
}

// An older manager does not know the word, and grants what it knows.
kj::Promise<Leased> Loop::give_back_other(rpc::Lease::Client lease) {
  return lease.releaseRequest().send().then([](auto&&) -> Leased {
    return Error{ErrorCode::version_mismatch, 0, "Session::grant",
                 "this manager is older than leases whose holders are ended at a fence (on_fence kill); "
                 "nothing is granted"};
  });
}

kj::Promise<Leased> Loop::send_grant(LeaseRequest request, RequestKey key, kj::TimePoint wait_until) {
  const auto now = timer_.now();
  request.wait_ns = wait_until > now ? static_cast<uint64_t>((wait_until - now) / kj::NANOSECONDS) : 0;
  auto call = connection_->session.grantRequest();
  auto wire = call.initRequest();
  grant_to_wire(request, wire);
  wire.setRequestHigh(key.high);
  wire.setRequestLow(key.low);
  return call.send().then(
      [this, ends = ends_with_holders(request), on_fence = request.on_fence](
          capnp::Response<rpc::TenantSession::GrantResults>&& reply) -> kj::Promise<Leased> {
        constexpr const char* where = "Session::grant";
        if (Status status = status_from_wire(reply.getError(), where); !status.ok())
          return Leased(std::move(status).error());
        if (on_fence == OnFence::kill && reply.getInfo().getOnFence() != rpc::OnFence::KILL)
          return give_back_other(reply.getLease());
        return hold(reply.getInfo(), reply.getLease(), LeaseAccess::read_write, ends, where);
      });
}

// The grant goes on after the caller's time is over, for as long again: whatever it brings then is released.
void Loop::grant(LeaseRequest request, RequestKey key, std::shared_ptr<Answer<std::shared_ptr<Lease>>> answer) {
  constexpr const char* where = "Session::grant";
  const uint64_t wait_ns = std::min(request.wait_ns, timeout_ns_max);
  const auto wait_until = timer_.now() + wait_ns * kj::NANOSECONDS;
  auto outcome = kj::newPromiseAndFulfiller<Leased>();
  auto sent = repeating<std::shared_ptr<Lease>>(where, [this, request = std::move(request), key, wait_until] {
    return send_grant(request, key, wait_until);
  });
  auto whole = bounded<std::shared_ptr<Lease>>(where, wait_ns + 2 * options_.call_timeout_ns, kj::mv(sent));
  tasks_.add(whole.then([this, fulfiller = kj::mv(outcome.fulfiller)](Leased result) mutable {
    if (fulfiller->isWaiting()) {
      fulfiller->fulfill(std::move(result));
    } else if (result.ok()) {  // S4
      for (const uint64_t handle : held_.of(result.value()->id()))
        release(handle, std::make_shared<Answer<void>>());
    }
  }));
  auto waited =
      bounded<std::shared_ptr<Lease>>(where, wait_ns + options_.call_timeout_ns, kj::mv(outcome.promise));
  tasks_.add(waited.then([answer](Leased result) { answer->deliver(std::move(result)); }));
}

void Loop::attach(LeaseId id, std::string label, LeaseAccess access, OnFence on_fence,
                  std::shared_ptr<Answer<std::shared_ptr<Lease>>> answer) {
  constexpr const char* where = "Session::attach";
  perform<std::shared_ptr<Lease>>(where, answer, [this, id, label = std::move(label), access, on_fence] {
    auto call = connection_->session.attachRequest();
    call.setLease(id.value);
    call.setLabel(label);
    call.setAccess(static_cast<rpc::Access>(access));
    agree_on_wire(on_fence, call);
    return call.send().then(
        [this, access](capnp::Response<rpc::TenantSession::AttachResults>&& reply) -> kj::Promise<Leased> {
          if (Status status = status_from_wire(reply.getError(), where); !status.ok())
            return Leased(std::move(status).error());
          return hold(reply.getInfo(), reply.getLease(), access, false, where);
        });
  });
}

kj::Promise<Result<std::vector<LeaseInfo>>> Loop::list_after(uint64_t after,
                                                             std::shared_ptr<std::vector<LeaseInfo>> so_far) {
  using Listed = Result<std::vector<LeaseInfo>>;
  auto call = connection_->session.listRequest();
  call.setAfter(after);
  call.setLimit(limits::leases_per_page_max);
  return call.send().then(
      [this, so_far, after](capnp::Response<rpc::TenantSession::ListResults>&& reply) -> kj::Promise<Listed> {
        constexpr const char* where = "Session::leases";
        if (Status status = status_from_wire(reply.getError(), where); !status.ok())
          return Listed(std::move(status).error());
        const auto page = reply.getLeases();
        auto leases = lease_infos_from_wire(page, where);
        if (!leases.ok()) return Listed(std::move(leases).error());
        std::move(leases->begin(), leases->end(), std::back_inserter(*so_far));
        if (page.size() < limits::leases_per_page_max) return Listed(std::move(*so_far));
        const uint64_t last = page[page.size() - 1].getId();
        if (last <= after)
          return Listed(Error{ErrorCode::corrupt, 0, where, "the manager's list of leases does not ascend"});
        if (!ready_) return Listed(Error{ErrorCode::unavailable, 0, where, "the manager went away"});
        return list_after(last, so_far);
      });
}

void Loop::list(std::shared_ptr<Answer<std::vector<LeaseInfo>>> answer) {
  perform<std::vector<LeaseInfo>>("Session::leases", answer,
                                  [this] { return list_after(0, std::make_shared<std::vector<LeaseInfo>>()); });
}

void Loop::pools(std::shared_ptr<Answer<std::vector<PoolInfo>>> answer) {
  constexpr const char* where = "Session::pools";
  using Pools = Result<std::vector<PoolInfo>>;
  perform<std::vector<PoolInfo>>(where, answer, [this] {
    return connection_->session.poolsRequest().send().then(
        [](capnp::Response<rpc::TenantSession::PoolsResults>&& reply) -> Pools {
          TERRACE_RETURN_IF_ERROR(status_from_wire(reply.getError(), where));
          return pool_infos_from_wire(reply.getPools(), where);
        });
  });
}

void Loop::userfaultfd_device(std::shared_ptr<Answer<UniqueFd>> answer) {
  constexpr const char* where = "Session::userfaultfd_device";
  using Device = Result<UniqueFd>;
  perform<UniqueFd>(where, answer, [this] {
    return connection_->session.userfaultfdRequest().send().then(
        [](capnp::Response<rpc::TenantSession::UserfaultfdResults>&& reply) -> kj::Promise<Device> {
          if (Status status = status_from_wire(reply.getError(), where); !status.ok())
            return Device(std::move(status).error());
          auto device = reply.getDevice();
          auto descriptor = device.getFd();
          return descriptor.then([device = kj::mv(device)](kj::Maybe<int> borrowed) mutable -> Device {
            KJ_IF_MAYBE (number, borrowed) {
              UniqueFd own(::fcntl(*number, F_DUPFD_CLOEXEC, 0));
              if (own.valid()) return own;
              return os_error(errno, where, "cannot keep the descriptor");
            }
            return Error{ErrorCode::unsupported, 0, where, "the manager sent no descriptor"};
          });
        });
  });
}

void Loop::info(uint64_t handle, std::shared_ptr<Answer<LeaseInfo>> answer) {
  constexpr const char* where = "Lease::info";
  perform_on_lease<LeaseInfo>(where, handle, answer, [this, handle](rpc::Lease::Client lease) {
    return lease.infoRequest().send().then(
        [this, handle](capnp::Response<rpc::Lease::InfoResults>&& reply) -> Result<LeaseInfo> {
          TERRACE_RETURN_IF_ERROR(status_from_wire(reply.getError(), where));
          // An operator resized it: nobody tells holders of that.
          if (const Held* held = held_.find(handle);
              held != nullptr && held->facts.bytes != reply.getInfo().getBytes())
            check_again(LeaseId{held->facts.id});
          return lease_info_from_wire(reply.getInfo(), where);
        });
  });
}

void Loop::renew(uint64_t handle, uint64_t ttl_ns, std::shared_ptr<Answer<void>> answer) {
  constexpr const char* where = "Lease::renew";
  perform_on_lease<void>(where, handle, answer, [this, handle, ttl_ns](rpc::Lease::Client lease) {
    auto call = lease.renewRequest();
    call.setTtlNs(ttl_ns);
    return call.send().then(
        [this, handle, ttl_ns](capnp::Response<rpc::Lease::RenewResults>&& reply) -> Status {
          TERRACE_RETURN_IF_ERROR(status_from_wire(reply.getError(), where));
          if (const Held* held = held_.find(handle); held != nullptr) set_ttl(LeaseId{held->facts.id}, ttl_ns);
          return {};
        });
  });
}

void Loop::release(uint64_t handle, std::shared_ptr<Answer<void>> answer) {
  constexpr const char* where = "Lease::release";
  const Held* found = held_.find(handle);
  if (found == nullptr) {
    answer->deliver(Status{});  // lost or released already: the memory is back
    return;
  }
  const LeaseId id = found->facts.id;
  const auto keep = found->handle.lock();  // or it would be forgotten while the call is on its way
  held_.give_up(id, true, timer_.now());
  auto sent = repeating<void>(where, [this, handle]() {
    return capability_of(handle, where).then([](Result<rpc::Lease::Client> lease) -> kj::Promise<Status> {
      if (!lease.ok()) return Status(std::move(lease).error());
      return lease->releaseRequest().send().then([](capnp::Response<rpc::Lease::ReleaseResults>&& reply) {
        return status_from_wire(reply.getError(), where);
      });
    });
  });
  auto whole = bounded<void>(where, options_.call_timeout_ns, kj::mv(sent));
  tasks_.add(whole.then([this, id, answer, keep](Status status) {
    if (status.ok() || says_gone(status.error())) {
      lose(id, Error{ErrorCode::lease_expired, 0, where, "the lease was released"}, false);
      answer->deliver(Status{});
      return;
    }
    held_.give_up(id, false, timer_.now());
    wake_renewal();
    answer->deliver(std::move(status));
  }));
}

void Loop::report_usage(uint64_t handle, UsageReport usage, std::shared_ptr<Answer<void>> answer) {
  constexpr const char* where = "Lease::report_usage";
  perform_on_lease<void>(where, handle, answer, [usage = std::move(usage)](rpc::Lease::Client lease) {
    auto call = lease.reportUsageRequest();
    usage_to_wire(usage, call.initUsage());
    return call.send().then([](capnp::Response<rpc::Lease::ReportUsageResults>&& reply) {
      return status_from_wire(reply.getError(), where);
    });
  });
}

void Loop::forget(uint64_t handle) {
  held_.erase(handle);
}

}  // namespace terrace::client
