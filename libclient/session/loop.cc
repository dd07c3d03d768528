// SPDX-License-Identifier: Apache-2.0
// Loop: mail from other threads, and the connection's life.
#include "libclient/session/loop.h"

#include <algorithm>
#include <utility>

#include "core/base/units.h"
#include "libclient/session/loop_templates.h"
#include "libclient/session/wire.h"

namespace terrace::client {
namespace {

constexpr uint64_t back_off_ns_min = 10 * ns_per_ms;
constexpr uint64_t back_off_ns_max = 1 * ns_per_s;
// A connection that lived as long was a good one: the next attempt starts from the shortest back-off.
constexpr auto good_connection = 250 * kj::MILLISECONDS;

class Listener final : public rpc::LeaseListener::Server {
 public:
  explicit Listener(Loop& loop) : loop_(loop) {}

 private:
  kj::Promise<void> revoking(RevokingContext context) override {
    const auto params = context.getParams();
    loop_.on_revoking(LeaseId{params.getLease()}, params.getGraceNs(), text_from_wire(params.getReason()));
    return kj::READY_NOW;
  }
  kj::Promise<void> fenced(FencedContext context) override {
    const auto params = context.getParams();
    loop_.on_fenced(LeaseId{params.getLease()}, text_from_wire(params.getReason()),
                    cause_from_wire(params.getCause()));
    return kj::READY_NOW;
  }
  kj::Promise<void> moveRequested(MoveRequestedContext context) override {
    const auto params = context.getParams();
    loop_.on_move_requested(LeaseId{params.getLease()}, text_from_wire(params.getReason()));
    return kj::READY_NOW;
  }

