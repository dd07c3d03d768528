// SPDX-License-Identifier: Apache-2.0
// The certificate by which this client is known to managers on other machines: until when it is good, and another one in
// its place before that.
//
// Place     tls_stream.cc reads the files; Connection renews with them, and `terrace cert renew` by hand.
// Threads   The main thread.
#pragma once

#include <cstdint>
#include <string>

#include "cli/terminal/output.h"
#include "core/base/result.h"

namespace terrace::cli {

struct Connection;

// Files of a client, and what is in them (PEM).
struct ClientFiles {
  std::string ca_path, certificate_path, key_path;
  std::string ca, certificate, key;
};

class OwnCertificate {
 public:
  OwnCertificate() = default;  // none: never due
  // What libssl took already; of what it cannot read nothing is said, and it is never due.
  explicit OwnCertificate(const ClientFiles& files);

  bool renewal_is_due(int64_t now_s) const;
  // Empty: it does not end soon.
  std::string end_warning(int64_t now_s) const;
  const std::string& path() const { return files_.certificate_path; }
  int64_t ends_s() const { return ends_s_; }

  // Asks the manager for another one, and writes it over the file: atomically, and only what is for the same key, name and
  // rights, of the same CA, with a later end. Another command that does so at the same time is left to it.
  // Errors    permission_denied, io_error   the file or its folder cannot be written; nothing was asked
  //           busy, unsupported, ...        the manager's, or its answer is not what was asked for
  Status renew(Connection& connection);

 private:
  Status install(const std::string& pem);

  ClientFiles files_;
  std::string name_;  // "client:ops"
  int64_t begins_s_ = 0, ends_s_ = 0;
};

// `terrace cert renew`: the certificate as it is then.
// Errors    invalid_argument   the manager is on this machine: no certificate is asked for there
Result<OwnCertificate> renew_own_certificate(const Context& context);

}  // namespace terrace::cli
