// SPDX-License-Identifier: Apache-2.0
// `terrace state backup|verify|restore|salvage`: the manager's store as one file, and back.
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/client/admin_client.h"
#include "cli/program/run_program.h"
#include "cli/show/describe.h"
#include "cli/terminal/manager_place.h"
#include "cli/terminal/verb.h"
#include "cli/verbs/daemon_arguments.h"
#include "cli/verbs/daemon_process.h"
#include "cli/verbs/state_verbs.h"
#include "core/base/unique_fd.h"

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;

struct StateArguments {
  std::string file;
  bool force = false;
};

Error state_error(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = "state", .detail = std::move(detail)};
}

// What terraced said about a file of a store.
Result<nlohmann::json> run_tool(const Context& context, const DaemonArguments& arguments, const char* option,
                                const std::string& file) {
  TERRACE_ASSIGN_OR_RETURN(const std::string program, find_daemon_program());
  std::vector<std::string> list = daemon_arguments(arguments, runtime_directory_of(context, arguments));
  list.insert(list.begin(), {option, absolute_path(file), "--json"});
  TERRACE_ASSIGN_OR_RETURN(const ProgramOutput output, run_program(program, list));
  nlohmann::json document = nlohmann::json::parse(output.out, nullptr, false);
  if (document.is_object() && document.contains("store_id")) return document;
  if (document.is_object() && document.contains("error")) {
    const nlohmann::json& error = document["error"];
    return Error{.code = static_cast<ErrorCode>(error.value("code", 0)),
                 .os_errno = error.value("os_errno", 0),
                 .where = "state",
                 .detail = error.value("detail", std::string("no reason was given"))};
  }
  std::string said = output.err.empty() ? output.out : output.err;
  while (!said.empty() && said.back() == '\n') said.pop_back();
  const bool usage = WIFEXITED(output.status) && WEXITSTATUS(output.status) == 2;
  return state_error(usage ? ErrorCode::invalid_argument : ErrorCode::io_error,
                     program + " " + option + " did not work" + (said.empty() ? "" : ": " + said));
}

using Fields = std::vector<std::pair<std::string, std::string>>;

std::string contents_block(const nlohmann::json& contents, const std::string& file, const Fields& more = {}) {
  const auto number = [&contents](const char* name) { return contents.value(name, uint64_t{0}); };
  Fields fields = {{"file", file},
                   {"store", contents.value("store_id", std::string())},
                   {"commits", std::to_string(number("sequence"))},
                   {"leases", std::to_string(number("leases"))},
                   {"devices", std::to_string(number("devices"))},
                   {"pools", std::to_string(number("pools"))},
                   {"size", exact_size(number("bytes"))}};
  fields.insert(fields.end(), more.begin(), more.end());
  return format_block(fields);
}

// A file that is there only once it is whole: written under another name beside it.
class PartialFile {
 public:
  explicit PartialFile(const std::string& target)
      : target_(absolute_path(target)), path_(target_ + ".partial-" + std::to_string(::getpid())) {}
  ~PartialFile() { ::unlink(path_.c_str()); }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  const std::string& path() const { return path_; }

  Status fill(const std::string& text) const {
    const UniqueFd file(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.valid()) return os_error(errno, "state", "cannot make the file " + path_);
    const ssize_t n = ::write(file.get(), text.data(), text.size());
    if (n != static_cast<ssize_t>(text.size()))
      return os_error(n < 0 ? errno : ENOSPC, "state", "cannot write " + path_);
    if (::fsync(file.get()) != 0) return os_error(errno, "state", "cannot sync " + path_);
    return {};
  }

