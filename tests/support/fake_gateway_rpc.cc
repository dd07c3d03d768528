// SPDX-License-Identifier: Apache-2.0
// FakeGateway: what a connection reaches before it has a lease.
#include "tests/support/fake_gateway_rpc.h"

#include <utility>

#include "core/base/units.h"

namespace terrace::test {
namespace {

using State = FakeGateway::State;

class DeviceServer final : public rpc::UserfaultfdDevice::Server {
 public:
  explicit DeviceServer(UniqueFd file) : file_(std::move(file)) {}
  kj::Maybe<int> getFd() override {
    if (file_.valid()) return file_.get();
    return nullptr;
  }

 private:
  UniqueFd file_;
};

class SessionServer final : public rpc::TenantSession::Server {
 public:
  explicit SessionServer(kj::Own<Link> link) : link_(kj::mv(link)) {}

  kj::Promise<void> grant(GrantContext context) override {
    const uint64_t wait_ns = context.getParams().getRequest().getWaitNs();
    bool full = false;
    {
      const std::lock_guard lock(link_->state->mutex);
      link_->state->waits_ns.push_back(wait_ns);
      full = link_->state->full;
    }
    if (!full) return answer_grant(context, true);
    if (wait_ns == 0) return answer_grant(context, false);
    auto room = kj::newPromiseAndFulfiller<void>();
    link_->queue->push_back(kj::mv(room.fulfiller));
    auto waited = link_->timer->timeoutAfter(wait_ns * kj::NANOSECONDS, kj::mv(room.promise));
    return waited.then([this, context]() mutable { return answer_grant(context, true); },
                       [this, context](kj::Exception&&) mutable { return answer_grant(context, false); });
  }
  kj::Promise<void> attach(AttachContext context) override {
    return link_->perform("attach", [&](auto fault) {
      auto results = context.getResults();
      if (link_->refused(fault, results)) return;
      const auto params = context.getParams();
      State& state = *link_->state;
      const std::lock_guard lock(state.mutex);
      for (auto& [id, stored] : state.leases) {
        if (stored.lease.tenant != "tester") continue;
        const bool wanted =
            params.getLease() != 0 ? params.getLease() == id : params.getLabel() == stored.lease.label.c_str();
        if (wanted) {
          hand_over(stored, params.getAccess(), fault, results);
          return;
        }
      }
      set_fake_error(results.initError(), ErrorCode::not_found, "there is no such lease");
    });
  }
  kj::Promise<void> list(ListContext context) override {
    return link_->perform("list", [&](auto fault) {
      auto results = context.getResults();
      if (link_->refused(fault, results)) return;
      const std::lock_guard lock(link_->state->mutex);
      std::vector<const FakeLease*> found;
      const uint32_t limit = context.getParams().getLimit();
      for (const auto& [id, stored] : link_->state->leases)
        if (id > context.getParams().getAfter() && found.size() < limit) found.push_back(&stored.lease);
      auto list = results.initLeases(static_cast<unsigned>(found.size()));
      for (unsigned i = 0; i < found.size(); ++i) fill_fake_lease(*found[i], list[i]);
    });
  }
  kj::Promise<void> pools(PoolsContext context) override {
    return link_->perform("pools", [&](auto fault) {
      auto results = context.getResults();
      if (link_->refused(fault, results)) return;
      auto pool = results.initPools(1)[0];
      pool.setName("pool");
      pool.initDevices(1).set(0, "emu:fake");
      pool.setCapacityBytes(gib);
      pool.setGranuleBytes(2 * mib);
    });
  }
  kj::Promise<void> reportRun(ReportRunContext context) override {
    return link_->perform("reportRun", [&](auto fault) {
      auto results = context.getResults();
      if (link_->refused(fault, results)) return;
      const auto figures = context.getParams().getFigures();
      const auto counters = [](rpc::RunCounters::Reader of) {
        return RunCounters{.promotions = of.getPromotions(), .refused = of.getRefused()};
      };
      const std::lock_guard lock(link_->state->mutex);
      FakeRun& run = link_->state->runs.emplace_back();
      run.figures.program = figures.getProgram();
      run.figures.ddr_bytes = figures.getDdrBytes();
      run.figures.counters = counters(figures.getCounters());
      run.told_before = counters(figures.getToldBefore());
    });
  }
  kj::Promise<void> renewMany(RenewManyContext context) override {
    return link_->perform("renewMany", [&](auto fault) {
      auto results = context.getResults();
      if (link_->refused(fault, results)) return;
      const std::lock_guard lock(link_->state->mutex);
      std::vector<uint64_t> failed;
      for (const uint64_t id : context.getParams().getLeases()) {
        const auto found = link_->state->leases.find(id);
        if (found == link_->state->leases.end())
          failed.push_back(id);
        else
          ++found->second.lease.renewals;
      }
      auto list = results.initFailed(static_cast<unsigned>(failed.size()));
      for (unsigned i = 0; i < failed.size(); ++i) {
        list[i].setLease(failed[i]);
        set_fake_error(list[i].initError(), ErrorCode::lease_expired, "lapsed");
      }
    });
  }

