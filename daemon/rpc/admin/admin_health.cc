// SPDX-License-Identifier: Apache-2.0
// The operator's interface: what is wrong with the manager, in the words of the schema.
#include "daemon/rpc/admin/admin.h"
#include "daemon/rpc/server_info.h"

namespace terrace::daemon {

// At once, unlike all other answers: what of it a crash could undo is of no weight, and while the store fails
// nothing would ever be durable.
kj::Promise<void> AdminServer::health(HealthContext context) {
  KJ_IF_MAYBE (slot, admit(*connection_, context))
    write_health_findings(context.getResults(), service().health().look(), now_ns());
  return kj::READY_NOW;
}

void AdminServer::write_health(rpc::HealthSummary::Builder out) {
  write_health_summary(out, service().health().look());
}

}  // namespace terrace::daemon
