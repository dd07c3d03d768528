// SPDX-License-Identifier: Apache-2.0
// `terrace vm run`: starts QEMU with a node of leased memory beside its own, and keeps that as long as it runs.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/hold/held_lease.h"
#include "cli/program/end_by_signal.h"
#include "cli/program/find_program.h"
#include "cli/program/supervisor.h"
#include "cli/terminal/verb.h"
#include "cli/vm/vm_socket.h"
#include "cli/vm/vm_verbs.h"
#include "core/base/clock.h"
#include "core/base/units.h"

namespace terrace::cli {
namespace {

constexpr const char* vm_run_verb = "terrace vm run";
constexpr uint32_t parts_max = 8;  // ports, and room for so many times the memory: emptied parts stay in QEMU
constexpr uint64_t machine_start_ns = 60 * ns_per_s;

struct VmRunArguments {
  VmArguments vm;
  uint64_t ddr_bytes = 0;
  std::vector<std::string> command;
};

class NoLeftovers final : public Leftovers {
 public:
  bool in_use() override { return false; }
  std::vector<pid_t> processes() override { return {}; }
};

bool has_word(const std::vector<std::string>& words, std::string_view wanted) {
  return std::any_of(words.begin(), words.end(), [wanted](const std::string& word) {
    return word == wanted || word == "-" + std::string(wanted);  // QEMU takes both
  });
}

bool is_q35(const std::vector<std::string>& words) {
  for (size_t index = 0; index + 1 < words.size(); ++index)
    for (const char* option : {"-M", "--M", "-machine", "--machine"})
      if (words[index] == option && words[index + 1].find("q35") != std::string::npos) return true;
  return false;
}

Status check_words(const std::vector<std::string>& words) {
  for (const char* own : {"-m", "-numa"})
    if (has_word(words, own))
      return Error{ErrorCode::invalid_argument, 0, vm_run_verb,
                   std::string(own) +
                       ": this command says it itself: --ddr is the machine's own memory (node 0), "
                       "--size the leased one (node 1)"};
  if (has_word(words, "-daemonize"))
    return Error{ErrorCode::invalid_argument, 0, vm_run_verb,
                 "-daemonize: this command stays with its machine"};
  return {};
}

std::vector<std::string> machine_command(const VmRunArguments& arguments, const std::string& monitor) {
  const uint64_t most = std::max(arguments.vm.keeper.guest.room_bytes, arguments.vm.keeper.bytes);
  const std::string ddr = std::to_string(arguments.ddr_bytes);
  std::vector<std::string> words = arguments.command;
  const auto add = [&words](std::initializer_list<std::string> more) { words.insert(words.end(), more); };
  add({"-m",
       "size=" + ddr + "B,slots=16,maxmem=" + std::to_string(arguments.ddr_bytes + parts_max * most) + "B"});
  add({"-object", "memory-backend-ram,id=terrace-ddr,size=" + ddr});
  add({"-numa", "node,nodeid=0,memdev=terrace-ddr", "-numa", "node,nodeid=1"});
  add({"-qmp", "unix:" + monitor + ",server=on,wait=off"});
  for (uint32_t port = 0; is_q35(words) && port < parts_max; ++port)
    add({"-device", "pcie-root-port,id=" + std::string(vm_port_prefix) + std::to_string(port) +
                        ",chassis=" + std::to_string(200 + port) + ",slot=" + std::to_string(port)});
  if (!has_word(words, "-S")) add({"-S"});
  return words;
}

bool has_exited(pid_t pid) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

Result<std::unique_ptr<Monitor>> monitor_of(pid_t machine, const std::string& path) {
  const uint64_t until_ns = SystemClock().now_ns() + machine_start_ns;
  for (;;) {
    Result<std::unique_ptr<Monitor>> monitor = connect_monitor(path, 200 * ns_per_ms, vm_run_verb);
    if (monitor.ok() || SystemClock().now_ns() >= until_ns) return monitor;
    if (has_exited(machine))
      return Error{ErrorCode::unavailable, 0, vm_run_verb, "the machine has ended before it answered"};
  }
}

// The machine has its memory before its firmware starts.
Status begin(const VmRunArguments& arguments, VmKeeper& keeper, pid_t machine, const std::string& path) {
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Monitor> monitor, monitor_of(machine, path));
  Monitor& asked = *monitor;
  TERRACE_RETURN_IF_ERROR(keeper.start(std::move(monitor)));
  if (has_word(arguments.command, "-S")) return {};
  const Result<nlohmann::json> begun = asked.ask("cont", nlohmann::json::object());
  return begun.ok() ? Status() : Status(begun.error());
}

// `failure` is what to exit with when this returns an error.
Status run_machine(Context& context, VmRunArguments& arguments, int* failure) {
  *failure = exit_usage;
  TERRACE_RETURN_IF_ERROR(check_words(arguments.command));
  TERRACE_RETURN_IF_ERROR(check_vm_arguments(arguments.vm));
  Result<std::string> program = find_program(arguments.command.front(), vm_run_verb);
  if (!program.ok()) {
    *failure = program.error().code == ErrorCode::not_found ? exit_no_program : exit_not_executable;
    return program.error();
  }
  *failure = exit_own_failure;
  Supervisor supervisor;  // blocks signals before any thread exists
  TERRACE_ASSIGN_OR_RETURN(const std::string folder, vm_folder(vm_run_verb));
  const auto make_keeper = [&] {
    const EndBySignal waiting(supervisor);
    return VmKeeper::make(context, arguments.vm.keeper);
  };
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<VmKeeper> keeper, make_keeper());
  const std::string path = vm_monitor_path(folder, arguments.vm.keeper.guest.label);
  ::unlink(path.c_str());
  std::vector<std::string> environment;
  for (char** at = environ; *at != nullptr; ++at) environment.emplace_back(*at);
  TERRACE_RETURN_IF_ERROR(supervisor.start(*program, machine_command(arguments, path), environment));
  NoLeftovers nothing;
  const Status begun = begin(arguments, *keeper, supervisor.program(), path);
  if (!begun.ok()) ::kill(supervisor.program(), SIGTERM);
  std::thread keeping;
  if (begun.ok())
    keeping = std::thread([&keeper] {
      const Status kept = keeper->run(-1);
      if (!kept.ok()) say_of_lease(kept.error().to_string());
    });
  context.exit_code = supervisor.wait(nothing);
  if (keeping.joinable()) {
    keeper->end_within(10 * ns_per_s);
    keeping.join();
  }
  ::unlink(path.c_str());
  return begun;
}

}  // namespace

