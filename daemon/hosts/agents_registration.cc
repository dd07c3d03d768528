// SPDX-License-Identifier: Apache-2.0
// How an agent comes to count: what its host has is compared with the rows, what nobody wants is destroyed
// there, what was lost ends its lease.

#include "daemon/hosts/agent_peer.h"
#include "daemon/hosts/agents.h"
#include "daemon/log/log.h"

namespace terrace::daemon {
namespace {

bool wanted(const LeaseRow& lease) {
  return lease.phase == LeasePhase::active || lease.phase == LeasePhase::revoking ||
         lease.phase == LeasePhase::transferring;
}

AgentOrder order_of(AgentOrder::Kind kind, const std::string& object) {
  AgentOrder order;
  order.kind = kind;
  order.object = object;
  return order;
}

}  // namespace

// What a report asks for. Names are the agent's, without the host.
struct Agents::Plan {
  struct Cut {
    std::string object;
    uint64_t from_bytes = 0;
    uint64_t to_bytes = 0;
    std::vector<Extent> extents;
  };
  std::vector<std::string> destroy;                     // no row wants it
  std::vector<std::string> keep;                        // no row knows it, and somebody had it
  std::vector<Cut> cut;                                 // a growth that was never recorded
  std::vector<std::pair<LeaseId, std::string>> to_end;  // its memory is gone, or fenced
  std::vector<ViewRow> lost_views;                      // likewise
};

// One that is being made is neither there yet nor lost; the engine makes it, or gives it up.
void Agents::plan_views(const std::string& name, const std::map<std::string, uint64_t>& observed,
                        std::set<std::string>& known, std::set<std::string>& ending, Plan& plan) const {
  const StateMachine& state = service_->engine().state();
  for (const auto& [id, view] : state.views()) {
    if (object_host(view.object) != name) continue;
    const std::string object(object_on_host(view.object));
    const LeaseRow* lease = state.find_lease(lease_of(id));
    if (view.closing || lease == nullptr || !wanted(*lease)) {
      ending.insert(object);
      continue;
    }
    known.insert(object);
    const auto there = observed.find(object);
    if (!view.opening && (there == observed.end() || there->second != lease->bytes))
      plan.lost_views.push_back(view);
  }
}

Agents::Plan Agents::plan_of(const AgentPeer& peer, const std::map<std::string, uint64_t>& observed) const {
  const std::string& name = peer.host();
  Plan plan;
  std::set<std::string> known, ending;
  for (const auto& [id, lease] : service_->engine().state().leases()) {
    if (lease.phase == LeasePhase::pending)
      continue;  // an object of that name is not yet, or not, this lease's
    if (!wanted(lease)) {
      for (const std::string& object : {lease.object, lease.next_object})
        if (object_host(object) == name) ending.insert(std::string(object_on_host(object)));
      continue;
    }
    for (const std::string& object : {lease.object, lease.next_object})
      if (object_host(object) == name) known.insert(std::string(object_on_host(object)));
    if (StateMachine::agent_of(lease) != name) continue;
    const std::string object(object_on_host(lease.object));
    if (lease.phase == LeasePhase::transferring) continue;  // the engine rebinds until it knows
    const auto there = observed.find(object);
    if (there == observed.end()) {
      plan.to_end.emplace_back(id, "its memory object was gone when host " + name + " came back");
    } else if (there->second == 0) {
      plan.to_end.emplace_back(
          id, "host " + name + " lost its manager for longer than its host lease and fenced it");
    } else if (there->second < lease.bytes && there->second != lease.target_bytes) {
      plan.to_end.emplace_back(id, "its memory object on host " + name + " has another size than the lease");
    } else if (there->second > lease.bytes) {
      plan.cut.push_back({object, there->second, lease.bytes, lease.extents});
    }
  }
  plan_views(name, observed, known, ending, plan);
  for (const auto& [object, bytes] : observed) {
    if (known.contains(object)) continue;
    const bool somebodys =
        peer.handed_out().contains(object) && !ending.contains(object) && !options_.destroy_orphans;
    (somebodys ? plan.keep : plan.destroy).push_back(object);
  }
  return plan;
}

Status Agents::may_register(const std::string& name, AgentPeer& peer, uint64_t instance) {
  if (is_removed(name)) {
    return Error{.code = ErrorCode::permission_denied,
                 .where = "register",
                 .detail = "host " + name + " was removed by an operator; `terrace host allow " + name +
                           "` on the manager's machine lets it in again"};
  }
  if (!hosts_.contains(name) && hosts_.size() >= agents_max) {
    return Error{.code = ErrorCode::limit_exceeded,
                 .where = "register",
                 .detail = "this manager has its limit of " + std::to_string(agents_max) + " hosts"};
  }
  Host& known = host(name);
  for (AgentPeer* other : {known.peer, known.registering}) {
    if (other == nullptr || other == &peer) continue;
    // The same process has noticed sooner than we that its connection was cut.
    if (other->instance() == instance) {
      other->close("it has connected again");
      continue;
    }
    return Error{.code = ErrorCode::busy,
                 .where = "register",
                 .detail = "host " + name + " has an agent already, connected from " + other->address() +
                           "; two machines must not share a certificate: issue one for each"};
  }
  TERRACE_RETURN_IF_ERROR(hosts_file_.remember(name));
  known.registering = &peer;
  known.address = peer.address();
  known.detail = "";
  return {};
}

kj::Promise<Status> Agents::settle(AgentPeer& peer, std::shared_ptr<std::map<std::string, uint64_t>> observed,
                                   uint64_t received_ns, int rounds_left) {
  return service_->engine().settled().then(
      [this, &peer, observed, received_ns, rounds_left](Status settled) -> kj::Promise<Status> {
        if (!settled.ok()) return settled;
        if (peer.ended())
          return Status(
              Error{.code = ErrorCode::unavailable, .where = "report", .detail = "the connection is gone"});
        const Plan plan = plan_of(peer, *observed);
        for (const auto& [lease, reason] : plan.to_end) end_lease(lease, reason);
        for (const ViewRow& view : plan.lost_views) end_view(view, "it was gone when the host came back");
        if (plan.destroy.empty() && plan.cut.empty()) {
          for (const std::string& object : plan.keep) {
            log::warn(
                "host {}: object {} belongs to no lease that this store knows, and stays: a tenant had it. If "
                "the store is an older copy, give the newest; or start once with --destroy-orphans",
                peer.host(), object);
          }
          connected(peer, received_ns);
          host(peer.host()).kept = {plan.keep.begin(), plan.keep.end()};
          if (!plan.keep.empty())
            host(peer.host()).detail =
                std::to_string(plan.keep.size()) +
                " objects of leases that this store does not know stay there: " + plan.keep.front() +
                (plan.keep.size() > 1 ? ", ..." : "");
          return Status();
        }
        if (rounds_left == 0) {
          return Status(Error{.code = ErrorCode::busy,
                              .where = "report",
                              .detail = "what host " + peer.host() + " has keeps changing; register again"});
        }
        kj::Promise<Status> work = Status();
        const auto then_do = [this, &peer, &work](AgentOrder order, std::function<void()> done) {
          work = work.then([this, &peer, order = std::move(order),
                            done = std::move(done)](Status before) -> kj::Promise<Status> {
            if (!before.ok()) return before;
            return send(peer.agent(), order).then([order, done](AgentAnswer given) -> Status {
              if (given.outcome != OrderOutcome::done) {
                Error error = given.error;
                error.detail = "the memory object " + order.object + " stays on its host: " + error.detail;
                return error;
              }
              done();
              return {};
            });
          });
        };
        for (const std::string& object : plan.destroy) {
          log::warn("host {}: object {} belongs to no lease any more; destroyed", peer.host(), object);
          then_do(order_of(AgentOrder::Kind::fence, object), [] {});
          then_do(order_of(AgentOrder::Kind::scrub, object), [observed, object] { observed->erase(object); });
        }
        for (const Plan::Cut& cut : plan.cut) {
          AgentOrder order = order_of(AgentOrder::Kind::resize, cut.object);
          order.from_bytes = cut.from_bytes;
          order.bytes = cut.to_bytes;
          order.extents = peer.wire_extents(cut.extents);
          then_do(std::move(order), [observed, cut] { (*observed)[cut.object] = cut.to_bytes; });
        }
        return work.then([this, &peer, observed, received_ns, rounds_left](Status done) -> kj::Promise<Status> {
          if (!done.ok()) return done;
          return settle(peer, observed, received_ns, rounds_left - 1);
        });
      });
}

// The promise that the agent has counts from when it sent its report; ours from when that came.
void Agents::connected(AgentPeer& peer, uint64_t received_ns) {
  Host& known = host(peer.host());
  known.registering = nullptr;
  known.peer = &peer;
  const bool heard_before = std::exchange(known.heard_ns, received_ns) != 0;
  known.version = peer.version();
  if (std::exchange(known.instance, peer.instance()) != peer.instance()) forget_proofs(peer.host());
  known.devices = peer.devices();
  known.lapse_told = false;
  known.looked_at_ns = 0;
  HostLeaseCount fresh(options_.terms);
  fresh.begin(received_ns);
  fresh.not_before(known.count.end_ns());  // should this answer not arrive, its old promise is what it has
  known.count = fresh;
  forgotten(known);
  settle_hosts();
  tell(Event{.kind = heard_before ? EventKind::host_returned : EventKind::host_registered,
             .message = "host " + peer.host() + " is connected from " + peer.address() + " (version " +
                        peer.version() + ", " + std::to_string(known.devices.size()) + " devices)",
             .host = peer.host()});
  warned_ns_ = 0;
}

void Agents::disconnected(AgentPeer& peer) {
  const auto at = hosts_.find(peer.host());
  if (at == hosts_.end()) return;
  Host& known = at->second;
  if (known.registering == &peer) known.registering = nullptr;
  if (known.peer != &peer) return;
  known.peer = nullptr;
  tell(Event{.kind = EventKind::host_away,
             .severity = EventSeverity::warning,
             .message = "host " + peer.host() + " is away: " + describe_absence(peer.host(), known),
             .host = peer.host()});
}

}  // namespace terrace::daemon
