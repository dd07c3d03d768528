// SPDX-License-Identifier: Apache-2.0
// `terrace run`: starts an unmodified program under libterrace_heap.so (or libterrace_malloc.so) and stays as
// its supervisor. This process is the tenant's client: it holds the session and the leases, so that the program
// needs no RPC, no helper thread and no descriptor.
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "allocator/supply/broker.h"
#include "cli/program/end_by_signal.h"
#include "cli/program/find_program.h"
#include "cli/program/supervisor.h"
#include "cli/run/run_budget.h"
#include "cli/run/run_figures.h"
#include "cli/run/run_inspect.h"
#include "cli/run/run_processes.h"
#include "cli/run/run_reporter.h"
#include "cli/run/run_start.h"
#include "cli/terminal/local_time.h"
#include "cli/terminal/verb.h"
#include "cli/tier/tier_request.h"
#include "core/base/limits.h"
#include "tiering/policy/policy.h"

namespace terrace::cli {
namespace {

// What the manager accepts, less the "#123" of further leases.
constexpr size_t label_bytes_max = limits::label_bytes_max - 7;

// No control characters (C0, DEL, C1), no overlong or broken sequences.
bool is_printable_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    auto first = static_cast<unsigned char>(text[at]);
    size_t length = first < 0x80 ? 1 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0x20 || first == 0x7f || (first >= 0x80 && first < 0xc2) || first > 0xf4 ||
        length > text.size() - at)
      return false;
    uint32_t point = length == 1 ? first : first & (0x7fu >> length);
    for (size_t i = 1; i < length; ++i) {
      auto next = static_cast<unsigned char>(text[at + i]);
      if ((next & 0xc0) != 0x80) return false;
      point = point << 6 | (next & 0x3fu);
    }
    constexpr uint32_t least[] = {0, 0, 0xa0, 0x800, 0x10000};
    if (point < least[length] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) return false;
    at += length;
  }
  return true;
}

std::string plain_report(const RunArguments& arguments, const ProgramFacts& facts) {
  const nlohmann::json document = {
      {"program", arguments.command.front()}, {"supervised", false}, {"reason", facts.obstacle}};
  return document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

// The program cannot be served: it becomes this process. Returns only when that fails.
Status run_plainly(const RunArguments& arguments, const ProgramFacts& facts) {
  say(arguments.command.front() + " runs without Terrace: " + facts.obstacle);
  if (!arguments.stats_file.empty())
    TERRACE_RETURN_IF_ERROR(write_report(arguments.stats_file, plain_report(arguments, facts)));
  std::vector<char*> words;
  for (const std::string& word : arguments.command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execv(facts.path.c_str(), words.data());
  return os_error(errno, "terrace run", "cannot start " + facts.path);
}

// What is sure to fail hours later, when the program has ended, is said before it starts.
Status check_stats_file(const std::string& file) {
  if (file.empty()) return {};
  struct stat about {};
  const std::string directory = std::filesystem::path(file).parent_path().string();
  const bool there = ::stat(file.c_str(), &about) == 0;
  if (there && S_ISDIR(about.st_mode))
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "terrace run",
                 .detail = "--stats " + printable(file) + " is a directory: name a file in it"};
  // A file is replaced where its directory lets that be.
  if (there && ::access(file.c_str(), W_OK) == 0) return {};
  if ((!there || S_ISREG(about.st_mode)) &&
      ::access(directory.empty() ? "." : directory.c_str(), W_OK | X_OK) == 0)
    return {};
  return Error{.code = ErrorCode::invalid_argument,
               .where = "terrace run",
               .detail = "--stats " + printable(file) + " cannot be written: " + std::strerror(errno)};
}

Status check(const RunArguments& arguments) {
  if (arguments.cxl_given && arguments.cxl_bytes == 0 && arguments.ddr_given && arguments.ddr_bytes == 0)
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "terrace run",
                 .detail = "both budgets are 0; give --cxl SIZE"};
  if (arguments.label.size() > label_bytes_max || !is_printable_utf8(arguments.label))
    return Error{
        .code = ErrorCode::invalid_argument,
        .where = "terrace run",
        .detail = "--label must be printable UTF-8 of at most " + std::to_string(label_bytes_max) + " bytes"};
  if (!arguments.stats_interval.empty() && arguments.stats_file.empty())
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "terrace run",
                 .detail = "--stats-interval needs a file: say --stats FILE"};
  return check_stats_file(arguments.stats_file);
}

// With its arguments, for a line of a table.
std::string command_line(const std::vector<std::string>& words) {
  constexpr size_t bytes_max = 512;
  std::string line;
  for (const std::string& word : words) {
    if (line.size() > bytes_max) break;
    line += (line.empty() ? "" : " ") + word;
  }
  return printable(line.substr(0, bytes_max));
}

