// SPDX-License-Identifier: Apache-2.0
// The thread of a running FakeGateway: its socket, its connections, and jobs from the test. For
// fake_gateway.cc.
#pragma once

#include <capnp/rpc-twoparty.h>
#include <kj/async-unix.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <csignal>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "core/base/check.h"
#include "tests/support/fake_gateway_rpc.h"

namespace terrace::test {

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
  void make_room() {
    for (auto& waiting : std::exchange(queue_, {})) waiting->fulfill();
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
      link->timer = timer_;
      link->queue = &queue_;
      auto peer = kj::heap<Peer>(stream.downcast<kj::AsyncCapabilityStream>(),
                                 make_fake_gateway_capability(kj::mv(link), listeners_));
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
    timer_ = &io.provider->getTimer();
    tasks.add(accept(*receiver));
    work(observer).wait(io.waitScope);
    queue_.clear();
  }

  std::shared_ptr<State> state_;
  UniqueFd listening_;
  UniqueFd wake_;
  std::mutex mutex_;
  std::deque<std::function<void()>> jobs_;
  FakeListeners listeners_;  // this and the next: the server's thread
  WaitingGrants queue_;
  kj::Timer* timer_ = nullptr;
  kj::TaskSet* tasks_ = nullptr;
  std::thread thread_;
};

}  // namespace terrace::test
