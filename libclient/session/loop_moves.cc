// SPDX-License-Identifier: Apache-2.0
// Loop: moves of a lease to other memory. The manager decides; what it decided is the answer to the commit, or
// else the object that is behind the lease when it is attached again (S7).
//
//   open --commit sent--> unknown --answer, or attached: the new object--> committed
//     |                      +------refused, or attached: the old object--> ended
//     +-- abandoned, given up, connection gone ---------------------------> ended
#include <fcntl.h>
#include <sys/stat.h>

#include <utility>

#include "core/base/check.h"
#include "core/base/units.h"
#include "libclient/session/loop.h"
#include "libclient/session/loop_templates.h"
#include "libclient/session/wire.h"

namespace terrace::client {
namespace {

using Begun = Result<std::unique_ptr<LeaseMove>>;

constexpr const char* begin_where = "Lease::begin_move";
constexpr const char* commit_where = "LeaseMove::commit";
constexpr auto ask_again_after = 20 * kj::MILLISECONDS;

bool settled(LeaseMoveState state) {
  return state == LeaseMoveState::committed || state == LeaseMoveState::ended;
}

// A file by its inode, a dax device by its number. Both descriptors are open, so that neither can be reused.
bool same_object(int one, int other) {
  struct stat first {};
  struct stat second {};
  return ::fstat(one, &first) == 0 && ::fstat(other, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino && first.st_rdev == second.st_rdev;
}

Error given_up(const char* why) {
  return {ErrorCode::cancelled, 0, commit_where,
          std::string("the move did not take place: ") + why + "; the lease is where it was, begin again"};
}

}  // namespace

Loop::Move* Loop::unsettled_move(LeaseId id) {
  for (auto& [number, move] : moves_)
    if (move.lease == id && !settled(move.outcome->state())) return &move;
  return nullptr;
}

void Loop::begin_move(uint64_t handle, std::shared_ptr<Answer<std::unique_ptr<LeaseMove>>> answer) {
  perform_on_lease<std::unique_ptr<LeaseMove>>(
      begin_where, handle, answer, [this, handle](rpc::Lease::Client lease) {
        return lease.beginMoveRequest().send().then(
            [this, handle](capnp::Response<rpc::Lease::BeginMoveResults>&& reply) -> kj::Promise<Begun> {
              if (Status status = status_from_wire(reply.getError(), begin_where); !status.ok())
                return Begun(std::move(status).error());
              auto capability = reply.getMove();
              const uint64_t bytes = reply.getBytes();
              auto descriptor = capability.getFd();
              return descriptor.then([this, handle, bytes, capability = kj::mv(capability)](
                                         kj::Maybe<int> borrowed) mutable -> Begun {
                const Held* held = held_.find(handle);
                const auto lease_handle = held == nullptr ? nullptr : held->handle.lock();
                if (lease_handle == nullptr)
                  return Error{ErrorCode::lease_expired, 0, begin_where, "the lease is no longer held"};
                int number = -1;
                KJ_IF_MAYBE (fd, borrowed) {
                  number = *fd;
                }
                if (number < 0)
                  return Error{ErrorCode::unsupported, 0, begin_where,
                               "the manager sent no descriptor for the new memory"};
                UniqueFd mine(::fcntl(number, F_DUPFD_CLOEXEC, 0));
                UniqueFd callers(::fcntl(number, F_DUPFD_CLOEXEC, 0));
                if (!mine.valid() || !callers.valid())
                  return os_error(errno, begin_where, "cannot keep the descriptor of the new memory");
                const uint64_t id = next_move_++;
                Move& move = moves_[id];
                move.handle = handle;
                move.lease = lease_handle->id();
                move.outcome = std::make_shared<MoveOutcome>();
                move.capability = kj::mv(capability);
                move.target = std::move(mine);
                return std::unique_ptr<LeaseMove>(std::make_unique<MoveHandle>(
                    id, lease_handle, move.outcome, std::move(callers), bytes, mailbox_));
              });
            });
      });
}

void Loop::commit_move(uint64_t number, std::shared_ptr<Answer<void>> answer) {
  Move& move = moves_.at(number);  // its handle lives, since it asks
  const LeaseMoveState state = move.outcome->state();
  if (settled(state)) {
    answer->deliver(move.outcome->status());
    return;
  }
  move.waiting.push_back(answer);
  tasks_.add(timer_.afterDelay(options_.call_timeout_ns * kj::NANOSECONDS).then([this, answer] {
    answer->deliver(timeout_error(commit_where));
  }));
  if (state == LeaseMoveState::open) send_commit(number, move);
}

void Loop::send_commit(uint64_t number, Move& move) {
  move.outcome->settle(LeaseMoveState::unknown, {});
  move.in_flight = true;
  const uint64_t generation = generation_;
  // Half the time for the answer, half to find out without it.
  auto answered = timer_.timeoutAfter((options_.call_timeout_ns / 2) * kj::NANOSECONDS,
                                      move.capability->commitRequest().send());
  tasks_.add(answered.then(
      [this, number](capnp::Response<rpc::LeaseMove::CommitResults>&& reply) {
        const auto found = moves_.find(number);
        if (found == moves_.end() || settled(found->second.outcome->state())) return;
        found->second.in_flight = false;
        if (Error error = error_from_wire(reply.getError(), commit_where); error.code != ErrorCode::ok) {
          found->second.refusal = std::move(error);
          ask_later(number);
          return;
        }
        std::optional<rpc::Lease::Client> capability;
        if (reply.hasLease()) capability = reply.getLease();
        answer_commit(number, LeaseEpoch{reply.getInfo().getEpoch()}, reply.getInfo().getBytes(),
                      std::move(capability));
      },
      [this, number, generation](kj::Exception&& exception) {
        const auto type = exception.getType();
        last_error_ = error_from_kj(exception, commit_where);
        const auto found = moves_.find(number);
        if (found == moves_.end()) return;
        found->second.in_flight = false;
        if (type == kj::Exception::Type::DISCONNECTED || type == kj::Exception::Type::OVERLOADED)
          mark_broken(generation);
        else
          found->second.refusal = last_error_;
        ask_later(number);
      }));
}

// The move took place: the memory behind the target is the lease's.
void Loop::answer_commit(uint64_t number, LeaseEpoch epoch, uint64_t bytes,
                         std::optional<rpc::Lease::Client> capability) {
  Move& move = moves_.at(number);
  const uint64_t handle = move.handle;
  const LeaseId id = move.lease;
  const Status put = adopt_descriptor(handle, move.target.get(), epoch, bytes);
  TERRACE_CHECK(put.ok(), "one open descriptor could not be put in the place of another");
  if (Held* held = held_.find(handle); held != nullptr) held->capability = std::move(capability);
  tasks_.add(refresh_others(id, handle));
  decide(number, LeaseMoveState::committed, {});
}

// Attached again with a commit unanswered. Rejects only when the connection breaks.
kj::Promise<Status> Loop::settle_by_attach(uint64_t handle, rpc::LeaseInfo::Reader info,
                                           rpc::Lease::Client capability) {
  Held& held = *held_.find(handle);
  uint64_t number = 0;
  for (const auto& [candidate, move] : moves_)
    if (move.handle == handle && !settled(move.outcome->state())) number = candidate;
  Move& move = moves_.at(number);
  if (info.getEpoch() == held.facts.epoch.value) {
    held.capability = kj::mv(capability);
    if (info.getHolders() > 1) {  // one may be our old connection, with the commit still in its buffer
      if (!move.doubtful_until.has_value())
        move.doubtful_until = timer_.now() + options_.connect_timeout_ns * kj::NANOSECONDS;
      if (timer_.now() < *move.doubtful_until) {
        ask_later(number);
        return Status{};
      }
    }
    decide(number, LeaseMoveState::ended,
           move.refusal.code != ErrorCode::ok ? move.refusal
                                              : given_up("the manager gave it up when the connection broke"));
    return Status{};
  }
  const LeaseEpoch epoch{info.getEpoch()};
  const uint64_t bytes = info.getBytes();
  auto descriptor = capability.getFd();
  return descriptor.then(
      [this, number, epoch, bytes, capability = kj::mv(capability)](kj::Maybe<int> borrowed) mutable -> Status {
        const auto found = moves_.find(number);
        if (found == moves_.end() || settled(found->second.outcome->state())) return {};
        int fd = -1;
        KJ_IF_MAYBE (given, borrowed) {
          fd = *given;
        }
        if (same_object(fd, found->second.target.get())) {
          answer_commit(number, epoch, bytes, kj::mv(capability));
          return {};
        }
        const LeaseId id = found->second.lease;
        Error error{ErrorCode::lease_expired, 0, commit_where,
                    "lease " + std::to_string(id.value) + " is neither where it was nor where it was to move"};
        lose(id, error);
        return error;
      });
}

// Asks until it is known, with a pause before each question; a reconnect may find out meanwhile.
void Loop::ask_later(uint64_t number) {
  const auto found = moves_.find(number);
  if (found == moves_.end() || found->second.asking) return;
  found->second.asking = true;
  tasks_.add(timer_.afterDelay(ask_again_after).then([this, number]() -> kj::Promise<void> {
    const auto again = moves_.find(number);
    if (again == moves_.end()) return kj::READY_NOW;
    Move& move = again->second;
    move.asking = false;
    if (settled(move.outcome->state())) return kj::READY_NOW;
    if (held_.find(move.handle) == nullptr) {  // nobody has the lease any more
      decide(number, LeaseMoveState::ended, given_up("the lease was let go"));
      return kj::READY_NOW;
    }
    if (!ready_) {
      ask_later(number);
      return kj::READY_NOW;
    }
    const uint64_t generation = generation_;
    return timer_.timeoutAfter(options_.connect_timeout_ns * kj::NANOSECONDS, attach_again(move.handle))
        .then([this, number](Status) { ask_later(number); },
              [this, number, generation](kj::Exception&& exception) {
                last_error_ = error_from_kj(exception, commit_where);
                mark_broken(generation);
                ask_later(number);
              });
  }));
}

void Loop::abandon_move(uint64_t number, std::shared_ptr<Answer<void>> answer) {
  Move& move = moves_.at(number);
  if (move.outcome->state() != LeaseMoveState::open || !move.capability.has_value()) {
    answer->deliver(Status{});
    return;
  }
  auto sent = move.capability->abandonRequest().send().then(
      [](capnp::Response<rpc::LeaseMove::AbandonResults>&&) { return Status{}; });
  decide(number, LeaseMoveState::ended, given_up("it was abandoned"));
  // Without an answer the connection is gone, and the manager gives the move up by itself.
  tasks_.add(bounded<void>("LeaseMove::abandon", options_.call_timeout_ns, kj::mv(sent)).then([answer](Status) {
    answer->deliver(Status{});
  }));
}

void Loop::forget_move(uint64_t number) {
  const auto found = moves_.find(number);
  if (found == moves_.end()) return;
  found->second.forgotten = true;
  if (found->second.outcome->state() != LeaseMoveState::unknown) moves_.erase(found);
}

// The only place where a move's end is told. Erases one that nobody holds any more.
void Loop::decide(uint64_t number, LeaseMoveState state, Status status) {
  Move& move = moves_.at(number);
  move.outcome->settle(state, status);
  move.capability.reset();
  for (const auto& answer : std::exchange(move.waiting, {})) answer->deliver(status);
  if (move.forgotten) moves_.erase(number);
}

void Loop::end_moves(LeaseId id, const Error& why) {
  std::vector<uint64_t> numbers;
  for (const auto& [number, move] : moves_)
    if (move.lease == id && !settled(move.outcome->state())) numbers.push_back(number);
  for (const uint64_t number : numbers) decide(number, LeaseMoveState::ended, why);
}

void Loop::end_moves_of_connection() {
  std::vector<uint64_t> open;
  for (auto& [number, move] : moves_) {
    move.capability.reset();
    if (move.outcome->state() == LeaseMoveState::open) open.push_back(number);
  }
  for (const uint64_t number : open)
    decide(number, LeaseMoveState::ended, given_up("the connection to the manager broke"));
}

}  // namespace terrace::client
