// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/health_watch.h"

#include <sys/statvfs.h>

#include <filesystem>
#include <unordered_map>

#include "core/version/version.h"
#include "daemon/inventory/inventory.h"
#include "daemon/log/log.h"
#include "daemon/rpc/server_info.h"
#include "daemon/rpc/service.h"

namespace terrace::daemon {
namespace {

// A memdev answers its mailbox in milliseconds, and its state changes seldom.
constexpr uint64_t memdevs_again_ns = 60 * ns_per_s;
// A look at the machine is a process, and a kernel seldom changes; a manager that has just started has other things to do.
constexpr uint64_t kernel_first_ns = 60 * ns_per_s, kernel_later_ns = 600 * ns_per_s;

Event event_of(EventKind kind, const HealthFinding& finding, std::string_view how, const std::string& what) {
  Event event{.kind = kind};
  event.code = health_code_word(finding.code);
  event.message = health_line(finding, how, what);
  if (finding.kind == "device") event.device = finding.name;
  if (finding.kind == "pool") event.pool = finding.name;
  if (finding.kind == "host") event.host = finding.name;
  if (finding.kind == "tenant") event.tenant = finding.name;
  return event;
}

void tell_changes(EventLog& events, const HealthChanges& changes, uint64_t now_ns) {
  for (const HealthFinding& one : changes.raised) {
    const bool critical = one.severity == HealthSeverity::critical;
    Event event = event_of(EventKind::health_raised, one, critical ? "critical" : "warning", one.text);
    event.severity = critical ? EventSeverity::critical : EventSeverity::warning;
    events.tell(std::move(event));
  }
  for (const HealthFinding& one : changes.cleared) {
    const uint64_t lasted_ns = now_ns - one.since_ns;
    Event event = event_of(EventKind::health_cleared, one, "over",
                           "it lasted " + format_duration(lasted_ns / ns_per_ms * ns_per_ms));
    event.took_ns = lasted_ns;
    events.tell(std::move(event));
  }
}

std::optional<HealthView::Disk> read_disk(const std::string& state_file) {
  struct statvfs disk = {};
  if (::statvfs(std::filesystem::path(state_file).parent_path().c_str(), &disk) != 0) return std::nullopt;
  return HealthView::Disk{state_file, static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize};
}

}  // namespace

HealthWatch::HealthWatch(Service& service, HealthWatchOptions options)
    : service_(service), options_(std::move(options)), engine_(options_.limits), tasks_(*this) {}

HealthWatch::~HealthWatch() noexcept = default;

void HealthWatch::taskFailed(kj::Exception&& exception) {
  log::error("a look at the manager's health failed: {}", exception.getDescription().cStr());
}

void HealthWatch::begin() {
  tasks_.add(look_again());
  tasks_.add(look_outside_again());
}

kj::Promise<void> HealthWatch::pause() {
  return service_.engine().timer().afterDelay(static_cast<int64_t>(options_.limits.interval_ns) *
                                              kj::NANOSECONDS);
}

kj::Promise<void> HealthWatch::look_again() {
  look();
  return pause().then([this] { return look_again(); });
}

// Apart, since the worker may be busy for long: with a check of the whole state, or a disk that does not answer.
kj::Promise<void> HealthWatch::look_outside_again() {
  return look_at_disk()
      .then([this] { return look_at_memdevs(); })
      .then([this] { return look_at_kernel(); })
      .then([this] { return pause(); })
      .then([this] { return look_outside_again(); });
}

kj::Promise<void> HealthWatch::look_at_disk() {
  if (options_.state_file.empty()) return kj::READY_NOW;
  return service_.engine()
      .run_look([path = options_.state_file] { return read_disk(path); })
      .then([this](std::optional<HealthView::Disk> disk) { disk_ = std::move(disk); });
}

kj::Promise<void> HealthWatch::look_at_memdevs() {
  const uint64_t now_ns = service_.now_ns();
  if (!options_.memdevs || (memdevs_asked_ns_ != 0 && now_ns - memdevs_asked_ns_ < memdevs_again_ns))
    return kj::READY_NOW;
  memdevs_asked_ns_ = now_ns;
  return service_.engine()
      .run_look([] {
        std::vector<HealthView::Memdev> found;
        for (const inventory::Memdev& one : inventory::take_inventory({.holders = false}).memdevs)
          found.push_back({one.serial, one.health});
        return found;
      })
      .then([this](std::vector<HealthView::Memdev> found) { memdevs_ = std::move(found); });
}

// What the doctor calls essential, and finds missing, whoever had it look: an operator who has fixed something asks it
// (`terrace doctor --manager`). Nobody waits for its answer here: other looks go on.
kj::Promise<void> HealthWatch::look_at_kernel() {
  const uint64_t now_ns = service_.now_ns();
  take_lacks();
  if (kernel_again_ns_ == 0) kernel_again_ns_ = now_ns + kernel_first_ns;
  if (now_ns < kernel_again_ns_) return kj::READY_NOW;
  kernel_again_ns_ = now_ns + kernel_later_ns;
  tasks_.add(service_.doctor()
                 .ask([this] { return service_.now_ns(); })
                 .then([this](const Result<MachineDoctor::Seen>&) { take_lacks(); }));
  return kj::READY_NOW;
}

void HealthWatch::take_lacks() {
  const MachineDoctor::Seen* seen = service_.doctor().newest();
  if (seen == nullptr || seen->looked_ns == lacks_seen_ns_) return;
  lacks_seen_ns_ = seen->looked_ns;
  lacks_.clear();
  for (const doctor::Check& check : seen->checks)
    if (check.essential && check.state == doctor::CheckState::missing)
      lacks_.push_back({check.name, check.found + ": " + check.meaning, check.fix});
}

const HealthEngine& HealthWatch::look() {
  const uint64_t now_ns = service_.now_ns();
  tell_changes(service_.engine().events(), engine_.look(gather(), now_ns), now_ns);
  return engine_;
}

HealthView HealthWatch::gather() const {
  const Engine& engine = service_.engine();
  HealthView view;
  view.version = version_number();
  view.disk = disk_;
  view.store.serving = engine.serving();
  view.store.commits = engine.counters().commits;
  view.store.slow_commits = engine.facts().slow_commits;
  view.store.slowest_commit_ns = engine.facts().slowest_commit_ns;
  if (const uint64_t began_ns = engine.facts().commit_began_ns; began_ns != 0)
    view.store.commit_for_ns = service_.now_ns() - began_ns;
  const JournalRoom journal = engine.journal_room();
  view.store.journal_bytes = journal.bytes;
  view.store.journal_used_bytes = journal.used_bytes;
  if (!view.store.serving) {
    view.store.refusal = engine.refusal().detail;
    return view;
  }
  view.memdevs = memdevs_;
  view.lacks = lacks_;
  gather_pools(view);
  gather_work(view);
  gather_hosts(view);
  gather_programs(view);
  return view;
}

void HealthWatch::gather_pools(HealthView& view) const {
  const StateMachine& state = service_.engine().state();
  std::unordered_map<PoolId, uint64_t> longest_runs;
  for (const auto& [id, device] : state.devices()) {
    const PoolRow* pool = state.find_pool(device.pool);
    view.devices.push_back({.serial = device.serial,
                            .pool = pool == nullptr ? std::string() : pool->name,
                            .absent = state.absent(id),
                            .draining = device.state == DeviceState::draining,
                            .used_bytes = device.capacity_bytes - state.device_free_bytes(id),
                            .capacity_bytes = device.capacity_bytes});
    if (state.placeable(device))
      longest_runs[device.pool] += state.free_of(id).largest_run() * device.granule_bytes;
  }
  for (const auto& [id, use] : state.pool_uses()) {
    const WaitingQueue* queue = state.queue_of(id);
    view.pools.push_back({.name = state.find_pool(id)->name,
                          .capacity_bytes = use.capacity_bytes,
                          .grantable_bytes = use.grantable_bytes,
                          .longest_runs_bytes = longest_runs[id],
                          .quarantined_bytes = use.quarantined_bytes,
                          .waiting = use.waiting,
                          .waiting_bytes = use.waiting_bytes,
                          .oldest_wait_ns = queue == nullptr ? 0 : queue->oldest_since_ns()});
  }
}

void HealthWatch::gather_work(HealthView& view) const {
  const Engine& engine = service_.engine();
  const ScrubCounters scrub = engine.scrub_counters();
  view.scrub = {scrub.scrubbed_bytes, scrub.queued_bytes};
  const EngineFacts& facts = engine.facts();
  view.fences.failed = facts.fences_failed;
  view.fences.last_failure = facts.last_fence_failure;
  view.fences.under_way = facts.fences.size();
  if (!facts.fences.empty()) {
    const auto& [began_ns, lease] = *facts.fences.begin();
    view.fences.oldest_lease = lease.value;
    view.fences.oldest_for_ns = service_.now_ns() - began_ns;
  }
  for (const auto& [tenant, denied] : facts.denials.by_tenant())
    view.denials.push_back({tenant, denied.calls, denied.last});
}

void HealthWatch::gather_programs(HealthView& view) const {
  for (const auto& [tenant, sums] : service_.runs().sums(service_.now_ns())) {
    if (tenant.empty()) continue;  // several, of which one's moves are no other's
    view.programs.push_back(
        {.tenant = tenant,
         .ddr_bytes = sums.ddr_bytes,
         .exchanged_bytes = std::min(sums.counters.promoted_bytes, sums.counters.demoted_bytes),
         .sampled = sums.sampled_bytes != 0,
         .ddr_hits = sums.ddr_hits});
  }
}

void HealthWatch::gather_hosts(HealthView& view) const {
  if (client_ends_)
    for (const CertificateEnd& end : client_ends_())
      view.clients.push_back({end.what, end.name, end.days_left, end.soon});
  const HostDirectory* hosts = service_.hosts();
  if (hosts == nullptr) return;
  for (const HostStatus& host : hosts->states()) {
    if (host.state == "removed") continue;
    HealthView::Host entry{.name = host.name,
                           .version = host.version,
                           .silent_ns = host.silent_ns,
                           .lease_ns = host.host_lease_ns,
                           .lease_left_ns = host.ends_in_ns,
                           .certificate_days_left = host.certificate_days_left,
                           .certificate_ends_soon = host.certificate_ends_soon};
    // One that registers again and again is as good as away.
    if (host.state == "away" || host.state == "registering") entry.state = HealthView::HostState::away;
    if (host.state == "self-fenced") entry.state = HealthView::HostState::self_fenced;
    view.hosts.push_back(std::move(entry));
  }
  for (const CertificateEnd& end : hosts->certificate_ends())
    view.certificates.push_back({end.what, end.name, end.days_left, end.soon});
}

}  // namespace terrace::daemon
