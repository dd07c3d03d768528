// SPDX-License-Identifier: Apache-2.0
// The common parts of every call of the C interface: checks of arguments, errors as a number and a text, and a
// catch of all exceptions.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "core/base/result.h"
#include "terrace/arena.h"
#include "terrace/tensor.h"
#include "terrace/terrace_c.h"

namespace terrace::c_api {

// Keeps the error for terrace_error_text() of this thread, and returns its code.
terrace_code fail(const Error& error) noexcept;
terrace_code fail_with(terrace_code code, const char* text) noexcept;

Error invalid(const char* where, std::string detail);

// Runs `body`, which returns a Status.
template <typename Body>
terrace_code call(Body&& body) noexcept {
  try {
    const Status status = std::forward<Body>(body)();
    return status.ok() ? TERRACE_OK : fail(status.error());
  } catch (const std::bad_alloc&) {
    return fail_with(TERRACE_OUT_OF_MEMORY, "no local memory for the call [out_of_memory]");
  } catch (const std::exception& error) {
    return fail_with(TERRACE_INTERNAL, error.what());
  } catch (...) {
    return fail_with(TERRACE_INTERNAL, "an unknown exception [internal]");
  }
}

// Names what is null: "terrace_pool_create: tensor is NULL".
#define TERRACE_C_NEED(where, argument) \
  if ((argument) == nullptr) return ::terrace::c_api::invalid(where, #argument " is NULL")

inline std::string text_of(const char* text) {
  return text == nullptr ? std::string() : std::string(text);
}

// The options that a caller of any version gave, in this version's struct.
//
// Errors    invalid_argument   a size that no version has
//           version_mismatch   something is set that this version does not know
inline constexpr size_t size_max = 4096;
template <typename Options>
Result<Options> options_of(const Options* given, const char* where) {
  Options options{};
  options.size = sizeof(Options);
  if (given == nullptr) return options;
  const size_t size = given->size;
  if (size < sizeof(size_t) || size > size_max || size % alignof(Options) != 0)
    return invalid(where, "the options' size is " + std::to_string(size) + ": set it to sizeof the struct");
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  if (size > sizeof(Options) &&
      std::any_of(bytes + sizeof(Options), bytes + size, [](unsigned char byte) { return byte != 0; }))
    return Error{ErrorCode::version_mismatch, 0, where,
                 "the program was built for a newer libterrace, and sets options that this one does not know"};
  std::memcpy(&options, given, std::min(size, sizeof(Options)));
  return options;
}

// Fills as much of `*into` as its size says; what a newer version's struct has beyond this one's is 0.
template <typename Value>
Status give(Value* into, Value value, const char* where) {
  const size_t size = into->size;
  if (size < sizeof(size_t) || size > size_max || size % alignof(Value) != 0)
    return invalid(where, "the result's size is " + std::to_string(size) + ": set it to sizeof the struct");
  value.size = size;
  std::memcpy(into, &value, std::min(size, sizeof(Value)));
  if (size > sizeof(Value))
    std::memset(reinterpret_cast<std::byte*>(into) + sizeof(Value), 0, size - sizeof(Value));
  return {};
}

// `part`, and `whole` for as long as somebody has the part: a lease its session, a tensor of a space the space.
template <typename Part, typename Whole>
std::shared_ptr<Part> kept_by(std::shared_ptr<Whole> whole, std::shared_ptr<Part> part) {
  struct Both {
    std::shared_ptr<Whole> whole;
    std::shared_ptr<Part> part;  // goes first
  };
  Part* const address = part.get();
  return std::shared_ptr<Part>(std::make_shared<Both>(Both{std::move(whole), std::move(part)}), address);
}

// Numbers of an enumeration of the interface.
template <typename Enum>
Result<Enum> enum_of(int number, int count, const char* what, const char* where) {
  if (number < 0 || number >= count) return invalid(where, std::to_string(number) + " is no " + what);
  return static_cast<Enum>(number);
}

Result<Tier> tier_of(int number, const char* where);
Result<Shape> shape_of(uint32_t rank, const uint64_t* dimensions, const char* where);
Result<TensorHint> hint_of(int number, const char* where);

}  // namespace terrace::c_api
