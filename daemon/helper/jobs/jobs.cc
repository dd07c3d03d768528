#include "daemon/helper/jobs/jobs.h"

#include "daemon/doctor/checks.h"
#include "daemon/helper/helper.h"

namespace terrace::daemon {
namespace {

Result<std::string> run_job(const std::vector<std::string>& words) {
  const std::string job = words.empty() ? "" : words.front();
  if (job == "doctor") return doctor::pack(doctor::run_checks());
  return Error{
      .code = ErrorCode::invalid_argument, .where = "helper", .detail = "there is no job '" + job + "'"};
}

}  // namespace

int run_helper_job(const std::vector<std::string>& words) {
  begin_helper();
  return answer_helper(run_job(words));
}

}  // namespace terrace::daemon
