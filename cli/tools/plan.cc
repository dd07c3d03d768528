// SPDX-License-Identifier: Apache-2.0
// `terrace plan`: how much memory would pooling save? Replays a trace of requests through the state machine, in
// virtual time. Needs no daemon and touches no device.
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/terminal/verb.h"
#include "cli/tools/plan_text.h"
#include "core/base/limits.h"
#include "daemon/plan/figure.h"
#include "daemon/plan/options.h"
#include "daemon/plan/report.h"
#include "daemon/plan/sizing.h"
#include "daemon/plan/trace.h"

namespace terrace::cli {
namespace {

struct PlanOptions : plan::Options {
  std::string trace;
  std::string svg;
  std::string csv;
};

Error plan_usage(std::string detail) {
  return Error{.code = ErrorCode::invalid_argument, .where = "plan", .detail = std::move(detail)};
}

// A value such as "0.9,0.8" as its parts.
template <typename T>
void add_list_option(Command app, const char* name, std::vector<T>& target, const char* help,
                     Result<std::vector<T>> (*parse)(const std::string&)) {
  const auto parse_list = [&target, parse](const std::string& text) -> Status {
    TERRACE_ASSIGN_OR_RETURN(target, parse(text));
    return {};
  };
  app.add_parsed_option(name, parse_list, help).type_name("LIST");
}

void add_share_option(Command app, const char* name, double& target, const char* help) {
  const auto parse = [&target](const std::string& text) -> Status {
    TERRACE_ASSIGN_OR_RETURN(target, plan::parse_share(text));
    return {};
  };
  app.add_parsed_option(name, parse, help).type_name("SHARE");
}

Result<std::string> read_whole(const std::string& path) {
  // Far beyond any trace of requests; a device or a disk image given by mistake must not fill this machine.
  constexpr size_t bytes_max = size_t{1} << 30;
  std::ifstream file(path, std::ios::binary);
  if (!file) return os_error(errno, "plan", "cannot read the trace " + path);
  std::string text;
  char part[1 << 16];
  while (file.read(part, sizeof part) || file.gcount() > 0) {
    text.append(part, static_cast<size_t>(file.gcount()));
    if (text.size() > bytes_max) return plan_usage("the trace " + path + " has more than 1 GiB; split it");
  }
  if (file.bad()) return os_error(errno, "plan", "cannot read the trace " + path + " (is it a file?)");
  return text;
}

Status write_whole(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) return os_error(errno != 0 ? errno : EIO, "plan", "cannot write " + path);
  return {};
}

Status make_plan(Context& context, PlanOptions& options) {
  TERRACE_ASSIGN_OR_RETURN(const std::string text, read_whole(options.trace));
  TERRACE_ASSIGN_OR_RETURN(const plan::Trace trace, plan::parse_trace(text, options.trace));
  TERRACE_RETURN_IF_ERROR(plan::complete(options, trace, options.trace));
  TERRACE_ASSIGN_OR_RETURN(const plan::Plan made, plan::make_plan(trace, options.question));
  if (const std::vector<std::string> problems = made.problems(); !problems.empty()) {
    return Error{
        .code = ErrorCode::corrupt,
        .where = "plan",
        .detail = "the state machine broke an invariant while replaying, report this: " + problems.front()};
  }
  if (!options.svg.empty()) {
    const std::string name = options.trace.substr(options.trace.rfind('/') + 1);
    TERRACE_RETURN_IF_ERROR(write_whole(options.svg, plan::figure(made, trace, printable(name))));
  }
  if (!options.csv.empty()) TERRACE_RETURN_IF_ERROR(write_whole(options.csv, plan::time_series_csv(made)));
  if (context.json) {
    print_json(plan::report_json(made, trace));
  } else {
    print_text(plan_text(made, trace));
  }
  return {};
}

void add_policy_options(Command app, PlanOptions& options) {
  plan::Question& question = options.question;
  add_share_option(app, "--rejection-rate", question.rejection_rate,
                   "Share of the requests that may be rejected, with and without a pool (default 0.01)");
  add_share_option(app, "--pool-fraction-max", question.setup.pool_fraction_max,
                   "Share of one request that may come from the pool (default 0.5)");
  app.add_option("--spill", options.spill,
                 "when-full: from the pool only what no host has room for; even: its share of every request")
      .one_of({"when-full", "even"});
  app.add_option("--placement", options.placement,
                 "Among hosts with room: the fullest (best-fit) or the emptiest (worst-fit, the default)")
      .one_of({"best-fit", "worst-fit"});
  add_size_option(app, "--granule", question.setup.granule_bytes,
                  "Unit that memory is given out in (default 2M)");
  app.add_option("--pool-devices", question.setup.pool_devices, "Devices the pool is made of (default 4)")
      .in_range(uint64_t{1}, limits::devices_max)
      .type_name("N");
}

}  // namespace

void add_plan_verb(Command app, Context& context) {
  Command verb = app.add_subcommand(
      "plan", "How much memory a shared pool would save: replays a trace of requests, needs no daemon");
  const auto options = std::make_shared<PlanOptions>();

  verb.add_option("--trace", options->trace,
                  "CSV with a header; columns memory_mib, creation_time, deletion_time (seconds), and if there "
                  "cpu_milli, num_gpu, gpu_milli")
      .required()
      .type_name("FILE");
  verb.add_option("--hosts", options->hosts, "Hosts (default: the fewest that keep the rejection rate)")
      .in_range(uint64_t{1}, plan::hosts_max)
      .type_name("N");
  add_size_option(
      verb, "--host-memory", options->host_memory_bytes,
      "Memory of a host without a pool (default: the smallest usual size that 99.9% of requests fit in)");
  verb.add_option("--host-cores", options->host_cores,
                  "Cores of a host, 0: as many as needed (default 96 where the trace has cpu_milli)")
      .in_range(int64_t{0}, plan::host_parts_max)
      .type_name("N");
  verb.add_option("--host-gpus", options->host_gpus,
                  "GPUs of a host, 0: as many as needed (default 8 where the trace has num_gpu)")
      .in_range(int64_t{0}, plan::host_parts_max)
      .type_name("N");
  add_list_option<double>(verb, "--local-fractions", options->local_fractions,
                          "Shares of the host memory that stay local (default 0.9,0.8,0.7,0.6,0.5)",
                          plan::parse_shares);
  add_list_option<uint64_t>(verb, "--pool-sizes", options->pool_bytes,
                            "Pool sizes to try, such as 128G,256G (default: search the smallest that will do)",
                            plan::parse_sizes);
  add_policy_options(verb, *options);
  verb.add_option("--svg", options->svg, "Write a picture: saving and rejections by pool size, use over time")
      .type_name("FILE");
  verb.add_option("--csv", options->csv, "Write the time series of the baseline and of what is plotted")
      .type_name("FILE");
  on_verb(verb, context, [&context, options] { return make_plan(context, *options); });
}

}  // namespace terrace::cli
