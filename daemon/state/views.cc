// SPDX-License-Identifier: Apache-2.0
// A shared lease on several hosts: besides its own memory object it has one on each further host, a view.
//
//   none ── OpenView ──► in the store ── ShowObject ──► attached ── its host is lost, or the object ──► closing ── HideObject ──► none
//
// Crash     A view is in the store before its object is made and until it is certainly gone, so that whatever fences the
//           lease reaches it; what recovery finds half made is closed.
// Fence     FenceObject names every view: the fence is done when all of them are removed, and before that no granule
//           is erased or free.
#include <algorithm>

#include "core/base/limits.h"
#include "daemon/model/kinds.h"
#include "daemon/state/names.h"
#include "daemon/state/refuse.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {
namespace {

std::string host_name(const std::string& agent) {
  return agent.empty() ? "the manager's own host" : "host " + agent;
}

}  // namespace

std::vector<ViewRow> StateMachine::views_of(LeaseId lease) const {
  std::vector<ViewRow> views;
  const auto end = views_.upper_bound(view_id(lease, lease_views_max - 1));
  for (auto at = views_.lower_bound(view_id(lease, 0)); at != end; ++at) views.push_back(at->second);
  return views;
}

std::optional<std::string> StateMachine::object_on(const LeaseRow& lease, const std::string& agent) const {
  if (agent_of(lease) == agent) return lease.object;
  for (const ViewRow& view : views_of(lease.id))
    if (!view.closing && !view.opening && host_of(view.object) == agent) return view.object;
  return std::nullopt;
}

bool StateMachine::has_object_on(const LeaseRow& lease, const std::string& agent) const {
  if (agent_of(lease) == agent) return true;
  const std::vector<ViewRow> views = views_of(lease.id);
  return std::any_of(views.begin(), views.end(),
                     [&agent](const ViewRow& view) { return host_of(view.object) == agent; });
}

bool StateMachine::opening(ViewId id, const std::string& object) const {
  const auto view = views_.find(id);
  const LeaseRow* lease = find_lease(lease_of(id));
  return view != views_.end() && view->second.opening && view->second.object == object && lease != nullptr &&
         usable(*lease);
}

FenceObject StateMachine::fence_of(const LeaseRow& lease) const {
  FenceObject fence{.lease = lease.id, .object = lease.object};
  for (ViewRow& view : views_of(lease.id)) fence.views.push_back(std::move(view.object));
  if (!fence.views.empty()) fence.extents = lease.extents;
  return fence;
}

Status StateMachine::check_no_views(LeaseId id, const char* where) const {
  const std::vector<ViewRow> views = views_of(id);
  if (views.empty()) return {};
  std::string hosts;
  for (const ViewRow& view : views) hosts += (hosts.empty() ? "" : ", ") + host_name(host_of(view.object));
  return refusal(ErrorCode::busy, where,
                 lease_name(id) + " is attached on " + hosts +
                     " as well: what several hosts have keeps its size, its holder's tenant and its place");
}

void StateMachine::forget_views(LeaseId id, Delta& delta) {
  for (const ViewRow& view : views_of(id)) {
    views_.erase(view.id);
    delta.views[view.id] = std::nullopt;
  }
}

void StateMachine::close_view(ViewId id, const LeaseRow& lease, Step& step) {
  ViewRow& view = views_.at(id);
  view.opening = false;
  view.closing = true;
  step.delta.views[id] = view;
  step.effects.push_back(HideObject{id, view.object, lease.extents});
}

// --- opening ----------------------------------------------------------------------------------------

