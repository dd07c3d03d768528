#include "tests/support/fake_gateway.h"

#include <capnp/rpc-twoparty.h>
#include <fcntl.h>
#include <kj/async-unix.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "core/base/check.h"
#include "core/base/units.h"
#include "core/schema/terrace.capnp.h"

#if defined(__SANITIZE_THREAD__)
// kj fills a table of address ranges as a function-local static. The guard's fast path is inside libkj, which
// is not instrumented, so that the second thread's read looks unordered. Nothing else of kj needs hiding.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:^kj::_::CidrRange::CidrRange\n";
}
#endif

namespace terrace::test {

struct StoredLease {
  FakeLease lease;
  UniqueFd file;
};

// Survives stop(). Everything under mutex.
struct FakeGateway::State {
  mutable std::mutex mutex;
  std::map<uint64_t, StoredLease> leases;
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> by_key;
  std::map<std::string, std::deque<Fault>> next_faults;
  std::map<std::string, Fault> faults;
  std::map<std::string, int> calls;
  ErrorCode refuse_code = ErrorCode::internal;
  std::string refuse_detail = "refused by the test";
  std::string last_client;
  uint64_t next_id = 1;
  uint64_t next_epoch = 100;
  uint32_t version = 1;
  int connections = 0;

  std::optional<Fault> take_fault(const std::string& method) {
    const std::lock_guard lock(mutex);
    ++calls[method];
    if (auto& queue = next_faults[method]; !queue.empty()) {
      const Fault fault = queue.front();
      queue.pop_front();
      return fault;
    }
    if (const auto always = faults.find(method); always != faults.end()) return always->second;
    return std::nullopt;
  }
};

namespace {

using State = FakeGateway::State;

struct Connection;

void set_error(rpc::Error::Builder wire, ErrorCode code, const std::string& detail) {
  wire.setCode(static_cast<uint16_t>(code));
  wire.setWhere("FakeGateway");
  wire.setDetail(detail);
}

void fill(const FakeLease& lease, rpc::LeaseInfo::Builder wire) {
  wire.setId(lease.id);
  wire.setPool("pool");
  wire.setTenant("tester");
  wire.setLabel(lease.label);
  wire.setBytes(lease.bytes);
  wire.setEpoch(lease.epoch);
  wire.setPhase(lease.phase == "revoking" ? rpc::LeasePhase::REVOKING : rpc::LeasePhase::ACTIVE);
  wire.setReason(lease.reason);
  wire.setTtlNs(lease.ttl_ns);
  wire.setExpiresInNs(lease.ttl_ns);
  wire.setGranuleBytes(2 * mib);
  wire.setTier("cxl");
  wire.setIsolation("kernel");
  auto extent = wire.initExtents(1)[0];
  extent.setDevice("emu:fake");
  extent.setLength(lease.bytes);
  wire.initUsage().setHolder(lease.holder);
  wire.getUsage().setDdrBytes(lease.ddr_bytes);
  wire.getUsage().setReportedNs(lease.holder.empty() ? 0 : 1);
}

// One connection's link to faults that break it.
struct Link : kj::Refcounted {
  kj::Own<kj::PromiseFulfiller<void>> drop;
  std::shared_ptr<State> state;

  // Performs `body` under the fault planned for `method`; it gets whether to refuse.
  template <typename Body>
  kj::Promise<void> perform(const char* method, Body body) {
    const std::optional<Fault> fault = state->take_fault(method);
    if (fault == Fault::defect) KJ_FAIL_REQUIRE("a defect made by the test");
    if (fault != Fault::drop_before) body(fault);
    if (fault == Fault::drop_before || fault == Fault::drop_after) drop->fulfill();
    if (fault == Fault::drop_before || fault == Fault::drop_after || fault == Fault::hang)
      return kj::NEVER_DONE;
    return kj::READY_NOW;
  }
  template <typename Results>
  bool refused(std::optional<Fault> fault, Results results) {
    if (fault != Fault::refuse) return false;
    const std::lock_guard lock(state->mutex);
    set_error(results.initError(), state->refuse_code, state->refuse_detail);
    return true;
  }
};

class LeaseServer final : public rpc::Lease::Server {
 public:
  LeaseServer(kj::Own<Link> link, uint64_t id, int fd) : link_(kj::mv(link)), id_(id), fd_(fd) {}

