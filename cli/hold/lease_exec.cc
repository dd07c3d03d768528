// SPDX-License-Identifier: Apache-2.0
// `terrace lease exec`: starts a program that has a lease's memory as a descriptor, and keeps the lease meanwhile.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "allocator/supply/proc.h"
#include "cli/hold/held_lease.h"
#include "cli/hold/hold_verbs.h"
#include "cli/program/end_by_signal.h"
#include "cli/program/find_program.h"
#include "cli/program/supervisor.h"
#include "cli/terminal/verb.h"

namespace terrace::cli {
namespace {

constexpr const char* exec_verb = "terrace lease exec";
constexpr uint32_t first_descriptor = 3;  // behind stdin, stdout and stderr

struct ExecArguments {
  HoldArguments hold;
  uint32_t fd = 0;  // 0: the first that is free
  std::string signal;
  std::vector<std::string> command;
};

Error wrong_exec(std::string detail) {
  return Error{.code = ErrorCode::invalid_argument, .where = exec_verb, .detail = std::move(detail)};
}

// Of the signals that programs take for news; 0: no such one.
int signal_number(std::string name) {
  if (name.starts_with("SIG")) name.erase(0, 3);
  constexpr std::pair<const char*, int> known[] = {{"TERM", SIGTERM}, {"INT", SIGINT},   {"HUP", SIGHUP},
                                                   {"QUIT", SIGQUIT}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2}};
  for (const auto& [word, number] : known)
    if (name == word) return number;
  return 0;
}

// Keeps a number for the lease's memory before anything else of this process is opened.
Result<UniqueFd> reserve_descriptor(uint32_t wanted) {
  UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!nothing.valid()) return os_error(errno, exec_verb, "cannot open /dev/null");
  if (wanted != 0 && ::fcntl(static_cast<int>(wanted), F_GETFD) >= 0 &&
      nothing.get() != static_cast<int>(wanted))
    return wrong_exec("--fd " + std::to_string(wanted) +
                      ": that descriptor is open already, it was given to this command; choose another number");
  const int number = static_cast<int>(std::max(wanted, first_descriptor));
  if (nothing.get() == number) return nothing;
  UniqueFd kept(::fcntl(nothing.get(), F_DUPFD_CLOEXEC, number));
  if (!kept.valid() || (wanted != 0 && kept.get() != number))
    return os_error(errno, exec_verb, "descriptor " + std::to_string(number) + " cannot be had (ulimit -n?)");
  return kept;
}

// What the words between braces stand for.
struct Places {
  std::string fd, path, bytes;

  std::string filled(std::string word) const {
    for (const auto& [name, value] :
         {std::pair<const char*, const std::string&>{"{fd}", fd}, {"{path}", path}, {"{bytes}", bytes}})
      for (size_t at = 0; (at = word.find(name, at)) != std::string::npos; at += value.size())
        word.replace(at, std::strlen(name), value);
    return word;
  }
};

std::vector<std::string> environment_with(const Places& places, HeldLease& held) {
  std::vector<std::string> all;
  for (char** at = environ; *at != nullptr; ++at)
    if (std::strncmp(*at, "TERRACE_LEASE_", 14) != 0) all.emplace_back(*at);
  all.push_back("TERRACE_LEASE_FD=" + places.fd);
  all.push_back("TERRACE_LEASE_PATH=" + places.path);
  all.push_back("TERRACE_LEASE_BYTES=" + places.bytes);
  all.push_back("TERRACE_LEASE_ID=" + std::to_string(held.lease().id().value));
  all.push_back("TERRACE_LEASE_LABEL=" + held.label());
  return all;
}

// What the program started and left, as long as it has the memory open or mapped.
class MemoryUsers final : public Leftovers {
 public:
  explicit MemoryUsers(const struct stat& memory) : memory_(memory) {}
  bool in_use() override { return !processes().empty(); }
  std::vector<pid_t> processes() override {
    std::vector<pid_t> found = supply::descendants(::getpid());
    std::erase_if(found, [this](pid_t pid) { return !has_memory(pid, memory_); });
    return found;
  }

 private:
  const struct stat memory_;
};

