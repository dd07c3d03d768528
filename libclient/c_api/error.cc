// SPDX-License-Identifier: Apache-2.0
// Errors of the C interface, and numbers that become C++'s types.
#include <string>

#include "core/version/version.h"
#include "libclient/c_api/call.h"

namespace terrace::c_api {
namespace {

struct LastError {
  std::string text;
  const char* plain = nullptr;  // in its place, where there was no memory for a text
  int os_errno = 0;
};

thread_local LastError last_error;

}  // namespace

terrace_code fail_with(terrace_code code, const char* text) noexcept {
  last_error.os_errno = 0;
  last_error.plain = nullptr;
  try {
    last_error.text = text;
  } catch (...) {
    last_error.plain = "no local memory for the error's text";
  }
  return code;
}

terrace_code fail(const Error& error) noexcept {
  const auto code = static_cast<terrace_code>(error.code);
  try {
    const std::string text = error.to_string();
    fail_with(code, text.c_str());
  } catch (...) {
    fail_with(code, error.where);
  }
  last_error.os_errno = error.os_errno;
  return code;
}

Error invalid(const char* where, std::string detail) {
  return Error{ErrorCode::invalid_argument, 0, where, std::string(where) + ": " + std::move(detail)};
}

Result<Tier> tier_of(int number, const char* where) {
  return enum_of<Tier>(number, 3, "tier (TERRACE_TIER_DDR, TERRACE_TIER_CXL, TERRACE_TIER_HBM)", where);
}

Result<TensorHint> hint_of(int number, const char* where) {
  const auto hint = number < 0 || number > 255 ? std::nullopt : hint_from_number(static_cast<uint8_t>(number));
  if (!hint) return invalid(where, std::to_string(number) + " is no hint (TERRACE_HINT_...)");
  return *hint;
}

Result<Shape> shape_of(uint32_t rank, const uint64_t* dimensions, const char* where) {
  if (rank > 0 && dimensions == nullptr) return invalid(where, "dimensions is NULL");
  if (rank > Shape::rank_max)
    return invalid(where, "a rank of " + std::to_string(rank) + "; at most " + std::to_string(Shape::rank_max));
  return Shape::from({dimensions, rank});
}

}  // namespace terrace::c_api

using namespace terrace;

extern "C" {

const char* terrace_code_name(terrace_code code) {
  const bool known = code >= TERRACE_OK && code <= TERRACE_INTERNAL;
  return error_code_name(known ? static_cast<ErrorCode>(code) : ErrorCode::internal).data();
}

const char* terrace_error_text(void) {
  return c_api::last_error.plain != nullptr ? c_api::last_error.plain : c_api::last_error.text.c_str();
}

int terrace_error_errno(void) {
  return c_api::last_error.os_errno;
}

const char* terrace_version(void) {
  return terrace::version_number();
}

}  // extern "C"
