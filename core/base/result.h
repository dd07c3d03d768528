// SPDX-License-Identifier: Apache-2.0
// Result<T>: a value or an Error. Nothing throws across a module's edge; KJ's and the standard
// library's exceptions are turned into Errors where they appear.
//
// Place     core/base; also part of the installed headers.
// Threads   Plain values.
#pragma once

#include <optional>
#include <utility>
#include <variant>

#include "core/base/check.h"
#include "core/base/error.h"

namespace terrace {

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit on purpose
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & {
    TERRACE_CHECK(ok(), "value() of a failed Result");
    return std::get<0>(state_);
  }
  const T& value() const& {
    TERRACE_CHECK(ok(), "value() of a failed Result");
    return std::get<0>(state_);
  }
  T&& value() && {
    TERRACE_CHECK(ok(), "value() of a failed Result");
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const& {
    TERRACE_CHECK(!ok(), "error() of a successful Result");
    return std::get<1>(state_);
  }
  Error&& error() && {
    TERRACE_CHECK(!ok(), "error() of a successful Result");
    return std::get<1>(std::move(state_));
  }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: implicit on purpose

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const& {
    TERRACE_CHECK(!ok(), "error() of a successful Result");
    return *error_;
  }
  Error&& error() && {
    TERRACE_CHECK(!ok(), "error() of a successful Result");
    return std::move(*error_);
  }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace terrace

#define TERRACE_CONCAT_(a, b) a##b
#define TERRACE_CONCAT(a, b) TERRACE_CONCAT_(a, b)

// Returns the Error of `expression` (a Status or Result) from the enclosing function, if it failed.
#define TERRACE_RETURN_IF_ERROR(expression)                                                                 \
  do {                                                                                                      \
    if (auto terrace_status = (expression); !terrace_status.ok()) return std::move(terrace_status).error(); \
  } while (false)

// Declares `declaration` from the value of `expression`, or returns its Error.
#define TERRACE_ASSIGN_OR_RETURN(declaration, expression) \
  TERRACE_ASSIGN_OR_RETURN_(TERRACE_CONCAT(terrace_result_, __LINE__), declaration, expression)
#define TERRACE_ASSIGN_OR_RETURN_(result, declaration, expression) \
  auto result = (expression);                                      \
  if (!result.ok()) return std::move(result).error();              \
  declaration = std::move(result).value()
