// SPDX-License-Identifier: Apache-2.0
// An agent's certificate, renewed by its manager before it ends.
//
// Place     Uplink asks beside its heartbeats; Credentials says when it is time, and takes what came.
// Threads   The event loop's thread only.
#pragma once

#include <kj/timer.h>

#include <string>

#include "core/schema/agent.capnp.h"
#include "daemon/tls/credentials.h"

namespace terrace::daemon {

class CertificateRenewal {
 public:
  CertificateRenewal(Credentials& credentials, kj::Timer& timer) : credentials_(credentials), timer_(timer) {}

  bool due() { return credentials_.wants_renewal(); }
  // Never rejected. Whatever comes of it, the connection stays: there is time for other tries, and for an operator, who
  // is told once of each reason.
  kj::Promise<void> ask(rpc::AgentService::Client manager, uint64_t patience_ns);

 private:
  Credentials& credentials_;
  kj::Timer& timer_;
  std::string trouble_;
};

}  // namespace terrace::daemon
