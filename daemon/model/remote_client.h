// SPDX-License-Identifier: Apache-2.0
// Who came over TLS from another machine: what its certificate says, within what the socket it came through gives.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/base/result.h"
#include "daemon/model/socket_role.h"

namespace terrace::daemon {

struct RemoteClient {
  std::string name;                      // "ops" of "client:ops"
  std::string serial;                    // of its certificate
  std::string address;                   // that it connected from
  SocketRole role = SocketRole::tenant;  // never by_uid
  std::string tenant;                    // whom it acts for; empty: nobody
  uint32_t number = 0;                   // the same for all certificates of its name
  std::string refused;                   // not empty: why it may do nothing here
  // Makes another certificate (PEM) for its key and rights, once it is time; empty: nobody does.
  std::function<Result<std::string>()> renew;
};

}  // namespace terrace::daemon
