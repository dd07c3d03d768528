// SPDX-License-Identifier: Apache-2.0
// The list of revoked certificates in a CA's directory: a PEM CRL.
//
// Place     cli/tools/cert_revoke.cc has the verbs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/tools/cert_files.h"

namespace terrace::cli {

struct RevokedOne {
  std::string serial;
  std::string at;  // as generalized time
};

struct RevokedList {
  std::vector<RevokedOne> entries;
  int64_t number = 0;
  int64_t seconds_left = 0;
  std::string until;
};

std::string revoked_list_path(const std::string& directory);

// nullopt: there is none yet.
// Errors    invalid_argument   what is there is no list of this CA: it is not written over
Result<std::optional<RevokedList>> read_list(const Ca& ca);
// PEM, with the next number.
Result<std::string> sign_list(const Ca& ca, const RevokedList& list, int64_t days);
// Never longer than the CA, whose end ends everything.
int64_t list_days(const Ca& ca, int64_t days);

}  // namespace terrace::cli
