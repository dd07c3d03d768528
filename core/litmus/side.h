// SPDX-License-Identifier: Apache-2.0
// One of the two sides of a litmus run: meets the other side, plays a part of each shape, and judges the
// results of both. Both sides compute the same report from the bytes of the region.
//
//   join      each writes its nonce, and waits until the other side has repeated it: bytes of an earlier run
//             cannot contain a nonce that was drawn for this run
//   a batch   flush x and y  |  one side writes the old values  |  both take the lines into their caches  |
//             64 rounds of one shape, each on lines of its own  |  a look at the end, what was seen is written
//             down  |  both judge.     (| a meeting: publish my phase, refresh the other's until it is as far)
//   changes   which side plays part one, each batch
//
// Place     core/litmus; run_pair (pair.h) has both sides in this process, `terrace device litmus --path` one.
// Threads   One side each.
#pragma once

#include <algorithm>

#include "core/base/check.h"
#include "core/base/prng.h"
#include "core/base/result.h"
#include "core/litmus/memory.h"
#include "core/litmus/region.h"
#include "core/litmus/report.h"

namespace terrace::litmus {

enum class Role : uint8_t { first = 0, second = 1 };

struct SideOptions {
  Role role = Role::first;
  uint64_t rounds = rounds_default;  // of each shape; rounded up to batches. The first side's hold
  uint64_t nonce = 0;                // random, not 0
};

// How an error names the two sides: what the user calls them.
constexpr const char* role_name(Role role) {
  return role == Role::first ? "first" : "second";
}

template <LitmusMemory Memory>
class Side {
 public:
  // `region` is what this side sees of the memory that both share. It outlives the side.
  Side(Memory& memory, Region& region, const SideOptions& options)
      : memory_(memory), region_(region), options_(options), prng_(options.nonce) {
    TERRACE_CHECK(options.nonce != 0, "a side of a litmus run has a nonce");
  }

  // Waits until both sides know of each other.
  // Errors    unavailable  nobody came in time
  //           busy         another process plays this side, on this memory
  //           corrupt      the other side wants a number of rounds that nobody may ask for
  Status join();

  // All shapes. Call once, after join().
  // Errors    unavailable  the other side is no longer heard of
  //           busy         as join(); or the other side was started again
  //           corrupt      what the other side wrote down does not arrive
  Result<Report> run();

  // What run() has come to, also when it ended with an error.
  Report so_far() const {
    Report report = report_;
    conclude(report);
    return report;
  }

 private:
  struct Shared {  // what is kept of the other side
    uint64_t nonce = 0;
    uint64_t batches = 0;
  };

  SideLine& mine() { return region_.sides[static_cast<size_t>(options_.role)]; }
  SideLine& other() { return region_.sides[1 - static_cast<size_t>(options_.role)]; }
  const char* other_name() const {
    return role_name(options_.role == Role::first ? Role::second : Role::first);
  }

  template <typename Thing>
  void publish(const Thing& thing) {
    memory_.publish(words_of(thing), sizeof thing);
  }
  template <typename Thing>
  void refresh(const Thing& thing) {
    memory_.refresh(words_of(thing), sizeof thing);
  }
  template <typename Thing>
  static const uint64_t* words_of(const Thing& thing) {
    return reinterpret_cast<const uint64_t*>(&thing);
  }

  Error lost(const char* where, const std::string& when) const;
  Status check_mine(const char* where);
  Status meet();
  Status batch(Shape shape, uint64_t number, ShapeResult& result);
  void write_old_values();
  void take_into_cache();
  void play(Shape shape, bool one, uint64_t round);
  void look(Shape shape, uint64_t round);
  Status judge_batch(Shape shape, bool one, uint64_t number, ShapeResult& result);

  void message_passing(bool one, Line& x, Line& y, Seen& seen);
  void one_location(bool one, Line& x, Seen& seen);
  void torn_record(bool one, Line& x, Seen& seen);
  void compare_and_swap(Line& x, Seen& seen);

