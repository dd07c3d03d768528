// SPDX-License-Identifier: Apache-2.0
#include "daemon/agent/uplink.h"

#include <capnp/rpc-twoparty.h>
#include <sys/random.h>

#include <algorithm>
#include <utility>

#include "core/version/version.h"
#include "daemon/log/log.h"
#include "daemon/rpc/wire.h"

namespace terrace::daemon {
namespace {

constexpr uint64_t pause_ns_min = 100 * ns_per_ms;
constexpr uint64_t pause_ns_max = 1 * ns_per_s;
constexpr uint64_t refused_pause_ns = 5 * ns_per_s;
constexpr uint64_t connect_ns_max = 5 * ns_per_s;

kj::Duration duration(uint64_t ns) {
  return static_cast<int64_t>(ns) * kj::NANOSECONDS;
}

uint64_t draw_instance() {
  uint64_t drawn = 0;
  while (drawn == 0 && ::getrandom(&drawn, sizeof(drawn), 0) != static_cast<ssize_t>(sizeof(drawn))) {
  }
  return drawn;
}

[[noreturn]] void fail(const std::string& why) {
  kj::throwFatalException(kj::Exception(kj::Exception::Type::FAILED, __FILE__, __LINE__, kj::str(why.c_str())));
}

capnp::ReaderOptions reader_options() {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = agent_message_bytes_max / sizeof(capnp::word);
  options.nestingLimit = 32;
  return options;
}

}  // namespace

struct Uplink::Link {
  explicit Link(Shaken shaken)
      : stream(kj::mv(shaken.stream.stream)),
        manager(std::move(shaken.peer)),
        network(*stream, capnp::rpc::twoparty::Side::CLIENT, reader_options()),
        system(capnp::makeRpcClient(network)) {
    system.setFlowLimit(agent_message_bytes_max / sizeof(capnp::word));
  }
  rpc::AgentGateway::Client gateway() {
    capnp::MallocMessageBuilder message;
    auto id = message.initRoot<capnp::rpc::twoparty::VatId>();
    id.setSide(capnp::rpc::twoparty::Side::SERVER);
    return system.bootstrap(id).castAs<rpc::AgentGateway>();
  }

  rpc::AgentService::Client& agent_service() {
    KJ_IF_MAYBE (there, service) return *there;
    fail("this host is not registered");
  }

