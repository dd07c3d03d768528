// SPDX-License-Identifier: Apache-2.0
// The time that a host keeps its memory objects without a message from the manager, and the time after which
// the manager may rely on their fence: the one timing rule between the two. Pure arithmetic; both sides and its
// test use this header.
//
//   agent     counts `length_ns` from when it SENT the last heartbeat that was answered, on its own clock, and
//             begins to fence its margin before the end: so that it has finished by then
//   manager   counts `length_ns` from when it RECEIVED a heartbeat, on its own clock, and manager_margin_ns()
//   more
//
// The agent's margin is a fifth of the length, or as much as fencing what is leased there takes (agent_margin_ns_for);
// it follows what is leased. What would take more than half of the length is not leased.
//
// Rule      T1  agent's end <= manager's end, for any delay of messages, as long as neither clock
//               (CLOCK_BOOTTIME) runs more than 9% faster or slower than the other: sent <= received, and 1.0 *
//               1.09 < 1.1.
//           T2  an end never moves back, and one that has passed is never extended: register again instead. Nor
//               is a margin made larger than what is left.
// Attacked  tests/unit/memory/host_lease_test.cc, with made-up clocks, delays and margins.
#pragma once

#include <algorithm>
#include <cstdint>

namespace terrace::daemon {

struct HostLeaseTerms {
  uint64_t length_ns = 0;

  constexpr uint64_t agent_margin_ns() const { return length_ns / 5; }
  constexpr uint64_t agent_margin_ns_max() const { return length_ns / 2; }
  // Of an agent whose fence takes `fence_ns`. Twice: an agent that has not come to it in the first half is stopped
  // by its guard, which then fences once more.
  constexpr uint64_t agent_margin_ns_for(uint64_t fence_ns) const {
    return std::max(agent_margin_ns(), 2 * std::min(fence_ns, length_ns));
  }
  constexpr uint64_t manager_margin_ns() const { return length_ns / 10; }
  // After it began to fence: an agent that has not finished by then is stopped by its guard.
  static constexpr uint64_t fence_ns_max(uint64_t margin_ns) { return margin_ns / 2; }

  // From an answer to the next heartbeat, and how long its answer may take: then the connection counts as broken.
  // A third and a quarter of the length with the smallest margin, and the same share of what a larger one leaves.
  constexpr uint64_t heartbeat_ns(uint64_t margin_ns) const { return (length_ns - margin_ns) * 5 / 12; }
  constexpr uint64_t answer_ns_max(uint64_t margin_ns) const { return (length_ns - margin_ns) * 5 / 16; }
  // An agent that is silent for longer has no connection any more.
  constexpr uint64_t silence_ns_max() const {
    return heartbeat_ns(agent_margin_ns()) + answer_ns_max(agent_margin_ns());
  }
};

// The agent's side.
class HostLeasePromise {
 public:
  explicit HostLeasePromise(HostLeaseTerms terms) : terms_(terms), margin_ns_(terms.agent_margin_ns()) {}

  // A heartbeat that was sent at `sent_ns` was answered at `now_ns`. false: too late, the promise has run out.
  bool answered(uint64_t sent_ns, uint64_t now_ns) {
    if (began_ && now_ns >= fence_at_ns()) return false;
    const uint64_t end_ns = sent_ns + terms_.length_ns;
    if (now_ns >= end_ns - margin_ns_) return false;
    end_ns_ = std::max(end_ns_, end_ns);
    began_ = true;
    return true;
  }
  // From `now_ns` on. false: so much is not left, or it has run out; nothing changed. At most
  // agent_margin_ns_max().
  bool set_margin(uint64_t margin_ns, uint64_t now_ns) {
    if (began_ && now_ns >= end_ns_ - std::max(margin_ns, margin_ns_)) return false;
    margin_ns_ = margin_ns;
    return true;
  }
  uint64_t margin_ns() const { return margin_ns_; }
  // When to begin to fence; 0: nothing was promised yet.
  uint64_t fence_at_ns() const { return began_ ? end_ns_ - margin_ns_ : 0; }
  bool holds(uint64_t now_ns) const { return began_ && now_ns < fence_at_ns(); }

 private:
  HostLeaseTerms terms_;
  uint64_t margin_ns_;
  uint64_t end_ns_ = 0;
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
