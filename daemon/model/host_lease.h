// The time that a host keeps its memory objects without a message from the manager, and the time after which
// the manager may rely on their fence: the one timing rule between the two. Pure arithmetic; both sides and its
// test use this header.
//
//   agent     counts `length_ns` from when it SENT the last heartbeat that was answered, on its own clock, and
//             begins to fence agent_margin_ns() before the end: so that it has finished by then
//   manager   counts `length_ns` from when it RECEIVED a heartbeat, on its own clock, and manager_margin_ns()
//   more
//
// Rule      T1  agent's end <= manager's end, for any delay of messages, as long as neither clock
//               (CLOCK_BOOTTIME) runs more than 9% faster or slower than the other: sent <= received, and 1.0 *
//               1.09 < 1.1.
//           T2  an end never moves back, and one that has passed is never extended: register again instead.
// Attacked  tests/unit/memory/host_lease_test.cc, with made-up clocks and delays.
#pragma once

#include <algorithm>
#include <cstdint>

namespace terrace::daemon {

struct HostLeaseTerms {
  uint64_t length_ns = 0;

  constexpr uint64_t agent_margin_ns() const { return length_ns / 5; }
  constexpr uint64_t manager_margin_ns() const { return length_ns / 10; }
  // After it began to fence: an agent that has not finished by then is stopped by its guard.
  constexpr uint64_t fence_ns_max() const { return length_ns / 10; }
  constexpr uint64_t heartbeat_ns() const { return length_ns / 3; }   // from an answer to the next heartbeat
  constexpr uint64_t answer_ns_max() const { return length_ns / 4; }  // then the connection counts as broken
};

// The agent's side.
class HostLeasePromise {
 public:
  explicit HostLeasePromise(HostLeaseTerms terms) : terms_(terms) {}

  // A heartbeat that was sent at `sent_ns` was answered at `now_ns`. false: too late, the promise has run out.
  bool answered(uint64_t sent_ns, uint64_t now_ns) {
    if (began_ && now_ns >= fence_at_ns_) return false;
    const uint64_t at_ns = sent_ns + terms_.length_ns - terms_.agent_margin_ns();
    if (now_ns >= at_ns) return false;
    fence_at_ns_ = std::max(fence_at_ns_, at_ns);
    began_ = true;
    return true;
  }
  // When to begin to fence; 0: nothing was promised yet.
  uint64_t fence_at_ns() const { return fence_at_ns_; }
  bool holds(uint64_t now_ns) const { return began_ && now_ns < fence_at_ns_; }

 private:
  HostLeaseTerms terms_;
  uint64_t fence_at_ns_ = 0;
  bool began_ = false;
};

// The manager's side.
class HostLeaseCount {
 public:
  explicit HostLeaseCount(HostLeaseTerms terms) : terms_(terms) {}

  // Of an agent that was not heard of yet: it may have been promised a moment before `now_ns`.
  void begin(uint64_t now_ns) {
    end_ns_ = now_ns + terms_.length_ns + terms_.manager_margin_ns();
    lapsed_ = false;
  }
  // The agent may not have got the new terms: what it was promised before counts until it is heard again.
  void not_before(uint64_t earlier_end_ns) { earlier_end_ns_ = earlier_end_ns; }
  // A heartbeat was received. false: it came too late, and must not be answered with a promise.
  bool heard(uint64_t now_ns) {
    if (lapsed(now_ns)) return false;
    earlier_end_ns_ = 0;
    end_ns_ = std::max(end_ns_, now_ns + terms_.length_ns + terms_.manager_margin_ns());
    return true;
  }
  // Whether the agent has fenced all it had. Once true it stays so until begin().
  bool lapsed(uint64_t now_ns) {
    if (now_ns >= end_ns()) lapsed_ = true;
    return lapsed_;
  }
  uint64_t end_ns() const { return std::max(end_ns_, earlier_end_ns_); }

 private:
  HostLeaseTerms terms_;
  uint64_t end_ns_ = 0;
  uint64_t earlier_end_ns_ = 0;
  bool lapsed_ = false;
};

}  // namespace terrace::daemon
