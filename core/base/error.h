// SPDX-License-Identifier: Apache-2.0
// An expected failure as data: a stable code, the kernel's errno if there was one, the place, and a sentence
// for a person. Errors cross the RPC unchanged, so the numbers are part of the protocol.
//
// Place     core/base; everything may use it. Also part of the installed headers.
// Threads   Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace terrace {

// One code, one meaning; the comment says what the caller should do. Numbers are never reused.
enum class ErrorCode : uint16_t {
  ok = 0,
  invalid_argument = 1,    // The request itself is wrong; fix it, a retry will fail the same way.
  not_found = 2,           // No such object by that name or id.
  already_exists = 3,      // The name or object is taken; choose another or use the existing one.
  permission_denied = 4,   // This peer may not do that; another identity may.
  capacity_exhausted = 5,  // Not enough free memory in the pool or tier now; retry later or ask for less.
  limit_exceeded = 6,      // A named limit (core/base/limits.h or the configuration) would be passed.
  lease_expired = 7,       // The lease lapsed; its memory is gone, ask for a new lease.
  lease_revoked = 8,       // An operator took the lease back; its memory is gone or about to go.
  busy = 9,                // The object is in use elsewhere; retry once it is released.
  unavailable = 10,        // The daemon or device cannot be reached now; retry with back-off.
  io_error = 11,           // The kernel or a device failed; os_errno says how.
  corrupt = 12,            // Stored or received bytes contradict themselves; do not use them.
  unsupported = 13,        // This build, kernel or machine cannot do it; `terrace doctor` says why.
  version_mismatch = 14,   // The other side speaks another protocol or format version.
  out_of_memory = 15,      // This process could not get local memory.
  cancelled = 16,          // The operation was cancelled before it took effect.
  internal = 17,           // A defect in Terrace; report it with the text.
};

// The code's stable name, as printed and as found in JSON output, such as "capacity_exhausted".
std::string_view error_code_name(ErrorCode code);

// Maps a number from the wire to a code; numbers of a newer peer become `internal`.
ErrorCode error_code_from_wire(uint16_t number);

// An expected failure. `where` is a string literal naming the operation ("EmulatedBackend::carve").
// `detail` says in words what, where and how to fix it; it may be empty on internal paths.
struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::ok;
  int os_errno = 0;
  const char* where = "";
  std::string detail;

  // "<detail> [capacity_exhausted, ENOSPC No space left on device, in EmulatedBackend::carve]"
  std::string to_string() const;
};

// An Error for a failed system call: chooses the code from errno (ENOSPC and ENOMEM become
// capacity_exhausted and out_of_memory, EACCES and EPERM permission_denied, ENOENT not_found,
// EEXIST already_exists, EINVAL invalid_argument, all others io_error).
Error os_error(int os_errno, const char* where, std::string detail);

}  // namespace terrace
