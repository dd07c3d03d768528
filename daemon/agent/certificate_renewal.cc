// SPDX-License-Identifier: Apache-2.0
#include "daemon/agent/certificate_renewal.h"

#include "daemon/hosts/agent_wire.h"
#include "daemon/log/log.h"
#include "daemon/rpc/wire.h"

namespace terrace::daemon {

kj::Promise<void> CertificateRenewal::ask(rpc::AgentService::Client manager, uint64_t patience_ns) {
  using Renewed = capnp::Response<rpc::AgentService::RenewCertificateResults>;
  auto asked =
      manager.renewCertificateRequest()
          .send()
          .then([this](Renewed reply) -> std::string {
            Status status = read_error(reply.getError(), "renewCertificate");
            if (status.ok()) status = credentials_.install(read_text(reply.getCertificate()));
            return status.ok() ? "" : status.error().detail;
          })
          .catch_([](kj::Exception&& exception) -> std::string { return exception.getDescription().cStr(); });
  auto late = timer_.afterDelay(static_cast<int64_t>(patience_ns) * kj::NANOSECONDS).then([]() -> std::string {
    return "its answer took too long";
  });
  return asked.exclusiveJoin(kj::mv(late)).then([this](const std::string& trouble) {
    if (!trouble.empty() && trouble != trouble_)
      log::warn("this host's certificate could not be renewed by its manager: {}", trouble);
    trouble_ = trouble;
  });
}

}  // namespace terrace::daemon
