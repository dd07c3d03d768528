// SPDX-License-Identifier: Apache-2.0
// Inside of AdminClient, shared by the files that implement it.
#pragma once

#include "cli/client/admin_client.h"
#include "cli/client/connection.h"

namespace terrace::cli {

struct AdminClient::Impl {
  std::unique_ptr<Connection> connection;
  rpc::Admin::Client admin = nullptr;

  // Sends a request, and keeps the part of the reply that `read` names.
  template <typename Params, typename Results, typename Read>
  auto call(capnp::Request<Params, Results> request, Read read) {
    return connection->call(kj::mv(request), read);
  }
  template <typename Params, typename Results>
  Status call(capnp::Request<Params, Results> request) {
    return connection->call(kj::mv(request));
  }
  template <typename Request>
  Result<DeviceStatus> device(Request request) {
    return call(kj::mv(request), [](auto& reply) { return DeviceStatus(reply.getDevice()); });
  }
  template <typename Request>
  Result<PoolStatus> pool(Request request) {
    return call(kj::mv(request), [](auto& reply) { return PoolStatus(reply.getPool()); });
  }
  template <typename Request>
  Result<LeaseStatus> lease(Request request) {
    return call(kj::mv(request), [](auto& reply) { return LeaseStatus(reply.getInfo()); });
  }
  template <typename Request>
  Result<DrainProgress> progress(Request request) {
    return call(kj::mv(request), [](auto& reply) { return DrainProgress(reply.getProgress()); });
  }
};

template <typename Request>
Request with_serial(Request request, const std::string& serial) {
  request.setSerial(serial);
  return request;
}

template <typename Request>
Request with_lease(Request request, LeaseId id) {
  request.setLease(id.value);
  return request;
}

}  // namespace terrace::cli
