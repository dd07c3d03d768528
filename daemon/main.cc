// SPDX-License-Identifier: Apache-2.0
// terraced: reads flags and configuration, then is what they say: a manager, an agent, or a check.
//
// Exit codes: 0 ended by SIGTERM or SIGINT; 1 could not start or recover; 2 wrong flags or configuration.
// With --fsck: 0 nothing is wrong; 1 something is; 2 wrong flags, or a terraced is running.
// With --backup-state, --verify-backup, --restore-state, --salvage-state: 0 done; 1 not; 2 wrong flags.
#include <kj/exception.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "core/base/failpoint.h"
#include "core/version/build_info.h"
#include "daemon/config/config.h"
#include "daemon/config/log.h"
#include "daemon/fsck/command.h"
#include "daemon/fsck/store_tools.h"
#include "daemon/helper/helper.h"
#include "daemon/helper/jobs/jobs.h"
#include "daemon/log/log.h"
#include "daemon/roles.h"

namespace terrace::daemon {
namespace {

constexpr int exit_cannot_start = 1;
constexpr int exit_usage = 2;

struct Flags {
  std::string config, runtime_directory, socket, state, object_directory, log_level, log_format, log_file, host,
      granule, role, manager, listen, tls_ca, tls_certificate, tls_key, tls_revoked, host_lease, backup_file,
      verify_file, restore_file, salvage_file;
  std::vector<std::string> emulate;
  std::vector<uint32_t> admin_uids;
  bool no_mount = false, accept_lost_objects = false, list_failpoints = false, check_config = false,
       allow_unmapped = false, overcommit = false, no_hardware = false, fsck = false, json = false,
       guard = false, destroy_orphans = false;
};

void add_flags(CLI::App& app, Flags& flags) {
  app.add_option("--config", flags.config, "TOML configuration file (docs/operations/configuration.md)");
  app.add_option("--runtime-dir", flags.runtime_directory, "directory of the socket and the emulated memory");
  app.add_option("--socket", flags.socket, "unix socket to serve (default: RUNTIME_DIR/terraced.sock)");
  app.add_option("--state", flags.state, "the store's file (SQLite)");
  app.add_option("--emulate", flags.emulate, "NAME=SIZE: an emulated CXL device; repeatable");
  app.add_option("--object-dir", flags.object_directory, "where leases of emulated devices live (a tmpfs)");
  app.add_option("--emulate-granule", flags.granule, "smallest unit of emulated devices: 2M (default) to 1G");
  app.add_flag("--emulate-overcommit", flags.overcommit,
               "take the memory of emulated devices when it is touched, not when it is granted");
  app.add_flag("--no-mount", flags.no_mount, "do not mount a tmpfs for them, use the directory as it is");
  app.add_flag("--accept-lost-objects", flags.accept_lost_objects,
               "end every lease whose memory is gone, even when all of it is");
  app.add_flag("--destroy-orphans", flags.destroy_orphans,
               "destroy memory that no lease has, and take over what belongs to another store; for one start");
  app.add_option("--role", flags.role, "manager (default), or agent: of a further host");
  app.add_option("--manager", flags.manager, "HOST:PORT of an agent's manager");
  app.add_option("--listen", flags.listen, "HOST:PORT where a manager waits for agents");
  app.add_option("--tls-ca", flags.tls_ca, "certificate of the private CA (`terrace cert init`)");
  app.add_option("--tls-cert", flags.tls_certificate, "this machine's certificate (`terrace cert issue`)");
  app.add_option("--tls-key", flags.tls_key, "its key");
  app.add_option("--tls-revoked", flags.tls_revoked, "list of revoked certificates (`terrace cert revoke`)");
  app.add_option("--host-lease", flags.host_lease,
                 "how long a host keeps its leases without its manager (30s)");
  app.add_flag("--no-hardware", flags.no_hardware,
               "leave DAX devices and CXL regions alone: emulated devices only");
  app.add_option("--host", flags.host, "this machine's name among hosts (default: its host name)");
  app.add_option("--admin-uid", flags.admin_uids, "a further uid that may administer; repeatable");
  app.add_flag("--allow-unmapped-uids", flags.allow_unmapped, "uids without a tenant become tenant uid-N");
  app.add_option("--log-level", flags.log_level, "trace, debug, info, warning, error, critical or off");
  app.add_option("--log-format", flags.log_format, "text or json (one object a line)");
  app.add_option("--log-file", flags.log_file, "append the log there instead of writing to standard error");
  app.add_flag("--check-config", flags.check_config, "check flags and configuration, then end");
  app.add_flag("--guard", flags.guard, "with --role agent: fence this host's memory when its host lease ends");
  app.add_flag("--fsck", flags.fsck, "compare the state with memory, devices and processes, then end");
  CLI::Option* backup = app.add_option("--backup-state", flags.backup_file,
                                       "write the state of a stopped terraced to this new file, then end");
  CLI::Option* verify =
      app.add_option("--verify-backup", flags.verify_file, "check a backup of a state, then end");
  CLI::Option* restore = app.add_option("--restore-state", flags.restore_file,
                                        "put a backup in the place of the state, then end (`terrace state`)");
  CLI::Option* salvage =
      app.add_option("--salvage-state", flags.salvage_file,
                     "write what can be read of a damaged state to this new file, then end (`terrace state`)");
  verify->excludes(backup)->excludes(restore)->excludes(salvage);
  restore->excludes(backup)->excludes(salvage);
  salvage->excludes(backup);
  app.add_flag("--json", flags.json, "with --fsck and the four before: print JSON");
  app.add_flag("--list-failpoints", flags.list_failpoints, "print name, process and what a crash there leaves");
  app.set_version_flag("--version", version_and_build());
}

Result<DaemonConfig> configure(const Flags& flags) {
  DaemonConfig config = default_config();
  if (!flags.config.empty()) {
    TERRACE_ASSIGN_OR_RETURN(config, load_config_file(flags.config, config));
  }
  if (!flags.runtime_directory.empty()) config.runtime_directory = flags.runtime_directory;
  if (!flags.socket.empty()) config.socket_path = flags.socket;
  if (!flags.state.empty()) config.state_path = flags.state;
  if (!flags.object_directory.empty()) config.object_directory = flags.object_directory;
  if (!flags.host.empty()) config.host = flags.host;
  if (!flags.log_level.empty()) config.log_level = flags.log_level;
  if (!flags.log_file.empty()) config.log_file = flags.log_file;
  if (!flags.manager.empty()) config.manager = flags.manager;
  if (!flags.listen.empty()) config.listen = flags.listen;
  if (!flags.tls_ca.empty()) config.tls_ca = flags.tls_ca;
  if (!flags.tls_certificate.empty()) config.tls_certificate = flags.tls_certificate;
  if (!flags.tls_key.empty()) config.tls_key = flags.tls_key;
  if (!flags.tls_revoked.empty()) config.tls_revoked = flags.tls_revoked;
  if (flags.no_mount) config.mount = false;
  if (flags.overcommit) config.overcommit = true;
  if (flags.no_hardware) config.hardware = false;
  if (flags.allow_unmapped) config.allow_unmapped_uids = true;
  config.admin_uids.insert(flags.admin_uids.begin(), flags.admin_uids.end());
  if (!flags.emulate.empty()) config.emulated.clear();
  std::string problems;
  if (!flags.role.empty()) {
    if (flags.role != "manager" && flags.role != "agent")
      problems += "--role: '" + flags.role + "' is neither manager nor agent\n";
    config.role = flags.role == "agent" ? Role::agent : Role::manager;
  }
  if (!flags.host_lease.empty()) {
    const auto length = parse_duration(flags.host_lease);
    if (length.ok()) {
      config.host_lease_ns = *length;
    } else {
      problems += "--host-lease: " + length.error().detail + "\n";
    }
  }
  if (!flags.granule.empty()) {
    const auto granule = parse_size(flags.granule);
    if (granule.ok()) {
      config.granule_bytes = *granule;
    } else {
      problems += "--emulate-granule: " + granule.error().detail + "\n";
    }
  }
  for (const std::string& text : flags.emulate) {
    auto device = parse_emulated_device(text);
    if (device.ok()) {
      config.emulated.push_back(*device);
    } else {
      problems += "--emulate: " + device.error().detail + "\n";
    }
  }
  if (!flags.log_format.empty() && flags.log_format != "text" && flags.log_format != "json")
    problems += "--log-format: '" + flags.log_format + "' is neither text nor json\n";
  if (!flags.log_format.empty())
    config.log_format = flags.log_format == "json" ? LogFormat::json : LogFormat::text;
  for (const std::string& problem : validate(config)) problems += problem + "\n";
  if (problems.empty()) return config;
  problems.pop_back();
  return Error{.code = ErrorCode::invalid_argument, .where = "configure", .detail = problems};
}

Status run_role(const DaemonConfig& config, const Flags& flags, const std::vector<std::string>& command) {
  if (config.role == Role::agent && flags.guard) return run_host_guard(config);
  const StartWords words{.accept_lost_objects = flags.accept_lost_objects,
                         .destroy_orphans = flags.destroy_orphans};
  Surroundings surroundings{.read_config = [&flags] { return configure(flags); }, .service_manager = {}};
  if (auto manager = ServiceManager::from_environment(); manager.ok()) {
    surroundings.service_manager = std::move(*manager);
  } else {
    log::warn("{}", manager.error().to_string());
  }
  surroundings.service_manager.status("starting");
  if (config.role == Role::manager) return run_manager(config, words, surroundings);
  return run_agent(config, words, surroundings, command);
}

StoreTool chosen_tool(const Flags& flags) {
  if (!flags.backup_file.empty()) return StoreTool::backup;
  if (!flags.verify_file.empty()) return StoreTool::verify;
  if (!flags.salvage_file.empty()) return StoreTool::salvage;
  return flags.restore_file.empty() ? StoreTool::none : StoreTool::restore;
}

int run(int argc, char** argv) {
  CLI::App app{
      "terraced: the pool manager. Carves CXL, DAX or emulated memory into leases and hands them out."};
  Flags flags;
  add_flags(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : exit_usage;
  }
  if (flags.list_failpoints) {
    for (const FailpointInfo& info : failpoint_list()) {
      std::printf("%s\t%s\t%s\n", std::string(info.name).c_str(), std::string(info.process).c_str(),
                  std::string(info.leaves).c_str());
    }
    return 0;
  }
  const auto config = configure(flags);
  if (!config.ok()) {
    std::fprintf(stderr, "terraced: %s\n", config.error().detail.c_str());
    return exit_usage;
  }
  if (Status status = arm_failpoints_from_environment(); !status.ok()) {
    std::fprintf(stderr, "terraced: %s\n", status.error().to_string().c_str());
    return exit_usage;
  }
  if (flags.check_config) {
    std::printf("the configuration can be used\n");
    return 0;
  }
  if (flags.fsck) return run_fsck(*config, flags.json);
  if (const StoreTool tool = chosen_tool(flags); tool != StoreTool::none)
    return run_store_tool(*config, tool,
                          flags.backup_file + flags.verify_file + flags.restore_file + flags.salvage_file,
                          flags.json);
  try {
    set_up_log(*config);
    const Status status = run_role(*config, flags, std::vector<std::string>(argv, argv + argc));
    if (status.ok()) return 0;
    log::critical("{}", status.error().to_string());
  } catch (const kj::Exception& exception) {
    std::fprintf(stderr, "terraced: %s\n", exception.getDescription().cStr());
  } catch (const std::exception& exception) {
    std::fprintf(stderr, "terraced: %s\n", exception.what());
  }
  return exit_cannot_start;
}

}  // namespace
}  // namespace terrace::daemon

int main(int argc, char** argv) {
  using namespace terrace::daemon;
  if (argc > 1 && std::string_view(argv[1]) == helper_flag)  // started by a manager, for a part of its work
    ::_exit(run_helper_job({argv + 2, argv + argc}));        // whatever a driver would still do at an end
  return run(argc, argv);
}
