// SPDX-License-Identifier: Apache-2.0
// `terrace state export` and `apply`: the configuration of a manager as one readable file, and a manager made so.
#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/client/admin_client.h"
#include "cli/terminal/verb.h"
#include "cli/verbs/state_plan.h"
#include "cli/verbs/state_verbs.h"

namespace terrace::cli {
namespace {

struct ConfigArguments {
  std::string file;
  bool force = false;
  bool dry_run = false;
};

Result<ManagerConfig> read_manager(AdminClient& client, std::vector<DeviceStatus>& devices) {
  TERRACE_ASSIGN_OR_RETURN(devices, client.devices());
  TERRACE_ASSIGN_OR_RETURN(const auto pools, client.pools());
  TERRACE_ASSIGN_OR_RETURN(const auto quotas, client.quotas());
  TERRACE_ASSIGN_OR_RETURN(const auto reservations, client.reservations());
  return config_of(devices, pools, quotas, reservations);
}

Status export_config(const Context& context, const ConfigArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  std::vector<DeviceStatus> devices;
  TERRACE_ASSIGN_OR_RETURN(const ManagerConfig config, read_manager(*client, devices));
  const std::string text = config_text(config);
  if (arguments.file.empty()) {
    print_text(text);
    return {};
  }
  TERRACE_RETURN_IF_ERROR(write_new_file(arguments.file, text, arguments.force));
  if (context.json) {
    print_json({{"file", arguments.file}, {"configuration", nlohmann::json::parse(text)}});
  } else {
    print_text("wrote " + printable(arguments.file) + ": " + count_text(config.devices.size(), "device") +
               ", " + count_text(config.pools.size(), "pool") + ", " +
               count_text(config.quotas.size(), "quota") + ", " +
               count_text(config.reservations.size(), "reservation") +
               "\nWhich uid is which tenant is in terraced's own configuration file: keep that one, too\n");
  }
  return {};
}

Status do_step(AdminClient& client, const PlanStep& step) {
  const auto status = [](const auto& result) { return result.ok() ? Status() : Status(result.error()); };
  switch (step.kind) {
    case PlanStep::Kind::adopt: return status(client.adopt(step.serial));
    case PlanStep::Kind::create_pool: return status(client.create_pool(step.new_pool));
    case PlanStep::Kind::add_device: return status(client.add_device(step.pool, step.serial));
    case PlanStep::Kind::set_coherence:
      return status(client.set_pool_coherence(step.new_pool.name, step.new_pool.coherence));
    case PlanStep::Kind::set_trust:
      return status(client.set_pool_trust(step.new_pool.name, step.new_pool.trust));
    case PlanStep::Kind::set_quota:
      return client.set_quota(QuotaStatus().changed([&step](rpc::Quota::Builder quota) {
        quota.setTenant(step.quota.tenant);
        quota.setBytesMax(step.quota.bytes_max);
        quota.setLeasesMax(step.quota.leases_max);
      }));
    case PlanStep::Kind::reserve: return status(client.reserve(step.reservation));
  }
  return {};
}

std::string plan_text(const ConfigPlan& plan, size_t done, bool dry_run) {
  std::string text;
  for (size_t i = 0; i < plan.steps.size(); ++i)
    text += std::string(dry_run    ? "would "
                        : i < done ? "done: "
                                   : "not done: ") +
            printable(plan.steps[i].words) + "\n";
  for (const std::string& conflict : plan.conflicts) text += "cannot: " + printable(conflict) + "\n";
  for (const std::string& left : plan.left) text += "not in the file, left: " + printable(left) + "\n";
  if (plan.steps.empty() && plan.conflicts.empty())
    text += "nothing to do: the manager has all that the file says\n";
  return text;
}

nlohmann::json plan_json(const ConfigPlan& plan, size_t done, bool dry_run) {
  auto steps = nlohmann::json::array();
  for (size_t i = 0; i < plan.steps.size(); ++i)
    steps.push_back({{"step", plan.steps[i].words}, {"done", i < done}});
  return {{"dry_run", dry_run}, {"steps", steps}, {"conflicts", plan.conflicts}, {"left", plan.left}};
}

// What stands against the file is known before anything is done; then nothing is.
Status apply_config(Context& context, const ConfigArguments& arguments) {
  std::ifstream file(arguments.file, std::ios::binary);
  if (!file) return os_error(errno, "state apply", "cannot read " + arguments.file);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  TERRACE_ASSIGN_OR_RETURN(const ManagerConfig wanted, parse_config(text, arguments.file));
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  std::vector<DeviceStatus> devices;
  TERRACE_ASSIGN_OR_RETURN(const ManagerConfig present, read_manager(*client, devices));
  const ConfigPlan plan = plan_config(wanted, present, devices);
  if (!plan.conflicts.empty() && !arguments.dry_run) {
    const Error error{.code = ErrorCode::already_exists,
                      .where = "state apply",
                      .detail = "nothing was done: " + plan.conflicts.front() +
                                (plan.conflicts.size() == 1 ? ""
                                                            : " (" + std::to_string(plan.conflicts.size() - 1) +
                                                                  " more, see --dry-run)")};
    fail_with(context, error, "plan", plan_json(plan, 0, true), "");
    return {};
  }
  size_t done = 0;
  for (; done < plan.steps.size() && !arguments.dry_run; ++done) {
    const Status status = do_step(*client, plan.steps[done]);
    if (status.ok()) continue;
    Error error = status.error();
    error.detail = plan.steps[done].words + ": " + error.detail + "; once that is mended, apply the file again";
    fail_with(context, error, "plan", plan_json(plan, done, false), plan_text(plan, done, false));
    return {};
  }
  if (!plan.conflicts.empty()) context.exit_code = exit_conflict;
  if (context.json) {
    print_json({{"plan", plan_json(plan, done, arguments.dry_run)}});
  } else {
    print_text(plan_text(plan, done, arguments.dry_run));
  }
  return {};
}

}  // namespace

void add_config_verbs(Command verbs, Context& context) {
  const auto arguments = std::make_shared<ConfigArguments>();
  Command out =
      verbs.add_subcommand("export", "Write devices, pools, quotas and reservations as one readable file");
  out.add_option("file", arguments->file, "The file to make (default: standard output)").type_name("FILE");
  out.add_flag("--force", arguments->force, "Replace the file if it is there");
  on_verb(out, context, [&context, arguments] { return export_config(context, *arguments); });

  Command in = verbs.add_subcommand("apply", "Make what such a file says and is missing; takes nothing away");
  in.add_option("file", arguments->file, "A file of `terrace state export`").required().type_name("FILE");
  in.add_flag("--dry-run", arguments->dry_run, "Only say what would be done");
  on_verb(in, context, [&context, arguments] { return apply_config(context, *arguments); });
}

}  // namespace terrace::cli
