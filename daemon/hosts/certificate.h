// What a certificate says that matters here, and how much of its life is left.
//
// Place     daemon/hosts: Credentials reads them, Agents tells of them. libcrypto stays in the .cc files.
// Threads   Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/result.h"

struct x509_st;

namespace terrace::daemon {

struct CertificateFacts {
  std::string name;      // common name: "host:hostb"
  std::string serial;    // as `terrace cert list` shows it
  int64_t begins_s = 0;  // CLOCK_REALTIME
  int64_t ends_s = 0;
};

CertificateFacts facts_of(x509_st& certificate);

// Whole days until `ends_s`; 0 when that has passed.
int64_t days_left(int64_t ends_s, int64_t now_s);

// Whether it is time to say that it ends: 30 days before, or a quarter of its life where that is less. Thirty days are
// enough to do something by hand; a certificate that something renews at a third of its life is told of only when that
// has not happened.
bool ends_soon(int64_t begins_s, int64_t ends_s, int64_t now_s);

// A whole file. `secret`: it must be closed to others.
// Errors    not_found, permission_denied, io_error; invalid_argument: it is too large
Result<std::string> read_credential(const std::string& path, const char* what, bool secret);

}  // namespace terrace::daemon
