// terraced: reads the configuration, builds every part, connects them and runs the event loop.
//
// Exit codes: 0 ended by SIGTERM or SIGINT; 1 could not start or recover; 2 wrong flags or configuration.
// With --fsck: 0 nothing is wrong; 1 something is; 2 wrong flags, or a terraced is running.
#include <kj/async-unix.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>

#include "core/base/clock.h"
#include "core/base/failpoint.h"
#include "daemon/backend/backend_set.h"
#include "daemon/backend/emulated.h"
#include "daemon/backend/hardware.h"
#include "daemon/backend/numa.h"
#include "daemon/backend/pmem.h"
#include "daemon/config/config.h"
#include "daemon/config/log.h"
#include "daemon/config/runtime_directory.h"
#include "daemon/event_loop/engine.h"
#include "daemon/event_loop/hotplug.h"
#include "daemon/fsck/command.h"
#include "daemon/fsck/fsck.h"
#include "daemon/fsck/node_check.h"
#include "daemon/rpc/server.h"
#include "daemon/store/store.h"

namespace terrace::daemon {
namespace {

constexpr int exit_cannot_start = 1;
constexpr int exit_usage = 2;

struct Flags {
  std::string config, runtime_directory, socket, state, object_directory, log_level, log_format, log_file, host,
      granule;
  std::vector<std::string> emulate;
  std::vector<uint32_t> admin_uids;
  bool no_mount = false, accept_lost_objects = false, list_failpoints = false, check_config = false,
       allow_unmapped = false, overcommit = false, no_hardware = false, fsck = false, json = false;
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
  app.add_flag("--no-hardware", flags.no_hardware,
               "leave DAX devices and CXL regions alone: emulated devices only");
  app.add_flag("--no-mount", flags.no_mount, "do not mount a tmpfs for them, use the directory as it is");
  app.add_flag("--accept-lost-objects", flags.accept_lost_objects,
               "end every lease whose memory is gone, even when all of it is");
  app.add_option("--host", flags.host, "this machine's name among hosts (default: its host name)");
  app.add_option("--admin-uid", flags.admin_uids, "a further uid that may administer; repeatable");
  app.add_flag("--allow-unmapped-uids", flags.allow_unmapped, "uids without a tenant become tenant uid-N");
  app.add_option("--log-level", flags.log_level, "trace, debug, info, warning, error, critical or off");
  app.add_option("--log-format", flags.log_format, "text or json (one object a line)");
  app.add_option("--log-file", flags.log_file, "append the log there instead of writing to standard error");
  app.add_flag("--check-config", flags.check_config, "check flags and configuration, then end");
  app.add_flag("--fsck", flags.fsck, "compare the state with memory, devices and processes, then end");
  app.add_flag("--json", flags.json, "with --fsck: print JSON")->needs("--fsck");
  app.add_flag("--list-failpoints", flags.list_failpoints, "print name, process and what a crash there leaves");
  app.set_version_flag("--version", TERRACE_VERSION);
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
  if (flags.no_mount) config.mount = false;
  if (flags.overcommit) config.overcommit = true;
  if (flags.no_hardware) config.hardware = false;
  if (flags.allow_unmapped) config.allow_unmapped_uids = true;
  config.admin_uids.insert(flags.admin_uids.begin(), flags.admin_uids.end());
  if (!flags.emulate.empty()) config.emulated.clear();
  std::string problems;
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

// Every lease held by a client costs a descriptor.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

ServiceOptions service_options(const DaemonConfig& config, const std::string& objects) {
  ServiceOptions options;
  char name[256] = "localhost";
  ::gethostname(name, sizeof(name) - 1);
  options.host = config.host.empty() ? name : config.host;
  options.runtime_directory = config.runtime_directory;
  options.state_file = config.state_path;
  options.object_directory = objects;
  options.admin_uids = config.admin_uids;
  options.tenants = config.tenants;
  options.allow_unmapped_uids = config.allow_unmapped_uids;
  options.ttl_ns_max = config.ttl_ns_max;
  options.connections_max = config.connections_max;
  options.calls_outstanding_max = config.calls_outstanding_max;
  return options;
}

ObjectDirectoryOptions object_directory_options(const DaemonConfig& config) {
  ObjectDirectoryOptions options;
  options.directory = config.object_directory;
  options.runtime_directory = config.runtime_directory;
  for (const EmulatedDevice& device : config.emulated) options.bytes += device.size_bytes;
  options.mount = config.mount;
  options.huge_pages = config.huge_pages;
  return options;
}

NumaOptions numa_options(const DaemonConfig& config) {
  return {.runtime_directory = config.runtime_directory,
          .mount = config.mount,
          .huge_pages = config.huge_pages,
          .record = config.state_path + ".system-ram"};
}

// Processes that still have what was taken back from them. A start waits for this look at /proc, but not for
// long.
Engine::StartCheck look_for_stubborn_holders(const std::string& object_path,
                                             const std::string& runtime_directory) {
  return [object_path, runtime_directory](const Image& image) {
    constexpr std::chrono::milliseconds time_max{500};
    std::vector<std::string> findings;
    auto scan = scan_processes(object_path, time_max, has_dax_devices(image));
    if (!scan.ok()) return findings;
    for (LiveMapping& mapping : scan_node_mappings(runtime_directory, time_max))
      scan->mappings.push_back(std::move(mapping));
    for (const Finding& finding : check_mappings(image, scan->mappings))
      findings.push_back(finding.subject + " " + finding.what + "; " + finding.repair);
    if (!scan->complete) findings.push_back("not every process was looked at; `terrace fsck` takes its time");
    return findings;
  };
}

Status serve(const DaemonConfig& config, bool accept_lost_objects) {
  // Before any thread: one that is started with these signals open would take them, and end the process.
  kj::UnixEventPort::captureSignal(SIGTERM);
  kj::UnixEventPort::captureSignal(SIGINT);
  TERRACE_RETURN_IF_ERROR(prepare_runtime_directory(config.runtime_directory));
  // The store's lock comes first: a second daemon must touch nothing.
  TERRACE_ASSIGN_OR_RETURN(const auto store, open_store(config.state_path));
  TERRACE_ASSIGN_OR_RETURN(ObjectDirectory objects, ObjectDirectory::prepare(object_directory_options(config)));
  const std::string object_path = objects.path();
  EmulatedBackend emulated(std::move(objects), EmulatedOptions{.devices = config.emulated,
                                                               .granule_bytes = config.granule_bytes,
                                                               .reserve = !config.overcommit});
  spdlog::info("memory: {}", emulated.describe_memory());
  const auto hardware = make_hardware({config.runtime_directory, read_boot_id()});
  const bool real = config.hardware && hardware_usable();
  NumaBackend numa(numa_options(config), real ? &hardware->ram_kernel() : nullptr);
  BackendSet backend;
  backend.add(emulated);
  const auto pmem_kernel = make_pmem_kernel();
  const auto cxl_kernel = make_cxl_kernel();
  PmemBackend pmem(*pmem_kernel, *cxl_kernel, RegionRecords(config.state_path + "-regions.toml"));
  if (config.hardware) {
    backend.add(numa);
    backend.add(pmem);
    if (real) hardware->add_to(backend);
  }

  auto io = kj::setupAsyncIo();
  const SystemClock clock;
  Engine engine(*store, backend, clock, io.provider->getTimer(),
                EngineOptions{.scrub_bytes_per_s = config.scrub_bytes_per_s});
  if (accept_lost_objects) engine.accept_lost_objects();
  engine.set_start_check(look_for_stubborn_holders(object_path, config.runtime_directory));
  TERRACE_RETURN_IF_ERROR(engine.start().wait(io.waitScope));
  const auto hotplug = Hotplug::listen_to_kernel(io.unixEventPort, io.provider->getTimer(),
                                                 [&engine]() { return engine.look_at_devices(); });
  Service service(engine, service_options(config, object_path));

  const std::string socket = socket_path_of(config);
  TERRACE_ASSIGN_OR_RETURN(UniqueFd listener, listen_unix(socket, config.socket_mode));
  {
    RpcServer server(service, *io.lowLevelProvider, io.provider->getTimer(), std::move(listener));
    spdlog::info("serving at {} (pid {}, state {}, {} leases)", socket, ::getpid(), config.state_path,
                 engine.state().leases().size());
    auto stop = io.unixEventPort.onSignal(SIGTERM).exclusiveJoin(io.unixEventPort.onSignal(SIGINT));
    const siginfo_t signal = stop.wait(io.waitScope);
    spdlog::info("{}: ending; leases stay as they are", signal.si_signo == SIGTERM ? "SIGTERM" : "SIGINT");
    ::unlink(socket.c_str());
  }
  // Connections are closed; what was acknowledged is durable. Fences and scrubs under way are finished so
  // that the next start finds less to do, but not for long.
  engine.drain().exclusiveJoin(io.provider->getTimer().afterDelay(2 * kj::SECONDS)).wait(io.waitScope);
  if (engine.state().leases().empty()) {
    if (Status removed = emulated.remove_directory(); !removed.ok())
      spdlog::warn("the memory's directory stays: {}", removed.error().to_string());
    if (Status removed = numa.remove_directories(); !removed.ok())
      spdlog::warn("a memory node's directory stays: {}", removed.error().to_string());
  }
  return {};
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
  raise_descriptor_limit();
  try {
    set_up_log(*config);
    const Status status = serve(*config, flags.accept_lost_objects);
    if (status.ok()) return 0;
    spdlog::critical("{}", status.error().to_string());
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
  return terrace::daemon::run(argc, argv);
}
