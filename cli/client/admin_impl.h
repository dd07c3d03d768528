// Inside of AdminClient, shared by the files that implement it.
#pragma once

#include "cli/client/admin_client.h"
#include "cli/client/connection.h"
#include "cli/client/wire_read.h"

namespace terrace::cli {

struct AdminClient::Impl {
  std::unique_ptr<Connection> connection;
  rpc::Admin::Client admin = nullptr;

  template <typename... Arguments>
  auto call(Arguments&&... arguments) {
    return connection->call(std::forward<Arguments>(arguments)...);
  }
};

}  // namespace terrace::cli