std::string default_label(const std::string& program) {
  std::string name = program.substr(program.rfind('/') + 1).substr(0, 64);
  for (char& byte : name)
    if (static_cast<unsigned char>(byte) < 0x20 || static_cast<unsigned char>(byte) > 0x7e) byte = '?';
  return "run:" + name + "[" + std::to_string(::getpid()) + "]";
}

// `failure` is what to exit with when this returns an error.
Status run(Context& context, RunArguments arguments, int* failure) {
  *failure = exit_usage;
  TERRACE_RETURN_IF_ERROR(check(arguments));
  RunReporterOptions reports;
  if (!arguments.stats_interval.empty()) {
    TERRACE_ASSIGN_OR_RETURN(reports.interval_ns, parse_interval("--stats-interval", arguments.stats_interval));
  }
  auto inspected = inspect_program(arguments.command.front());
  if (!inspected.ok()) {
    *failure = inspected.error().code == ErrorCode::not_found ? exit_no_program : exit_not_executable;
    return inspected.error();
  }
  const ProgramFacts& facts = *inspected;
  *failure = exit_not_executable;
  if (!facts.obstacle.empty()) return run_plainly(arguments, facts);
  *failure = exit_own_failure;
  TERRACE_ASSIGN_OR_RETURN(std::string library, find_malloc_library(arguments.min_size == 0));

  Supervisor supervisor;  // blocks signals before any thread exists
  const auto connect = [&] {
    const EndBySignal waiting(supervisor);
    return connect_for_run(context, &arguments);
  };
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, connect());
  supply::BrokerOptions options;
  options.ddr_bytes = arguments.ddr_bytes;
  options.cxl_bytes = arguments.cxl_bytes;
  options.fallback = arguments.fallback;
  options.pool = arguments.pool;
  options.ttl_ns = arguments.ttl_ns;
  options.label = arguments.label.empty() ? default_label(arguments.command.front()) : arguments.label;
  options.warn = say;
  // Some of it stays for the rest of the machine.
  options.spare_bytes = [] { return available_memory_bytes() / 4 * 3; };
  UniqueFd userfault_device;
  const std::string obstacle = why_still(*session, arguments, &userfault_device);
  if (obstacle.empty())
    options.migration = {.policy = arguments.policy,
                         .copy_bytes_per_s = arguments.copy_bytes_per_s,
                         .round_ns = 0,
                         .access_events = arguments.access_events,
                         .userfault_device = userfault_device.get()};
  else if (arguments.policy != "static" && arguments.cxl_bytes > 0 && arguments.ddr_bytes > 0)
    say("memory stays where it is first put: " + obstacle);
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<supply::Broker> broker, supply::Broker::start(*session, options));

  Status started = supervisor.start(
      facts.path, arguments.command,
      environment_for(library, broker->socket_path(), arguments.min_size, arguments.mmap_from));
  if (!started.ok()) {
    if (supervisor.exec_errno() != 0)
      *failure = supervisor.exec_errno() == ENOENT ? exit_no_program : exit_not_executable;
    return started;
  }
  reports.stats_file = arguments.stats_file;
  reports.facts.program = arguments.command.front();
  reports.facts.command = command_line(arguments.command);
  reports.facts.pool = arguments.cxl_bytes > 0 ? arguments.pool : "";
  reports.facts.policy = arguments.policy;
  reports.facts.obstacle = obstacle;
  reports.facts.ddr_budget_from = arguments.ddr_given ? size_given : size_of_machine;
  reports.facts.cxl_budget_from = arguments.cxl_given       ? size_given
                                  : arguments.cxl_bytes > 0 ? size_of_pool
                                                            : size_none;
  reports.facts.fallback = arguments.fallback;
  reports.facts.ddr_budget_bytes = arguments.ddr_bytes;
  reports.facts.cxl_budget_bytes = arguments.cxl_bytes;
  RunTeller teller(*session);
  reports.tell = [&teller](const RunDocument& now, bool last) { teller.tell(now, last); };
  RunReporter reporter(*broker, std::move(reports));
  RunProcesses processes(*broker);
  supervisor.on_ask([&reporter] { reporter.ask(); });
  context.exit_code = supervisor.wait(processes);
  // The program's own status is what the caller waits for; a lost file is said, not returned.
  if (Status written = reporter.finish(context.exit_code); !written.ok()) say(written.error().to_string());
  return {};
}