  // Some file in the device's place.
  kj::Promise<void> userfaultfd(UserfaultfdContext context) override {
    return link_->perform("userfaultfd", [&](auto fault) {
      auto results = context.getResults();
      if (link_->refused(fault, results)) return;
      UniqueFd file;
      if (fault != Fault::no_descriptor) file = make_memory(mib);
      results.setDevice(kj::heap<DeviceServer>(std::move(file)));
    });
  }

 private:
  kj::Promise<void> answer_grant(GrantContext context, bool room) {
    return link_->perform("grant", [&](auto fault) {
      auto results = context.getResults();
      if (link_->refused(fault, results)) return;
      const auto request = context.getParams().getRequest();
      State& state = *link_->state;
      const std::lock_guard lock(state.mutex);
      if (!room) {
        set_fake_error(results.initError(), ErrorCode::capacity_exhausted, "no room came in time");
        return;
      }
      uint64_t& id = state.by_key[{request.getRequestHigh(), request.getRequestLow()}];
      if (state.leases.count(id) == 0) id = make_lease(request);
      hand_over(state.leases.at(id), rpc::Access::READ_WRITE, fault, results);
    });
  }
  uint64_t make_lease(rpc::GrantRequest::Reader request) {
    State& state = *link_->state;
    const uint64_t id = state.next_id++;
    StoredLease& stored = state.leases[id];
    stored.lease.id = id;
    stored.lease.epoch = state.next_epoch++;
    stored.lease.bytes = round_up(request.getBytes(), 2 * mib);
    stored.lease.ttl_ns = request.getPersistent()   ? 0
                          : request.getTtlNs() == 0 ? 60 * ns_per_s
                                                    : request.getTtlNs();
    stored.lease.label = request.getLabel();
    stored.lease.movable = request.getMovable();
    stored.file = make_memory(stored.lease.bytes);
    return id;
  }
  template <typename Results>
  void hand_over(const StoredLease& stored, rpc::Access access, std::optional<Fault> fault, Results results) {
    fill_fake_lease(stored.lease, results.initInfo());
    const int fd = fault == Fault::no_descriptor ? -1 : open_fake_memory(stored.file, access);
    results.setLease(make_fake_lease_capability(kj::addRef(*link_), stored.lease.id, fd));
  }

  kj::Own<Link> link_;
};

class GatewayServer final : public rpc::Gateway::Server {
 public:
  GatewayServer(kj::Own<Link> link, FakeListeners& listeners) : link_(kj::mv(link)), listeners_(listeners) {}
  ~GatewayServer() noexcept(false) { listeners_.erase(link_.get()); }

  kj::Promise<void> hello(HelloContext context) override {
    return link_->perform("hello", [&](auto fault) {
      auto results = context.getResults();
      if (link_->refused(fault, results)) return;
      const std::lock_guard lock(link_->state->mutex);
      link_->state->last_client = context.getParams().getClient();
      results.setVersion(link_->state->version);
    });
  }
  kj::Promise<void> openSession(OpenSessionContext context) override {
    return link_->perform("openSession", [&](auto fault) {
      auto results = context.getResults();
      if (link_->refused(fault, results)) return;
      listeners_.insert_or_assign(link_.get(), context.getParams().getListener());
      results.setTenant("tester");
      results.setSession(kj::heap<SessionServer>(kj::addRef(*link_)));
    });
  }

 private:
  kj::Own<Link> link_;
  FakeListeners& listeners_;
};

}  // namespace

rpc::Gateway::Client make_fake_gateway_capability(kj::Own<Link> link, FakeListeners& listeners) {
  return kj::heap<GatewayServer>(kj::mv(link), listeners);
}

}  // namespace terrace::test
