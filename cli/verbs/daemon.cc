// SPDX-License-Identifier: Apache-2.0
// `terrace daemon run|start|stop|status`.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/client/admin_client.h"
#include "cli/show/describe.h"
#include "cli/terminal/manager_place.h"
#include "cli/terminal/verb.h"
#include "cli/verbs/daemon_arguments.h"
#include "cli/verbs/daemon_process.h"

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;

Status run_daemon(const Context& context, const DaemonArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const std::string program, find_daemon_program());
  std::vector<std::string> list = daemon_arguments(arguments, runtime_directory_of(context, arguments));
  list.insert(list.begin(), program);
  std::vector<char*> words;
  for (std::string& word : list) words.push_back(word.data());
  words.push_back(nullptr);
  execv(program.c_str(), words.data());
  return os_error(errno, "daemon run", "cannot run " + program);
}

Result<std::string> prepare_log(const DaemonArguments& arguments, const std::string& runtime_directory) {
  if (!arguments.log_file.empty()) return arguments.log_file;
  if (runtime_directory.empty()) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "daemon start",
                 .detail = "say where the log goes with --log, or where the daemon lives with --runtime-dir"};
  }
  // What is made on the way is closed to other writers, whatever this user's umask: terraced looks for that.
  const mode_t before = ::umask(::geteuid() == 0 ? 0022 : 0077);
  std::error_code failed;
  fs::create_directories(fs::path(runtime_directory).parent_path(), failed);
  ::umask(before);
  // As terraced itself makes it: root serves every user, others serve themselves.
  if (::mkdir(runtime_directory.c_str(), ::geteuid() == 0 ? 0755 : 0700) != 0 && errno != EEXIST)
    return os_error(errno, "daemon start", "cannot make the runtime directory " + runtime_directory);
  return runtime_directory + "/terraced.log";
}

Result<StatusReply> status_of(const Context& context) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  return client->status();
}

Status start_and_wait(const Context& context, const DaemonArguments& arguments) {
  TERRACE_RETURN_IF_ERROR(on_this_machine(context, "daemon start"));
  const std::string runtime_directory = runtime_directory_of(context, arguments);
  // Ask first: a second daemon would only say that the state is locked.
  Context expected = context;
  if (!runtime_directory.empty()) expected.socket_path = runtime_directory + "/terraced.sock";
  if (ask_rights(expected).ok()) {
    const auto status = status_of(expected);
    return Error{.code = ErrorCode::already_exists,
                 .where = "daemon start",
                 .detail = "a daemon answers at " + socket_path_of(expected) + " already" +
                           (status.ok() ? ", pid " + std::to_string((*status)->getServer().getPid()) : "")};
  }
  TERRACE_ASSIGN_OR_RETURN(const std::string program, find_daemon_program());
  TERRACE_ASSIGN_OR_RETURN(const std::string log_path, prepare_log(arguments, runtime_directory));
  TERRACE_ASSIGN_OR_RETURN(const StartedDaemon daemon,
                           start_daemon({.program = program,
                                         .arguments = daemon_arguments(arguments, runtime_directory),
                                         .log_path = log_path,
                                         .wait_ns = arguments.wait_ns}));
  Context found = context;
  found.socket_path = daemon.socket_path;
  const Result<StatusReply> reply = status_of(found);
  // It runs all the same where this user, root perhaps, is no administrator at the main socket.
  if (!reply.ok() && reply.error().code != ErrorCode::permission_denied) return reply.error();
  if (context.json) {
    print_json({{"pid", daemon.pid},
                {"socket", daemon.socket_path},
                {"log", log_path},
                {"server", reply.ok() ? to_json((*reply)->getServer()) : nlohmann::json(nullptr)}});
    return {};
  }
  std::string text = reply.ok() ? server_block((*reply)->getServer(), daemon.socket_path)
                                : "terraced, pid " + std::to_string(daemon.pid) + "; " + reply.error().detail +
                                      "\n" + format_block({{"socket", daemon.socket_path}});
  text += format_block({{"log", log_path}});
  if (daemon.socket_path != default_socket_path()) text += "export TERRACE_SOCKET=" + daemon.socket_path + "\n";
  print_text(text);
  return {};
}

Status stop_and_wait(const Context& context, const DaemonArguments& arguments) {
  const Context other = context_of(context, arguments);
  TERRACE_RETURN_IF_ERROR(on_this_machine(other, "daemon stop"));
  uint32_t pid = 0;
  {
    TERRACE_ASSIGN_OR_RETURN(const StatusReply reply, status_of(other));
    pid = reply->getServer().getPid();
  }
  // The descriptor first, the look second: whatever we looked at is what gets the signal.
  TERRACE_ASSIGN_OR_RETURN(const UniqueFd process, open_process(static_cast<pid_t>(pid)));
  if (!is_daemon_process(static_cast<pid_t>(pid))) {
    return Error{.code = ErrorCode::not_found,
                 .where = "daemon stop",
                 .detail = "the daemon says it is process " + std::to_string(pid) +
                           ", but that is not terraced here (another container?); stop it where it runs"};
  }
  TERRACE_RETURN_IF_ERROR(signal_process(process, SIGTERM));
  if (!wait_for_end(process, arguments.wait_ns)) {
    return Error{.code = ErrorCode::busy,
                 .where = "daemon stop",
                 .detail = "terraced, pid " + std::to_string(pid) + ", was told to end and still runs after " +
                           format_duration(arguments.wait_ns)};
  }
  if (context.json) {
    print_json({{"stopped", pid}});
  } else {
    print_text("stopped terraced, pid " + std::to_string(pid) + "\n");
  }
  return {};
}