void add_mmap_option(Command verb, RunArguments& arguments) {
  const auto parse = [&arguments](const std::string& text) {
    const auto size = parse_size(text);
    arguments.mmap_from = size.ok() ? *size : 0;  // off
    return Status();
  };
  verb.add_parsed_option(
          "--mmap", parse,
          "Private anonymous mappings of at least so much are in the budgets as well (default 1M; off: none)")
      .type_name("SIZE|off")
      .envname(supply::mmap_variable)
      .check([](const std::string& text) {
        if (text == "off" || text == "0") return std::string();
        const auto size = parse_size(text);
        if (size.ok() && *size >= supply::mmap_from_min) return std::string();
        return "'" + text + "' is no size from " + format_size(supply::mmap_from_min) +
               " on, as 1M, and not 'off'";
      });
}

}  // namespace

void add_run_verb(Command app, Context& context) {
  auto arguments = std::make_shared<RunArguments>();
  Command verb = app.add_subcommand("run", "Start a program whose heap lives in DDR and leased CXL memory");
  verb.footer(
      "Exits as the program did: its status, or 128 + the signal that ended it. Stays until the last process\n"
      "that uses its memory has ended, also one that went to the background.\n"
      "Its own failures: 127 there is no such program, 126 it cannot be executed (also a script without a #! "
      "line),\n"
      "125 no memory manager, pool or library, 2 the command line is wrong. With --json those are one document "
      "on\n"
      "stdout; a program that ran has stdout to itself, its numbers go to --stats FILE.\n"
      "If this command is killed with SIGKILL, the program that it started gets SIGTERM, since the leases end "
      "with\n"
      "their TTL. Processes that this program started get nothing (with sh -c 'prog; ...' only sh does): they "
      "get\n"
      "SIGBUS when the leases end. End a run with SIGTERM, which is passed on.");
  const Option ddr = add_size_option(verb, "--ddr", arguments->ddr_bytes,
                                     "DDR budget of all its processes, used first. Default: half of what "
                                     "the machine, or a control group, has\n"
                                     "available; then plain memory serves what fits into no budget");
  const Option cxl = add_size_option(
      verb, "--cxl", arguments->cxl_bytes,
      "CXL budget, leased as it is needed. Default: what the pool has free, as far as the tenant's\n"
      "quota allows; 0: DDR only");
  add_size_option(
      verb, "--min-size", arguments->min_size,
      "Requests below this stay with the program's own malloc (at least 4K; default 0: the whole heap is\n"
      "in the budgets)")
      .envname(supply::min_size_variable);
  add_mmap_option(verb, *arguments);
  add_duration_option(verb, "--ttl", arguments->ttl_ns, "TTL of the leases (default: the manager's)");
  verb.add_option("--pool", arguments->pool,
                  "Pool to lease from (default: the only one; without --cxl the one with most that is free)")
      .type_name("NAME");
  verb.add_option("--policy", arguments->policy,
                  "Which memory moves between DDR and CXL while the program runs: " + policy_names() +
                      " (default benefit-density; static: none)")
      .type_name("NAME")
      .check([](const std::string& name) {
        return tiering::find_policy(name) != nullptr ? std::string()
                                                     : "no policy '" + name + "'; there is " + policy_names();
      });
  add_size_option(verb, "--copy-budget", arguments->copy_bytes_per_s,
                  "What each process may move a second (default 2G; 0: unbounded)");
  verb.add_flag("--access-events", arguments->access_events,
                "Tell hot memory from warm by the kernel's fault events and the processor's samples of loads\n"
                "(PEBS, IBS) as well, where they are there and allowed; 'tier status' says which are not");
  verb.add_option("--label", arguments->label, "Label of the leases (default run:PROGRAM[PID])")
      .type_name("TEXT");
  verb.add_option(
          "--stats", arguments->stats_file,
          "Write numbers about the run, as JSON, at its end, and when this command gets SIGUSR1 (which\n"
          "prints a table on stderr where there is no FILE; the program's own SIGUSR1 goes to its pid)")
      .type_name("FILE");
  verb.add_option("--stats-interval", arguments->stats_interval, "Write that file each so many seconds as well")
      .type_name("SECONDS");
  verb.add_flag(
          "--fallback", arguments->fallback,
          "When both budgets are used up, or there is no manager, use plain malloc instead of failing (always\n"
          "so without --ddr)")
      .envname(supply::fallback_variable);
  verb.add_option("program", arguments->command, "The program and its arguments, after --")
      .required()
      .type_name("-- PROGRAM ARGUMENT");
  verb.callback([arguments, ddr, cxl, &context] {
    arguments->ddr_given = ddr.count() > 0;
    arguments->cxl_given = cxl.count() > 0;
    int failure = exit_own_failure;
    Status status = run(context, *arguments, &failure);
    if (status.ok()) return;
    if (context.json) {
      nlohmann::json document = error_json(status.error());
      document["error"]["exit_code"] = failure;
      print_json(document);
    } else {
      fail(context, status.error());
    }
    context.exit_code = failure;
  });
}

}  // namespace terrace::cli
