// SPDX-License-Identifier: Apache-2.0
// The operator's interface: what the manager's machine can and cannot do.
#include <unistd.h>

#include "daemon/doctor/checks.h"
#include "daemon/rpc/admin/admin.h"

namespace terrace::daemon {
namespace {

rpc::CheckState wire_state(doctor::CheckState state) {
  switch (state) {
    case doctor::CheckState::ok: return rpc::CheckState::OK;
    case doctor::CheckState::limited: return rpc::CheckState::LIMITED;
    case doctor::CheckState::missing: return rpc::CheckState::MISSING;
  }
  return rpc::CheckState::MISSING;
}

void write_doctor_check(rpc::DoctorCheck::Builder out, const doctor::Check& check) {
  out.setName(check.name);
  out.setGroup(doctor::group_name(doctor::group_of(check.name)));
  out.setState(wire_state(check.state));
  out.setFound(check.found);
  out.setMeaning(check.meaning);
  out.setFix(check.fix);
  out.setEssential(check.essential);
}

}  // namespace

kj::Promise<void> AdminServer::doctor(DoctorContext context) {
  KJ_IF_MAYBE (slot, admit(*connection_, context)) {
    return service()
        .doctor()
        .ask([&engine = engine()] { return engine.now_ns(); })
        .then([this, context](Result<MachineDoctor::Seen> seen) mutable {
          if (!seen.ok()) return refuse(context, seen.error());
          auto results = context.getResults();
          auto out = results.initChecks(static_cast<uint32_t>(seen->checks.size()));
          for (uint32_t i = 0; i < out.size(); ++i) write_doctor_check(out[i], seen->checks[i]);
          results.setBasicService(doctor::basic_service_possible(seen->checks));
          results.setUid(::geteuid());
          results.setAgeNs(now_ns() - seen->looked_ns);
        })
        .attach(kj::mv(*slot));
  }
  return kj::READY_NOW;
}

}  // namespace terrace::daemon
