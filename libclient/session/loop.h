// SPDX-License-Identifier: Apache-2.0
// The work of a Session's thread: one kj event loop that keeps the connection, performs the calls that
// arrive in the Mailbox, renews the held leases and receives the manager's notices.
//
//   program threads -> Mailbox -> Loop -> Connection -> terraced
//                         ^         |
//                         +- Answer-+--> LeaseHandle::change, NoticeQueue -> notice handler
//
// Place     libclient/session. loop.cc: mail and connection; loop_calls.cc: calls; loop_leases.cc: renewal and
//           notices; loop_changes.cc: resize, transfer; loop_moves.cc: moves; loop_parts.cc: owners of parts;
//           runs/loop_runs.cc: reports of the program's figures.
// Threads   The Session's own, except what SessionState guards.
// Invariants
//   S3  A call that met a broken connection is sent again on the next one until its deadline. All calls are
//       safe to repeat: a grant carries its key, a second release is no error.
//   S4  A grant that arrives after its caller gave up is released, so that a time-out leaks no memory.
//   S7  A move whose commit was sent is `unknown` until the manager answered, or until its lease was attached
//       again and the object behind it is the old one or the new one. "The old one" counts only once no other
//       session holds the lease: the broken connection might still bring the commit.
//   S5  No kj object is destroyed from inside one of its own callbacks: calls only mark a connection as
//       broken; stay_connected() closes it.
#pragma once

#include <kj/async-unix.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/prng.h"
#include "core/base/sync/mutex.h"
#include "core/base/units.h"
#include "libclient/session/connection.h"
#include "libclient/session/held_leases.h"
#include "libclient/session/lease_handle.h"
#include "libclient/session/mailbox.h"
#include "libclient/session/move_handle.h"
#include "libclient/session/notice_queue.h"
#include "libclient/session/runs/run_report.h"

namespace terrace::client {

// kj counts nanoseconds in 63 bits and callers may mean "for ever" by a large number.
inline constexpr uint64_t timeout_ns_max = 365ull * 86400 * ns_per_s;

// What callers read without asking the loop.
struct SessionState {
  explicit SessionState(std::shared_ptr<NoticeQueue> its_notices) : notices(std::move(its_notices)) {}

  std::atomic<bool> connected{false};
  Mutex mutex;
  std::string tenant TERRACE_GUARDED_BY(mutex);
  const std::shared_ptr<NoticeQueue> notices;
  RunBox run;  // figures that wait to be sent
};

struct RequestKey {
  uint64_t high = 0;
  uint64_t low = 0;
};

struct PartClaim {
  uint32_t part = 0;
  uint64_t last_epoch = 0;
  uint64_t key = 0;
};

class Loop final : private kj::TaskSet::ErrorHandler {
 public:
  Loop(kj::AsyncIoContext& io, SessionOptions options, std::shared_ptr<Mailbox> mailbox,
       std::shared_ptr<SessionState> state);
  ~Loop() noexcept(false);

  // Performs jobs until the mailbox is closed.
  void run();

