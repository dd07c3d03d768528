// SPDX-License-Identifier: Apache-2.0
#include "cli/pools/litmus.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/client/admin_client.h"
#include "cli/terminal/manager_place.h"

namespace terrace::cli {
namespace {

struct LitmusArguments {
  std::string serial;
  LitmusPath path;
  std::string role;
};

ExitCode exit_code_of_verdict(litmus::Verdict verdict) {
  switch (verdict) {
    case litmus::Verdict::coherent: return exit_ok;
    case litmus::Verdict::not_coherent: return exit_mismatch;
    case litmus::Verdict::inconclusive: break;
  }
  return exit_failed;
}

// What it means, and what it does not.
std::string conclusion(const litmus::Report& report, const std::string& what, bool two_sided) {
  switch (report.verdict) {
    case litmus::Verdict::not_coherent:
      return what + " does not behave as coherent memory: a pool of it is 'noncoherent'\n";
    case litmus::Verdict::inconclusive: return what + ": inconclusive; " + printable(report.note) + "\n";
    case litmus::Verdict::coherent: break;
  }
  if (two_sided) return what + " is coherent between these two sides, as far as these rounds saw\n";
  return what +
         " behaves as coherent memory on this host. A host's caches are always coherent with themselves: "
         "whether "
         "those of several hosts are, 'terrace device litmus --path' on two of them says\n";
}

void show_report(Context& context, const litmus::Report& report, nlohmann::json document,
                 const std::string& what, bool two_sided) {
  context.exit_code = exit_code_of_verdict(report.verdict);
  if (context.json) {
    document.update(litmus_json(report));
    print_json({{"litmus", document}});
    return;
  }
  print_text(litmus_text(report) + conclusion(report, printable(what), two_sided));
}

Status litmus_by_manager(Context& context, const LitmusArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const LitmusStatus status,
                           client->litmus(arguments.serial, static_cast<uint32_t>(std::min<uint64_t>(
                                                                arguments.path.rounds, UINT32_MAX))));
  show_report(context, status.report, {{"device", arguments.serial}}, arguments.serial, false);
  return {};
}

Status litmus_by_side(Context& context, LitmusArguments& arguments) {
  TERRACE_RETURN_IF_ERROR(on_this_machine(context, "device litmus --path"));
  arguments.path.role = arguments.role == "second" ? litmus::Role::second : litmus::Role::first;
  TERRACE_ASSIGN_OR_RETURN(const litmus::Report report, litmus_on_path(context, arguments.path));
  show_report(
      context, report,
      {{"path", arguments.path.path}, {"offset_bytes", arguments.path.offset_bytes}, {"role", arguments.role}},
      arguments.path.path, true);
  return {};
}

Status run_litmus(Context& context, LitmusArguments& arguments) {
  const bool by_path = !arguments.path.path.empty();
  std::string problem;
  if (by_path != arguments.serial.empty()) {
    problem = "give either a device's serial, or --path with --role for one of two sides";
  } else if (by_path == arguments.role.empty()) {
    problem = by_path ? "--path needs --role first on one host and --role second on the other"
                      : "--role is for --path; the manager plays both sides of a device";
  }
  if (!problem.empty())
    return Error{.code = ErrorCode::invalid_argument, .where = "device litmus", .detail = problem};
  return by_path ? litmus_by_side(context, arguments) : litmus_by_manager(context, arguments);
}

}  // namespace

nlohmann::json litmus_json(const litmus::Report& report) {
  nlohmann::json shapes = nlohmann::json::array();
  for (const litmus::ShapeResult& shape : report.shapes) {
    shapes.push_back(
        {{"name", shape.name},
         {"rounds", shape.rounds},
         {"met", shape.met},
         {"forbidden", shape.forbidden},
         {"example", shape.example.empty() ? nlohmann::json(nullptr) : nlohmann::json(shape.example)},
         {"verdict", litmus::verdict_name(shape.verdict)}});
  }
  return {{"verdict", litmus::verdict_name(report.verdict)},
          {"note", report.note.empty() ? nlohmann::json(nullptr) : nlohmann::json(report.note)},
          {"took_ns", report.took_ns},
          {"shapes", shapes}};
}

std::string litmus_text(const litmus::Report& report) {
  std::vector<std::vector<std::string>> rows;
  std::string examples;
  for (const litmus::ShapeResult& shape : report.shapes) {
    rows.push_back({shape.name, std::to_string(shape.rounds), std::to_string(shape.met),
                    std::to_string(shape.forbidden), litmus::verdict_name(shape.verdict)});
    if (!shape.example.empty()) examples += printable(shape.name) + ", " + printable(shape.example) + "\n";
  }
  return format_table({"SHAPE", "ROUNDS", "MET", "FORBIDDEN", "VERDICT"}, rows) + examples;
}

std::vector<std::string> not_known_coherent(AdminClient& client, const std::string& pool) {
  std::vector<std::string> unknown;
  const auto devices = client.devices();
  const auto runs = client.litmus_runs();
  if (!devices.ok() || !runs.ok()) return unknown;
  for (const DeviceStatus& device : *devices) {
    if (!device->getAdopted() || str(device->getPool()) != pool) continue;
    const std::string serial = str(device->getSerial());
    const auto run =
        std::find_if(runs->begin(), runs->end(), [&](const LitmusStatus& one) { return one.device == serial; });
    if (run == runs->end()) {
      unknown.push_back(serial + " (not looked at)");
    } else if (run->report.verdict != litmus::Verdict::coherent) {
      unknown.push_back(serial + " (" + litmus::verdict_name(run->report.verdict) + ")");
    }
  }
  return unknown;
}

std::string say_not_known_coherent(const std::vector<std::string>& devices) {
  std::string text;
  for (const std::string& device : devices) text += (text.empty() ? "" : ", ") + printable(device);
  if (text.empty()) return text;
  return "no litmus run since the manager's start has found these coherent: " + text +
         "; 'terrace device litmus SERIAL' looks\n";
}

void add_litmus_verb(Command device, Context& context) {
  Command verb = device.add_subcommand(
      "litmus", "Whether memory behaves as coherent memory: of a device, or between two hosts (--path)");
  const auto arguments = std::make_shared<LitmusArguments>();
  verb.add_option("serial", arguments->serial, "An adopted device's serial: the manager looks, on free memory");
  verb.add_option("--path", arguments->path.path,
                  "A dax device or file that two sides see, to be written to; no manager is asked to look")
      .type_name("PATH");
  add_size_option(verb, "--offset", arguments->path.offset_bytes,
                  "With --path: where the 20 KiB begin that are overwritten (default 0)");
  verb.add_option("--role", arguments->role, "With --path: which of both sides this is")
      .one_of({"first", "second"});
  verb.add_option("--rounds", arguments->path.rounds,
                  "Of each shape (default 1280; of two sides, the first one's)");
  add_duration_option(verb, "--wait", arguments->path.wait_ns,
                      "With --path: how long to wait for the other side (default 60s)");
  verb.add_flag("--yes", arguments->path.yes, "With --path: do not ask, overwrite what is there");
  on_verb(verb, context, [&context, arguments] { return run_litmus(context, *arguments); });
}

}  // namespace terrace::cli
