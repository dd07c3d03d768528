// SPDX-License-Identifier: Apache-2.0
#include "core/litmus/shapes.h"

#include <string_view>

namespace terrace::litmus {
namespace {

bool of_round(uint64_t value, uint64_t tag) {
  return value >= tag && value - tag < values_of_tag;
}

// "1" of this round's values, "a value of an earlier round" and the like for all others.
std::string say(uint64_t value, uint64_t tag) {
  if (of_round(value, tag)) return value == tag ? "the old value" : std::to_string(value - tag);
  return value < tag ? "an earlier round's value" : "a value that nobody wrote";
}

Judgement forbidden(std::string what) {
  return {.forbidden = true, .met = false, .what = std::move(what)};
}

constexpr uint64_t any_new = 0;  // of the values of the round but the old one
constexpr uint64_t unused = UINT64_MAX;

// What is wrong with both sides' closing looks at x and y; empty where they see `x` and `y`.
std::string final_values_problem(uint64_t tag, const Seen& one, const Seen& two, uint64_t x, uint64_t y) {
  const auto check = [tag](std::string_view who, std::string_view name, uint64_t value, uint64_t wanted) {
    const bool right = wanted == any_new ? of_round(value, tag) && value != tag : value == tag + wanted;
    if (wanted == unused || right) return std::string();
    return std::string(who) + " sees " + say(value, tag) + " in " + std::string(name) + " when both are done" +
           (wanted == any_new ? "" : ", not " + std::to_string(wanted));
  };
  std::string wrong = check("part one", "x", one.last_x, x);
  if (wrong.empty()) wrong = check("part two", "x", two.last_x, x);
  if (wrong.empty()) wrong = check("part one", "y", one.last_y, y);
  if (wrong.empty()) wrong = check("part two", "y", two.last_y, y);
  return wrong;
}

// The value was written, or is the old one.
bool possible(uint64_t value, uint64_t tag, uint64_t most) {
  return of_round(value, tag) && value - tag <= most;
}

// What a shape forbids beside a wrong look at the end.
Judgement judge_parts(Shape shape, uint64_t tag, const Seen& one, const Seen& two) {
  const auto strange = [tag](uint64_t value) { return forbidden("a load gives " + say(value, tag)); };
  switch (shape) {
    case Shape::message_passing:
      if (!possible(two.first, tag, 1)) return strange(two.first);
      if (two.first == tag + 1 && two.second != tag + 1)
        return forbidden("the flag is new and the message behind it is " + say(two.second, tag));
      return {.met = two.was_old != 0 && two.first == tag + 1, .what = {}};
    case Shape::store_buffering:
      if (!possible(one.first, tag, 1)) return strange(one.first);
      if (!possible(two.first, tag, 1)) return strange(two.first);
      if (one.first == tag && two.first == tag)
        return forbidden("each part stored, and then neither sees the other's store");
      return {.met = one.first == tag + 1 && two.first == tag + 1, .what = {}};
    case Shape::load_buffering:
      if (!possible(one.first, tag, 1)) return strange(one.first);
      if (!possible(two.first, tag, 1)) return strange(two.first);
      if (one.first == tag + 1 && two.first == tag + 1)
        return forbidden("each part sees what the other stored after its own load");
      return {.met = one.first == tag && two.first == tag, .what = {}};
    case Shape::one_location:
      if (two.broken != 0)
        return forbidden("x was " + say(two.first, tag) + " and then " + say(two.second, tag));
      return {.met = two.was_old != 0, .what = {}};
    case Shape::write_order:
      if (one.last_x != two.last_x || one.last_y != two.last_y)
        return forbidden("both parts are done and see different values in " +
                         std::string(one.last_x != two.last_x ? "x" : "y"));
      if (one.last_x == tag + 1 && one.last_y == tag + 1)
        return forbidden("of each part the first store stayed and the second was lost");
      return {.met = one.last_x == tag + 2 && one.last_y == tag + 2, .what = {}};
    case Shape::torn_record:
      if (two.broken != 0)
        return forbidden("a word of the line is " + say(two.first, tag) + " and one written before it is " +
                         say(two.second, tag));
      return {.met = two.was_old != 0, .what = {}};
    case Shape::compare_and_swap:
      if (one.broken != 0 || two.broken != 0) return forbidden("compare-and-swap never succeeds");
      return {.met = one.was_old != 0 || two.was_old != 0, .what = {}};
  }
  return {};
}

}  // namespace

const char* shape_name(Shape shape) {
  switch (shape) {
    case Shape::message_passing: return "message_passing";
    case Shape::store_buffering: return "store_buffering";
    case Shape::load_buffering: return "load_buffering";
    case Shape::one_location: return "one_location";
    case Shape::write_order: return "write_order";
    case Shape::torn_record: return "torn_record";
    case Shape::compare_and_swap: return "compare_and_swap";
  }
  return "unknown";
}

Judgement judge(Shape shape, uint64_t tag, const Seen& one, const Seen& two) {
  Judgement parts = judge_parts(shape, tag, one, two);
  if (parts.forbidden) return parts;
  std::string wrong;
  switch (shape) {
    case Shape::one_location: wrong = final_values_problem(tag, one, two, 4, unused); break;
    case Shape::torn_record: wrong = final_values_problem(tag, one, two, 1, unused); break;
    case Shape::compare_and_swap: wrong = final_values_problem(tag, one, two, 2 * additions, unused); break;
    case Shape::write_order: wrong = final_values_problem(tag, one, two, any_new, any_new); break;
    default: wrong = final_values_problem(tag, one, two, 1, 1); break;
  }
  return wrong.empty() ? parts : forbidden(std::move(wrong));
}

}  // namespace terrace::litmus