Step StateMachine::on(const OpenView& command) {
  constexpr const char* where = "OpenView";
  if (Status status = check_changeable(command.lease, command.tenant, where, command.now_ns); !status.ok())
    return refuse(std::move(status).error());
  const LeaseRow& lease = leases_.at(command.lease);
  const std::string name = lease_name(lease.id);
  if (lease.mode == LeaseMode::exclusive)
    return refuse(ErrorCode::unsupported, where,
                  name +
                      " is exclusive: it is attached on one host only; take one of mode shared_coherent or "
                      "shared_read_only for several");
  if (lease.movable)
    return refuse(ErrorCode::unsupported, where,
                  name +
                      " is movable, so that its bytes may be copied to another place at any moment: it is "
                      "attached on one host only");
  if (agent_of(lease) == command.agent)
    return refuse(ErrorCode::invalid_argument, where, name + " is on " + host_name(command.agent));
  const std::vector<ViewRow> views = views_of(lease.id);
  Step step;
  for (const ViewRow& view : views) {
    if (host_of(view.object) != command.agent) continue;
    if (view.closing)
      return refuse(ErrorCode::unavailable, where,
                    name + " is being taken away from " + host_name(command.agent) + "; try again in a moment");
    step.reply = Reply{ViewReply{view}};
    return step;
  }
  uint64_t number = 0;
  while (number < lease_views_max && views_.contains(view_id(lease.id, number))) ++number;
  if (number == lease_views_max)
    return refuse(ErrorCode::limit_exceeded, where,
                  name + " is attached on its limit of " + std::to_string(lease_views_max) + " further hosts");
  ViewRow view{.id = view_id(lease.id, number), .object = {}, .opening = true};
  view.object = object_name(lease, command.agent, {}, "-" + std::to_string(meta_.next_epoch++));
  if (!valid_name(view.object))
    return refuse(ErrorCode::invalid_argument, where, host_name(command.agent) + " has too long a name");
  views_[view.id] = view;
  step.delta.views[view.id] = view;
  step.delta.meta = meta_;
  step.effects.push_back(ShowObject{lease.id, view.id, lease.object, view.object, lease.bytes, lease.extents});
  step.reply = Reply{ViewReply{std::move(view)}};
  return step;
}

Step StateMachine::on(const ViewOpened& command) {
  const auto view = views_.find(command.view);
  const LeaseRow* lease = find_lease(lease_of(command.view));
  Step step;
  if (lease == nullptr) return step;
  if (view == views_.end() || view->second.object != command.object) {
    // It became the lease's own meanwhile.
    if (!command.status.ok() && lease->object == command.object && usable(*lease))
      lose_object(leases_.at(lease->id), command.object, command.status.error().to_string(), step);
    return step;
  }
  if (!view->second.opening || !usable(*lease)) return step;  // given up, or the lease's fence hides it
  if (command.status.ok()) {
    view->second.opening = false;
    step.delta.views[command.view] = view->second;
  } else {
    close_view(command.view, *lease, step);
  }
  return step;
}

Step StateMachine::on(const ViewClosed& command) {
  const auto view = views_.find(command.view);
  Step step;
  if (view == views_.end() || view->second.object != command.object) return step;
  views_.erase(view);
  step.delta.views[command.view] = std::nullopt;
  // Every process there was shut out. A host that is back has another view, of its own processes.
  const LeaseRow* lease = find_lease(lease_of(command.view));
  const std::string host = host_of(command.object);
  if (lease != nullptr && !has_object_on(*lease, host))
    vacate_parts(lease->id, host, !command.lines_may_remain, step.delta);
  return step;
}

// --- losing -----------------------------------------------------------------------------------------

// Whole views first: one that is still being made may not come about.
bool StateMachine::replace_object(LeaseRow& lease, Step& step) {
  std::vector<ViewRow> views = views_of(lease.id);
  std::erase_if(views, [](const ViewRow& view) { return view.closing; });
  const auto whole =
      std::find_if(views.begin(), views.end(), [](const ViewRow& view) { return !view.opening; });
  if (whole == views.end()) return false;
  views_.at(whole->id).object = lease.object;
  unindex_lease(lease);
  lease.object = whole->object;
  index_lease(lease);
  step.delta.leases[lease.id] = lease;
  close_view(whole->id, lease, step);
  return true;
}

