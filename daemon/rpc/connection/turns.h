// SPDX-License-Identifier: Apache-2.0
// Whose message the event loop handles next: shares of its time by uid (PeerKey). It also sees to it that the loop
// looks at its descriptors between messages: kj does so only once nothing is left to do, and one peer that always
// has something ready could put that off for ever.
//
// A pass is what is handled between two looks. A message that comes while nobody waits, no other one is being handled and
// time is left in the pass is handled at once: a daemon that is not flooded pays one look more a pass.
//
// Place     Each connection asks before it is read (unix_stream.h) or hands on a message (back_pressure.cc), is set up,
//           or is taken apart (server.cc).
// Threads   The event loop's thread only.
// Design    docs/design/0027-shares.md
#pragma once

#include <kj/async.h>
#include <kj/timer.h>

#include <cstdint>

#include "core/base/units.h"
#include "daemon/event_loop/shares.h"

namespace terrace::daemon {

class Turns final : private kj::TaskSet::ErrorHandler {
 public:
  // How long messages are handled before the loop looks at its descriptors. Longer: others notice; shorter: looks
  // (a microsecond and more each) become what the loop does.
  static constexpr uint64_t pass_ns = 200'000;
  // kj reports 16 descriptors a look. Where as many may be ready, messages are handled only after another look, so that
  // who is chosen has not still to be heard; for this long at most.
  static constexpr uint32_t arrivals_of_full_look = 12;
  static constexpr uint64_t looks_in_turn_ns_max = 2'000'000;

  using NowNs = uint64_t (*)();
  explicit Turns(kj::Timer& timer, NowNs now_ns = steady_now_ns)
      : timer_(timer), now_ns_(now_ns), tasks_(*this) {}

  // Null: it is the key's turn. Otherwise resolves when it is.
  kj::Maybe<kj::Promise<void>> take(ShareKey key);
  // The same for what is no message: callers that wait in any case.
  kj::Promise<void> turn(ShareKey key);
  // Resolves once the loop has looked at its descriptors again.
  kj::Promise<void> look() { return timer_.afterDelay(0 * kj::NANOSECONDS); }

  static uint64_t steady_now_ns();

 private:
  using Waiting = kj::Own<kj::PromiseFulfiller<void>>;

  bool pass_is_over() const { return over_ || now_ns_() - pass_began_ns_ >= pass_ns; }
  bool at_once(ShareKey key);
  kj::Promise<void> wait(ShareKey key);
  void begin_pass();
  void begin(ShareKey key);  // counts time from here as the key's
  void end();
  kj::Promise<void> passes();
  kj::Promise<void> handle_waiting();
  void taskFailed(kj::Exception&& exception) override;

  kj::Timer& timer_;
  const NowNs now_ns_;
  Shares<Waiting> shares_;
  bool passing_ = false;  // passes() runs
  bool over_ = false;     // the pass: nothing more is handled before a look
  uint64_t pass_began_ns_ = 0;
  uint64_t handled_ns_ = 0;  // when messages were handled last
  uint32_t arrivals_ = 0;    // that wait, since the last look
  bool counting_ = false;
  ShareKey counted_key_ = 0;
  uint64_t counted_from_ns_ = 0;
  kj::TaskSet tasks_;
};

}  // namespace terrace::daemon
