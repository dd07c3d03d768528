// SPDX-License-Identifier: Apache-2.0
#include "daemon/helper/jobs/jobs.h"

#include <unistd.h>

#include <cerrno>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/base/clock.h"
#include "core/base/units.h"
#include "daemon/doctor/checks.h"
#include "daemon/helper/helper.h"
#include "daemon/plan/options.h"
#include "daemon/plan/report.h"
#include "tiering/sim/comparison.h"

namespace terrace::daemon {
namespace {

Error job_error(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = "helper", .detail = std::move(detail)};
}

Result<std::string> read_input() {
  std::string text;
  char part[1 << 16];
  for (;;) {
    const ssize_t got = ::read(STDIN_FILENO, part, sizeof part);
    if (got == 0) return text;
    if (got < 0 && errno != EINTR) return os_error(errno, "helper", "cannot read the trace");
    if (got > 0) text.append(part, static_cast<size_t>(got));
  }
}

using SetOption = std::function<Status(const std::string& name, const std::string& value)>;

Status read_options(const std::vector<std::string>& words, const SetOption& set) {
  for (size_t at = 1; at < words.size(); ++at) {
    const size_t equals = words[at].find('=');
    if (equals == std::string::npos)
      return job_error(ErrorCode::invalid_argument, "'" + words[at] + "' has no value");
    TERRACE_RETURN_IF_ERROR(set(words[at].substr(0, equals), words[at].substr(equals + 1)));
  }
  return {};
}

// Ten times a second at most: who asks does not look more often.
class Progress {
 public:
  void tell(uint64_t done, uint64_t total, const std::string& what) {
    const uint64_t now_ns = SystemClock().now_ns();
    if (now_ns - told_ns_ < ns_per_s / 10) return;
    told_ns_ = now_ns;
    tell_progress(std::to_string(done) + " " + std::to_string(total) + " " + what);
  }

 private:
  uint64_t told_ns_ = 0;
};

std::string text_of(const nlohmann::json& document) {
  return document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Result<std::string> make_plan(const std::vector<std::string>& words) {
  plan::Options options;
  std::string name = "the trace";
  TERRACE_RETURN_IF_ERROR(
      read_options(words, [&](const std::string& option, const std::string& value) -> Status {
        if (option != "name") return plan::set_option(options, option, value);
        name = value;
        return {};
      }));
  TERRACE_ASSIGN_OR_RETURN(const std::string text, read_input());
  TERRACE_ASSIGN_OR_RETURN(const plan::Trace trace, plan::parse_trace(text, name));
  TERRACE_RETURN_IF_ERROR(plan::complete(options, trace, name));
  Progress progress;
  TERRACE_ASSIGN_OR_RETURN(const plan::Plan made,
                           plan::make_plan(trace, options.question, [&progress](uint64_t replays) {
                             progress.tell(replays, 0, "replays of the trace");
                           }));
  if (const std::vector<std::string> problems = made.problems(); !problems.empty())
    return job_error(ErrorCode::corrupt,
                     "the state machine broke an invariant while replaying, report this: " + problems.front());
  return text_of(plan::report_json(made, trace));
}

Result<std::string> compare_policies(const std::vector<std::string>& words) {
  tiering::ComparisonOptions options;
  std::string name = "the trace";
  tiering::TraceFormat format = tiering::TraceFormat::mooncake;
  TERRACE_RETURN_IF_ERROR(
      read_options(words, [&](const std::string& option, const std::string& value) -> Status {
        if (option == "name") {
          name = value;
        } else if (option == "format") {
          if (value != "mooncake" && value != "accesses")
            return job_error(ErrorCode::invalid_argument,
                             "format: '" + value + "' is neither mooncake nor accesses");
          format = value == "accesses" ? tiering::TraceFormat::accesses : tiering::TraceFormat::mooncake;
        } else {
          return tiering::set_option(options, option, value);
        }
        return {};
      }));
  TERRACE_RETURN_IF_ERROR(tiering::machine_of(options));
  TERRACE_ASSIGN_OR_RETURN(const std::string text, read_input());
  TERRACE_ASSIGN_OR_RETURN(const tiering::Trace trace, tiering::parse_trace(text, format, name));
  Progress progress;
  const uint64_t runs = options.ddr_fractions.size() * options.policies.size();
  uint64_t run = 0;
  std::string before;
  TERRACE_ASSIGN_OR_RETURN(
      const tiering::Comparison made,
      tiering::compare(trace, options, [&](const std::string& what, uint64_t done, uint64_t total) {
        if (what != before) ++run;
        before = what;
        progress.tell((run - 1) * total + done, runs * total, what);
      }));
  return text_of(tiering::comparison_json(trace, made));
}

Result<std::string> run_job(const std::vector<std::string>& words) {
  const std::string job = words.empty() ? "" : words.front();
  if (job == "doctor") return doctor::pack(doctor::run_checks());
  if (job == "plan") return make_plan(words);
  if (job == "tiersim") return compare_policies(words);
  return job_error(ErrorCode::invalid_argument, "there is no job '" + job + "'");
}

}  // namespace

int run_helper_job(const std::vector<std::string>& words) {
  begin_helper();
  return answer_helper(run_job(words));
}

}  // namespace terrace::daemon
