// SPDX-License-Identifier: Apache-2.0
// A tenant's connection on the wire itself, to measure the manager's cost without a library's threads. Many
// of them share one event loop, so that the clients' own cost stays small on a machine of two cores.
#pragma once

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/schema/terrace.capnp.h"

namespace terrace::bench {

struct Loop {
  kj::AsyncIoContext io = kj::setupAsyncIo();
};

class Client {
 public:
  // Connects and says hello.
  Client(Loop& loop, const std::string& socket);

  // As an administrator: adopts the device and makes a pool of it.
  void compose_pool(const std::string& serial, const std::string& pool);
  void open_session();

  // One empty call; on a manager it is Gateway.hello.
  kj::Promise<void> echo();

  struct Granted {
    uint64_t id = 0;
    rpc::Lease::Client lease = nullptr;
  };
  // A lease of 2 MiB (or `bytes`), its descriptor received; mapped and unmapped again when asked. An error of
  // the manager ends the program.
  kj::Promise<Granted> grant(uint64_t ttl_ns, bool map, bool touch = false, uint64_t bytes = 2 << 20);
  kj::Promise<void> release(Granted granted);
  // Renews all in one call.
  kj::Promise<void> renew(const std::vector<uint64_t>& leases);
  // free bytes of pool "p"
  uint64_t free_bytes();

 private:
  Loop& loop_;
  kj::Own<kj::AsyncCapabilityStream> stream_;
  capnp::TwoPartyClient rpc_;
  rpc::Gateway::Client gateway_;
  rpc::TenantSession::Client session_ = nullptr;
  uint64_t next_key_ = 1;
  uint64_t key_high_ = 0;
};

}  // namespace terrace::bench
