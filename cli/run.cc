// `terrace run`: starts an unmodified program under libterrace_heap.so (or libterrace_malloc.so) and stays as
// its supervisor. This process is the tenant's client: it holds the session and the leases, so that the program
// needs no RPC, no helper thread and no descriptor.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>

#include "allocator/supply/broker.h"
#include "cli/cli.h"
#include "cli/run_inspect.h"
#include "cli/run_supervise.h"
#include "core/base/limits.h"
#include "core/os/userfaultfd.h"
#include "terrace/session.h"
#include "tiering/policy/policy.h"

namespace terrace::cli {
namespace {

struct RunArguments {
  uint64_t ddr_bytes = gib;
  uint64_t cxl_bytes = 0;
  uint64_t min_size = 0;  // the whole heap
  uint64_t ttl_ns = 0;
  std::string pool, label, stats_file;
  std::string policy = "benefit-density";
  uint64_t copy_bytes_per_s = 2 * gib;
  bool fallback = false;
  std::vector<std::string> command;
};

// In the place of a manager that cannot be reached, with --fallback: no lease is ever granted.
class NoSession final : public Session {
 public:
  explicit NoSession(Error why) : why_(std::move(why)) {}
  Result<std::shared_ptr<Lease>> grant(const LeaseRequest&) override {
    return Error{.code = ErrorCode::capacity_exhausted, .where = "terrace run", .detail = why_.detail};
  }
  Result<std::shared_ptr<Lease>> attach(LeaseId, const std::string&, LeaseAccess) override { return why_; }
  Result<std::vector<LeaseInfo>> leases() override { return why_; }
  Result<std::vector<PoolInfo>> pools() override { return why_; }
  Result<UniqueFd> userfaultfd_device() override { return why_; }
  std::string tenant() const override { return {}; }
  bool connected() const override { return false; }
  void on_notice(LeaseNoticeHandler) override {}

