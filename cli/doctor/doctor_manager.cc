// SPDX-License-Identifier: Apache-2.0
// `terrace doctor --manager`: the manager's machine, as its process sees it.
#include <nlohmann/json.hpp>

#include "cli/client/admin_client.h"
#include "cli/doctor/doctor.h"

namespace terrace::cli {
namespace {

CheckState state_of(rpc::CheckState state) {
  switch (state) {
    case rpc::CheckState::OK: return CheckState::ok;
    case rpc::CheckState::LIMITED: return CheckState::limited;
    case rpc::CheckState::MISSING: return CheckState::missing;
  }
  return CheckState::missing;
}

}  // namespace

Status run_manager_doctor(Context& context) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const DoctorReply reply, client->doctor());
  std::vector<Check> checks;
  for (const auto one : reply->getChecks())
    checks.push_back({.name = str(one.getName()),
                      .state = state_of(one.getState()),
                      .found = str(one.getFound()),
                      .meaning = str(one.getMeaning()),
                      .fix = str(one.getFix()),
                      .essential = one.getEssential()});
  const bool possible = reply->getBasicService();
  context.exit_code = possible ? exit_ok : exit_failed;
  if (context.json) {
    print_json({{"basic_service", possible},
                {"checks", checks_json(checks)},
                {"uid", reply->getUid()},
                {"age_ns", reply->getAgeNs()}});
    return {};
  }
  print_text(format_checks(checks) + "\nLooked at by the manager, as uid " + std::to_string(reply->getUid()) +
             ", " + format_duration(reply->getAgeNs()) + " ago.\n" +
             (possible ? "That machine can run Terrace with an emulated pool.\n"
                       : "That machine cannot run even an emulated pool: fix what is essential above.\n"));
  return {};
}

}  // namespace terrace::cli