  Loop& loop_;  // outlives the connection that owns this object
};

}  // namespace

Loop::Loop(kj::AsyncIoContext& io, SessionOptions options, std::shared_ptr<Mailbox> mailbox,
           std::shared_ptr<SessionState> state)
    : io_(io),
      timer_(io.provider->getTimer()),
      options_(std::move(options)),
      mailbox_(std::move(mailbox)),
      state_(std::move(state)),
      jitter_(secure_random_u64()),
      tasks_(*this) {}

Loop::~Loop() noexcept(false) {
  state_->connected.store(false, std::memory_order_release);  // release: pairs with connected()
}

// Every task turns its failures into an Answer. One that cannot has lost its Answer already, and the waiting
// caller was told `cancelled` (S1).
void Loop::taskFailed(kj::Exception&&) {}

void Loop::run() {
  read_mail().wait(io_.waitScope);
}

kj::Promise<void> Loop::read_mail() {
  auto observer = kj::heap<kj::UnixEventPort::FdObserver>(io_.unixEventPort, mailbox_->wake_fd(),
                                                          kj::UnixEventPort::FdObserver::OBSERVE_READ);
  // A recursive function as an object: each turn takes everything there is, then waits for more.
  struct Reader {
    Loop& loop;
    kj::UnixEventPort::FdObserver& observer;
    kj::Promise<void> turn() {
      for (Mailbox::Job& job : loop.mailbox_->take()) job(loop);
      if (loop.mailbox_->closed()) return kj::READY_NOW;
      return observer.whenBecomesReadable().then([this] { return turn(); });
    }
  };
  auto reader = kj::heap<Reader>(Reader{*this, *observer});
  auto promise = reader->turn();
  return promise.attach(kj::mv(reader), kj::mv(observer));
}

void Loop::connect(std::shared_ptr<Answer<std::string>> answer) {
  tasks_.add(open().then([this, answer](Status status) {
    if (!status.ok()) {
      answer->deliver(std::move(status).error());
      return;
    }
    {
      const MutexLock lock(state_->mutex);
      state_->tenant = connection_->tenant;
    }
    become_ready();
    answer->deliver(connection_->tenant);
    tasks_.add(stay_connected());
    tasks_.add(keep_renewing());
  }));
}

kj::Promise<Status> Loop::open() {
  auto attempt = open_connection(*io_.lowLevelProvider, options_, kj::heap<Listener>(*this));
  return bounded<kj::Own<Connection>>("Session::connect", options_.connect_timeout_ns, kj::mv(attempt))
      .then([this](Result<kj::Own<Connection>> opened) -> Status {
        if (!opened.ok()) {
          last_error_ = opened.error();
          return std::move(opened).error();
        }
        connection_ = std::move(opened).value();
        ++generation_;
        opened_at_ = timer_.now();
        auto broken = kj::newPromiseAndFulfiller<void>();
        broken_ = kj::mv(broken.fulfiller);
        // Closing happens here and not where the break was noticed: S5.
        auto ended = connection_->client->onDisconnect().exclusiveJoin(kj::mv(broken.promise));
        ended_ = ended.catch_([](kj::Exception&&) {}).fork();
        return {};
      });
}

kj::Promise<void> Loop::stay_connected() {
  return ended_.addBranch().then([this] {
    close_connection();
    return reconnect();
  });
}

kj::Promise<void> Loop::reconnect() {
  return back_off().then([this] { return open(); }).then([this](Status status) -> kj::Promise<void> {
    if (!status.ok()) return reconnect();
    auto handles = std::make_shared<std::vector<uint64_t>>(held_.all());
    const uint64_t generation = generation_;
    return attach_all_again(handles, 0)
        .then([this] { become_ready(); },
              [this, generation](kj::Exception&& exception) {
                last_error_ = error_from_kj(exception, "Session: attaching leases again");
                mark_broken(generation);
              })
        .exclusiveJoin(ended_.addBranch())
        .then([this] { return stay_connected(); });
  });
}

kj::Promise<void> Loop::back_off() {
  const uint64_t longest_ns = std::min(back_off_ns_max, back_off_ns_min << std::min(failures_, 16u));
  ++failures_;
  return timer_.afterDelay(jitter_.between(longest_ns / 2, longest_ns) * kj::NANOSECONDS);
}

void Loop::become_ready() {
  ready_ = true;
  state_->connected.store(true, std::memory_order_release);  // release: pairs with connected()
  for (auto& fulfiller : std::exchange(waiting_for_ready_, {})) fulfiller->fulfill();
  // The manager may have been away for long: renew everything now rather than when it is due.
  for (const uint64_t handle : held_.all()) held_.renew_at(handle, timer_.now());
  wake_renewal();
}

void Loop::close_connection() {
  ready_ = false;
  state_->connected.store(false, std::memory_order_release);  // release: pairs with connected()
  if (timer_.now() - opened_at_ >= good_connection) failures_ = 0;
  for (const uint64_t handle : held_.all()) held_.find(handle)->capability.reset();
  end_moves_of_connection();
  early_grace_ns_.clear();
  connection_ = nullptr;
}

void Loop::mark_broken(uint64_t generation) {
  if (generation != generation_) return;  // that connection is gone already
  ready_ = false;
  state_->connected.store(false, std::memory_order_release);  // release: pairs with connected()
  if (broken_.get() != nullptr) broken_->fulfill();
}

kj::Promise<void> Loop::ready() {
  if (ready_) return kj::READY_NOW;
  // Those who gave up waiting leave a dead fulfiller behind; a long outage must not collect them.
  if (waiting_for_ready_.size() > 1000) {
    auto keep = waiting_for_ready_.begin();
    for (auto& fulfiller : waiting_for_ready_)
      if (fulfiller->isWaiting()) std::swap(*keep++, fulfiller);
    waiting_for_ready_.erase(keep, waiting_for_ready_.end());
  }
  auto waiting = kj::newPromiseAndFulfiller<void>();
  waiting_for_ready_.push_back(kj::mv(waiting.fulfiller));
  return kj::mv(waiting.promise);
}

}  // namespace terrace::client
