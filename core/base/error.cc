// SPDX-License-Identifier: Apache-2.0
#include "core/base/error.h"

#include <cerrno>
#include <cstring>
#include <utility>

namespace terrace {

std::string_view error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::ok: return "ok";
    case ErrorCode::invalid_argument: return "invalid_argument";
    case ErrorCode::not_found: return "not_found";
    case ErrorCode::already_exists: return "already_exists";
    case ErrorCode::permission_denied: return "permission_denied";
    case ErrorCode::capacity_exhausted: return "capacity_exhausted";
    case ErrorCode::limit_exceeded: return "limit_exceeded";
    case ErrorCode::lease_expired: return "lease_expired";
    case ErrorCode::lease_revoked: return "lease_revoked";
    case ErrorCode::busy: return "busy";
    case ErrorCode::unavailable: return "unavailable";
    case ErrorCode::io_error: return "io_error";
    case ErrorCode::corrupt: return "corrupt";
    case ErrorCode::unsupported: return "unsupported";
    case ErrorCode::version_mismatch: return "version_mismatch";
    case ErrorCode::out_of_memory: return "out_of_memory";
    case ErrorCode::cancelled: return "cancelled";
    case ErrorCode::internal: return "internal";
  }
  return "internal";
}

ErrorCode error_code_from_wire(uint16_t number) {
  constexpr auto newest = static_cast<uint16_t>(ErrorCode::internal);
  return number <= newest ? static_cast<ErrorCode>(number) : ErrorCode::internal;
}

std::string Error::to_string() const {
  std::string text = detail.empty() ? std::string("operation failed") : detail;
  text += " [";
  text += error_code_name(code);
  if (os_errno != 0) {
    const char* name = strerrorname_np(os_errno);
    const char* words = strerrordesc_np(os_errno);
    text += ", ";
    text += name != nullptr ? name : std::to_string(os_errno).c_str();
    if (words != nullptr) (text += ' ') += words;
  }
  if (where != nullptr && *where != '\0') (text += ", in ") += where;
  text += ']';
  return text;
}

Error os_error(int os_errno, const char* where, std::string detail) {
  ErrorCode code = ErrorCode::io_error;
  switch (os_errno) {
    case ENOSPC: code = ErrorCode::capacity_exhausted; break;
    case ENOMEM: code = ErrorCode::out_of_memory; break;
    case EACCES:
    case EPERM: code = ErrorCode::permission_denied; break;
    case ENOENT: code = ErrorCode::not_found; break;
    case EEXIST: code = ErrorCode::already_exists; break;
    case EINVAL: code = ErrorCode::invalid_argument; break;
    default: break;
  }
  return Error{.code = code, .os_errno = os_errno, .where = where, .detail = std::move(detail)};
}

}  // namespace terrace
