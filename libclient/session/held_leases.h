// SPDX-License-Identifier: Apache-2.0
// The leases that this process holds, kept by the Session's thread: by handle, by lease, and by the time of the
// next renewal. Each look-up costs the logarithm of their number, so that a hundred thousand leases
// make a grant no slower.
//
// Place     libclient/session; Loop owns one.
// Threads   The Session's.
// Invariants
//   S6  due_ names exactly the handles whose lease has a TTL and is not being given up.
#pragma once

#include <kj/time.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/schema/terrace.capnp.h"
#include "libclient/session/lease_handle.h"

namespace terrace::client {

struct Held {
  std::weak_ptr<LeaseHandle> handle;
  LeaseFacts facts;                              // ttl_ns 0: persistent, never renewed
  std::optional<rpc::Lease::Client> capability;  // of the present connection
  bool ends_with_holders = false;                // as the grant asked: said again when it is attached again
  bool stale = false;      // another handle changed the lease: take its new memory when attaching again
  bool giving_up = false;  // released or transferred by us: the fence that follows is no news

 private:
  friend class HeldLeases;
  std::optional<kj::TimePoint> renew_at;
};

class HeldLeases {
 public:
  using Due = std::set<std::pair<kj::TimePoint, uint64_t>>;  // time, handle

  Held& add(uint64_t handle, Held held);
  void erase(uint64_t handle);
  Held* find(uint64_t handle);  // nullptr when it is held no more
  std::vector<uint64_t> of(LeaseId id) const;
  std::vector<uint64_t> all() const;

  const Due& due() const { return due_; }
  void renew_at(uint64_t handle, kj::TimePoint when);  // no effect on a persistent lease, or one given up
  void renew_after_third(uint64_t handle, kj::TimePoint now);
  void give_up(LeaseId id, bool giving_up, kj::TimePoint now);

 private:
  void forget_due(uint64_t handle, Held& held);

  std::map<uint64_t, Held> by_handle_;
  std::set<std::pair<uint64_t, uint64_t>> by_lease_;  // lease, handle
  Due due_;
};

}  // namespace terrace::client
