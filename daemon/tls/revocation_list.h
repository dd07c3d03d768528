// SPDX-License-Identifier: Apache-2.0
// The certificates that are no good any more although they have not ended: a PEM CRL that the CA signed
// (`terrace cert revoke`).
//
// A list whose `nextUpdate` has passed is used all the same, with warnings: to refuse all hosts because somebody forgot
// to sign a list anew would cost them their memory, and no stolen certificate is let in by going on.
//
// Threads   Plain values.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "core/base/result.h"

struct x509_st;

namespace terrace::daemon {

struct RevocationList {
  std::set<std::string> serials;    // as CertificateFacts::serial
  std::string issuer;               // the serial of the CA's certificate
  int64_t number = 0;               // grows with each list of a CA; 0: it has none
  int64_t made_s = 0, until_s = 0;  // CLOCK_REALTIME; `until_s` 0: not said

  bool has(const std::string& serial) const { return serials.contains(serial); }
};

// Errors    not_found, permission_denied, io_error   the file cannot be read
//           invalid_argument   it is no list, or not of this CA; says what to do
Result<RevocationList> read_revocation_list(const std::string& path, x509_st& ca);

}  // namespace terrace::daemon
