// SPDX-License-Identifier: Apache-2.0
// Until when something of TLS is good: what `terrace status`, health and the metrics tell of it.
#pragma once

#include <cstdint>
#include <string>

namespace terrace::daemon {

struct CertificateEnd {
  std::string what;       // "certificate", "ca", "revocation list", "client"
  std::string name;       // whose; of a list: its file
  int64_t days_left = 0;  // of a client's that has ended: less than 0
  bool soon = false;      // time to do something about it
};

}  // namespace terrace::daemon