  Status fill(const UniqueFd& source, uint64_t bytes) const {
    const UniqueFd file(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.valid()) return os_error(errno, "state backup", "cannot make the file " + path_);
    std::vector<char> buffer(1 << 20);
    uint64_t done = 0;
    for (ssize_t n; (n = ::pread(source.get(), buffer.data(), buffer.size(), static_cast<off_t>(done))) != 0;) {
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return os_error(errno, "state backup", "cannot read what the daemon handed over");
      for (ssize_t written = 0; written < n;) {
        const ssize_t m = ::write(file.get(), buffer.data() + written, static_cast<size_t>(n - written));
        if (m < 0 && errno == EINTR) continue;
        if (m <= 0) return os_error(m == 0 ? ENOSPC : errno, "state backup", "cannot write " + path_);
        written += m;
      }
      done += static_cast<uint64_t>(n);
    }
    if (done != bytes)
      return state_error(ErrorCode::corrupt, "the daemon handed over " + std::to_string(done) +
                                                 " bytes and spoke of " + std::to_string(bytes));
    if (::fsync(file.get()) != 0) return os_error(errno, "state backup", "cannot sync " + path_);
    return {};
  }

  Status take_name(bool replace) const {
    int failed =
        ::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target_.c_str(), replace ? 0 : RENAME_NOREPLACE);
    // Not every file system knows RENAME_NOREPLACE; whether the name was free was looked at before.
    if (failed != 0 && errno == EINVAL && !replace) failed = ::rename(path_.c_str(), target_.c_str());
    if (failed != 0 && errno == EEXIST) return taken(target_);
    if (failed != 0) return os_error(errno, "state backup", "cannot rename " + path_ + " to " + target_);
    const UniqueFd folder(::open(fs::path(target_).parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder.valid() || ::fsync(folder.get()) != 0)
      return os_error(errno, "state backup", "cannot sync the folder of " + target_);
    return {};
  }

  static Error taken(const std::string& file) {
    return state_error(ErrorCode::already_exists, file + " is there already; --force replaces it");
  }

 private:
  const std::string target_, path_;
};

Status check_name(const std::string& file, bool replace) {
  struct stat status {};
  const bool there = ::lstat(file.c_str(), &status) == 0;
  if (there && !replace) return PartialFile::taken(file);
  if (there && !S_ISREG(status.st_mode))
    return state_error(ErrorCode::invalid_argument, file + " is no regular file; name a file");
  return {};
}

Result<nlohmann::json> back_up(const Context& context, const DaemonArguments& arguments,
                               const PartialFile& partial) {
  TERRACE_RETURN_IF_ERROR(on_this_machine(context_of(context, arguments), "state backup"));
  Result<std::unique_ptr<AdminClient>> client = AdminClient::connect(context_of(context, arguments));
  if (!client.ok() && client.error().code != ErrorCode::unavailable) return client.error();
  if (!client.ok()) return run_tool(context, arguments, "--backup-state", partial.path());
  TERRACE_ASSIGN_OR_RETURN(const StatusReply reply, (*client)->status());
  if (!same_store(str(reply->getServer().getStateFile()), arguments))
    return run_tool(context, arguments, "--backup-state", partial.path());
  TERRACE_ASSIGN_OR_RETURN(const ReceivedBackup made, (*client)->backup());
  TERRACE_RETURN_IF_ERROR(partial.fill(made.file, made.contents->getBytes()));
  return to_json(made.contents);
}

Status make_backup(const Context& context, const DaemonArguments& arguments, const StateArguments& state) {
  TERRACE_RETURN_IF_ERROR(check_name(state.file, state.force));
  const PartialFile partial(state.file);
  TERRACE_ASSIGN_OR_RETURN(const nlohmann::json contents, back_up(context, arguments, partial));
  TERRACE_RETURN_IF_ERROR(partial.take_name(state.force));
  if (context.json) {
    print_json({{"file", absolute_path(state.file)}, {"backup", contents}});
  } else {
    print_text(contents_block(contents, state.file));
  }
  return {};
}

Status verify_backup(const Context& context, const StateArguments& state) {
  TERRACE_ASSIGN_OR_RETURN(const nlohmann::json contents, run_tool(context, {}, "--verify-backup", state.file));
  if (context.json) {
    print_json({{"file", absolute_path(state.file)}, {"backup", contents}});
  } else {
    print_text(contents_block(contents, state.file) + "whole: every page, row and the seal were checked\n");
  }
  return {};
}