  // The jobs. Each delivers its answer once, within the call timeout.
  void connect(std::shared_ptr<Answer<std::string>> answer);
  void grant(LeaseRequest request, RequestKey key, std::shared_ptr<Answer<std::shared_ptr<Lease>>> answer);
  void attach(LeaseId id, std::string label, LeaseAccess access, OnFence on_fence,
              std::shared_ptr<Answer<std::shared_ptr<Lease>>> answer);
  void list(std::shared_ptr<Answer<std::vector<LeaseInfo>>> answer);
  void pools(std::shared_ptr<Answer<std::vector<PoolInfo>>> answer);
  void offers(std::shared_ptr<Answer<std::vector<LeaseInfo>>> answer);
  void accept_offer(LeaseId id, std::shared_ptr<Answer<LeaseInfo>> answer);
  void userfaultfd_device(std::shared_ptr<Answer<UniqueFd>> answer);
  void info(uint64_t handle, std::shared_ptr<Answer<LeaseInfo>> answer);
  void renew(uint64_t handle, uint64_t ttl_ns, std::shared_ptr<Answer<void>> answer);
  void release(uint64_t handle, std::shared_ptr<Answer<void>> answer);
  void report_usage(uint64_t handle, UsageReport usage, std::shared_ptr<Answer<void>> answer);
  void forget(uint64_t handle);  // the last caller let go of it: no more renewals
  void resize(uint64_t handle, uint64_t bytes, std::shared_ptr<Answer<LeaseInfo>> answer);
  void transfer(uint64_t handle, std::string tenant, std::string host, std::shared_ptr<Answer<void>> answer);
  void withdraw_offer(uint64_t handle, std::shared_ptr<Answer<void>> answer);
  void open_path(uint64_t handle, std::optional<uint32_t> user, std::shared_ptr<Answer<std::string>> answer);
  void claim_part(uint64_t handle, PartClaim claim, std::shared_ptr<Answer<uint64_t>> answer);
  void release_part(uint64_t handle, uint32_t part, uint64_t epoch, std::shared_ptr<Answer<void>> answer);
  void part_is_dead(uint64_t handle, uint32_t part, uint64_t epoch, std::shared_ptr<Answer<bool>> answer);
  void begin_move(uint64_t handle, std::shared_ptr<Answer<std::unique_ptr<LeaseMove>>> answer);
  void commit_move(uint64_t number, std::shared_ptr<Answer<void>> answer);
  void abandon_move(uint64_t number, std::shared_ptr<Answer<void>> answer);
  void forget_move(uint64_t number);
  void report_run(RunBox& box);  // answers nobody

  // From the manager, through the LeaseListener.
  void on_revoking(LeaseId id, uint64_t grace_ns, std::string reason);
  void on_fenced(LeaseId id, std::string reason, LeaseCause cause);
  void on_move_requested(LeaseId id, std::string reason);

 private:
  struct Move {
    uint64_t handle = 0;  // of the lease
    LeaseId lease;
    std::shared_ptr<MoveOutcome> outcome;
    std::optional<rpc::LeaseMove::Client> capability;  // until it is decided, or its connection is gone
    UniqueFd target;
    std::optional<kj::TimePoint> doubtful_until;  // S7: how long other holders make "the old one" doubtful
    Error refusal;                                // what the manager answered the commit with, if it did
    bool in_flight = false;                       // the commit may still be answered on the present connection
    bool asking = false;                          // ask_later() is under way
    bool forgotten = false;                       // its handle is gone
    std::vector<std::shared_ptr<Answer<void>>> waiting;
  };
  template <typename T>
  using Call = std::function<kj::Promise<Result<T>>()>;

  // --- loop.cc
  void taskFailed(kj::Exception&& exception) override;
  kj::Promise<void> read_mail();
  kj::Promise<Status> open();
  kj::Promise<void> stay_connected();  // from an open connection, for ever
  kj::Promise<void> reconnect();
  kj::Promise<void> back_off();
  void become_ready();
  void close_connection();
  void mark_broken(uint64_t generation);
  kj::Promise<void> ready();  // resolves once connected and re-attached

  // --- loop_calls.cc
  template <typename T>
  kj::Promise<Result<T>> repeating(const char* where, Call<T> call);
  template <typename T>
  kj::Promise<Result<T>> bounded(const char* where, uint64_t timeout_ns, kj::Promise<Result<T>> promise);
  template <typename T>
  void perform(const char* where, std::shared_ptr<Answer<T>> answer, Call<T> call);
  template <typename T>
  void perform_on_lease(const char* where, uint64_t handle, std::shared_ptr<Answer<T>> answer,
                        std::function<kj::Promise<Result<T>>(rpc::Lease::Client)> call);
  kj::Promise<Result<std::shared_ptr<Lease>>> hold(rpc::LeaseInfo::Reader info, rpc::Lease::Client capability,
                                                   LeaseAccess access, bool ends_with_holders,
                                                   const char* where);
  // `wait_until`: when a grant that waits in the queue of a full pool should give up.
  kj::Promise<Result<std::shared_ptr<Lease>>> give_back_other(rpc::Lease::Client lease);
  kj::Promise<Result<std::shared_ptr<Lease>>> send_grant(LeaseRequest request, RequestKey key,
                                                         kj::TimePoint wait_until);
  kj::Promise<Result<std::vector<LeaseInfo>>> list_after(uint64_t after,
                                                         std::shared_ptr<std::vector<LeaseInfo>> so_far);
  Error timeout_error(const char* where) const;

