// SPDX-License-Identifier: Apache-2.0
// The grants that wait for room in one pool: in which order they are served, whose turn it is, and when room is
// kept for that one.
//
// Order     The tenant that was served longest ago is next, with its oldest request; tenants never served come
//           first, in the order of arrival. However a turn ends it counts as a service, so that a tenant whose
//           requests never fit does not block the others one deadline after the other.
// Turn      It is one request's until that is served, cancelled or past its deadline. It begins open: whoever
//           fits is let in before it. Then room is kept for it for as long as it was open. Then it is open
//           again; each such pair is twice as long as the last one, up to limits::queue_hold_ns_max a phase. So
//             - a turn has been open at any time for at least as long as it has held others up, and it holds
//               them up for no longer than queue_hold_ns_max at once
//             - small requests do not starve it: where enough leases end in any period of D, up to
//               queue_hold_ns_max, it is served within 7 D of its turn's begin (a hold of at least D begins
//               before 6 D), or within two phases where D is shorter than the first one
//
// Place     daemon/state keeps one for each pool that somebody waits for. Pure: time comes with each call.
// Threads   One.
// Invariant W1  the sets of tenants, requests and sizes name the same requests
//           W2  the turn is a request's that waits; room is kept for nobody else
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/model/rows.h"

namespace terrace::daemon {

class WaitingQueue {
 public:
  // Ids grow with the order of arrival.
  void add(LeaseId id, const std::string& tenant, uint64_t bytes, uint64_t now_ns);
  // `got_room`: it was served. Its turn, if it was its turn, ends.
  void remove(LeaseId id, const std::string& tenant, bool got_room);

  bool empty() const { return sizes_.empty(); }
  size_t size() const { return sizes_.size(); }
  bool contains(LeaseId id, const std::string& tenant) const;
  uint64_t since_ns(LeaseId id, const std::string& tenant) const;  // 0: it does not wait
  uint64_t oldest_since_ns() const;  // of all requests; 0: nobody waits. O(tenants)
  uint64_t smallest_bytes() const { return sizes_.empty() ? 0 : *sizes_.begin(); }

  // All of them, as they would be served if room came for one after the other.
  std::vector<LeaseId> in_order() const;
  // Tenants in the order of their next services.
  std::vector<std::string> tenants() const;
  // A tenant's requests of at most so many bytes, oldest first.
  std::vector<LeaseId> requests(const std::string& tenant, uint64_t bytes_max) const;
  LeaseId next() const;  // who would have the next turn; invalid when nobody waits

  LeaseId turn() const { return turn_; }  // invalid: begin_turn is due
  // `left_ns`: until its deadline.
  void begin_turn(LeaseId id, uint64_t now_ns, uint64_t left_ns);
  // Whether room is kept for the turn now: nobody is let in before it.
  bool held() const { return held_; }
  uint64_t phase_ends_ns() const { return phase_ends_ns_; }
  // The phase has ended. `may_fit`: room may come for the turn; none is kept for what cannot.
  void next_phase(uint64_t now_ns, bool may_fit);
  // The turn may wait until so long from now.
  void prolong_turn(uint64_t left_ns);

  // W1, W2 again; one sentence for each breach.
  std::vector<std::string> problems() const;

 private:
  struct Request {
    uint64_t bytes;
    uint64_t since_ns;
  };
  struct Tenant {
    std::map<LeaseId, Request> requests;  // oldest first; never empty
    std::multiset<uint64_t> sizes;
  };
  using Place = std::pair<uint64_t, LeaseId>;  // when the tenant was served last, and its oldest request

  uint64_t last_served(const std::string& tenant) const;
  void note_service(const std::string& tenant);
  static uint64_t first_phase_ns(uint64_t left_ns);

  std::map<std::string, Tenant> tenants_;
  std::map<Place, std::string> order_;  // of the tenants
  std::multiset<uint64_t> sizes_;
  std::map<std::string, uint64_t> last_served_;  // tenant -> when, in services of this pool
  uint64_t services_ = 0;
  LeaseId turn_;
  bool held_ = false;
  uint64_t phase_ns_ = 0;  // of the present phase
  uint64_t phase_ends_ns_ = 0;
};

}  // namespace terrace::daemon
