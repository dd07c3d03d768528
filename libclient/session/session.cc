// SPDX-License-Identifier: Apache-2.0
// Session: starts and stops the thread that Loop runs on, and hands calls over to it.
#include "terrace/session.h"

#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/prng.h"
#include "core/base/signals_blocked.h"
#include "core/base/time_slice.h"
#include "core/base/traceparent.h"
#include "core/base/units.h"
#include "core/identity/machine_name.h"
#include "libclient/session/loop.h"
#include "libclient/session/mailbox.h"

namespace terrace {
namespace client {
namespace {

// kj sets SIGPIPE to "ignore" for the whole process; a library may not. Writes of this thread raise none
// that anybody would see, since it has all signals blocked.
kj::AsyncIoContext set_up_event_loop() {
  struct sigaction before {};
  ::sigaction(SIGPIPE, nullptr, &before);
  auto io = kj::setupAsyncIo();
  ::sigaction(SIGPIPE, &before, nullptr);
  return io;
}

void run_loop(const SessionOptions& options, const std::shared_ptr<Mailbox>& mailbox,
              const std::shared_ptr<SessionState>& state) noexcept {
  ::pthread_setname_np(::pthread_self(), "terrace-session");
  mailbox->set_owner_thread();
  [[maybe_unused]] const Result<uint64_t> slice =
      take_short_slice();  // as well without, and later when it is busy
  try {
    auto io = set_up_event_loop();
    Loop loop(io, options, mailbox, state);
    loop.run();
  } catch (const kj::Exception&) {
    // No descriptors or memory for an event loop, or a defect in it. Callers learn `cancelled` below, and
    // `unavailable` from then on.
  } catch (const std::exception&) {
  }
  mailbox->close();
  mailbox->take();  // drops what was never begun: each Answer says `cancelled` (S1)
  state->connected.store(false, std::memory_order_release);  // release: pairs with connected()
}

class ClientSession final : public Session {
 public:
  static Result<std::unique_ptr<Session>> start(SessionOptions options);
  ~ClientSession() override;

  Result<std::shared_ptr<Lease>> grant(const LeaseRequest& request) override {
    const RequestKey key{secure_random_u64(), secure_random_u64()};
    return ask<std::shared_ptr<Lease>>(*mailbox_, "Session::grant", [request, key](Loop& loop, auto answer) {
      loop.grant(request, key, std::move(answer));
    });
  }
  Result<std::shared_ptr<Lease>> attach(LeaseId id, const std::string& label, LeaseAccess access) override {
    return attach(id, label, access, OnFence::keep);
  }
  Result<std::shared_ptr<Lease>> attach(LeaseId id, const std::string& label, LeaseAccess access,
                                        OnFence on_fence) override {
    return ask<std::shared_ptr<Lease>>(*mailbox_, "Session::attach",
                                       [id, label, access, on_fence](Loop& loop, auto answer) {
                                         loop.attach(id, label, access, on_fence, std::move(answer));
                                       });
  }
  Result<std::vector<LeaseInfo>> leases() override {
    return ask<std::vector<LeaseInfo>>(*mailbox_, "Session::leases",
                                       [](Loop& loop, auto answer) { loop.list(std::move(answer)); });
  }
  Result<std::vector<PoolInfo>> pools() override {
    return ask<std::vector<PoolInfo>>(*mailbox_, "Session::pools",
                                      [](Loop& loop, auto answer) { loop.pools(std::move(answer)); });
  }
  Result<std::vector<LeaseInfo>> offers() override {
    return ask<std::vector<LeaseInfo>>(*mailbox_, "Session::offers",
                                       [](Loop& loop, auto answer) { loop.offers(std::move(answer)); });
  }
  Result<LeaseInfo> accept_offer(LeaseId id) override {
    return ask<LeaseInfo>(*mailbox_, "Session::accept_offer",
                          [id](Loop& loop, auto answer) { loop.accept_offer(id, std::move(answer)); });
  }
  Result<UniqueFd> userfaultfd_device() override {
    return ask<UniqueFd>(*mailbox_, "Session::userfaultfd_device",
                         [](Loop& loop, auto answer) { loop.userfaultfd_device(std::move(answer)); });
  }
  std::string tenant() const override {
    const MutexLock lock(state_->mutex);
    return state_->tenant;
  }
  // acquire: pairs with the stores of Loop.
  bool connected() const override { return state_->connected.load(std::memory_order_acquire); }
  void on_notice(LeaseNoticeHandler handler) override { state_->notices->set_handler(std::move(handler)); }
  std::optional<LeaseNotice> next_notice() override { return state_->notices->next(); }
  int notice_fd() const override { return state_->notices->fd(); }
  void report_run(const RunFigures& figures) override {
    if (!state_->run.put(figures)) return;
    mailbox_->post([state = state_](Loop& loop) { loop.report_run(state->run); });
  }