  // --- loop_leases.cc
  // The lease's capability on this connection, attached again when it has none yet.
  kj::Promise<Result<rpc::Lease::Client>> capability_of(uint64_t handle, const char* where);
  kj::Promise<Status> attach_again(uint64_t handle);
  kj::Promise<void> attach_all_again(std::shared_ptr<std::vector<uint64_t>> handles, size_t next);
  kj::Promise<void> keep_renewing();
  kj::Promise<void> wait_for_renewal();
  kj::Promise<void> renew_held();
  void finish_renewal(const std::set<uint64_t>& ids, Result<std::vector<std::pair<uint64_t, Error>>> result);
  void wake_renewal();
  void note_error(LeaseId id, const Error& error);  // what a failed call tells about its lease
  void lose(LeaseId id, Error why, bool tell = true, LeaseCause cause = LeaseCause::none);
  void notify(const LeaseNotice& notice) noexcept;
  void set_ttl(LeaseId id, uint64_t ttl_ns);

  // --- loop_changes.cc
  kj::Promise<Status> confirm(uint64_t handle, rpc::LeaseInfo::Reader info, rpc::Lease::Client capability);
  kj::Promise<Status> take_over(uint64_t handle, rpc::LeaseInfo::Reader info, rpc::Lease::Client capability);
  Status adopt_descriptor(uint64_t handle, int fd, LeaseEpoch epoch, uint64_t bytes);
  kj::Promise<void> refresh_others(LeaseId id, uint64_t handle);
  void check_again(LeaseId id);

  // --- loop_moves.cc
  Move* unsettled_move(LeaseId id);
  kj::Promise<Status> settle_by_attach(uint64_t handle, rpc::LeaseInfo::Reader info,
                                       rpc::Lease::Client capability);
  void send_commit(uint64_t number, Move& move);
  void answer_commit(uint64_t number, LeaseEpoch epoch, uint64_t bytes,
                     std::optional<rpc::Lease::Client> capability);
  void ask_later(uint64_t number);
  void decide(uint64_t number, LeaseMoveState state, Status status);
  void end_moves(LeaseId id, const Error& why);
  void end_moves_of_connection();

  kj::AsyncIoContext& io_;
  kj::Timer& timer_;
  const SessionOptions options_;
  const std::shared_ptr<Mailbox> mailbox_;
  const std::shared_ptr<SessionState> state_;
  Prng jitter_;
  HeldLeases held_;
  std::map<uint64_t, Move> moves_;              // by number
  std::map<LeaseId, uint64_t> early_grace_ns_;  // revocations heard of before the lease was handed over
  RunHistory runs_;
  uint64_t next_handle_ = 1;
  uint64_t next_move_ = 1;
  uint64_t generation_ = 0;  // of the connection; grows with each
  bool ready_ = false;
  uint32_t failures_ = 0;  // connections that failed or were short-lived, in a row
  kj::TimePoint opened_at_ = kj::origin<kj::TimePoint>();
  Error last_error_;  // of the last attempt to connect
  std::vector<kj::Own<kj::PromiseFulfiller<void>>> waiting_for_ready_;
  kj::Own<kj::PromiseFulfiller<void>> broken_;   // fulfilled: close this connection
  kj::ForkedPromise<void> ended_ = nullptr;      // resolves when this connection is over
  kj::Own<kj::PromiseFulfiller<void>> renewal_;  // fulfilled: look again when to renew
  kj::Own<Connection> connection_;
  kj::TaskSet tasks_;  // last: its promises use all of the above
};

}  // namespace terrace::client