  kj::Maybe<int> getFd() override {
    if (fd_.valid()) return fd_.get();
    return nullptr;
  }
  kj::Promise<void> info(InfoContext context) override {
    return link_->perform("info", [&](auto fault) {
      auto results = context.getResults();
      if (link_->refused(fault, results)) return;
      with(results, [&](StoredLease& stored) { fill(stored.lease, results.initInfo()); });
    });
  }
  kj::Promise<void> renew(RenewContext context) override {
    return link_->perform("renew", [&](auto fault) {
      auto results = context.getResults();
      if (link_->refused(fault, results)) return;
      with(results, [&](StoredLease& stored) {
        if (context.getParams().getTtlNs() != 0) stored.lease.ttl_ns = context.getParams().getTtlNs();
        ++stored.lease.renewals;
        results.setExpiresInNs(stored.lease.ttl_ns);
      });
    });
  }
  kj::Promise<void> release(ReleaseContext context) override {
    return link_->perform("release", [&](auto fault) {
      auto results = context.getResults();
      if (link_->refused(fault, results)) return;
      bool gone = false;
      with(results, [&](StoredLease& stored) {
        TERRACE_CHECK(::ftruncate(stored.file.get(), 0) == 0, "cannot fence in a test");
        gone = true;
      });
      const std::lock_guard lock(link_->state->mutex);
      if (gone) link_->state->leases.erase(id_);
    });
  }
  kj::Promise<void> reportUsage(ReportUsageContext context) override {
    return link_->perform("reportUsage", [&](auto fault) {
      auto results = context.getResults();
      if (link_->refused(fault, results)) return;
      with(results, [&](StoredLease& stored) {
        stored.lease.holder = context.getParams().getUsage().getHolder();
        stored.lease.ddr_bytes = context.getParams().getUsage().getDdrBytes();
      });
    });
  }

 private:
  template <typename Results, typename Use>
  void with(Results& results, Use use) {
    const std::lock_guard lock(link_->state->mutex);
    const auto found = link_->state->leases.find(id_);
    if (found == link_->state->leases.end()) {
      set_error(results.initError(), ErrorCode::not_found, "there is no lease " + std::to_string(id_));
    } else {
      use(found->second);
    }
  }

  kj::Own<Link> link_;
  uint64_t id_;
  UniqueFd fd_;
};

class SessionServer final : public rpc::TenantSession::Server {
 public:
  explicit SessionServer(kj::Own<Link> link) : link_(kj::mv(link)) {}

  kj::Promise<void> grant(GrantContext context) override {
    return link_->perform("grant", [&](auto fault) {
      auto results = context.getResults();
      if (link_->refused(fault, results)) return;
      const auto request = context.getParams().getRequest();
      State& state = *link_->state;
      const std::lock_guard lock(state.mutex);
      uint64_t& id = state.by_key[{request.getRequestHigh(), request.getRequestLow()}];
      if (state.leases.count(id) == 0) id = make_lease(request);
      hand_over(state.leases.at(id), rpc::Access::READ_WRITE, fault, results);
    });
  }
  kj::Promise<void> attach(AttachContext context) override {
    return link_->perform("attach", [&](auto fault) {
      auto results = context.getResults();
      if (link_->refused(fault, results)) return;
      const auto params = context.getParams();
      State& state = *link_->state;
      const std::lock_guard lock(state.mutex);
      for (auto& [id, stored] : state.leases) {
        const bool wanted =
            params.getLease() != 0 ? params.getLease() == id : params.getLabel() == stored.lease.label.c_str();
        if (wanted) {
          hand_over(stored, params.getAccess(), fault, results);
          return;
        }
      }
      set_error(results.initError(), ErrorCode::not_found, "there is no such lease");
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
      for (unsigned i = 0; i < found.size(); ++i) fill(*found[i], list[i]);
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
        set_error(list[i].initError(), ErrorCode::lease_expired, "lapsed");
      }
    });
  }

 private:
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
    stored.file = UniqueFd(::memfd_create("fake_lease", MFD_CLOEXEC));
    TERRACE_CHECK(::ftruncate(stored.file.get(), static_cast<off_t>(stored.lease.bytes)) == 0,
                  "no memory file");
    return id;
  }
  template <typename Results>
  void hand_over(const StoredLease& stored, rpc::Access access, std::optional<Fault> fault, Results results) {
    fill(stored.lease, results.initInfo());
    const std::string path = "/proc/self/fd/" + std::to_string(stored.file.get());
    const int flags = access == rpc::Access::READ_WRITE ? O_RDWR : O_RDONLY;
    const int fd = fault == Fault::no_descriptor ? -1 : ::open(path.c_str(), flags | O_CLOEXEC);
    results.setLease(kj::heap<LeaseServer>(kj::addRef(*link_), stored.lease.id, fd));
  }

