// One lease as a capability. Its descriptor travels with it; the lease itself lives by its expiry.
#include "core/base/limits.h"
#include "daemon/rpc/connection.h"
#include "daemon/state/names.h"

namespace terrace::daemon {
namespace {

class LeaseServer final : public rpc::Lease::Server {
 public:
  LeaseServer(kj::Own<Connection> connection, LeaseId lease, std::string tenant, SharedFd memory)
      : connection_(kj::mv(connection)), lease_(lease), tenant_(std::move(tenant)), memory_(std::move(memory)) {
    ++connection_->leases;
  }
  ~LeaseServer() noexcept(false) { --connection_->leases; }

  kj::Maybe<int> getFd() override { return memory_->get(); }

  kj::Promise<void> info(InfoContext context) override {
    KJ_IF_MAYBE (slot, admit(*connection_, context)) {
      const LeaseRow* lease = service().engine().state().find_lease(lease_);
      if (lease == nullptr || lease->tenant != tenant_) {
        write_error(context.getResults().initError(),
                    Error{.code = ErrorCode::not_found,
                          .where = "info",
                          .detail = "lease " + std::to_string(lease_.value) + " has ended"});
        return kj::READY_NOW;
      }
      write_lease(context.getResults().initInfo(), *lease, service(), true);
      return service()
          .engine()
          .settled()
          .then([context](Status settled) mutable {
            if (!settled.ok()) write_error(context.getResults().initError(), settled.error());
          })
          .attach(kj::mv(*slot));
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> renew(RenewContext context) override {
    KJ_IF_MAYBE (slot, admit(*connection_, context)) {
      const uint64_t now_ns = service().engine().now_ns();
      return service()
          .engine()
          .submit(Renew{lease_, tenant_, context.getParams().getTtlNs(), now_ns})
          .then([this, context](Result<Reply> reply) mutable {
            if (!reply.ok()) {
              write_error(context.getResults().initError(), reply.error());
              return;
            }
            const uint64_t expiry_ns = std::get<LeaseReply>(*reply).lease.expiry_ns;
            const uint64_t now = service().engine().now_ns();
            context.getResults().setExpiresInNs(expiry_ns > now ? expiry_ns - now : 0);
          })
          .attach(kj::mv(*slot));
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> release(ReleaseContext context) override {
    KJ_IF_MAYBE (slot, admit(*connection_, context)) {
      return service()
          .engine()
          .submit(Release{lease_, tenant_, service().engine().now_ns()})
          .then([context](Result<Reply> reply) mutable {
            if (!reply.ok()) write_error(context.getResults().initError(), reply.error());
          })
          .attach(kj::mv(*slot));
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> reportUsage(ReportUsageContext context) override {
    KJ_IF_MAYBE (slot, admit(*connection_, context)) {
      const CallSlot held = kj::mv(*slot);
      const auto usage = context.getParams().getUsage();
      const std::string holder = read_text(usage.getHolder());
      const LeaseRow* lease = service().engine().state().find_lease(lease_);
      const bool ended = lease == nullptr || lease->tenant != tenant_ || lease->phase > LeasePhase::revoking;
      if (ended || !valid_text(holder, limits::label_bytes_max)) {
        write_error(context.getResults().initError(),
                    Error{.code = ended ? ErrorCode::not_found : ErrorCode::invalid_argument,
                          .where = "reportUsage",
                          .detail = ended ? "the lease has ended" : "the holder's name is not printable"});
        return kj::READY_NOW;
      }
      service().report_usage(lease_, ReportedUsage{.ddr_bytes = usage.getDdrBytes(),
                                                   .cxl_bytes = usage.getCxlBytes(),
                                                   .live_bytes = usage.getLiveBytes(),
                                                   .reported_ns = 0,
                                                   .holder = holder});
    }
    return kj::READY_NOW;
  }

 private:
  Service& service() { return connection_->service; }

  kj::Own<Connection> connection_;
  LeaseId lease_;
  std::string tenant_;
  SharedFd memory_;
};

}  // namespace

rpc::Lease::Client make_lease(kj::Own<Connection> connection, LeaseId lease, std::string tenant,
                              SharedFd memory) {
  return kj::heap<LeaseServer>(kj::mv(connection), lease, std::move(tenant), std::move(memory));
}

}  // namespace terrace::daemon