void StateMachine::lose_object(LeaseRow& lease, const std::string& object, const std::string& reason,
                               Step& step) {
  if (lease.object == object) {
    if (replace_object(lease, step)) return;
    std::string why;
    append_reason(why, reason);
    begin_fence(lease, LeaseCause::object_lost, std::move(why), step);
    return;
  }
  for (const ViewRow& view : views_of(lease.id))
    if (view.object == object && !view.closing) close_view(view.id, lease, step);
}

Step StateMachine::on(const LoseObject& command) {
  LeaseRow* lease = mutable_lease(command.lease, "");
  Step step;
  if (lease != nullptr && usable(*lease)) lose_object(*lease, command.object, command.reason, step);
  return step;
}

// --- start and checks -------------------------------------------------------------------------------

Status StateMachine::load_views(const Image& image) {
  for (const ViewRow& row : image.views) {
    const LeaseRow* lease = find_lease(lease_of(row.id));
    if (lease == nullptr || lease->mode == LeaseMode::exclusive || lease->movable || ungranted(*lease) ||
        lease->phase == LeasePhase::transferring || lease->target_bytes != 0 || !valid_name(row.object) ||
        (row.opening && row.closing) || !views_.emplace(row.id, row).second) {
      return Error{.code = ErrorCode::corrupt,
                   .where = "StateMachine::recover",
                   .detail = "the store contradicts itself: " + lease_name(lease_of(row.id)) +
                             " is attached on a further host, which it cannot be; nothing is served from it. "
                             "Restore a copy, or move it away to begin anew"};
    }
  }
  return {};
}

// Its memory object was gone when the manager started, and other hosts have theirs.
bool StateMachine::replace_lost(LeaseRow& lease, Recovery& recovery) {
  Step step;
  if (!replace_object(lease, step)) return false;
  recovery.findings.push_back("the memory object of " + lease_name(lease.id) +
                              " was gone when the manager started; " + host_name(agent_of(lease)) +
                              " has it still, and it goes on");
  recovery.delta.merge(std::move(step.delta));
  return true;  // recover_views() removes what it was
}

// Those of further hosts are looked at when their agents register.
void StateMachine::recover_views(const LeaseRow& lease, const std::map<std::string, uint64_t>& objects,
                                 Recovery& recovery) {
  if (!usable(lease)) return;
  for (const ViewRow& view : views_of(lease.id)) {
    const auto there = objects.find(view.object);
    const bool gone = host_of(view.object).empty() && (there == objects.end() || there->second == 0);
    if (!view.closing && !view.opening && !gone) continue;
    Step step;
    close_view(view.id, lease, step);
    recovery.delta.merge(std::move(step.delta));
    recovery.effects.insert(recovery.effects.end(), step.effects.begin(), step.effects.end());
    if (!view.closing && !view.opening)
      recovery.findings.push_back(lease_name(lease.id) + " is not attached on this machine any more: " +
                                  view.object + " was gone when the manager started");
  }
}

void StateMachine::check_views(std::vector<std::string>& problems) const {
  std::set<std::string> objects;
  std::set<std::pair<LeaseId, std::string>> hosts;
  for (const auto& [id, view] : views_) {
    const LeaseRow* lease = find_lease(lease_of(id));
    const std::string name = "I15: " + lease_name(lease_of(id));
    if (view.id != id || lease == nullptr || lease->mode == LeaseMode::exclusive || lease->movable ||
        ungranted(*lease) || lease->phase == LeasePhase::transferring) {
      problems.push_back(name + " has an object on a further host and cannot have one");
      continue;
    }
    if (!objects.insert(view.object).second || view.object == lease->object)
      problems.push_back(name + " has two objects of one name");
    if (growths_.contains(lease->id) || lease->target_bytes != 0 || move_of_.contains(lease->id))
      problems.push_back(name + " changes while several hosts have it");
    const std::string host = host_of(view.object);
    if (!view.closing && (host == agent_of(*lease) || !hosts.insert({lease->id, host}).second))
      problems.push_back(name + " has two objects on " + host_name(host));
    if (view.opening && view.closing) problems.push_back(name + " has a view that is being made and removed");
  }
}

}  // namespace terrace::daemon
