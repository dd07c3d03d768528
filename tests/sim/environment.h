// SPDX-License-Identifier: Apache-2.0
// What every part of the simulation stands on: virtual time with its queue of events, the seeded randomness,
// the faults and the planted defect of this run, and the trace of what happened.
//
// Place     tests/sim. Everything that happens is an event here; no part reads a real clock or thread.
// Threads   One. The same options give the same run on every machine.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <queue>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/prng.h"
#include "core/base/units.h"

namespace terrace::sim {

// Defects that can be planted into the simulated shell, store or backend, to prove that a checker sees them.
#define TERRACE_SIM_PLANTS(X)                                                                  \
  X(none, "nothing is planted")                                                                \
  X(reply_before_commit, "replies leave before their delta is durable")                        \
  X(early_retry_reply, "a reply whose own delta is empty does not wait for commits before it") \
  X(effects_before_commit, "fences and scrubs run before their delta is durable")              \
  X(ignore_commit_error, "a failed commit is taken for a success")                             \
  X(torn_commit, "a crash may leave half of a batch in the store")                             \
  X(forget_meta, "the meta row (next ids, boot) is stored once and never again")               \
  X(reuse_epochs, "the next epoch is guessed from the leases that are left")                   \
  X(lose_renewals, "a renewal's new TTL is dropped on its way to the store")                   \
  X(lose_releases, "the end of a lease is dropped on its way to the store")                    \
  X(lose_keys, "the idempotency key of a grant is dropped on its way to the store")            \
  X(forget_quarantine, "a quarantine is stored as a fence that is still to be done")           \
  X(skip_fence, "a fence is reported as done but holders keep their mappings")                 \
  X(lying_fence, "a failed fence is reported as done")                                         \
  X(skip_scrub, "a scrub removes the object without erasing it")                               \
  X(lazy_scrub, "a scrub is reported as done and does nothing")                                \
  X(keep_orphans, "objects without a lease are left in place at start")                        \
  X(skip_redo, "fences and scrubs that recovery asks for are not done")                        \
  X(no_tick, "time passes without a Tick")                                                     \
  X(skip_resize_redo, "a shrink that recovery asks for is not done")                           \
  X(lose_transfer, "a transferred lease is stored under its old tenant")                       \
  X(lose_tail, "what a shrink cuts off is not stored")                                         \
  X(lose_quota, "a quota is dropped on its way to the store")                                  \
  X(lose_reservation, "a reservation is dropped on its way to the store")                      \
  X(forget_drain, "a device's state is dropped on its way to the store")                       \
  X(ignore_quota, "the state machine is told of twice the quota")                              \
  X(ignore_reservation, "the state machine is told of a granule instead of the reservation")   \
  X(overtake_queue, "a grant that should queue is let in before those that wait")              \
  X(drop_refusals, "a waiting client is not told that its time is over")                       \
  X(stall_queue, "a grant that is served from the queue is not carved")                        \
  X(early_free_on_advance, "a piece of a scrub is reported before it is erased")               \
  X(move_without_fence, "what a lease moved from is not fenced")                               \
  X(skip_copy, "the manager moves a lease without its bytes")                                  \
  X(ignore_holders, "the manager moves a lease that somebody attached meanwhile")              \
  X(ignore_moves, "nothing is moved for a drain")                                              \
  X(soft_rebind, "a hand-over leaves the old holder its mapping")                              \
  X(keep_lost_device, "a device that vanished is not reported")                                \
  X(lose_owner, "the owner of a part is dropped on its way to the store")                      \
  X(ignore_death, "the daemon does not see that the owner of a part has ended")                \
  X(skip_sync, "with --store: a sync of the disk says that it is done and does nothing")

enum class Plant : uint8_t {
#define TERRACE_SIM_PLANT_ENUM(name, text) name,
  TERRACE_SIM_PLANTS(TERRACE_SIM_PLANT_ENUM)
#undef TERRACE_SIM_PLANT_ENUM
      count
};

std::string_view plant_name(Plant plant);  // "reply-before-commit"
std::string_view plant_text(Plant plant);
std::optional<Plant> plant_by_name(std::string_view name);

// How hard one run is hit. Each seed draws its own mixture, so that rare combinations meet quiet ones.
struct Faults {
  uint64_t crash_interval_ns = 0;   // of daemon crashes at random moments; 0: none
  uint64_t reboot_interval_ns = 0;  // of machine reboots
  uint64_t jump_interval_ns = 0;    // of forward clock jumps (suspend)
  uint32_t crash_point_per_10000 = 0;
  uint32_t carve_failure_percent = 0;
  uint32_t fence_failure_per_mille = 0;
  uint32_t scrub_failure_per_mille = 0;
  uint32_t commit_full_percent = 0;
  uint32_t commit_error_per_mille = 0;
  uint32_t message_loss_percent = 0;
  uint64_t device_loss_interval_ns = 0;  // a device vanishes for a while
  uint32_t device_blank_percent = 0;     // of those, come back without what was on them
  uint64_t full_interval_ns = 0;         // the disk is full for a while
  uint32_t change_failure_percent = 0;   // of resizes, hand-overs and copies
  uint32_t passing_failure_percent = 0;  // of all backend work: to be tried again
  uint64_t commit_ns_max = 5 * ns_per_ms;
  uint64_t effect_ns_max = 200 * ns_per_ms;