 private:
  Error why_;
};

// What env, nice and timeout exit with, so that these can be told from the program's own codes.
constexpr int exit_run_failed = 125;
constexpr int exit_not_executable = 126;
constexpr int exit_no_program = 127;
// How long a program's request for a lease waits when the manager goes away. Later ones in the same outage are
// answered at once.
constexpr uint64_t first_wait_ns = 10 * ns_per_s;
// What the manager accepts, less the "#123" of further leases.
constexpr size_t label_bytes_max = limits::label_bytes_max - 7;

void say(const std::string& text) {
  std::string line = "terrace: " + text + "\n";
  std::fputs(line.c_str(), stderr);
}

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

// A pool that does not exist, or none that could be meant, is said before the program starts.
Status check_pool(Session& session, const RunArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(std::vector<PoolInfo> pools, session.pools());
  std::string names;
  for (const PoolInfo& pool : pools) {
    if (pool.name == arguments.pool) return {};
    names += (names.empty() ? "" : ", ") + pool.name;
  }
  if (!arguments.pool.empty())
    return Error{
        .code = ErrorCode::not_found,
        .where = "terrace run",
        .detail = "there is no pool '" + arguments.pool + "'" + (names.empty() ? "" : "; there is " + names)};
  if (pools.empty())
    return Error{.code = ErrorCode::not_found,
                 .where = "terrace run",
                 .detail = "there is no pool yet; make one with 'terrace pool create'"};
  if (pools.size() > 1)
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "terrace run",
                 .detail = "there are several pools (" + names + "); choose one with --pool"};
  return {};
}

Result<std::unique_ptr<Session>> connect(const Context& context, const RunArguments& arguments) {
  if (arguments.cxl_bytes == 0)
    return std::unique_ptr<Session>(new NoSession(
        Error{.code = ErrorCode::unavailable, .where = "terrace run", .detail = "no CXL budget"}));
  SessionOptions options;
  options.socket_path = context.socket_path;
  options.call_timeout_ns = first_wait_ns;
  options.client_name = "terrace run " + arguments.command.front();
  Error why;
  auto session = Session::connect(options);
  if (session.ok()) {
    Status pool = check_pool(**session, arguments);
    if (pool.ok()) return session;
    why = pool.error();
  } else {
    why = session.error();
  }
  if (!arguments.fallback) return why;
  say("no CXL memory for this run, large requests beyond the DDR budget go to plain malloc: " + why.detail);
  return std::unique_ptr<Session>(new NoSession(why));
}

// Why memory of this run stays where it is; empty: it can move. `*device` is for programs that may not make a
// userfaultfd themselves.
std::string why_still(Session& session, const RunArguments& arguments, UniqueFd* device) {
  if (arguments.policy == "static") return "the policy is static";
  if (arguments.cxl_bytes == 0) return "there is no CXL budget";
  if (arguments.ddr_bytes < limits::granule_bytes)
    return "the DDR budget is below a granule (" + format_size(limits::granule_bytes) + ")";
  // The device, also where this process has the right itself: the program may have given its own away.
  auto given = session.userfaultfd_device();
  if (given.ok()) {
    *device = std::move(*given);
    return {};
  }
  device->reset(::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
  if (device->valid() || os::open_userfaultfd(-1, 0).ok()) return {};
  return given.error().detail;
}

nlohmann::json to_json(const RunArguments& arguments, const supply::RunStats& stats,
                       const std::string& obstacle, int exit_code) {
  const supply::Totals& totals = stats.totals;
  return {{"program", arguments.command.front()},
          {"supervised", true},
          {"exit_code", exit_code},
          {"processes", totals.processes},
          {"peak_live_bytes", stats.peak_live_bytes},
          {"live_bytes", totals.live_ddr + totals.live_cxl + totals.live_detached},
          {"ddr",
           {{"budget_bytes", arguments.ddr_bytes},
            {"allocations", totals.allocations_ddr},
            {"live_bytes", totals.live_ddr}}},
          {"cxl",
           {{"budget_bytes", arguments.cxl_bytes},
            {"allocations", totals.allocations_cxl},
            {"live_bytes", totals.live_cxl},
            {"leases_granted", stats.leases_granted},
            {"leases_released", stats.leases_released},
            {"leased_bytes_peak", stats.leased_bytes_peak}}},
          {"detached", {{"allocations", totals.allocations_detached}, {"live_bytes", totals.live_detached}}},
          {"forks",
           {{"switched_private", totals.forks_switched},
            {"switched_bytes", totals.switched_bytes},
            {"refused", totals.forks_failed},
            {"folded_bytes", totals.folded_bytes},
            {"folds", totals.folds},
            {"allocations_meanwhile", totals.during_fork}}},
          {"migration",
           {{"policy", arguments.policy},
            {"obstacle", obstacle},
            {"processes", totals.processes_moved},
            {"promotions", totals.promotions},
            {"demotions", totals.demotions},
            {"granule_bytes", limits::granule_bytes},
            {"undone", totals.moves_undone},
            {"skipped", totals.moves_skipped},
            {"stalled_us", totals.stalled_ns / 1000},
            {"copied_us", totals.copy_ns / 1000},
            {"sampler_us", totals.sampler_ns / 1000}}},
          {"fallbacks", totals.fallbacks},
          {"refused", totals.refused}};
}

Status write_stats(const std::string& path, const nlohmann::json& document) {
  std::ofstream file(path, std::ios::trunc);
  file << document.dump(2) << "\n";
  file.close();
  if (!file) return os_error(errno, "terrace run", "cannot write " + path);
  return {};
}

std::vector<std::string> environment_for(const std::string& library, const std::string& socket_path,
                                         uint64_t min_size) {
  std::vector<std::string> environment;
  std::string preload = "LD_PRELOAD=" + library;
  for (char** at = environ; *at != nullptr; ++at) {
    std::string_view entry = *at;
    if (entry.rfind("LD_PRELOAD=", 0) == 0) {
      if (entry.size() > 11) preload += ":" + std::string(entry.substr(11));
    } else if (entry.rfind(std::string(supply::socket_variable) + "=", 0) != 0 &&
               entry.rfind(std::string(supply::min_size_variable) + "=", 0) != 0 &&
               entry.rfind(std::string(supply::seccomp_variable) + "=", 0) != 0) {
      environment.emplace_back(entry);
    }
  }
  environment.push_back(preload);
  environment.push_back(std::string(supply::socket_variable) + "=" + socket_path);
  environment.push_back(std::string(supply::min_size_variable) + "=" + std::to_string(min_size));
  environment.push_back(std::string(supply::seccomp_variable) + "=" +
                        std::to_string(supply::seccomp_filters()));
  return environment;
}

// The program cannot be served: it becomes this process. Returns only when that fails.
Status run_plainly(const RunArguments& arguments, const ProgramFacts& facts) {
  say(arguments.command.front() + " runs without Terrace: " + facts.obstacle);
  if (!arguments.stats_file.empty())
    TERRACE_RETURN_IF_ERROR(write_stats(
        arguments.stats_file,
        {{"program", arguments.command.front()}, {"supervised", false}, {"reason", facts.obstacle}}));
  std::vector<char*> words;
  for (const std::string& word : arguments.command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execv(facts.path.c_str(), words.data());
  return os_error(errno, "terrace run", "cannot start " + facts.path);
}

Status check(const RunArguments& arguments) {
  if (arguments.cxl_bytes == 0 && arguments.ddr_bytes == 0)
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "terrace run",
                 .detail = "both budgets are 0; give --cxl SIZE"};
  if (arguments.label.size() > label_bytes_max || !is_printable_utf8(arguments.label))
    return Error{
        .code = ErrorCode::invalid_argument,
        .where = "terrace run",
        .detail = "--label must be printable UTF-8 of at most " + std::to_string(label_bytes_max) + " bytes"};
  return {};
}

std::string policy_names() {
  std::string names;
  for (const tiering::PolicyEntry& policy : tiering::policies())
    names += (names.empty() ? "" : ", ") + std::string(policy.name);
  return names;
}

std::string default_label(const std::string& program) {
  std::string name = program.substr(program.rfind('/') + 1).substr(0, 64);
  for (char& byte : name)
    if (static_cast<unsigned char>(byte) < 0x20 || static_cast<unsigned char>(byte) > 0x7e) byte = '?';
  return "run:" + name + "[" + std::to_string(::getpid()) + "]";
}

// `failure` is what to exit with when this returns an error.
Status run(Context& context, const RunArguments& arguments, int* failure) {
  *failure = exit_usage;
  TERRACE_RETURN_IF_ERROR(check(arguments));
  auto inspected = inspect_program(arguments.command.front());
  if (!inspected.ok()) {
    *failure = inspected.error().code == ErrorCode::not_found ? exit_no_program : exit_not_executable;
    return inspected.error();
  }
  const ProgramFacts& facts = *inspected;
  *failure = exit_not_executable;
  if (!facts.obstacle.empty()) return run_plainly(arguments, facts);
  *failure = exit_run_failed;
  TERRACE_ASSIGN_OR_RETURN(std::string library, find_malloc_library(arguments.min_size == 0));

  Supervisor supervisor;  // blocks signals before any thread exists
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, connect(context, arguments));
  supply::BrokerOptions options;
  options.ddr_bytes = arguments.ddr_bytes;
  options.cxl_bytes = arguments.cxl_bytes;
  options.fallback = arguments.fallback;
  options.pool = arguments.pool;
  options.ttl_ns = arguments.ttl_ns;
  options.label = arguments.label.empty() ? default_label(arguments.command.front()) : arguments.label;
  options.warn = say;
  UniqueFd userfault_device;
  const std::string obstacle = why_still(*session, arguments, &userfault_device);
  if (obstacle.empty())
    options.migration = {.policy = arguments.policy,
                         .copy_bytes_per_s = arguments.copy_bytes_per_s,
                         .round_ns = 0,
                         .userfault_device = userfault_device.get()};
  else if (arguments.policy != "static" && arguments.cxl_bytes > 0 && arguments.ddr_bytes > 0)
    say("memory stays where it is first put: " + obstacle);
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<supply::Broker> broker, supply::Broker::start(*session, options));