  kj::Own<Link> link_;
};

class GatewayServer final : public rpc::Gateway::Server {
 public:
  GatewayServer(kj::Own<Link> link, std::map<Link*, rpc::LeaseListener::Client>& listeners)
      : link_(kj::mv(link)), listeners_(listeners) {}
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
  std::map<Link*, rpc::LeaseListener::Client>& listeners_;
};

}  // namespace

class FakeGateway::Server final : private kj::TaskSet::ErrorHandler {
 public:
  Server(std::shared_ptr<State> state, UniqueFd listening)
      : state_(std::move(state)),
        listening_(std::move(listening)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        thread_([this] { run(); }) {}
  ~Server() {
    post(nullptr);
    thread_.join();
  }
  // nullptr ends the server.
  void post(std::function<void()> job) {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    const uint64_t one = 1;
    TERRACE_CHECK(::write(wake_.get(), &one, sizeof one) == sizeof one, "eventfd");
  }
  void drop_all() {
    for (auto& [link, listener] : listeners_) link->drop->fulfill();
  }
  void tell(const std::function<void(rpc::LeaseListener::Client&)>& message) {
    for (auto& [link, listener] : listeners_) message(listener);
  }
  void add(kj::Promise<void> task) { tasks_->add(kj::mv(task)); }

 private:
  void taskFailed(kj::Exception&&) override {}

  struct Peer {
    Peer(kj::Own<kj::AsyncCapabilityStream> with, capnp::Capability::Client bootstrap)
        : stream(kj::mv(with)),
          network(*stream, 4, capnp::rpc::twoparty::Side::SERVER),
          rpc(capnp::makeRpcServer(network, kj::mv(bootstrap))) {}
    kj::Own<kj::AsyncCapabilityStream> stream;
    capnp::TwoPartyVatNetwork network;
    capnp::RpcSystem<capnp::rpc::twoparty::VatId> rpc;
  };

  kj::Promise<void> accept(kj::ConnectionReceiver& receiver) {
    return receiver.accept().then([this, &receiver](kj::Own<kj::AsyncIoStream> stream) {
      {
        const std::lock_guard lock(state_->mutex);
        ++state_->connections;
      }
      auto dropped = kj::newPromiseAndFulfiller<void>();
      auto link = kj::refcounted<Link>();
      link->drop = kj::mv(dropped.fulfiller);
      link->state = state_;
      auto peer = kj::heap<Peer>(stream.downcast<kj::AsyncCapabilityStream>(),
                                 kj::heap<GatewayServer>(kj::mv(link), listeners_));
      auto ended = peer->network.onDisconnect().exclusiveJoin(kj::mv(dropped.promise));
      tasks_->add(ended.attach(kj::mv(peer)));
      return accept(receiver);
    });
  }
  kj::Promise<void> work(kj::UnixEventPort::FdObserver& observer) {
    std::deque<std::function<void()>> jobs;
    {
      const std::lock_guard lock(mutex_);
      uint64_t count = 0;
      if (::read(wake_.get(), &count, sizeof count) < 0) TERRACE_CHECK(errno == EAGAIN, "eventfd");
      jobs.swap(jobs_);
    }
    for (auto& job : jobs) {
      if (!job) return kj::READY_NOW;
      job();
    }
    return observer.whenBecomesReadable().then([this, &observer] { return work(observer); });
  }
  void run() {
    // kj ignores SIGPIPE for the process, and a Session that starts at that moment restores what it found:
    // this thread must not die of a client that went away.
    sigset_t pipe_signal;
    ::sigemptyset(&pipe_signal);
    ::sigaddset(&pipe_signal, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_signal, nullptr);
    auto io = kj::setupAsyncIo();
    kj::UnixEventPort::FdObserver observer(io.unixEventPort, wake_.get(),
                                           kj::UnixEventPort::FdObserver::OBSERVE_READ);
    auto receiver = io.lowLevelProvider->wrapListenSocketFd(listening_.get());
    kj::TaskSet tasks(*this);
    tasks_ = &tasks;
    tasks.add(accept(*receiver));
    work(observer).wait(io.waitScope);
  }

  std::shared_ptr<State> state_;
  UniqueFd listening_;
  UniqueFd wake_;
  std::mutex mutex_;
  std::deque<std::function<void()>> jobs_;
  std::map<Link*, rpc::LeaseListener::Client> listeners_;  // the server's thread
  kj::TaskSet* tasks_ = nullptr;
  std::thread thread_;
};

FakeGateway::FakeGateway() : state_(std::make_shared<State>()) {
  std::string pattern = (std::filesystem::temp_directory_path() / "terrace-fake-XXXXXX").string();
  TERRACE_CHECK(::mkdtemp(pattern.data()) != nullptr, "no temporary directory");
  directory_ = pattern;
  socket_path_ = directory_ + "/terraced.sock";
}

FakeGateway::~FakeGateway() {
  stop();
  std::filesystem::remove_all(directory_);
}

void FakeGateway::start() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_path_.data(), socket_path_.size());
  ::unlink(socket_path_.c_str());
  UniqueFd listening(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  TERRACE_CHECK(::bind(listening.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "bind");
  TERRACE_CHECK(::listen(listening.get(), 128) == 0, "listen");
  server_ = std::make_unique<Server>(state_, std::move(listening));
}

void FakeGateway::stop() {
  server_.reset();
  ::unlink(socket_path_.c_str());
}

void FakeGateway::drop_connections() {
  server_->post([server = server_.get()] { server->drop_all(); });
}

void FakeGateway::fail_next(const std::string& method, Fault fault, int times) {
  const std::lock_guard lock(state_->mutex);
  for (int i = 0; i < times; ++i) state_->next_faults[method].push_back(fault);
}

bool FakeGateway::faults_pending() const {
  const std::lock_guard lock(state_->mutex);
  for (const auto& [method, queue] : state_->next_faults)
    if (!queue.empty()) return true;
  return false;
}

void FakeGateway::fail_always(const std::string& method, Fault fault) {
  const std::lock_guard lock(state_->mutex);
  state_->faults[method] = fault;
}

void FakeGateway::refuse_with(ErrorCode code, const std::string& detail) {
  const std::lock_guard lock(state_->mutex);
  state_->refuse_code = code;
  state_->refuse_detail = detail;
}

void FakeGateway::clear_faults() {
  const std::lock_guard lock(state_->mutex);
  state_->next_faults.clear();
  state_->faults.clear();
}

void FakeGateway::set_version(uint32_t version) {
  const std::lock_guard lock(state_->mutex);
  state_->version = version;
}

void FakeGateway::add_bare_leases(uint64_t count) {
  const std::lock_guard lock(state_->mutex);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t id = state_->next_id++;
    state_->leases[id].lease.id = id;
  }
}

