// SPDX-License-Identifier: Apache-2.0
// The judgement of one round: each shape's forbidden outcomes, and that what coherent memory may show is not.
#include <doctest/doctest.h>

#include "core/litmus/shapes.h"

namespace terrace::litmus {
namespace {

constexpr uint64_t tag = 0x5000'0000'0100;

Seen seen(uint64_t first, uint64_t second, uint64_t last_x, uint64_t last_y) {
  return {
      .first = tag + first, .second = tag + second, .last_x = tag + last_x, .last_y = tag + last_y, .tag = tag};
}

bool is_forbidden(Shape shape, const Seen& one, const Seen& two) {
  const Judgement judgement = judge(shape, tag, one, two);
  CHECK(judgement.forbidden == !judgement.what.empty());
  return judgement.forbidden;
}

}  // namespace

TEST_CASE("litmus shapes: a new flag with an old message is forbidden, the other three outcomes are not") {
  const Seen one = seen(0, 0, 1, 1);
  CHECK(is_forbidden(Shape::message_passing, one, seen(1, 0, 1, 1)));
  CHECK_FALSE(is_forbidden(Shape::message_passing, one, seen(1, 1, 1, 1)));
  CHECK_FALSE(is_forbidden(Shape::message_passing, one, seen(0, 1, 1, 1)));
  CHECK_FALSE(is_forbidden(Shape::message_passing, one, seen(0, 0, 1, 1)));
  CHECK(judge(Shape::message_passing, tag, one, seen(1, 0, 1, 1)).what ==
        "the flag is new and the message behind it is the old value");
}

TEST_CASE("litmus shapes: store buffering forbids that neither sees the other, and only that") {
  CHECK(is_forbidden(Shape::store_buffering, seen(0, 0, 1, 1), seen(0, 0, 1, 1)));
  CHECK_FALSE(is_forbidden(Shape::store_buffering, seen(1, 0, 1, 1), seen(0, 0, 1, 1)));
  CHECK_FALSE(is_forbidden(Shape::store_buffering, seen(0, 0, 1, 1), seen(1, 0, 1, 1)));
  CHECK(judge(Shape::store_buffering, tag, seen(1, 0, 1, 1), seen(1, 0, 1, 1)).met);
}

TEST_CASE("litmus shapes: load buffering forbids that both see what was stored later, and only that") {
  CHECK(is_forbidden(Shape::load_buffering, seen(1, 0, 1, 1), seen(1, 0, 1, 1)));
  CHECK_FALSE(is_forbidden(Shape::load_buffering, seen(1, 0, 1, 1), seen(0, 0, 1, 1)));
  CHECK(judge(Shape::load_buffering, tag, seen(0, 0, 1, 1), seen(0, 0, 1, 1)).met);
}

TEST_CASE("litmus shapes: values of one location do not go back") {
  Seen back = seen(3, 2, 4, 0);
  back.broken = 1;
  CHECK(is_forbidden(Shape::one_location, seen(0, 0, 4, 0), back));
  CHECK_FALSE(is_forbidden(Shape::one_location, seen(0, 0, 4, 0), seen(2, 2, 4, 0)));
}

TEST_CASE("litmus shapes: two writes of each part end in an order that both agree on") {
  CHECK(is_forbidden(Shape::write_order, seen(0, 0, 1, 1), seen(0, 0, 1, 1)));
  CHECK_FALSE(is_forbidden(Shape::write_order, seen(0, 0, 2, 1), seen(0, 0, 2, 1)));
  CHECK_FALSE(is_forbidden(Shape::write_order, seen(0, 0, 1, 2), seen(0, 0, 1, 2)));
  CHECK_FALSE(is_forbidden(Shape::write_order, seen(0, 0, 2, 2), seen(0, 0, 2, 2)));
  CHECK(is_forbidden(Shape::write_order, seen(0, 0, 2, 1), seen(0, 0, 1, 1)));
  CHECK(is_forbidden(Shape::write_order, seen(0, 0, 2, 1), seen(0, 0, 2, 2)));
}

TEST_CASE("litmus shapes: a record is not torn, and its last bytes arrive") {
  Seen torn = seen(1, 0, 1, 0);
  torn.broken = 1;
  CHECK(is_forbidden(Shape::torn_record, seen(0, 0, 1, 0), torn));
  CHECK(is_forbidden(Shape::torn_record, seen(0, 0, 1, 0), seen(0, 0, 0, 0)));
  CHECK_FALSE(is_forbidden(Shape::torn_record, seen(0, 0, 1, 0), seen(1, 1, 1, 0)));
}

TEST_CASE("litmus shapes: additions by compare-and-swap are not lost") {
  CHECK_FALSE(is_forbidden(Shape::compare_and_swap, seen(0, 0, 32, 0), seen(0, 0, 32, 0)));
  CHECK(is_forbidden(Shape::compare_and_swap, seen(0, 0, 31, 0), seen(0, 0, 31, 0)));
  Seen gave_up = seen(0, 0, 32, 0);
  gave_up.broken = 1;
  CHECK(is_forbidden(Shape::compare_and_swap, seen(0, 0, 32, 0), gave_up));
}

TEST_CASE("litmus shapes: in each of them a side that still sees the old value at the end is forbidden") {
  for (const Shape shape : all_shapes) {
    CAPTURE(std::string(shape_name(shape)));
    const uint64_t x = shape == Shape::one_location ? 4 : shape == Shape::compare_and_swap ? 32 : 1;
    const uint64_t y = shape == Shape::write_order ? 2 : 1;
    const Seen right = seen(0, 0, x, y);
    Seen loads = right;  // store buffering: one of both saw the other
    if (shape == Shape::store_buffering) loads.first = tag + 1;
    CHECK_FALSE(is_forbidden(shape, loads, right));
    Seen stale = right;
    stale.last_x = tag;
    CHECK(is_forbidden(shape, loads, stale));
    stale.last_x = tag - 256;  // of an earlier round
    CHECK(is_forbidden(shape, loads, stale));
    stale.last_x = tag + 200;  // nobody's
    CHECK(is_forbidden(shape, loads, stale) == (shape != Shape::write_order || loads.last_x != stale.last_x));
  }
}

TEST_CASE("litmus shapes: a load that gives what nobody wrote is forbidden") {
  Seen strange = seen(0, 0, 1, 1);
  strange.first = 0xdead'beef'0000'0000;
  for (const Shape shape : {Shape::message_passing, Shape::store_buffering, Shape::load_buffering})
    CHECK(is_forbidden(shape, seen(1, 0, 1, 1), strange));
}

}  // namespace terrace::litmus
