// SPDX-License-Identifier: Apache-2.0
// The manager: store, state machine, memory, the unix socket for this machine and a TCP port for agents.
#include <fcntl.h>
#include <kj/async-unix.h>
#include <kj/debug.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/time_slice.h"
#include "core/base/unique_fd.h"
#include "core/identity/machine_name.h"
#include "core/version/version.h"
#include "daemon/audit/audit_file.h"
#include "daemon/audit/audit_journal.h"
#include "daemon/audit/audit_syslog.h"
#include "daemon/clients/clients.h"
#include "daemon/config/log.h"
#include "daemon/config/runtime_directory.h"
#include "daemon/consent/consented_holders.h"
#include "daemon/event_loop/engine.h"
#include "daemon/event_loop/hotplug.h"
#include "daemon/events/sinks/event_sinks.h"
#include "daemon/fsck/fsck.h"
#include "daemon/fsck/node_check.h"
#include "daemon/helper/helper.h"
#include "daemon/history/history_watch.h"
#include "daemon/hosts/agents.h"
#include "daemon/log/log.h"
#include "daemon/machine_memory.h"
#include "daemon/memory/files/owner_file.h"
#include "daemon/memory/remote/remote_memory.h"
#include "daemon/reload.h"
#include "daemon/roles.h"
#include "daemon/rpc/connection/server.h"
#include "daemon/service_manager/watchdog.h"
#include "daemon/sockets.h"
#include "daemon/store/store.h"
#include "daemon/store/store_options.h"
#include "daemon/traces/otlp/otlp_exporter.h"
#include "daemon/web/manager_pages.h"
#include "daemon/web_sockets.h"

