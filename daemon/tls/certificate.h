// SPDX-License-Identifier: Apache-2.0
// What a certificate says that matters here; core/identity/certificate_life.h says how much of its life is left.
//
// Place     Credentials reads them, Agents tells of them. libcrypto stays in the .cc files.
// Threads   Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/identity/certificate_life.h"

struct x509_st;

namespace terrace::daemon {

struct CertificateFacts {
  std::string name;      // common name: "host:hostb"
  std::string serial;    // as `terrace cert list` shows it
  int64_t begins_s = 0;  // CLOCK_REALTIME
  int64_t ends_s = 0;
  std::vector<std::string> uris;       // among its alternative names
  std::vector<std::string> dns_names;  // the same, in lower case
  std::string der;                     // all of it
  std::string holder;                  // a digest of its name, key and alternative names: what a renewal keeps
};

CertificateFacts facts_of(x509_st& certificate);

// A CA's certificate with its key: what a manager needs to renew certificates.
struct Issuer {
  std::string ca_pem, key_pem;  // the key fits
  int64_t days = 0;             // how long what it issues is good, never longer than the CA
};

// Errors    as read_credential; invalid_argument: the key does not belong to the CA
Result<Issuer> read_issuer(const std::string& ca, const std::string& key, int64_t days);

// PEM: `old`, which the CA had signed, with another serial and end; its name, key and uses stay.
Result<std::string> issue_again(const Issuer& issuer, const CertificateFacts& old);

// "2026-12-03 14:05:00Z", as `terrace cert` shows moments.
std::string shown_moment(int64_t unix_s);

Result<CertificateFacts> parse_facts(const std::string& pem);
// Whether `fresh` can take the place of `old`: the same key and name, signed by `ca`, with a later end.
bool can_replace(const CertificateFacts& fresh, const CertificateFacts& old, const CertificateFacts& ca);

// Durable when it returns; whoever reads meanwhile has the old content or the new.
Status replace_credential(const std::string& path, const std::string& content);

// A whole file. `secret`: it must be closed to others.
// Errors    not_found, permission_denied, io_error; invalid_argument: it is too large
Result<std::string> read_credential(const std::string& path, const char* what, bool secret);

}  // namespace terrace::daemon