  kj::Own<kj::AsyncIoStream> stream;
  const CertificateFacts manager;
  capnp::TwoPartyVatNetwork network;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> system;
  kj::Maybe<rpc::AgentService::Client> service;
};

Uplink::Uplink(std::string manager, Credentials& credentials, kj::Network& network, const Clock& clock,
               kj::Timer& timer, HostLeaseFile& file)
    : manager_(std::move(manager)),
      credentials_(credentials),
      renewal_(credentials, timer),
      network_(network),
      clock_(clock),
      timer_(timer),
      file_(file),
      instance_(draw_instance()),
      trouble_("it was not reached yet"),
      pause_ns_(pause_ns_min),
      tasks_(new kj::TaskSet(*this)) {}

Uplink::~Uplink() noexcept(false) = default;

void Uplink::taskFailed(kj::Exception&& exception) {
  log::critical("a task of the agent failed: {}", exception.getDescription().cStr());
}

void Uplink::start(Orders& orders, UplinkListener& listener) {
  orders_ = &orders;
  listener_ = &listener;
  orders.on_more([this](const FenceEstimate& more, bool must) { return allow_more(more, must); });
  tasks_->add(run());
  tasks_->add(watch_loop());
}

void Uplink::stop() {
  tasks_.reset();
  orders_->revoke();
  connected_ = false;
  link_ = nullptr;
}

bool Uplink::in_force() const {
  return registering_ || clock_.now_ns() < file_.fence_at_ns();
}

kj::Maybe<rpc::AgentService::Client> Uplink::service() {
  if (!connected_ || link_ == nullptr) return nullptr;
  return link_->service.map([](rpc::AgentService::Client& service) { return service; });
}

std::string Uplink::absence() const {
  const uint64_t now_ns = clock_.now_ns();
  const uint64_t until_ns = promised_until_ns();
  std::string text = "the manager at " + manager_ + " cannot be reached now (" + trouble_ + ")";
  if (until_ns > now_ns) {
    text += "; what is leased here stays for another " +
            format_duration((until_ns - now_ns) / ns_per_ms * ns_per_ms);
  }
  return text;
}

template <typename T>
kj::Promise<T> Uplink::within(kj::Promise<T> work, uint64_t ns, const char* what) {
  return work.exclusiveJoin(
      timer_.afterDelay(duration(ns)).then([what]() -> T { fail(std::string(what) + " took too long"); }));
}

// --- the connection ---------------------------------------------------------------------------------------

// Never ends.
kj::Promise<void> Uplink::run() {
  return kj::evalNow([this] { return connect(); })
      .then([this] { return heartbeats(); })
      .catch_([this](kj::Exception&& exception) {
        const std::string why = tls_failure(exception);
        if (connected_ || why != trouble_) log::warn("the manager at {}: {}", manager_, why);
        trouble_ = why;
        if (why.find("refused our certificate") != std::string::npos) refused_ = true;
        drop_link();
      })
      .then([this] {
        const uint64_t pause = std::exchange(refused_, false) ? refused_pause_ns : pause_ns_;
        pause_ns_ = std::min(pause_ns_ * 2, pause_ns_max);
        return timer_.afterDelay(duration(pause));
      })
      .then([this] { return run(); });
}

void Uplink::check_manager() {
  const CertificateFacts& manager = link().manager;
  if (credentials_.is_revoked(manager.serial))
    fail("its certificate " + shown_certificate(manager) + " was revoked");
}

void Uplink::credentials_changed() {
  if (link_ != nullptr && credentials_.is_revoked(link_->manager.serial)) orders_->revoke();
}

void Uplink::drop_link() {
  orders_->revoke();
  registering_ = false;
  const bool was_connected = std::exchange(connected_, false);
  link_ = nullptr;
  if (was_connected) ++losses_;
  if (was_connected) listener_->manager_away();
}

kj::Promise<void> Uplink::connect() {
  if (fencing_ || file_.guard_is_busy() || run_out(clock_.now_ns())) fail("this host is fencing its memory");
  auto opened = network_.parseAddress(manager_.c_str())
                    .then([](kj::Own<kj::NetworkAddress> address) {
                      auto connecting = address->connectAuthenticated();
                      return connecting.attach(kj::mv(address));
                    })
                    .then([this](kj::AuthenticatedStream stream) {
                      KJ_IF_MAYBE (fd, stream.stream->getFd()) set_keep_alive(*fd, 30 * ns_per_s);
                      return credentials_.connect(kj::mv(stream));
                    });
  return within(kj::mv(opened), connect_ns_max, "connecting").then([this](Shaken shaken) {
    const auto name = peer_name(shaken.peer, TlsRole::manager);
    if (!name.ok()) fail("who answers there is no manager: " + name.error().detail);
    link_ = std::make_unique<Link>(kj::mv(shaken));
    return orders_->refresh().then([this] { return enroll(); });
  });
}

kj::Promise<void> Uplink::enroll() {
  auto request = link().gateway().enrollRequest();
  request.setOldest(rpc::AGENT_PROTOCOL_VERSION_OLDEST);
  request.setNewest(rpc::AGENT_PROTOCOL_VERSION);
  request.setSoftware(version_number());
  request.setInstance(instance_);
  const std::vector<SeenDevice> devices = orders_->devices();
  write_devices(request.initDevices(static_cast<uint32_t>(devices.size())), devices);
  orders_->revoke();
  registering_ = true;
  request.setAgent(orders_->make_host_agent());
  auto answered = within(kj::Promise<capnp::Response<rpc::AgentGateway::EnrollResults>>(request.send()),
                         connect_ns_max, "enrolling");
  return answered.then([this](capnp::Response<rpc::AgentGateway::EnrollResults> reply) {
    refused_ = reply.getError().getCode() != 0;
    if (Status refused = read_error(reply.getError(), "enroll"); !refused.ok())
      fail("it refused this agent: " + refused.error().detail);
    const auto adopted = read_devices(reply.getAdopted());
    auto assigned = read_objects(reply.getObjects());
    const std::string host = read_text(reply.getHost());
    const uint64_t length_ns = reply.getHostLeaseNs();
    if (!adopted.ok() || !assigned.ok() || !valid_agent_name(host) || length_ns < ns_per_s ||
        length_ns > 3600 * ns_per_s)
      fail("it said what cannot be");
    const StoreId store = check_store(read_text(reply.getStore()));
    host_ = host;
    terms_ = HostLeaseTerms{length_ns};
    orders_->know_devices(*adopted);
    return obey(store)
        .then([this, assigned = std::move(*assigned)]() mutable {
          return orders_->take_stock(std::move(assigned));
        })
        .then([this,
               registration = reply.getRegistration()](Result<std::vector<ObservedObject>> observed) mutable {
          if (!observed.ok()) fail("this host's memory cannot be listed: " + observed.error().to_string());
          return report(std::move(*observed), kj::mv(registration));
        });
  });
}

// Nobody of another store is obeyed, whoever signed its certificate: what it does not know it would have destroyed.
StoreId Uplink::check_store(const std::string& text) {
  const std::optional<StoreId> store = parse_store_id(text);
  const StoreId known = file_.store();
  if (!store.has_value() && !text.empty()) fail("it said what cannot be");
  if (store.value_or(StoreId{}) == known || !known.valid() || take_over_) return store.value_or(StoreId{});
  refused_ = true;
  fail("it has " + (store.has_value() ? "the store " + text : std::string("no store that it names")) +
       ", and this host's memory belongs to the store " + store_id_text(known) +
       ": it is not obeyed, nothing was touched. Start that manager with the --state that this host knows (is "
       "its "
       "file system mounted?), or give this agent the right --manager; or, to destroy this host's memory and "
       "obey "
       "the new one, start the agent once with --destroy-orphans");
}

// The memory says whose it is before the file does, and both before an order is carried out.
kj::Promise<void> Uplink::obey(StoreId store) {
  if (!store.valid()) {
    orders_->obey();
    return kj::READY_NOW;
  }
  return orders_
      ->claim({.store = store,
               .owner = "manager at " + manager_,
               .remedy = "--manager",
               .is_new = false,
               .take_over = take_over_})
      .then([this, store](Status claimed) {
        if (claimed.ok()) claimed = file_.set_store(store);
        if (!claimed.ok()) {
          refused_ = true;
          fail("it is not obeyed: " + claimed.error().detail);
        }
        orders_->obey();
      });
}

kj::Promise<void> Uplink::report(std::vector<ObservedObject> observed, rpc::Registration::Client registration) {
  auto request = registration.reportRequest();
  auto objects = request.initObjects(static_cast<uint32_t>(observed.size()));
  for (uint32_t i = 0; i < observed.size(); ++i) {
    if (take_over_) observed[i].handed_out = false;  // what no lease has goes, whoever had it
    write_observed(objects[i], observed[i]);
  }
  write_fencing(request.initFencing());
  const uint64_t sent_ns = clock_.now_ns();
  return within(kj::Promise<capnp::Response<rpc::Registration::ReportResults>>(request.send()),
                terms_.length_ns, "registering")
      .then([this, sent_ns](capnp::Response<rpc::Registration::ReportResults> reply) {
        if (Status refused = read_error(reply.getError(), "report"); !refused.ok())
          fail("it refused this agent: " + refused.error().detail);
        // The guard knows where all of it is before there is a promise to be kept.
        if (Status recorded = orders_->before_promise(); !recorded.ok())
          fail("what the guard has to fence cannot be recorded: " + recorded.error().to_string());
        promise_ = std::make_unique<HostLeasePromise>(terms_);
        begin_margin();
        promised(sent_ns);
        link().service = reply.getService();
        registering_ = false;
        connected_ = true;
        take_over_ = false;
        trouble_ = "";
        pause_ns_ = pause_ns_min;
        log::info("host {} is registered with the manager at {}; its host lease is {}", host_, manager_,
                  format_duration(terms_.length_ns));
        listener_->manager_connected();
      });
}

// --- the host lease ---------------------------------------------------------------------------------------

Uplink::Link& Uplink::link() {
  if (link_ == nullptr) fail("the connection was closed");
  return *link_;
}

// This process's own promise, or one that an earlier process left in the file.
bool Uplink::run_out(uint64_t now_ns) const {
  const uint64_t left_ns = file_.fence_at_ns();
  return (left_ns != 0 && now_ns >= left_ns) || (promise_ != nullptr && !promise_->holds(now_ns));
}

// With the margin of what there is to be fenced now: larger ones were made so when it was carved.
void Uplink::promised(uint64_t sent_ns) {
  const uint64_t now_ns = clock_.now_ns();
  if (promise_ == nullptr || !promise_->answered(sent_ns, now_ns))
    fail("its answer came when the host lease had run out");
  heard_ns_ = now_ns;
  promise_->set_margin(margin_now(orders_->fencing().estimate(now_ns)), now_ns);
  record_promise();
}

// What was leased under a longer host lease, or fenced faster then, is not taken away for that; but said.
void Uplink::begin_margin() {
  const uint64_t now_ns = clock_.now_ns();
  const FenceEstimate there = orders_->fencing().estimate(now_ns);
  promise_->set_margin(margin_now(there), now_ns);
  if (terms_.agent_margin_ns_for(there.fence_ns) > terms_.agent_margin_ns_max()) {
    log::critical(
        "{} objects with {} are on this host, and to fence them takes up to {}: more than its host lease of {} "
        "allows, so that its guard may be late. Release leases here, or give the manager a longer host_lease",
        there.load.objects, format_size(there.load.bytes), format_duration(there.fence_ns),
        format_duration(terms_.length_ns));
  }
}

void Uplink::record_promise() {
  const uint64_t at_ns = promise_->fence_at_ns();
  if (at_ns != 0) file_.set_fence_at_ns(at_ns, at_ns + HostLeaseTerms::fence_ns_max(promise_->margin_ns()));
}

uint64_t Uplink::margin_now(const FenceEstimate& estimate) const {
  return std::min(terms_.agent_margin_ns_for(estimate.fence_ns), terms_.agent_margin_ns_max());
}

// The guard begins earlier before the object exists, or it does not come to exist.
Status Uplink::allow_more(const FenceEstimate& more, bool must) {
  const uint64_t margin_ns = margin_now(more);
  if (!must && terms_.agent_margin_ns_for(more.fence_ns) > terms_.agent_margin_ns_max()) {
    return Error{.code = ErrorCode::limit_exceeded,
                 .where = "carve",
                 .detail = "host " + host_ +
                           " could not take all its leases away in time when it loses its manager: " +
                           std::to_string(more.load.objects) + " with " + format_size(more.load.bytes) +
                           " would take up to " + format_duration(more.fence_ns) + ", and a host lease of " +
                           format_duration(terms_.length_ns) + " leaves " +
                           format_duration(terms_.agent_margin_ns_max() / 2) +
                           " for it. Release leases there, take fewer and larger ones, or give the manager a "
                           "longer host_lease"};
  }
  if (promise_ == nullptr || margin_ns <= promise_->margin_ns()) return {};
  if (!promise_->set_margin(margin_ns, clock_.now_ns())) {
    return Error{.code = ErrorCode::unavailable,
                 .where = "carve",
                 .detail = "host " + host_ +
                           " was last heard by its manager too long ago to take more leases: "
                           "again in a moment"};
  }
  record_promise();
  if (hurry_.get() != nullptr) hurry_->fulfill();
  return {};
}

void Uplink::write_fencing(rpc::AgentFencing::Builder out) const {
  const FenceEstimate estimate = orders_->fencing().estimate(clock_.now_ns());
  out.setObjects(static_cast<uint32_t>(estimate.load.objects));
  out.setBytes(estimate.load.bytes);
  out.setFenceNs(estimate.fence_ns);
  out.setMarginNs(connected_ ? promise_->margin_ns() : margin_now(estimate));
  out.setMarginMaxNs(terms_.agent_margin_ns_max());
}

kj::Promise<void> Uplink::heartbeats() {
  auto hurried = kj::newPromiseAndFulfiller<void>();
  hurry_ = kj::mv(hurried.fulfiller);
  auto pause = timer_.afterDelay(duration(terms_.heartbeat_ns(promise_->margin_ns())));
  return link()
      .network.onDisconnect()
      .then([] { fail("the connection was closed"); })
      .exclusiveJoin(pause.exclusiveJoin(kj::mv(hurried.promise)))
      .then([this] {
        check_manager();
        auto request = link().agent_service().heartbeatRequest();
        const std::vector<SeenDevice> devices = orders_->devices();
        write_devices(request.initDevices(static_cast<uint32_t>(devices.size())), devices);
        write_fencing(request.initFencing());
        const uint64_t sent_ns = clock_.now_ns();
        return within(kj::Promise<capnp::Response<rpc::AgentService::HeartbeatResults>>(request.send()),
                      terms_.answer_ns_max(promise_->margin_ns()), "the answer to a heartbeat")
            .then([this, sent_ns](capnp::Response<rpc::AgentService::HeartbeatResults> reply) {
              if (Status refused = read_error(reply.getError(), "heartbeat"); !refused.ok())
                fail("it refused a heartbeat: " + refused.error().detail);
              auto adopted = read_devices(reply.getAdopted());
              if (!adopted.ok()) fail("it said what cannot be");
              promised(sent_ns);
              return follow_devices(std::move(*adopted));
            });
      })
      .then([this] {
        if (renewal_.due())
          tasks_->add(renewal_.ask(link().agent_service(), terms_.answer_ns_max(terms_.agent_margin_ns())));
        return heartbeats();
      });
}

// What was adopted since the last heartbeat has nothing of ours on it: it is taken over here as it was there.
kj::Promise<void> Uplink::follow_devices(std::vector<SeenDevice> adopted) {
  const std::vector<std::string> fresh = orders_->know_devices(adopted);
  return orders_->refresh().then([this, fresh] { return orders_->take_over(fresh); });
}

kj::Promise<void> Uplink::watch_loop() {
  const uint64_t now_ns = clock_.now_ns();
  const uint64_t at_ns = file_.fence_at_ns();
  kj::Promise<void> work = kj::READY_NOW;
  if (run_out(now_ns) && !fencing_) work = fence(at_ns);
  const uint64_t pause_ns =
      at_ns > now_ns ? std::clamp<uint64_t>(at_ns - now_ns, ns_per_ms, 100 * ns_per_ms) : 100 * ns_per_ms;
  return work.then([this, pause_ns] { return timer_.afterDelay(duration(pause_ns)); }).then([this] {
    return watch_loop();
  });
}

// The guard does the same, should this process not come to it: fencing twice is harmless.
kj::Promise<void> Uplink::fence(uint64_t at_ns) {
  log::critical(
      "the host lease has run out without a word from the manager at {}: fencing all memory of this host",
      manager_);
  fencing_ = true;
  drop_link();
  return orders_->fence_all().then([this, at_ns](Status status) {
    fencing_ = false;
    if (!status.ok()) {
      log::critical("not all could be fenced, trying again: {}", status.error().to_string());
      return;
    }
    if (at_ns != 0) file_.clear(at_ns);
    promise_.reset();
    ++host_fences_;
    const std::string reason = "this host lost its manager at " + manager_ + " for longer than its host lease";
    listener_->host_fenced(reason);
  });
}

}  // namespace terrace::daemon