// A path is opened anew, as the user; the descriptor is as it was handed over. Who may not is admitted by the manager.
Status check_path(const ExecArguments& arguments, const std::string& path, Lease& lease) {
  const bool named =
      std::any_of(arguments.command.begin(), arguments.command.end(),
                  [](const std::string& word) { return word.find("{path}") != std::string::npos; });
  if (!named) return {};
  const auto try_open = [&] {
    const UniqueFd opened(::open(path.c_str(), (arguments.hold.read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC));
    return opened.valid() ? 0 : errno;
  };
  int code = try_open();
  if (code == 0) return {};
  const Result<std::string> admitted = lease.open_path();
  if (admitted.ok()) code = try_open();
  if (code == 0) return {};
  if (code != EACCES && code != EPERM) return os_error(code, exec_verb, "cannot open " + path);
  return Error{.code = ErrorCode::permission_denied,
               .os_errno = code,
               .where = exec_verb,
               .detail = "{path}: this user may not open the lease's memory by a path" +
                         (admitted.ok() ? std::string() : " (" + admitted.error().to_string() + ")") +
                         "; use {fd}, the descriptor that was handed over"};
}

// `failure` is what to exit with when this returns an error.
Status exec(Context& context, const ExecArguments& arguments, int* failure) {
  *failure = exit_usage;
  const int notice_signal = arguments.signal.empty() ? 0 : signal_number(arguments.signal);
  Result<std::string> program = find_program(arguments.command.front(), exec_verb);
  if (!program.ok()) {
    *failure = program.error().code == ErrorCode::not_found ? exit_no_program : exit_not_executable;
    return program.error();
  }
  TERRACE_ASSIGN_OR_RETURN(const UniqueFd kept, reserve_descriptor(arguments.fd));
  *failure = exit_own_failure;
  Supervisor supervisor;  // blocks signals before any thread exists
  if (arguments.hold.on_fence == "kill") supervisor.end_program_by(SIGKILL);
  std::atomic<pid_t> started{-1};
  const auto told = [&started, notice_signal](const LeaseNotice& notice) {
    const pid_t pid = started;
    if (notice.state == LeaseState::revoking && notice_signal != 0 && pid > 0) ::kill(pid, notice_signal);
  };
  const auto take = [&] {
    const EndBySignal waiting(supervisor);
    return HeldLease::take(context, arguments.hold, exec_verb, told);
  };
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<HeldLease> held, take());
  struct stat memory {};
  // Without O_CLOEXEC: it is what the program gets.
  if (::dup3(held->lease().fd(), kept.get(), 0) < 0 || ::fstat(kept.get(), &memory) != 0)
    return os_error(errno, exec_verb, "cannot pass the lease's descriptor on");
  const std::string number = std::to_string(kept.get());
  const Places places{number, "/proc/self/fd/" + number, std::to_string(held->lease().bytes())};
  Status status = check_path(arguments, places.path, held->lease());
  if (status.ok()) {
    std::vector<std::string> command;
    for (const std::string& word : arguments.command) command.push_back(places.filled(word));
    status = supervisor.start(*program, command, environment_with(places, *held));
    if (!status.ok() && supervisor.exec_errno() != 0)
      *failure = supervisor.exec_errno() == ENOENT ? exit_no_program : exit_not_executable;
  }
  if (status.ok()) {
    started = supervisor.program();
    MemoryUsers users(memory);
    context.exit_code = supervisor.wait(users);
    started = -1;
  }
  held->give_back();
  return status;
}

}  // namespace

void add_lease_exec_verb(Command lease, Context& context) {
  const auto arguments = std::make_shared<ExecArguments>();
  Command verb = lease.add_subcommand("exec",
                                      "Start a program that has a lease's memory as a descriptor, and keep the "
                                      "lease while it runs");
  verb.footer(
      "In its words {fd} is the descriptor's number, {path} a path that opens it again "
      "(/proc/self/fd/N),\n"
      "{bytes} its size; TERRACE_LEASE_FD, _PATH, _BYTES, _ID and _LABEL say the "
      "same.\n"
      "Signals are passed on. Stays until the last process that it started and that uses the memory has ended. "
      "Exits\n"
      "as the program did: its status, or 128 + the signal that ended it; its own failures as 'terrace run': "
      "127 there\n"
      "is no such program, 126 it cannot be executed, 125 no lease or manager, 2 the command line is wrong.");
  arguments->hold.mode = "exclusive";
  add_hold_options(verb, arguments->hold);
  add_on_fence_option(
      verb, arguments->hold.on_fence,
      "kill: this command agrees to be ended before the memory is taken, and the program is ended with "
      "it (default keep)");
  verb.add_option("--fd", arguments->fd, "The descriptor's number (default: the first from 3 on that is free)")
      .in_range(first_descriptor, uint32_t{65535})
      .type_name("N");
  verb.add_option(
          "--signal", arguments->signal,
          "What the program gets when the lease is being taken back, as TERM or USR1 (default: nothing)")
      .type_name("NAME")
      .check([](const std::string& name) {
        return signal_number(name) != 0
                   ? std::string()
                   : "'" + name + "' is no signal that is passed: TERM, INT, HUP, QUIT, USR1, USR2";
      });
  verb.add_option("program", arguments->command, "The program and its arguments, after --")
      .required()
      .type_name("-- PROGRAM ARGUMENT");
  verb.callback([arguments, &context] {
    int failure = exit_own_failure;
    const Status status = exec(context, *arguments, &failure);
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
