// SPDX-License-Identifier: Apache-2.0
// The member templates of Loop, for its own source files.
#pragma once

#include "core/base/units.h"
#include "libclient/session/loop.h"
#include "libclient/session/wire.h"

namespace terrace::client {

// Whether the manager's answer means that the lease is not there any more.
inline bool says_gone(const Error& error) {
  return error.code == ErrorCode::not_found || error.code == ErrorCode::lease_expired ||
         error.code == ErrorCode::lease_revoked;
}

// Sends `call` on the present connection, and again on the next one when that breaks (S3). Unbounded.
template <typename T>
kj::Promise<Result<T>> Loop::repeating(const char* where, Call<T> call) {
  return ready().then([this, where, call = std::move(call)]() mutable -> kj::Promise<Result<T>> {
    const uint64_t generation = generation_;
    auto attempt = kj::evalNow([&call] { return call(); });
    return attempt.then([](Result<T>&& result) -> kj::Promise<Result<T>> { return kj::mv(result); },
                        [this, where, generation,
                         call = std::move(call)](kj::Exception&& exception) mutable -> kj::Promise<Result<T>> {
                          if (exception.getType() != kj::Exception::Type::DISCONNECTED)
                            return Result<T>(error_from_kj(exception, where));
                          last_error_ = error_from_kj(exception, where);
                          mark_broken(generation);
                          return repeating<T>(where, std::move(call));
                        });
  });
}

// `promise`, or `unavailable` when it takes longer; then it is dropped. Never rejects.
template <typename T>
kj::Promise<Result<T>> Loop::bounded(const char* where, uint64_t timeout_ns, kj::Promise<Result<T>> promise) {
  auto too_late = timer_.afterDelay(timeout_ns * kj::NANOSECONDS).then([this, where]() -> Result<T> {
    return timeout_error(where);
  });
  return promise.exclusiveJoin(kj::mv(too_late)).catch_([where](kj::Exception&& exception) -> Result<T> {
    return error_from_kj(exception, where);
  });
}

template <typename T>
void Loop::perform(const char* where, std::shared_ptr<Answer<T>> answer, Call<T> call) {
  auto whole = bounded<T>(where, options_.call_timeout_ns, repeating<T>(where, std::move(call)));
  tasks_.add(whole.then([answer](Result<T> result) { answer->deliver(std::move(result)); }));
}

// As perform, for a call on a lease's capability. What an error tells about the lease is noted.
template <typename T>
void Loop::perform_on_lease(const char* where, uint64_t handle, std::shared_ptr<Answer<T>> answer,
                            std::function<kj::Promise<Result<T>>(rpc::Lease::Client)> call) {
  auto sent = repeating<T>(where, [this, where, handle, call = std::move(call)] {
    return capability_of(handle, where)
        .then([call](Result<rpc::Lease::Client> lease) -> kj::Promise<Result<T>> {
          if (!lease.ok()) return Result<T>(std::move(lease).error());
          return call(std::move(lease).value());
        });
  });
  auto whole = bounded<T>(where, options_.call_timeout_ns, kj::mv(sent));
  tasks_.add(whole.then([this, handle, answer](Result<T> result) {
    if (const Held* held = held_.find(handle); !result.ok() && held != nullptr)
      note_error(LeaseId{held->facts.id}, result.error());
    answer->deliver(std::move(result));
  }));
}

}  // namespace terrace::client