Status show_daemon(const Context& context, const DaemonArguments& arguments) {
  const Context other = context_of(context, arguments);
  TERRACE_ASSIGN_OR_RETURN(const StatusReply reply, status_of(other));
  if (context.json) {
    print_json({{"socket", socket_path_of(other)}, {"server", to_json(reply->getServer())}});
  } else {
    print_text(server_block(reply->getServer(), socket_path_of(other)));
  }
  return {};
}

Command add_verb(Command daemon, const char* name, const char* help, Context& context,
                 const std::shared_ptr<DaemonArguments>& arguments,
                 Status (*work)(const Context&, const DaemonArguments&)) {
  Command verb = daemon.add_subcommand(name, help);
  verb.add_option("--runtime-dir", arguments->runtime_directory, "Where the daemon's socket is")
      .type_name("DIR");
  on_verb(verb, context, [&context, arguments, work] { return work(context, *arguments); });
  return verb;
}

}  // namespace

std::string absolute_path(const std::string& path) {
  if (path.empty()) return path;
  std::error_code failed;
  const fs::path whole = fs::absolute(path, failed).lexically_normal();
  return failed ? path : whole.string();
}

std::vector<std::string> daemon_arguments(const DaemonArguments& arguments,
                                          const std::string& runtime_directory) {
  std::vector<std::string> list;
  const auto add = [&list](const char* name, const std::string& value) {
    if (!value.empty()) list.insert(list.end(), {name, value});
  };
  add("--config", absolute_path(arguments.config_file));
  add("--runtime-dir", runtime_directory);
  add("--state", absolute_path(arguments.state_file));
  for (const std::string& device : arguments.emulated) add("--emulate", device);
  list.insert(list.end(), arguments.others.begin(), arguments.others.end());
  return list;
}

std::string runtime_directory_of(const Context& context, const DaemonArguments& arguments) {
  if (!arguments.runtime_directory.empty()) return absolute_path(arguments.runtime_directory);
  const bool named = !context.socket_path.empty() || std::getenv("TERRACE_SOCKET") != nullptr;
  if (!named && !arguments.config_file.empty()) return "";
  const fs::path socket = socket_path_of(context);
  return socket.filename() == "terraced.sock" ? absolute_path(socket.parent_path()) : "";
}

Context context_of(const Context& context, const DaemonArguments& arguments) {
  Context other = context;
  if (!arguments.runtime_directory.empty())
    other.socket_path = absolute_path(arguments.runtime_directory) + "/terraced.sock";
  return other;
}

bool same_store(const std::string& state_file, const DaemonArguments& arguments) {
  return arguments.state_file.empty() || absolute_path(arguments.state_file) == state_file;
}

void add_start_options(Command verb, const std::shared_ptr<DaemonArguments>& arguments) {
  verb.add_option("--state", arguments->state_file, "The file that remembers pools and leases")
      .type_name("FILE");
  verb.add_option("--config", arguments->config_file, "A configuration in TOML").type_name("FILE");
  verb.add_option("--emulate", arguments->emulated, "An emulated device; repeat for more")
      .type_name("NAME=SIZE")
      .allow_extra_args(false);
  verb.add_option("others", arguments->others, "After --: further arguments for terraced")
      .type_name("ARGUMENT");
}

void add_daemon_verbs(Command app, Context& context) {
  Command daemon = app.add_subcommand("daemon", "The pool manager's process");
  daemon.require_subcommand();
  const auto arguments = std::make_shared<DaemonArguments>();

  Command run = add_verb(daemon, "run", "Become terraced, in the foreground", context, arguments, run_daemon);
  add_start_options(run, arguments);

  Command begin = add_verb(daemon, "start", "Start terraced in the background, and wait until it answers",
                           context, arguments, start_and_wait);
  add_start_options(begin, arguments);
  begin.add_option("--log", arguments->log_file, "Its output (default: terraced.log in the runtime directory)")
      .type_name("FILE");
  add_duration_option(begin, "--wait", arguments->wait_ns, "How long it may take to answer (default 60s)");

  Command end =
      add_verb(daemon, "stop", "End the daemon; leases stay in its state", context, arguments, stop_and_wait);
  add_duration_option(end, "--wait", arguments->wait_ns, "How long it may take to end (default 60s)");

  add_verb(daemon, "status", "The daemon's process, paths and work", context, arguments, show_daemon);
}

}  // namespace terrace::cli
