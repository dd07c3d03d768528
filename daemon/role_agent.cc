// SPDX-License-Identifier: Apache-2.0
// The agent of a further host: its memory, its unix socket, and the manager behind both. No store, no
// decisions.
#include <kj/async-unix.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "core/base/clock.h"
#include "core/base/sync/mutex.h"
#include "core/base/time_slice.h"
#include "daemon/agent/agent_admin.h"
#include "daemon/agent/guard.h"
#include "daemon/agent/guard_process.h"
#include "daemon/agent/host_lease_file.h"
#include "daemon/agent/local_service.h"
#include "daemon/agent/orders.h"
#include "daemon/agent/uplink.h"
#include "daemon/agent/web/agent_pages.h"
#include "daemon/config/runtime_directory.h"
#include "daemon/consent/consented_holders.h"
#include "daemon/log/log.h"
#include "daemon/machine_memory.h"
#include "daemon/reload.h"
#include "daemon/roles.h"
#include "daemon/rpc/connection/server.h"
#include "daemon/service_manager/watchdog.h"
#include "daemon/sockets.h"
#include "daemon/tls/credentials.h"
#include "daemon/web_sockets.h"

namespace terrace::daemon {
namespace {

PeerOptions peer_options(const DaemonConfig& config) {
  PeerOptions options;
  options.admin_uids = administrators_of(config);
  options.sockets = served_sockets(config);
  options.tenants = config.tenants;
  options.allow_unmapped_uids = config.allow_unmapped_uids;
  options.connections_max = config.connections_max;
  options.calls_outstanding_max = config.calls_outstanding_max;
  options.userfaultfd = config.userfaultfd;
  options.descriptors_max = raise_descriptors_allowed();
  return options;
}

// What the guard fences follows what there is. Until this process has registered, it has not seen all that an
// earlier one made, which stays on the list. Threads: any.
class Guarded {
 public:
  Guarded(const HostFiles& files, MachineMemory& memory, bool promised)
      : files_(files), memory_(memory), earlier_(promised ? read_guarded(files) : GuardedMemory{}) {}

  Status record(bool registered) {
    const MutexLock lock(mutex_);
    if (registered) earlier_ = {};
    GuardedMemory now{memory_.object_paths(), memory_.backends().dax_regions()};
    add(now.directories, earlier_.directories);
    add(now.dax_regions, earlier_.dax_regions);
    if (now == recorded_) return {};
    TERRACE_RETURN_IF_ERROR(record_guarded(files_, now));
    recorded_ = std::move(now);
    return {};
  }

 private:
  static void add(std::vector<std::string>& to, const std::vector<std::string>& more) {
    for (const std::string& one : more)
      if (std::find(to.begin(), to.end(), one) == to.end()) to.push_back(one);
  }

