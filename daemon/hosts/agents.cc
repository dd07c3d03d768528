// SPDX-License-Identifier: Apache-2.0
#include "daemon/hosts/agents.h"

#include <algorithm>
#include <ctime>

#include "daemon/hosts/agent_peer.h"
#include "daemon/log/log.h"

namespace terrace::daemon {
namespace {

// What sessions of agents count as among peers: uids that no machine gives to a user.
constexpr uint32_t first_host_uid = 0xffff0000;

std::string seconds(uint64_t ns) {
  return format_duration(ns / ns_per_ms * ns_per_ms);
}

}  // namespace

Agents::Agents(AgentsOptions options, const Clock& clock, kj::Timer& timer)
    : options_(std::move(options)),
      clock_(clock),
      timer_(timer),
      turns_(timer),
      hosts_file_(options_.hosts_file),
      tasks_(new kj::TaskSet(*this)) {
  tasks_->add(order_loop());
}

Agents::~Agents() noexcept {
  end();
}

void Agents::end() {
  stop();
  tasks_.reset();
  if (service_ != nullptr) service_->set_hosts(nullptr);
  service_ = nullptr;
}

void Agents::taskFailed(kj::Exception&& exception) {
  log(std::string("an agent's connection ended: ") + exception.getDescription().cStr());
}

// A connection may end after the service has.
void Agents::tell(Event event) {
  if (service_ != nullptr) service_->engine().events().tell(std::move(event));
}

void Agents::log(const std::string& line) {
  peer_log_.warn(now_ns(), line);
}

void Agents::begin(Service& service) {
  service_ = &service;
  service.set_hosts(this);
  for (const auto& [id, lease] : service.engine().state().leases()) {
    for (const std::string& object : {lease.object, lease.next_object})
      if (!object_host(object).empty()) host(std::string(object_host(object)));
  }
  for (const auto& [id, view] : service.engine().state().views())
    if (!object_host(view.object).empty()) host(std::string(object_host(view.object)));
  for (const std::string& name : hosts_file_.known()) {
    unsettled_.insert(name);
    host(name);
  }
  settle_hosts();
  tasks_->add(watch_loop());
}

// A host that was not heard of in this run may have been promised its lease by the last one, a moment ago.
Agents::Host& Agents::host(const std::string& name) {
  const auto known = hosts_.find(name);
  if (known != hosts_.end()) return known->second;
  HostLeaseTerms terms = options_.terms;
  terms.length_ns = std::max(terms.length_ns, options_.earlier_length_ns);
  Host& added = hosts_.try_emplace(name, terms).first->second;
  added.count.begin(now_ns());
  const auto taken = [this](uint32_t uid) {
    return std::any_of(hosts_.begin(), hosts_.end(), [uid](const auto& one) { return one.second.uid == uid; });
  };
  uint32_t uid = first_host_uid + 1;
  while (taken(uid)) ++uid;
  added.uid = uid;
  return added;
}

// --- hosts that fall silent ---------------------------------------------------------------------------

kj::Promise<void> Agents::watch_loop() {
  const uint64_t pause_ns = std::clamp<uint64_t>(options_.terms.length_ns / 20, 20 * ns_per_ms, ns_per_s);
  return timer_.afterDelay(static_cast<int64_t>(pause_ns) * kj::NANOSECONDS).then([this] {
    for (auto& [name, known] : hosts_) watch(name, known);
    forget_removed();
    warn_of_certificates();
    if (!settled_) settle_hosts();
    return watch_loop();
  });
}

void Agents::watch(const std::string& name, Host& known) {
  const uint64_t now = now_ns();
  const uint64_t silence_max = options_.terms.silence_ns_max();
  if (known.peer != nullptr && now - known.heard_ns > silence_max)
    known.peer->close("it sent no heartbeat for " + seconds(now - known.heard_ns));
  if (!known.count.lapsed(now)) return;
  if (known.peer != nullptr) known.peer->close("its host lease has run out");
  if (!known.lapse_told) {
    known.lapse_told = true;
    const std::string silence =
        known.heard_ns == 0 ? "since the manager's start" : "for " + seconds(now - known.heard_ns);
    log("host " + name + " was not heard of " + silence +
        ": its host lease has run out, it has fenced its leases itself");
    forgotten(known);
  }
  // Once, and now and then: the engine may have refused, or a lease have become live since.
  constexpr uint64_t look_again_ns = 5 * ns_per_s;
  if (known.looked_at_ns != 0 && now - known.looked_at_ns < look_again_ns) return;
  known.looked_at_ns = now;
  end_live_leases(name,
                  "host " + name + " lost its manager for longer than its host lease and fenced its memory");
}

void Agents::end_live_leases(const std::string& name, const std::string& reason) {
  std::vector<LeaseId> live;
  for (const auto& [id, lease] : service_->engine().state().leases()) {
    const bool usable = lease.phase == LeasePhase::active || lease.phase == LeasePhase::revoking;
    if (usable && StateMachine::agent_of(lease) == name) live.push_back(id);
  }
  for (const LeaseId id : live) end_lease(id, reason);
  end_views(name, reason);
}

// What is attached on several hosts goes on where it still is.
void Agents::end_lease(LeaseId id, const std::string& reason) {
  const StateMachine& state = service_->engine().state();
  const LeaseRow* lease = state.find_lease(id);
  if (lease != nullptr && !state.views_of(id).empty()) {
    log::warn("lease {} loses its memory object {}: {}", id.value, lease->object, reason);
    service_->submit_unasked(LoseObject{id, lease->object, reason, now_ns()}, Actor{});
    return;
  }
  log::warn("lease {} ends: {}", id.value, reason);
  service_->submit_unasked(Revoke{id, reason, 0, now_ns()}, Actor{});
}

void Agents::end_view(const ViewRow& view, const std::string& reason) {
  log::warn("lease {} is not attached on host {} any more: {}", lease_of(view.id).value,
            object_host(view.object), reason);
  service_->submit_unasked(LoseObject{lease_of(view.id), view.object, reason, now_ns()}, Actor{});
}

void Agents::end_views(const std::string& name, const std::string& reason) {
  std::vector<ViewRow> open;
  for (const auto& [id, view] : service_->engine().state().views())
    if (!view.closing && object_host(view.object) == name) open.push_back(view);
  for (const ViewRow& view : open) end_view(view, reason);
}

std::string Agents::describe_absence(const std::string& name, Host& known) const {
  const uint64_t now = clock_.now_ns();
  std::string text = "the agent of host " + name + " is away";
  text += known.heard_ns == 0 ? " since the manager's start"
                              : ", last heard of " + seconds(now - known.heard_ns) + " ago";
  if (known.count.lapsed(now)) return text + "; its leases are fenced";
  return text + "; its leases count as fenced in " + seconds(known.count.end_ns() - now);
}

uint64_t Agents::leases_on(const std::string& name) const {
  uint64_t count = 0;
  for (const auto& [id, lease] : service_->engine().state().leases())
    count += StateMachine::agent_of(lease) == name;
  for (const auto& [id, view] : service_->engine().state().views()) count += object_host(view.object) == name;
  return count;
}

// --- HostDirectory --------------------------------------------------------------------------------------

Status Agents::may_grant(const std::string& name, PoolId pool) const {
  const auto known = hosts_.find(name);
  if (known == hosts_.end() || known->second.peer == nullptr) {
    return Error{.code = ErrorCode::unavailable,
                 .where = "grant",
                 .detail = "the agent of host " + name + " is not connected to the manager"};
  }
  if (service_->engine().state().leases().size() >= agent_objects_max && leases_on(name) >= agent_objects_max) {
    return Error{
        .code = ErrorCode::limit_exceeded,
        .where = "grant",
        .detail = "host " + name + " has its limit of " + std::to_string(agent_objects_max) + " leases"};
  }
  // Its agent refuses by itself what it is asked to carve; what is handed to it must not come that far.
  const HostFencing& fencing = known->second.fencing;
  if (fencing.margin_ns != 0 && fencing.margin_ns >= fencing.margin_max_ns) {
    return Error{.code = ErrorCode::limit_exceeded,
                 .where = "grant",
                 .detail = "host " + name + " needs " + seconds(fencing.fence_ns) +
                           " to take its leases away, which is all that its host lease of " +
                           seconds(options_.terms.length_ns) +
                           " allows: release leases there, or give the manager a longer host_lease"};
  }
  std::string seen, unseen;
  for (const auto& entry : service_->engine().state().devices()) {
    const DeviceRow& device = entry.second;
    if (device.pool != pool || device.state != DeviceState::in_service) continue;
    const bool there =
        std::any_of(known->second.devices.begin(), known->second.devices.end(), [&](const SeenDevice& one) {
          return one.serial == device.serial && one.backend == device.backend &&
                 one.capacity_bytes >= device.capacity_bytes;
        });
    std::string& list = there ? seen : unseen;
    list += (list.empty() ? "" : ", ") + device.serial;
  }
  if (unseen.empty()) return {};
  std::string all;
  for (const SeenDevice& device : known->second.devices) all += (all.empty() ? "" : ", ") + device.serial;
  return Error{.code = ErrorCode::unavailable,
               .where = "grant",
               .detail = "host " + name + " does not see " + unseen + " of that pool's devices" +
                         (seen.empty() ? "" : " (it sees " + seen + ")") + "; what it shows at all: " +
                         (all.empty() ? "none" : all) + ". Use a pool whose devices all its hosts see"};
}

Status Agents::may_act_for(const std::string& name, const std::string& tenant) const {
  const auto allowed = options_.tenants.find(name);
  if (allowed == options_.tenants.end() || allowed->second.contains(tenant)) return {};
  return Error{.code = ErrorCode::permission_denied,
               .where = "agent",
               .detail = "host " + name + " may not act for tenant " + tenant +
                         "; the manager's configuration names its tenants under [hosts." + name + "]"};
}

Result<std::optional<std::string>> Agents::agent_for(const LeaseRow& lease, const std::string& to_host,
                                                     const std::string& to_tenant) const {
  const std::string from = StateMachine::agent_of(lease);
  const auto named = hosts_.find(to_host);
  const bool known = named != hosts_.end();
  const bool own = to_host == service_->options().host;
  const std::string target = known ? to_host : "";
  if (to_host.empty() || to_host == lease.host) return std::optional<std::string>();
  if (!known && !own) {
    if (!lies_on_shared(service_->engine().backend(), lease.object)) return std::optional<std::string>();
    return Error{.code = ErrorCode::not_found,
                 .where = "transfer",
                 .detail = "there is no host " + to_host +
                           " here: `terrace host list` has those whose agents " +
                           "have connected, and this machine is " + service_->options().host};
  }
  if (target == from) return std::optional<std::string>();
  if (!lies_on_shared(service_->engine().backend(), lease.object)) {
    return Error{.code = ErrorCode::unsupported,
                 .where = "transfer",
                 .detail = "lease " + std::to_string(lease.id.value) + " has memory that only host " +
                           (from.empty() ? service_->options().host : from) +
                           " can map: only leases of shared dax memory can be handed to another host"};
  }
  if (own && !known) return std::optional<std::string>(std::string());
  TERRACE_RETURN_IF_ERROR(may_act_for(to_host, to_tenant));
  TERRACE_RETURN_IF_ERROR(may_grant(to_host, lease.pool));
  for (const Extent& extent : lease.extents) {
    const DeviceRow* device = service_->engine().state().find_device(extent.device);
    if (device == nullptr || has_proved(to_host, device->serial)) continue;
    return Error{.code = ErrorCode::unavailable,
                 .where = "transfer",
                 .detail = "host " + to_host + " has not proved yet that it sees the memory of " +
                           device->serial + ", which its first lease there does, and the agent was started " +
                           "since: grant it one (`terrace lease grant` on " + to_host +
                           "; it can be released at once), then hand this lease over"};
  }
  return std::optional<std::string>(to_host);
}

std::vector<std::string> Agents::unproved(const std::string& name, const LeaseRow& lease) const {
  std::vector<std::string> serials;
  if (name.empty()) return serials;
  for (const Extent& extent : lease.extents) {
    const DeviceRow* device = service_->engine().state().find_device(extent.device);
    if (device != nullptr && !has_proved(name, device->serial) &&
        std::find(serials.begin(), serials.end(), device->serial) == serials.end())
      serials.push_back(device->serial);
  }
  return serials;
}

std::vector<HostStatus> Agents::list() const {
  std::vector<HostStatus> all = states();
  std::map<std::string_view, HostStatus*> by_name;
  for (HostStatus& status : all) by_name[status.name] = &status;
  for (const auto& [id, lease] : service_->engine().state().leases()) {
    const auto at = by_name.find(StateMachine::agent_of(lease));
    if (at == by_name.end()) continue;
    ++at->second->leases;
    at->second->bytes += lease.bytes;
  }
  for (const auto& [id, view] : service_->engine().state().views()) {
    const auto at = by_name.find(object_host(view.object));
    const LeaseRow* lease = service_->engine().state().find_lease(lease_of(id));
    if (at == by_name.end() || lease == nullptr) continue;
    ++at->second->leases;
    at->second->bytes += lease->bytes;
  }
  return all;
}

std::vector<HostStatus> Agents::states() const {
  const uint64_t now = clock_.now_ns();
  std::vector<HostStatus> all;
  for (const std::string& name : hosts_file_.removed()) {
    if (hosts_.contains(name)) continue;
    all.emplace_back().name = name;
    all.back().state = "removed";
  }
  for (const auto& [name, known] : hosts_) {
    HostLeaseCount count = known.count;
    HostStatus status;
    status.name = name;
    status.state = is_removed(name)               ? "removed"
                   : known.peer != nullptr        ? "connected"
                   : known.registering != nullptr ? "registering"
                   : count.lapsed(now)            ? "self-fenced"
                                                  : "away";
    status.address = known.address;
    status.version = known.version;
    status.detail = known.detail;
    status.silent_ns = known.heard_ns == 0 ? 0 : now - known.heard_ns;
    const bool away = known.peer == nullptr || status.state == "removed";
    status.ends_in_ns = away && !count.lapsed(now) ? known.count.end_ns() - now : 0;
    if (known.peer != nullptr) {
      const CertificateFacts& certificate = known.peer->newest_certificate();
      const int64_t now_s = std::time(nullptr);
      status.certificate_days_left = days_left(certificate.ends_s, now_s);
      status.certificate_ends_soon = ends_soon(certificate.begins_s, certificate.ends_s, now_s);
    }
    if (known.peer != nullptr) status.fencing = known.fencing;
    status.host_lease_ns = options_.terms.length_ns;
    for (const SeenDevice& device : known.devices) status.devices.push_back(device.serial);
    all.push_back(std::move(status));
  }
  return all;
}

bool Agents::names_tenant(const std::string& tenant) const {
  return std::any_of(options_.tenants.begin(), options_.tenants.end(),
                     [&tenant](const auto& host) { return host.second.contains(tenant); });
}

}  // namespace terrace::daemon