  Memory& memory_;
  Region& region_;
  const SideOptions options_;
  Prng prng_;
  Shared shared_;
  uint64_t phase_ = 0;
  uint64_t salt_ = 0;  // the same for both sides: tags of this run
  uint64_t tag_ = 0;   // of the batch's first round
  Seen seen_[rounds_of_batch];
  Report report_;
};

template <LitmusMemory Memory>
Error Side<Memory>::lost(const char* where, const std::string& when) const {
  return Error{.code = ErrorCode::unavailable,
               .where = where,
               .detail = std::string("the ") + other_name() + " side " + when};
}

// Nobody but this side writes its line.
template <LitmusMemory Memory>
Status Side<Memory>::check_mine(const char* where) {
  refresh(mine());
  if (memory_.load(&mine().nonce) == options_.nonce) return {};
  return Error{.code = ErrorCode::busy,
               .where = where,
               .detail = std::string("something else writes the ") + role_name(options_.role) +
                         " side's line: another process runs that side on this memory, or the memory does not "
                         "keep what is written to it; one of each side, on a range that nobody uses"};
}

template <LitmusMemory Memory>
Status Side<Memory>::join() {
  constexpr const char* where = "litmus join";
  memory_.store(&mine().magic, magic);
  memory_.store(&mine().echo, 0);
  memory_.store(&mine().phase, 0);
  memory_.store(&mine().batches, (options_.rounds + rounds_of_batch - 1) / rounds_of_batch);
  memory_.store(&mine().nonce, options_.nonce);
  publish(mine());
  for (uint64_t turn = 0;; ++turn) {
    refresh(other());
    const bool speaks = memory_.load(&other().magic) == magic;
    const uint64_t nonce = speaks ? memory_.load(&other().nonce) : 0;
    if (nonce != 0 && nonce != shared_.nonce) {
      shared_.nonce = nonce;
      memory_.store(&mine().echo, nonce);
      publish(mine());
    }
    if (nonce != 0 && memory_.load(&other().echo) == options_.nonce) break;
    if (turn % 64 == 63) TERRACE_RETURN_IF_ERROR(check_mine(where));
    if (!memory_.wait(turn)) {
      TERRACE_RETURN_IF_ERROR(check_mine(where));
      return lost(where,
                  "was not heard of in time: it was not started, or it does not see the same memory at this "
                  "offset");
    }
  }
  shared_.batches = memory_.load(options_.role == Role::first ? &mine().batches : &other().batches);
  if (shared_.batches == 0 || shared_.batches > rounds_max / rounds_of_batch) {
    return Error{.code = ErrorCode::corrupt,
                 .where = where,
                 .detail = std::string("the ") + other_name() + " side asks for " +
                           std::to_string(shared_.batches) +
                           " batches of rounds; it is of another version, or "
                           "something else writes to this memory"};
  }
  salt_ = ((options_.nonce ^ shared_.nonce) & 0x7fff'ffff) << 32;
  return {};
}

template <LitmusMemory Memory>
Status Side<Memory>::meet() {
  constexpr const char* where = "litmus";
  memory_.store(&mine().phase, ++phase_);
  publish(mine());
  for (uint64_t turn = 0;; ++turn) {
    refresh(other());
    if (memory_.load(&other().nonce) != shared_.nonce) {
      return Error{.code = ErrorCode::busy,
                   .where = where,
                   .detail = std::string("the ") + other_name() +
                             " side was started again meanwhile; start both sides again"};
    }
    if (memory_.load(&other().phase) >= phase_) return {};
    if (!memory_.wait(turn)) {
      TERRACE_RETURN_IF_ERROR(check_mine(where));
      return lost(where, "is not heard of any more: it was ended, or its machine was; start both sides again");
    }
  }
}

template <LitmusMemory Memory>
void Side<Memory>::write_old_values() {
  for (uint64_t round = 0; round < rounds_of_batch; ++round) {
    const uint64_t old = tag_ + round * values_of_tag;
    for (uint64_t& word : region_.x[round].words) memory_.store(&word, old);
    for (uint64_t& word : region_.y[round].words) memory_.store(&word, old);
  }
  publish(region_.x);
  publish(region_.y);
}

template <LitmusMemory Memory>
void Side<Memory>::take_into_cache() {
  refresh(region_.x);
  refresh(region_.y);
  for (uint64_t round = 0; round < rounds_of_batch; ++round) {
    (void)memory_.load(&region_.x[round].words[0]);
    (void)memory_.load(&region_.y[round].words[0]);
  }
}

template <LitmusMemory Memory>
Status Side<Memory>::batch(Shape shape, uint64_t number, ShapeResult& result) {
  const Role writer = number % 2 == 0 ? Role::first : Role::second;
  const bool one = writer == options_.role;
  tag_ = salt_ | ((static_cast<uint64_t>(shape) * shared_.batches + number) * rounds_of_batch * values_of_tag);
  refresh(region_.x);  // nothing of the batch before stays dirty here
  refresh(region_.y);
  TERRACE_RETURN_IF_ERROR(meet());
  if (one) write_old_values();
  TERRACE_RETURN_IF_ERROR(meet());
  take_into_cache();
  TERRACE_RETURN_IF_ERROR(meet());
  for (uint64_t round = 0; round < rounds_of_batch; ++round) play(shape, one, round);
  TERRACE_RETURN_IF_ERROR(meet());
  for (uint64_t round = 0; round < rounds_of_batch; ++round) look(shape, round);
  auto& out = region_.seen[static_cast<size_t>(options_.role)];
  for (uint64_t round = 0; round < rounds_of_batch; ++round) {
    const auto* words = words_of(seen_[round]);
    auto* to = reinterpret_cast<uint64_t*>(&out[round]);
    for (size_t at = 0; at < 8; ++at) memory_.store(to + at, words[at]);
  }
  publish(out);
  TERRACE_RETURN_IF_ERROR(meet());
  return judge_batch(shape, one, number, result);
}

template <LitmusMemory Memory>
Status Side<Memory>::judge_batch(Shape shape, bool one, uint64_t number, ShapeResult& result) {
  auto& in = region_.seen[1 - static_cast<size_t>(options_.role)];
  refresh(in);
  for (uint64_t round = 0; round < rounds_of_batch; ++round) {
    Seen theirs;
    auto* words = reinterpret_cast<uint64_t*>(&theirs);
    const auto* from = words_of(in[round]);
    for (size_t at = 0; at < 8; ++at) words[at] = memory_.load(from + at);
    const Seen& own = seen_[round];
    if (theirs.tag != own.tag) {
      return Error{.code = ErrorCode::corrupt,
                   .where = "litmus",
                   .detail = std::string("what the ") + other_name() +
                             " side wrote down and flushed does not arrive here: this is not the same memory, "
                             "something else writes to it, or its lines do not reach the memory at all"};
    }
    count(result, number * rounds_of_batch + round + 1,
          one ? judge(shape, own.tag, own, theirs) : judge(shape, own.tag, theirs, own));
  }
  return {};
}

// Both sides walk over the same rounds at about the same time; who is ahead changes by chance.
template <LitmusMemory Memory>
void Side<Memory>::play(Shape shape, bool one, uint64_t round) {
  Line& x = region_.x[round];
  Line& y = region_.y[round];
  Seen& seen = seen_[round];
  seen = Seen{};
  seen.tag = tag_ + round * values_of_tag;
  const uint64_t next = seen.tag + 1;
  for (uint64_t left = prng_.below(16); left > 0; --left) memory_.pause();
  switch (shape) {
    case Shape::message_passing: message_passing(one, x, y, seen); break;
    case Shape::store_buffering:
      memory_.store(one ? &x.words[0] : &y.words[0], next);
      memory_.full_barrier();
      seen.first = memory_.load(one ? &y.words[0] : &x.words[0]);
      break;
    case Shape::load_buffering:
      seen.first = memory_.load(one ? &x.words[0] : &y.words[0]);
      memory_.store(one ? &y.words[0] : &x.words[0], next);
      break;
    case Shape::one_location: one_location(one, x, seen); break;
    case Shape::write_order:
      memory_.store(one ? &x.words[0] : &y.words[0], seen.tag + 1);
      memory_.store(one ? &y.words[0] : &x.words[0], seen.tag + 2);
      break;
    case Shape::torn_record: torn_record(one, x, seen); break;
    case Shape::compare_and_swap: compare_and_swap(x, seen); break;
  }
}

template <LitmusMemory Memory>
void Side<Memory>::message_passing(bool one, Line& x, Line& y, Seen& seen) {
  if (one) {
    memory_.store(&x.words[0], seen.tag + 1);
    memory_.store(&y.words[0], seen.tag + 1);
    return;
  }
  for (int looks = 0; looks < 8; ++looks) {
    seen.first = memory_.load(&y.words[0]);
    seen.second = memory_.load(&x.words[0]);
    if (seen.first != seen.tag) return;
    seen.was_old = 1;
  }
}

template <LitmusMemory Memory>
void Side<Memory>::one_location(bool one, Line& x, Seen& seen) {
  if (one) {
    for (uint64_t value = 1; value <= 4; ++value) memory_.store(&x.words[0], seen.tag + value);
    return;
  }
  seen.first = memory_.load(&x.words[0]);
  for (int looks = 0; looks < 8; ++looks) {
    seen.second = memory_.load(&x.words[0]);
    seen.broken = seen.second < seen.first || seen.second > seen.tag + 4 ? 1 : 0;
    if (seen.broken != 0) return;
    if (seen.second != seen.first) seen.was_old = 1;
    seen.first = seen.second;
  }
}

template <LitmusMemory Memory>
void Side<Memory>::torn_record(bool one, Line& x, Seen& seen) {
  if (one) {
    for (uint64_t& word : x.words) memory_.store(&word, seen.tag + 1);
    return;
  }
  for (int looks = 0; looks < 4; ++looks) {
    seen.first = memory_.load(&x.words[7]);
    for (size_t at = 7; at > 0; --at) {
      seen.second = memory_.load(&x.words[at - 1]);
      seen.broken = seen.second < seen.first || seen.second > seen.tag + 1 ? 1 : 0;
      if (seen.broken != 0) return;
      if (seen.second != seen.first) seen.was_old = 1;
      seen.first = seen.second;
    }
    if (seen.was_old != 0) return;
  }
}

template <LitmusMemory Memory>
void Side<Memory>::compare_and_swap(Line& x, Seen& seen) {
  constexpr int tries_max = 1 << 16;
  int tries = 0;
  for (uint64_t done = 0; done < additions && tries < tries_max; ++tries) {
    const uint64_t value = memory_.load(&x.words[0]);
    if (memory_.compare_exchange(&x.words[0], value, value + 1)) {
      ++done;
    } else {
      seen.was_old = 1;
    }
  }
  seen.broken = tries == tries_max ? 1 : 0;
}

// Both sides are done, and know it; what this one has in its cache must be what it is.
template <LitmusMemory Memory>
void Side<Memory>::look(Shape shape, uint64_t round) {
  Seen& seen = seen_[round];
  seen.last_x = memory_.load(&region_.x[round].words[0]);
  seen.last_y = memory_.load(&region_.y[round].words[0]);
  if (shape != Shape::torn_record) return;
  for (const uint64_t& word : region_.x[round].words) seen.last_x = std::min(seen.last_x, memory_.load(&word));
}

template <LitmusMemory Memory>
Result<Report> Side<Memory>::run() {
  report_.shapes.reserve(all_shapes.size());
  for (const Shape shape : all_shapes) {
    ShapeResult& result = report_.shapes.emplace_back();
    result.name = shape_name(shape);
    for (uint64_t number = 0; number < shared_.batches; ++number)
      TERRACE_RETURN_IF_ERROR(batch(shape, number, result));
  }
  return so_far();
}

}  // namespace terrace::litmus