  const HostFiles& files_;
  MachineMemory& memory_;
  Mutex mutex_;
  GuardedMemory earlier_ TERRACE_GUARDED_BY(mutex_);
  std::optional<GuardedMemory> recorded_ TERRACE_GUARDED_BY(mutex_);
};

// Somebody may kill the guard: there is another one within a second.
// `looks`: how many in turn found none. One that was just started may take a while on a busy machine.
kj::Promise<void> keep_guard(const HostFiles& files, const std::vector<std::string>& command, kj::Timer& timer,
                             AgentHealth& health, int looks = 0) {
  looks = guard_runs(files) ? 0 : std::min(looks + 1, 3);
  Status status = ensure_guard(files, command);
  if (status.ok() && looks == 3)
    status = Error{.code = ErrorCode::unavailable,
                   .where = "guard",
                   .detail = "those that were started have ended; the log says why"};
  health.note_guard(status);
  return timer.afterDelay(1 * kj::SECONDS).then([&files, &command, &timer, &health, looks] {
    return keep_guard(files, command, timer, health, looks);
  });
}

}  // namespace

Status run_host_guard(const DaemonConfig& config) {
  for (const std::string& lack : protect_guard()) log::warn("guard: {}", lack);
  return run_guard(HostFiles(config.runtime_directory));
}

Status run_agent(const DaemonConfig& config, StartWords words, const Surroundings& surroundings,
                 const std::vector<std::string>& command) {
  kj::UnixEventPort::captureSignal(SIGTERM);
  kj::UnixEventPort::captureSignal(SIGINT);
  kj::UnixEventPort::captureSignal(SIGHUP);
  auto io = kj::setupAsyncIo();
  kj::Timer& timer = io.provider->getTimer();
  // Before anybody can connect: a certificate that cannot be used ends the start.
  const TlsFiles files{config.tls_ca, config.tls_certificate, config.tls_key, config.tls_revoked};
  TERRACE_ASSIGN_OR_RETURN(Credentials credentials, Credentials::read(files, TlsRole::agent, timer));
  TERRACE_RETURN_IF_ERROR(prepare_runtime_directory(config.runtime_directory));
  // The lock comes first: a second agent must touch nothing.
  const HostFiles host_files(config.runtime_directory);
  TERRACE_ASSIGN_OR_RETURN(const UniqueFd lock, lock_as_agent(host_files));
  const std::string socket = socket_path_of(config);
  TERRACE_ASSIGN_OR_RETURN(BoundSockets sockets, BoundSockets::bind(config));
  TERRACE_ASSIGN_OR_RETURN(HostLeaseFile lease, HostLeaseFile::open(host_files.lease));
  TERRACE_ASSIGN_OR_RETURN(const auto memory, MachineMemory::prepare(config));
  Guarded guarded(host_files, *memory, lease.fence_at_ns() != 0);
  TERRACE_RETURN_IF_ERROR(guarded.record(false));
  TERRACE_RETURN_IF_ERROR(ensure_guard(host_files, command));

  const SystemClock clock;
  Uplink uplink(config.manager, credentials, io.provider->getNetwork(), clock, timer, lease);
  if (words.destroy_orphans) uplink.take_over();
  ConsentedHolders consents(timer, host_files.consents, clock.boot_id());
  Orders orders(memory->backends(), consents, [&uplink] { return uplink.in_force(); },
                {.record = [&guarded](bool registered) { return guarded.record(registered); },
                 .fence = [&host_files] { return fence_guarded(host_files); }});
  memory->allow_beside(2 * Fencing::probe_bytes);
  for (const std::string& directory : memory->object_paths()) orders.fencing().measure(directory);
  memory->allow_beside(0);
  LocalService service(peer_options(config), uplink, orders, clock, timer);
  AgentHealth health({config.runtime_directory, memory->object_path(), memory->backends().describe_memory()},
                     config.health, uplink, credentials, clock, timer);
  service.set_health(&health);
  tell_connections(service);
  // After the workers, whose threads would inherit it.
  if (const auto slice = take_short_slice(); !slice.ok()) log::info("{}", slice.error().to_string());
  {
    RpcServer server(
        service, [&service](PeerCredentials peer) { return service.welcome(std::move(peer)); }, io);
    sockets.serve(server, service.peer_options().sockets);
    AgentPages pages(service);
    WebServer web(service, pages, *io.lowLevelProvider, timer, server.turns());
    TERRACE_ASSIGN_OR_RETURN(const SocketFile web_file, serve_web(config, web, io));
    const auto guarding = keep_guard(host_files, command, timer, health).eagerlyEvaluate(nullptr);
    credentials.on_change([&uplink] { uplink.credentials_changed(); });
    const auto reading = credentials.watch().eagerlyEvaluate(nullptr);
    uplink.start(orders, service);
    health.begin();
    log::info("serving at {} (pid {}), an agent of the manager at {}", socket, ::getpid(), config.manager);
    const auto status = [&] {
      return fmt::format("serving at {} for the manager at {}: {} connections{}", socket, config.manager,
                         service.connections(), uplink.connected() ? "" : "; the manager is away");
    };
    Reload reload(config, surroundings, service, status);
    const auto reloading = reload.at_hangup(io.unixEventPort).eagerlyEvaluate(nullptr);
    surroundings.service_manager.ready(status());
    const auto living = tell_watchdog(surroundings.service_manager, timer, status).eagerlyEvaluate(nullptr);
    auto stop = io.unixEventPort.onSignal(SIGTERM).exclusiveJoin(io.unixEventPort.onSignal(SIGINT));
    const siginfo_t signal = stop.wait(io.waitScope);
    log::info("{}: ending; leases stay until the host lease ends",
              signal.si_signo == SIGTERM ? "SIGTERM" : "SIGINT");
    surroundings.service_manager.stopping("ending; leases stay until the host lease ends");
    sockets.remove_files();
    uplink.stop();
  }
  return {};
}

}  // namespace terrace::daemon