Status salvage_state(const Context& context, const DaemonArguments& arguments, const StateArguments& state) {
  TERRACE_RETURN_IF_ERROR(check_name(state.file, state.force));
  const PartialFile partial(state.file);
  TERRACE_ASSIGN_OR_RETURN(nlohmann::json contents,
                           run_tool(context, arguments, "--salvage-state", partial.path()));
  TERRACE_RETURN_IF_ERROR(partial.take_name(state.force));
  const nlohmann::json lost = contents.value("lost", nlohmann::json::array());
  contents.erase("lost");
  if (context.json) {
    print_json({{"file", absolute_path(state.file)}, {"salvaged", contents}, {"lost", lost}});
    return {};
  }
  std::string text = contents_block(contents, state.file);
  for (const nlohmann::json& one : lost) text += "lost: " + one.get<std::string>() + "\n";
  print_text(text + (lost.empty() ? "Nothing is missing. " : "") + "To go on from it: terrace state restore " +
             state.file + "; memory that it does not know is quarantined then\n");
  return {};
}

Status restore_backup(const Context& context, const DaemonArguments& arguments, const StateArguments& state) {
  TERRACE_ASSIGN_OR_RETURN(const nlohmann::json done,
                           run_tool(context, arguments, "--restore-state", state.file));
  if (context.json) {
    print_json({{"restored", done}});
    return {};
  }
  const bool aside = done.contains("set_aside") && done["set_aside"].is_string();
  print_text(contents_block(done, state.file,
                            {{"restored to", done.value("state", std::string())},
                             {"was there", aside ? done["set_aside"].get<std::string>() : "nothing"}}) +
             "Start terraced: what the backup does not know is quarantined then, nothing is destroyed\n");
  return {};
}

}  // namespace

Status write_new_file(const std::string& file, const std::string& text, bool replace) {
  TERRACE_RETURN_IF_ERROR(check_name(file, replace));
  const PartialFile partial(file);
  TERRACE_RETURN_IF_ERROR(partial.fill(text));
  return partial.take_name(replace);
}

void add_state_verbs(Command app, Context& context) {
  Command verbs =
      app.add_subcommand("state", "The manager's state: backups of it, and its configuration as a file");
  verbs.require_subcommand();
  const auto daemon = std::make_shared<DaemonArguments>();
  const auto state = std::make_shared<StateArguments>();
  const auto add = [&](const char* name, const char* help, const char* file_help) {
    Command verb = verbs.add_subcommand(name, help);
    verb.add_option("file", state->file, file_help).required().type_name("FILE");
    return verb;
  };
  const auto add_place = [&](Command verb) {
    verb.add_option("--runtime-dir", daemon->runtime_directory, "Where the daemon's socket is")
        .type_name("DIR");
    add_start_options(verb, daemon);
  };

  Command backup = add("backup", "Write the whole state to one verified file, while the daemon serves or not",
                       "The file to make");
  backup.add_flag("--force", state->force, "Replace the file if it is there");
  add_place(backup);
  on_verb(backup, context, [&context, daemon, state] { return make_backup(context, *daemon, *state); });

  Command verify = add("verify", "Check a backup as a start would, and show what it holds", "The backup");
  on_verb(verify, context, [&context, state] { return verify_backup(context, *state); });

  Command salvage =
      add("salvage", "Write what can be read of a stopped daemon's damaged state to a file, and say what not",
          "The file to make");
  salvage.add_flag("--force", state->force, "Replace the file if it is there");
  add_place(salvage);
  on_verb(salvage, context, [&context, daemon, state] { return salvage_state(context, *daemon, *state); });

  Command restore = add("restore", "Put a backup in the place of the state of a stopped daemon", "The backup");
  add_place(restore);
  on_verb(restore, context, [&context, daemon, state] { return restore_backup(context, *daemon, *state); });
  add_config_verbs(verbs, context);
}

}  // namespace terrace::cli