  static Faults draw(Prng& prng);
  // What stays once faults have stopped: delays, nothing else.
  Faults calmed() const;
};

struct Options {
  uint64_t seed = 1;
  uint64_t steps = 2000;  // events before the faults stop
  Plant plant = Plant::none;
  bool engine = false;  // the daemon's own engine, not the shell made of events
  bool store = false;   // and its own store, on a simulated disk
  bool trace = false;   // keep the last events
  bool echo = false;    // and print each as it happens
};

class Environment {
 public:
  explicit Environment(const Options& options);

  uint64_t now_ns() const { return now_ns_; }
  // The same without the jumps: how long everybody had to act.
  uint64_t steady_ns() const { return now_ns_ - jumped_ns_; }
  uint64_t step() const { return step_; }
  Prng& prng() { return prng_; }
  const Faults& faults() const { return faults_; }
  void calm() { faults_ = faults_.calmed(); }
  bool planted(Plant plant) const { return options_.plant == plant; }
  bool planted_anything() const { return options_.plant != Plant::none; }
  bool chance_percent(uint32_t percent) { return percent != 0 && prng_.chance(percent, 100); }

  void after(uint64_t delay_ns, std::function<void()> action);
  // Runs the earliest event; false when there is none.
  bool run_one();
  // Time passes at once; events that fell into the gap run now, in their order.
  void jump(uint64_t ns) { now_ns_ += ns, jumped_ns_ += ns; }

  // One line of the trace; nothing unless Options::trace.
  void note(const char* format, ...) __attribute__((format(printf, 2, 3)));
  // A checker's verdict. The first one counts and ends the run.
  void fail(const char* format, ...) __attribute__((format(printf, 2, 3)));
  bool failed() const { return !failure_.empty(); }
  const std::string& failure() const { return failure_; }
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  struct Event {
    uint64_t at_ns;
    uint64_t serial;  // events of one moment run in the order they were made
    std::function<void()> action;
    bool operator>(const Event& other) const {
      return at_ns != other.at_ns ? at_ns > other.at_ns : serial > other.serial;
    }
  };

  void keep(std::string line);

  Options options_;
  Prng prng_;
  Faults faults_;
  uint64_t now_ns_ = 1'000 * ns_per_s;  // a machine that has been up for a while
  uint64_t jumped_ns_ = 0;
  uint64_t step_ = 0;
  uint64_t next_serial_ = 1;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::string failure_;
  std::deque<std::string> lines_;
};

}  // namespace terrace::sim
