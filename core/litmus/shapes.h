// SPDX-License-Identifier: Apache-2.0
// The litmus shapes: small programs of two parts whose outcomes show whether caches are coherent, and the
// judgement of one round. Values are counted from the round's `tag`: tag + 0 is the old value. So a value of an
// earlier round, or one that no part wrote, is recognised.
//
//   shape                 part one          part two            cannot be seen on coherent memory
//   message_passing       x:=1; y:=1        b=y; a=x            b new, a old
//   store_buffering       x:=1; |; a=y      y:=1; |; b=x        a old, b old           (| full barrier)
//   load_buffering        a=x; y:=1         b=y; x:=1           a new, b new
//   one_location          x:=1,2,3,4        reads x             a value after a later one
//   write_order (2+2W)    x:=1; y:=2        y:=1; x:=2          x=1 and y=1 in the end
//   torn_record           writes a line     reads it from       a new word, then an old one
//                         front to back     back to front
//   compare_and_swap      adds 1, 16 times  the same            less than 32 in the end
//
// After each round, when both sides know that both are done, each reads x and y once more, without refresh().
// Coherent caches then show the last values to both sides; an old line is forbidden in
// every shape.
//
// Place     core/litmus, pure. side.h plays the parts.
// Threads   Plain values.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace terrace::litmus {

enum class Shape : uint8_t {
  message_passing,
  store_buffering,
  load_buffering,
  one_location,
  write_order,
  torn_record,
  compare_and_swap,
};
inline constexpr std::array all_shapes = {Shape::message_passing, Shape::store_buffering, Shape::load_buffering,
                                          Shape::one_location,    Shape::write_order,     Shape::torn_record,
                                          Shape::compare_and_swap};

const char* shape_name(Shape shape);  // "message_passing"

inline constexpr uint64_t additions = 16;       // of each part of compare_and_swap
inline constexpr uint64_t values_of_tag = 256;  // tag + 255 is the last value of a round

// What one part saw in one round, as it wrote it down: one cache line. What the other side wrote is untrusted.
struct Seen {
  uint64_t first = 0;  // while it ran; what each means is the shape's matter (side.h writes, judge() reads)
  uint64_t second = 0;
  uint64_t was_old = 0;  // it saw old values before it saw new ones, or lost a race: both were at it
  uint64_t broken = 0;   // values went back (one_location, torn_record), or it gave up (compare_and_swap)
  uint64_t last_x = 0;   // at the closing look; torn_record: the least word of the line
  uint64_t last_y = 0;
  uint64_t unused = 0;
  uint64_t tag = 0;  // of the round
};
static_assert(sizeof(Seen) == 64);

struct Judgement {
  bool forbidden = false;
  bool met = false;  // the outcome shows that both were at it at once
  std::string what;  // of a forbidden one, in words
};

Judgement judge(Shape shape, uint64_t tag, const Seen& one, const Seen& two);

}  // namespace terrace::litmus