 private:
  ClientSession(std::shared_ptr<Mailbox> mailbox, std::shared_ptr<SessionState> state)
      : mailbox_(std::move(mailbox)), state_(std::move(state)) {}

  const std::shared_ptr<Mailbox> mailbox_;
  const std::shared_ptr<SessionState> state_;
  std::thread thread_;
};

Result<std::unique_ptr<Session>> ClientSession::start(SessionOptions options) {
  if (options.socket_path.empty()) options.socket_path = default_socket_path();
  if (options.host.empty()) options.host = machine_name();
  if (options.client_name.empty()) options.client_name = ::program_invocation_short_name;
  options.traceparent =
      options.traceparent.empty() ? traceparent_of_environment() : bounded_traceparent(options.traceparent);
  options.connect_timeout_ns = std::min(options.connect_timeout_ns, timeout_ns_max);
  options.call_timeout_ns = std::min(options.call_timeout_ns, timeout_ns_max);

  TERRACE_ASSIGN_OR_RETURN(auto mailbox, Mailbox::make());
  TERRACE_ASSIGN_OR_RETURN(auto notices, NoticeQueue::make());
  std::unique_ptr<ClientSession> session(
      new ClientSession(std::move(mailbox), std::make_shared<SessionState>(std::move(notices))));
  try {
    const SignalsBlocked blocked;
    session->thread_ = std::thread(run_loop, options, session->mailbox_, session->state_);
  } catch (const std::system_error& error) {
    return os_error(error.code().value(), "Session::connect", "cannot start the session's thread");
  }
  auto connected = ask<std::string>(*session->mailbox_, "Session::connect",
                                    [](Loop& loop, auto answer) { loop.connect(std::move(answer)); });
  if (!connected.ok()) {
    if (connected.error().code != ErrorCode::cancelled) return std::move(connected).error();
    return Error{ErrorCode::unavailable, 0, "Session::connect",
                 "the session's event loop could not start: no descriptors or memory left in this process"};
  }
  return std::unique_ptr<Session>(std::move(session));
}

ClientSession::~ClientSession() {
  if (!thread_.joinable()) return;
  if (!mailbox_->own_process()) {  // in the child of a fork there are no such threads
    thread_.detach();
    // A condition variable that a thread of the parent waits for cannot be destroyed here.
    [[maybe_unused]] auto* const stays = new std::shared_ptr<SessionState>(state_);
    return;
  }
  mailbox_->close();
  thread_.join();  // first: a handler that waits for an answer gets `cancelled`
  state_->notices->close();
}

}  // namespace
}  // namespace client

Result<std::unique_ptr<Session>> Session::connect(SessionOptions options) {
  return client::ClientSession::start(std::move(options));
}

std::string default_socket_path() {
  constexpr const char* system_path = "/run/terrace/terraced.sock";
  if (const char* chosen = std::getenv("TERRACE_SOCKET"); chosen != nullptr && *chosen != '\0') return chosen;
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (::geteuid() == 0 || ::access(system_path, F_OK) == 0) return system_path;
  if (runtime != nullptr && *runtime != '\0') return std::string(runtime) + "/terrace/terraced.sock";
  // Where anybody may make a folder, only one of this user's own counts.
  const std::string own = "/tmp/terrace-" + std::to_string(::geteuid());
  struct stat status {};
  if (::lstat(own.c_str(), &status) == 0 &&
      (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 022) != 0))
    return system_path;
  return own + "/terrace/terraced.sock";
}

}  // namespace terrace