int FakeGateway::calls(const std::string& method) const {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->calls.find(method);
  return found == state_->calls.end() ? 0 : found->second;
}

int FakeGateway::connections() const {
  const std::lock_guard lock(state_->mutex);
  return state_->connections;
}

std::string FakeGateway::last_client() const {
  const std::lock_guard lock(state_->mutex);
  return state_->last_client;
}

std::vector<FakeLease> FakeGateway::leases() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<FakeLease> leases;
  for (const auto& [id, stored] : state_->leases) leases.push_back(stored.lease);
  return leases;
}

FakeLease FakeGateway::lease(uint64_t id) const {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->leases.find(id);
  return found == state_->leases.end() ? FakeLease{} : found->second.lease;
}

void FakeGateway::revoke(uint64_t id, uint64_t grace_ns, const std::string& reason) {
  {
    const std::lock_guard lock(state_->mutex);
    const auto found = state_->leases.find(id);
    if (found == state_->leases.end()) return;
    found->second.lease.phase = "revoking";
    found->second.lease.reason = reason;
  }
  if (server_ == nullptr) return;
  server_->post([server = server_.get(), id, grace_ns, reason] {
    server->tell([&](rpc::LeaseListener::Client& listener) {
      auto call = listener.revokingRequest();
      call.setLease(id);
      call.setGraceNs(grace_ns);
      call.setReason(reason);
      server->add(call.send().ignoreResult());
    });
  });
}

void FakeGateway::fence(uint64_t id, const std::string& reason) {
  lose_silently(id);
  if (server_ == nullptr) return;
  server_->post([server = server_.get(), id, reason] {
    server->tell([&](rpc::LeaseListener::Client& listener) {
      auto call = listener.fencedRequest();
      call.setLease(id);
      call.setReason(reason);
      server->add(call.send().ignoreResult());
    });
  });
}

void FakeGateway::lose_silently(uint64_t id) {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->leases.find(id);
  if (found == state_->leases.end()) return;
  TERRACE_CHECK(::ftruncate(found->second.file.get(), 0) == 0, "cannot fence in a test");
  state_->leases.erase(found);
}

void FakeGateway::change_epoch(uint64_t id) {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->leases.find(id);
  if (found != state_->leases.end()) found->second.lease.epoch = state_->next_epoch++;
}

}  // namespace terrace::test
