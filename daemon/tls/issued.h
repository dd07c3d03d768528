// SPDX-License-Identifier: Apache-2.0
// What a CA issued: issued.pem in its directory, which `terrace cert` and a manager that renews both append to, and
// `terrace cert revoke NAME` reads.
//
// Bounds    A manager drops from it what ended a month ago, so that it has what may be in use, and not each certificate
//           that ever was. Whoever writes has the directory locked (flock).
// Place     Credentials has one where it has the CA's key.
// Threads   The event loop's thread only.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "core/base/result.h"
#include "daemon/tls/certificate.h"

namespace terrace::daemon {

class IssuedFile {
 public:
  struct Entry {
    CertificateFacts facts;
    std::string pem;
  };

  // `directory`: the CA's, with a slash at its end; empty: the working directory. A file that is not there, or cannot be
  // read (a line in the log), has no entries.
  IssuedFile(const std::string& directory, int64_t now_s);

  // Of those that end later than `one`: the last one for the same name, key and alternative names; null: there is none.
  const Entry* newest_of(const CertificateFacts& one) const;

  // Durable when it returns.
  // Errors    busy        `terrace cert` has the directory locked; try again
  //           io_error, ...
  Status note(const std::string& pem, int64_t now_s);

 private:
  void know(CertificateFacts facts, std::string pem, int64_t now_s);
  void look_through(int64_t now_s, bool locked);

  std::string directory_, path_;
  std::map<std::string, Entry> newest_;  // by holder; of those that have not ended
  uint64_t bytes_ = 0, look_at_bytes_ = 0;
};

}  // namespace terrace::daemon