  Status started = supervisor.start(facts.path, arguments.command,
                                    environment_for(library, broker->socket_path(), arguments.min_size));
  if (!started.ok()) {
    if (supervisor.exec_errno() != 0)
      *failure = supervisor.exec_errno() == ENOENT ? exit_no_program : exit_not_executable;
    return started;
  }
  context.exit_code = supervisor.wait(*broker);
  nlohmann::json stats = to_json(arguments, broker->stats(), obstacle, context.exit_code);
  broker.reset();
  if (!arguments.stats_file.empty()) {
    // The program's own status is what the caller waits for; a lost file is said, not returned.
    Status written = write_stats(arguments.stats_file, stats);
    if (!written.ok()) say(written.error().to_string());
  }
  return {};
}

}  // namespace

void add_run_verb(CLI::App& app, Context& context) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* verb = app.add_subcommand("run", "Start a program whose heap lives in DDR and leased CXL memory");
  verb->footer(
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
  add_size_option(*verb, "--ddr", arguments->ddr_bytes,
                  "DDR budget of all its processes, used first (default 1G)");
  add_size_option(*verb, "--cxl", arguments->cxl_bytes,
                  "CXL budget, leased as it is needed (default 0: DDR only)");
  add_size_option(
      *verb, "--min-size", arguments->min_size,
      "Requests below this stay with the program's own malloc (at least 4K; default 0: the whole heap is\n"
      "in the budgets)")
      ->envname(supply::min_size_variable);
  add_duration_option(*verb, "--ttl", arguments->ttl_ns, "TTL of the leases (default: the manager's)");
  verb->add_option("--pool", arguments->pool, "Pool to lease from (default: the only one)")->type_name("NAME");
  verb->add_option("--policy", arguments->policy,
                   "Which memory moves between DDR and CXL while the program runs: " + policy_names() +
                       " (default benefit-density; static: none)")
      ->type_name("NAME")
      ->check([](const std::string& name) {
        return tiering::find_policy(name) != nullptr ? std::string()
                                                     : "no policy '" + name + "'; there is " + policy_names();
      });
  add_size_option(*verb, "--copy-budget", arguments->copy_bytes_per_s,
                  "What each process may move a second (default 2G; 0: unbounded)");
  verb->add_option("--label", arguments->label, "Label of the leases (default run:PROGRAM[PID])")
      ->type_name("TEXT");
  verb->add_option("--stats", arguments->stats_file, "Write numbers about the run, as JSON, at its end")
      ->type_name("FILE");
  verb->add_flag("--fallback", arguments->fallback,
                 "When both budgets are used up, or there is no manager, use plain malloc instead of failing")
      ->envname(supply::fallback_variable);
  verb->add_option("program", arguments->command, "The program and its arguments, after --")
      ->required()
      ->type_name("-- PROGRAM ARGUMENT");
  verb->callback([arguments, &context] {
    int failure = exit_run_failed;
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