void add_vm_run_verb(Command vm, Context& context) {
  const auto arguments = std::make_shared<VmRunArguments>();
  arguments->vm.keeper.where = vm_run_verb;
  arguments->vm.keeper.ends_when_detached = false;
  Command verb = vm.add_subcommand("run", "Start QEMU with leased memory as a node of its own beside its DDR");
  verb.footer(
      "Adds to QEMU's words its memory (-m, -numa), a monitor, and on q35 ports for memory that comes later. "
      "Exits as\n"
      "QEMU did, or 128 + the signal that ended it; its own failures as 'terrace lease exec': 127 there is no "
      "such\n"
      "program, 126 it cannot be executed, 125 no lease or manager, 2 the command line is wrong.");
  add_vm_memory_options(verb, arguments->vm);
  add_size_option(verb, "--ddr", arguments->ddr_bytes, "The machine's own memory, node 0").required();
  verb.add_option("program", arguments->command, "QEMU and its arguments, after --")
      .required()
      .type_name("-- PROGRAM ARGUMENT");
  verb.callback([arguments, &context] {
    int failure = exit_own_failure;
    if (arguments->vm.keeper.bytes == 0) {
      fail(context, Error{ErrorCode::invalid_argument, 0, vm_run_verb, "--size is missing: the leased memory"});
      return;
    }
    const Status status = run_machine(context, *arguments, &failure);
    if (status.ok()) return;
    fail(context, status.error());
    context.exit_code = failure;
  });
}

}  // namespace terrace::cli
