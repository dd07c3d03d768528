// SPDX-License-Identifier: Apache-2.0
#include "cli/client/socket_role.h"

#include "cli/client/connection.h"

namespace terrace::cli {

Result<SocketRole> socket_role(const Context& context) {
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, Connection::open(context));
  return SocketRole{connection->role, connection->own_tenant};
}

}  // namespace terrace::cli