namespace terrace::daemon {
namespace {

ServiceOptions service_options(const DaemonConfig& config, const StoreId& store, const std::string& objects) {
  ServiceOptions options;
  options.host = config.host.empty() ? machine_name() : config.host;
  options.runtime_directory = config.runtime_directory;
  options.state_file = config.state_path;
  if (store.valid()) options.store_id = store_id_text(store);
  options.object_directory = objects;
  options.admin_uids = administrators_of(config);
  options.sockets = served_sockets(config);
  options.tenants = config.tenants;
  options.allow_unmapped_uids = config.allow_unmapped_uids;
  options.connections_max = config.connections_max;
  options.calls_outstanding_max = config.calls_outstanding_max;
  options.userfaultfd = config.userfaultfd;
  options.descriptors_max = raise_descriptors_allowed();
  options.health = config.health;
  options.memdev_health = config.hardware;
  return options;
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

// Who maps or holds open what. Processes that may not be looked into are other users': those who were given an
// object that counts as never handed out (the target of a move) are among them at worst.
Engine::LookForUsers look_for_users(const std::string& object_path, const std::string& runtime_directory) {
  return [object_path, runtime_directory](const Image& image) {
    constexpr std::chrono::seconds time_max{5};
    Engine::ObjectUsers users;
    auto scan = scan_processes(object_path, time_max, has_dax_devices(image));
    users.complete = scan.ok() && scan->complete;
    if (!scan.ok()) return users;
    for (LiveMapping& mapping : scan_node_mappings(runtime_directory, time_max))
      scan->mappings.push_back(std::move(mapping));
    std::map<std::string, size_t> count;
    for (const LiveMapping& mapping : scan->mappings) {
      std::string& words = users.by_object[mapping.object];
      if (count[mapping.object]++ != 0) continue;
      words = "process " + std::to_string(mapping.pid) + " (" + mapping.command + ")";
    }
    for (const auto& [object, processes] : count)
      if (processes > 1) users.by_object[object] += " and " + std::to_string(processes - 1) + " more";
    return users;
  };
}

std::string host_lease_file(const DaemonConfig& config) {
  return config.state_path + ".host-lease";
}

// A look takes a fraction of a second; firmware mailboxes that hang may make it take longer.
void look_at_machine(MachineDoctor& doctor) {
  const auto watch = std::make_shared<HelperWatch>();
  const auto look = [watch]() -> Result<std::vector<terrace::doctor::Check>> {
    constexpr HelperBounds bounds{
        .time_ns = 20 * ns_per_s, .memory_bytes = gib, .answer_bytes = mib, .nice = 10};
    TERRACE_ASSIGN_OR_RETURN(const std::string packed, run_helper({"doctor"}, -1, bounds, *watch));
    return terrace::doctor::unpack(packed);
  };
  doctor.set_look(look, [watch] { watch->cancel(); });
}

// What agents may have been promised lately, beside the store: durable before anything is promised.
Status write_host_lease(const DaemonConfig& config, uint64_t length_ns) {
  const std::string path = host_lease_file(config);
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const std::string line = std::to_string(length_ns) + "\n";
  if (!file.valid() || ::write(file.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()) ||
      ::fsync(file.get()) != 0)
    return os_error(errno, "write_host_lease", "cannot write " + path);
  return {};
}

// The longest host lease that agents may still rely on, from this run or the last. A file that cannot be read
// was being written: the longest there can be.
Result<uint64_t> longest_host_lease(const DaemonConfig& config) {
  uint64_t earlier = 0;
  const UniqueFd file(::open(host_lease_file(config).c_str(), O_RDONLY | O_CLOEXEC));
  if (file.valid()) {
    char text[32] = "";
    const ssize_t bytes = ::read(file.get(), text, sizeof(text));
    const auto parsed = std::from_chars(text, text + std::max<ssize_t>(bytes, 0), earlier);
    if (parsed.ec != std::errc{}) earlier = host_lease_ns_max;
  }
  const uint64_t longest = std::max(earlier, config.host_lease_ns);
  if (earlier != longest) TERRACE_RETURN_IF_ERROR(write_host_lease(config, longest));
  return longest;
}

// When nobody can rely on the last run's any more, this run's is what counts.
kj::Promise<void> forget_earlier_host_lease(const DaemonConfig& config, uint64_t longest, kj::Timer& timer) {
  if (longest == config.host_lease_ns) return kj::READY_NOW;
  return timer.afterDelay(static_cast<int64_t>(longest + longest / 5) * kj::NANOSECONDS).then([&config] {
    if (Status status = write_host_lease(config, config.host_lease_ns); !status.ok())
      log::warn("{}", status.error().to_string());
  });
}

AgentsOptions agents_options(const DaemonConfig& config, const StoreId& store, uint64_t earlier_ns) {
  AgentsOptions options;
  options.terms = HostLeaseTerms{config.host_lease_ns};
  options.earlier_length_ns = earlier_ns;
  options.tenants = config.host_tenants;
  if (store.valid()) options.store = store_id_text(store);
  options.hosts_file = config.state_path + ".hosts";
  return options;
}

// Where entries of the audit log go beside the store.
class AuditCopies {
 public:
  explicit AuditCopies(const DaemonConfig& config) {
    if (!config.audit_file.empty())
      file_ = std::make_unique<AuditFile>(
          AuditFileOptions{.path = config.audit_file, .rotate_bytes = config.audit_rotate_bytes});
    if (config.audit_syslog)
      syslog_ = std::make_unique<AuditSyslog>(AuditSyslogOptions{.socket = config.audit_syslog_socket});
    if (config.audit_journal)
      journal_ = std::make_unique<AuditJournal>(JournalOptions{.socket = config.events_journal_socket,
                                                               .entry = "an entry of the audit log",
                                                               .entries = "entries of the audit log",
                                                               .meanwhile = ", and are in the store",
                                                               .waiting_bytes_max = 16ull << 20});
  }
  // Empty: nowhere.
  std::function<void(const std::vector<AuditRow>&)> sink() {
    if (file_ == nullptr && syslog_ == nullptr && journal_ == nullptr) return {};
    return [this](const std::vector<AuditRow>& rows) {
      if (file_ != nullptr) file_->append(rows);
      if (syslog_ != nullptr) syslog_->append(rows);
      if (journal_ != nullptr) journal_->append(rows);
    };
  }

 private:
  std::unique_ptr<AuditFile> file_;
  std::unique_ptr<AuditSyslog> syslog_;
  std::unique_ptr<AuditJournal> journal_;
};

EventSinksOptions event_sinks_options(const DaemonConfig& config) {
  EventSinksOptions options;
  options.log = !config.events_journal || !config.log_file.empty() || !stderr_is_journal();
  options.journal = config.events_journal;
  options.journal_socket = config.events_journal_socket;
  options.file = config.events_file;
  options.rotate_bytes = config.events_rotate_bytes;
  options.webhook = config.events_webhook;
  return options;
}

// Those that wait for room are none yet.
size_t granted_leases(const StateMachine& state) {
  const auto& leases = state.leases();
  return static_cast<size_t>(std::count_if(
      leases.begin(), leases.end(), [](const auto& one) { return one.second.phase != LeasePhase::waiting; }));
}

Event started_event(Engine& engine, const std::string& socket, const std::string& state_path) {
  Event event{.kind = EventKind::manager_started};
  event.message = fmt::format("serving at {} (pid {}, state {}, {} leases)", socket, ::getpid(), state_path,
                              granted_leases(engine.state()));
  if (const size_t findings = engine.findings().size(); findings != 0)
    event.message += fmt::format("; its recovery found {} things", findings);
  return event;
}

// None: nobody connects from another machine.
Result<std::unique_ptr<Credentials>> read_credentials(const DaemonConfig& config, kj::Timer& timer) {
  const bool clients = std::any_of(config.sockets.begin(), config.sockets.end(),
                                   [](const SocketConfig& socket) { return !socket.listen.empty(); });
  if (config.listen.empty() && !clients) return std::unique_ptr<Credentials>();
  const TlsFiles files{config.tls_ca, config.tls_certificate, config.tls_key, config.tls_revoked};
  TERRACE_ASSIGN_OR_RETURN(Credentials read, Credentials::read(files, TlsRole::manager, timer));
  if (!config.tls_ca_key.empty())
    TERRACE_RETURN_IF_ERROR(read.issue_with(config.tls_ca_key, config.tls_renew_days));
  return std::make_unique<Credentials>(std::move(read));
}

Status listen_for_agents(const DaemonConfig& config, Agents& agents, Credentials* credentials,
                         kj::AsyncIoContext& io) {
  if (config.listen.empty()) return {};
  auto address = io.provider->getNetwork().parseAddress(config.listen.c_str()).wait(io.waitScope);
  agents.listen(address->listen(), *credentials);
  log::info("agents may connect to {}; a host keeps its leases {} without word from here", config.listen,
            format_duration(config.host_lease_ns));
  return {};
}

PortProtocol rpc_of(RpcServer& server) {
  PortProtocol protocol;
  protocol.serve = [&server](kj::Own<kj::AsyncIoStream> stream, PeerCredentials peer, int) {
    return server.serve_remote(kj::mv(stream), std::move(peer));
  };
  return protocol;
}

// None: clients connect on this machine only.
Result<std::unique_ptr<Clients>> listen_for_clients(const DaemonConfig& config, Service& service,
                                                    RpcServer& server, WebServer& web, Credentials* credentials,
                                                    kj::AsyncIoContext& io) {
  TERRACE_ASSIGN_OR_RETURN(std::vector<ClientPort> ports, bind_client_ports(config, io));
  if (ports.empty()) return std::unique_ptr<Clients>();
  auto clients = std::make_unique<Clients>(service, *credentials, io.provider->getTimer());
  if (config.tls_renew_clients) clients->renew_certificates();
  answer_to_certificate(web, *credentials);
  const std::vector<SocketConfig> configured = sockets_of(config);
  for (ClientPort& port : ports) {
    const auto& socket = service.options().sockets[port.index];
    const bool https = port.protocol == SocketProtocol::https;
    if (https) web.answer_to(configured[port.index].listen);
    clients->listen(kj::mv(port.receiver), socket, https ? https_at(web, *socket) : rpc_of(server));
  }
  return clients;
}

std::string serving(Engine& engine, const Service& service, const std::string& socket) {
  return fmt::format("serving at {}: {} leases, {} connections", socket, granted_leases(engine.state()),
                     service.connections());
}

void tell_kept_version(const std::string& folder, int64_t version) {
  log::warn(
      "the store was of version {}; its files are kept in {}, the way back to the version of terraced that "
      "wrote them",
      version, folder);
}

}  // namespace

// Memdevs are enabled and regions made some seconds after the file systems are there, at most.
constexpr uint64_t settle_ns = 10 * ns_per_s;

Status run_manager(const DaemonConfig& config, StartWords words, const Surroundings& surroundings) {
  // Before any thread: one that is started with these signals open would take them, and end the process.
  kj::UnixEventPort::captureSignal(SIGTERM);
  kj::UnixEventPort::captureSignal(SIGINT);
  kj::UnixEventPort::captureSignal(SIGHUP);
  TERRACE_RETURN_IF_ERROR(prepare_runtime_directory(config.runtime_directory));
  // The store's lock comes first: a second daemon must touch nothing.
  TERRACE_ASSIGN_OR_RETURN(const auto store, open_store(config.state_path, {.keep_older = tell_kept_version}));
  bool claimed = false;
  // A state file that this start made is not left behind by one that fails: the next one would find an empty store.
  // Once memory says that it is this store's, it is kept, for the next start to go on with.
  KJ_DEFER(if (!claimed && store->discard_if_fresh())::unlink(host_lease_file(config).c_str()));
  TERRACE_ASSIGN_OR_RETURN(const uint64_t longest_ns, longest_host_lease(config));
  TERRACE_ASSIGN_OR_RETURN(const auto memory, MachineMemory::prepare(config));

  auto io = kj::setupAsyncIo();
  const SystemClock clock;
  TERRACE_ASSIGN_OR_RETURN(const auto credentials, read_credentials(config, io.provider->getTimer()));
  AgentsOptions of_agents = agents_options(config, store->id(), longest_ns);
  of_agents.destroy_orphans = words.destroy_orphans;
  Agents agents(std::move(of_agents), clock, io.provider->getTimer());
  RemoteBackend remote(agents, memory->backends());
  memory->backends().add_remote(remote);
  AuditCopies audit_copies(config);
  Engine engine(*store, memory->backends(), clock, io.provider->getTimer(),
                EngineOptions{.state_path = config.state_path,
                              .ttl_ns_max = config.ttl_ns_max,
                              .scrub_bytes_per_s = config.scrub_bytes_per_s,
                              .settle_ns = settle_ns,
                              .slow_commit_ns = config.health.commit_max_ns,
                              .audit_sink = audit_copies.sink()});
  ConsentedHolders consents(io.provider->getTimer(), config.state_path + "-consents",
                            clock.boot_id() + " " + store_id_text(store->id()));
  engine.set_holder_ender(&consents);
  EventSinks sinks(event_sinks_options(config), engine.events(), io.provider->getNetwork(),
                   io.provider->getTimer());
  const auto tracer = std::make_shared<Tracer>(clock);
  OtlpExporter traces(*tracer, io.provider->getNetwork(), io.provider->getTimer());
  const auto follow_traces = [&traces, &engine](const DaemonConfig& now) {
    traces.set({.endpoint = now.traces_endpoint,
                .sample = now.traces_sample,
                .version = std::string(version_number()),
                .host = machine_name(),
                .instance = engine.events().run()});
  };
  follow_traces(config);
  engine.set_tracer(tracer);
  const auto looking_at_sinks = sinks.look_again().eagerlyEvaluate(nullptr);
  // Before the engine waits for its workers: they may wait for agents.
  KJ_DEFER(agents.stop());
  if (words.accept_lost_objects) engine.accept_lost_objects();
  if (words.destroy_orphans) engine.destroy_orphans_at_start();
  engine.set_object_users(look_for_users(memory->object_path(), config.runtime_directory));
  engine.set_start_check(look_for_stubborn_holders(memory->object_path(), config.runtime_directory));
  const std::string memory_mark = memory->object_path() + "/" + memory_mark_name;
  if (store->older_than_mark(memory_mark)) {
    log::warn("the store {} lacks commits that its memory has seen: it is an older copy", config.state_path);
    engine.memory_is_newer();
  }
  const Status started = engine.start().wait(io.waitScope);
  claimed = started.ok() || engine.memory_claimed();
  TERRACE_RETURN_IF_ERROR(started);
  if (Status marked = store->mark_also(memory_mark); !marked.ok())
    log::warn("an older copy of the store may not be known as one: {}", marked.error().to_string());
  // After the workers, whose threads would inherit it.
  if (const auto slice = take_short_slice(); !slice.ok()) log::info("{}", slice.error().to_string());
  const auto hotplug = Hotplug::listen_to_kernel(io.unixEventPort, io.provider->getTimer(),
                                                 [&engine]() { return engine.look_at_devices(); });
  Service service(engine, service_options(config, store->id(), memory->object_path()));
  agents.begin(service);
  KJ_DEFER(agents.end());
  std::set<std::string> objects;
  for (const auto& [id, lease] : engine.state().leases()) objects.insert(lease.object);
  for (const auto& [id, view] : engine.state().views()) objects.insert(view.object);
  consents.keep_only(objects);
  service.set_consents(&consents);
  service.set_tracer(tracer);
  service.health().begin();
  look_at_machine(service.doctor());
  const HistoryWatch history(engine);
  service.set_history(&history.history());

  const auto forgetting =
      forget_earlier_host_lease(config, longest_ns, io.provider->getTimer()).eagerlyEvaluate(nullptr);
  const std::string socket = socket_path_of(config);
  TERRACE_ASSIGN_OR_RETURN(BoundSockets sockets, BoundSockets::bind(config));
  {
    RpcServer server(service, io);
    sockets.serve(server, service.options().sockets);
    ManagerPages pages(service, io.provider->getTimer());
    WebServer web(service, pages, *io.lowLevelProvider, io.provider->getTimer(), server.turns());
    TERRACE_ASSIGN_OR_RETURN(const SocketFile web_file, serve_web(config, web, io));
    TERRACE_RETURN_IF_ERROR(listen_for_agents(config, agents, credentials.get(), io));
    TERRACE_ASSIGN_OR_RETURN(const auto clients,
                             listen_for_clients(config, service, server, web, credentials.get(), io));
    kj::Promise<void> certificates = kj::NEVER_DONE;
    if (credentials != nullptr) {
      agents.tell_ends_of(*credentials);
      certificates = credentials->watch().eagerlyEvaluate(nullptr);
    }
    engine.events().tell(started_event(engine, socket, config.state_path));
    tell_connections(service);
    const auto status = [&] { return serving(engine, service, socket); };
    Reload reload(config, surroundings, service, status);
    reload.on_outcome([&engine](bool taken, const std::string& text) {
      engine.events().tell(
          Event{.kind = taken ? EventKind::configuration_reloaded : EventKind::configuration_refused,
                .severity = taken ? EventSeverity::info : EventSeverity::warning,
                .message = "SIGHUP: " + text});
    });
    reload.on_change([&agents, &follow_traces](const DaemonConfig& now) {
      agents.set_tenants(now.host_tenants);
      follow_traces(now);
    });
    const auto reloading = reload.at_hangup(io.unixEventPort).eagerlyEvaluate(nullptr);
    surroundings.service_manager.ready(status());
    const auto living =
        tell_watchdog(surroundings.service_manager, io.provider->getTimer(), status).eagerlyEvaluate(nullptr);
    auto stop = io.unixEventPort.onSignal(SIGTERM).exclusiveJoin(io.unixEventPort.onSignal(SIGINT));
    const siginfo_t signal = stop.wait(io.waitScope);
    engine.events().tell(Event{.kind = EventKind::manager_stopping,
                               .message = fmt::format("{}: ending; leases stay as they are",
                                                      signal.si_signo == SIGTERM ? "SIGTERM" : "SIGINT")});
    surroundings.service_manager.stopping("ending; leases stay as they are");
    sockets.remove_files();
  }
  agents.end();
  // Connections are closed; what was acknowledged is durable. Fences and scrubs under way are finished so
  // that the next start finds less to do, but not for long.
  engine.drain()
      .exclusiveJoin(io.provider->getTimer().afterDelay(2 * kj::SECONDS))
      .then([&] { return sinks.drain().exclusiveJoin(io.provider->getTimer().afterDelay(1 * kj::SECONDS)); })
      .wait(io.waitScope);
  if (engine.state().leases().empty()) {
    (void)store->mark_also("");  // or the mount of the directory would be in use
    memory->remove_directories();
  }
  return {};
}

}  // namespace terrace::daemon
