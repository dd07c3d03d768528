// SPDX-License-Identifier: Apache-2.0
// Who may write to which part of a shared_coherent lease: claimed and given back by processes, one at a time.
//
//   a part      nobody's ── claim ──► a process's, under an epoch ── release ──► nobody's
//                                     └── another claims, and the owner was seen to have ended ──► the other's
//
// Place     Whether a process has ended is seen outside (daemon/event_loop/processes.h, and of another host by its agent) and
//           comes with the command.
// Hosts     Each host that has the lease attached has owners. Where caches of hosts are not coherent a part stays with the host
//           whose process had it first: lines that a dead one stored may still be in that host's caches, and
//           reach the memory after another host's owner stored there. It is any host's again once that host has
//           nothing of the lease any more and wrote its caches back.
// Crash     A claim is durable before its answer, so that an epoch is never given twice; rows stay until the
//           lease ends for its holders. A reboot ends every process: parts are nobody's then, and their epochs
//           stay.
#include "core/base/limits.h"
#include "daemon/model/owner_limits.h"
#include "daemon/state/names.h"
#include "daemon/state/refuse.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {
namespace {

// Far beyond what claims reach by counting; keeps who claims from using up the numbers.
constexpr uint64_t seen_epoch_max = uint64_t{1} << 48;

bool is_vacant(const OwnerRow& row) {
  return row == OwnerRow{.id = row.id, .epoch = row.epoch, .host = row.host};
}

std::string on_host(const std::string& agent) {
  return agent.empty() ? "the manager's own host" : "host " + agent;
}

std::string part_name(LeaseId lease, uint64_t part) {
  return "part " + std::to_string(part) + " of " + lease_name(lease);
}

Status check_part(const LeaseRow& lease, uint64_t part, const char* where) {
  if (part >= lease_parts_max) {
    return refusal(ErrorCode::invalid_argument, where,
                   lease_name(lease.id) + " has parts 0 to " + std::to_string(lease_parts_max - 1) + ", not " +
                       std::to_string(part));
  }
  if (lease.mode != LeaseMode::shared_coherent) {
    return refusal(ErrorCode::unsupported, where,
                   lease_name(lease.id) + " is not of mode shared_coherent: its parts have no owners");
  }
  return {};
}

}  // namespace

const OwnerRow* StateMachine::find_owner(LeaseId lease, uint64_t part) const {
  if (part >= lease_parts_max) return nullptr;
  const auto at = owners_.find(part_id(lease, part));
  return at == owners_.end() ? nullptr : &at->second;
}

std::vector<OwnerRow> StateMachine::owners_of(LeaseId lease) const {
  std::vector<OwnerRow> owners;
  const auto end = owners_.upper_bound(part_id(lease, lease_parts_max - 1));
  for (auto at = owners_.lower_bound(part_id(lease, 0)); at != end; ++at) owners.push_back(at->second);
  return owners;
}

void StateMachine::forget_owners(LeaseId id, Step& step) {
  for (const OwnerRow& owner : owners_of(id)) {
    owners_.erase(owner.id);
    step.delta.owners[owner.id] = std::nullopt;
  }
}

bool StateMachine::coherent_between_hosts(const LeaseRow& lease) const {
  const auto pool = pools_.find(lease.pool);
  return pool != pools_.end() && pool->second.coherence == PoolCoherence::coherent;
}

bool StateMachine::same_caches(const LeaseRow& lease, const OwnerRow& owner, const std::string& host) const {
  return owner.host == host || owner.host == any_host || coherent_between_hosts(lease);
}

void StateMachine::vacate_parts(LeaseId id, const std::optional<std::string>& host, bool settled,
                                Delta& delta) {
  for (const OwnerRow& owner : owners_of(id)) {
    if (host.has_value() && owner.host != *host) continue;
    const OwnerRow vacant{.id = owner.id, .epoch = owner.epoch, .host = settled ? any_host : owner.host};
    if (vacant == owner) continue;
    owners_[owner.id] = vacant;
    delta.owners[owner.id] = vacant;
  }
}

// Whether processes of that host may own parts of it.
Status StateMachine::check_own_on(const LeaseRow& lease, const std::string& host,
                                  const std::string& part) const {
  constexpr const char* where = "ClaimPart";
  if (!object_on(lease, host).has_value())
    return refusal(ErrorCode::unavailable, where,
                   part + " is not attached on " + on_host(host) + (host.empty() ? "" : " now"));
  if (lease.movable && !host.empty())
    return refusal(
        ErrorCode::unsupported, where,
        part + " is on host " + host +
            ", and its lease is movable: the manager, which moves it, cannot see at once whether a process "
            "there has ended. Take a lease that is not movable");
  return {};
}

Step StateMachine::on(const ClaimPart& command) {
  constexpr const char* where = "ClaimPart";
  const LeaseRow* lease = mutable_lease(command.lease, command.tenant);
  if (lease == nullptr || ungranted(*lease)) return no_such_lease(where, command.lease);
  if (Status status = check_live(*lease, where, command.now_ns); !status.ok())
    return refuse(std::move(status).error());
  if (Status status = check_part(*lease, command.part, where); !status.ok())
    return refuse(std::move(status).error());
  const std::string name = part_name(command.lease, command.part);
  if (Status status = check_own_on(*lease, command.host, name); !status.ok())
    return refuse(std::move(status).error());
  if (command.process.pid == 0 || command.request == 0 ||
      !valid_text(command.holder, owner_limits::holder_bytes_max))
    return refuse(ErrorCode::invalid_argument, where, name + " is claimed by nobody in particular");
  const OwnerRow* owner = find_owner(command.lease, command.part);
  const uint64_t last_epoch = owner == nullptr ? 0 : owner->epoch;
  Step step;
  if (owner != nullptr && owner->process.pid != 0) {
    const bool same_host = owner->host == command.host;
    if (same_host && owner->process == command.process && owner->request == command.request) {
      step.reply = Reply{OwnerReply{*owner}};
      return step;
    }
    if (owner->epoch != command.dead_epoch) {
      return refuse(ErrorCode::busy, where,
                    name + " is owned by " + owner->holder + ", process " + std::to_string(owner->process.pid) +
                        " on host " + (owner->host.empty() ? lease->host : owner->host) + ", under epoch " +
                        std::to_string(owner->epoch) + ", which has not ended");
    }
  }
  if (owner != nullptr && !same_caches(*lease, *owner, command.host)) {
    return refuse(
        ErrorCode::busy, where,
        name + " had an owner on " + on_host(owner->host) +
            ", whose caches may still have what it stored: where caches of hosts are not coherent a part "
            "stays with its host until that one has let go of the lease");
  }
  if (command.last_epoch > std::max(last_epoch, seen_epoch_max)) {
    return refuse(ErrorCode::invalid_argument, where,
                  name + " cannot have had epoch " + std::to_string(command.last_epoch));
  }
  if (owner == nullptr && owners_.size() >= owner_limits::rows_max) {
    return refuse(ErrorCode::limit_exceeded, where,
                  "the parts of all leases have had their limit of " + std::to_string(owner_limits::rows_max) +
                      " owners; they are forgotten with their leases");
  }
  const OwnerRow row{.id = part_id(command.lease, command.part),
                     .epoch = std::max(last_epoch, command.last_epoch) + 1,
                     .request = command.request,
                     .process = command.process,
                     .holder = command.holder,
                     .host = command.host};
  owners_[row.id] = row;
  step.delta.owners[row.id] = row;
  step.reply = Reply{OwnerReply{row}};
  return step;
}

Step StateMachine::on(const ReleasePart& command) {
  constexpr const char* where = "ReleasePart";
  const LeaseRow* lease = mutable_lease(command.lease, command.tenant);
  if (lease == nullptr || ungranted(*lease)) return no_such_lease(where, command.lease);
  if (Status status = check_part(*lease, command.part, where); !status.ok())
    return refuse(std::move(status).error());
  Step step;
  const OwnerRow* owner = find_owner(command.lease, command.part);
  if (owner == nullptr || command.epoch == 0 || command.epoch > owner->epoch) {
    return refuse(  // not_found would say that the lease has ended
        ErrorCode::invalid_argument, where,
        part_name(command.lease, command.part) + " had no owner under epoch " + std::to_string(command.epoch));
  }
  if (command.epoch < owner->epoch || owner->process.pid == 0) return step;
  if (owner->process != command.process || owner->host != command.host) {
    return refuse(ErrorCode::permission_denied, where,
                  part_name(command.lease, command.part) + " is owned by " + owner->holder +
                      "; only that process gives it back");
  }
  const OwnerRow vacant{.id = owner->id, .epoch = owner->epoch, .host = owner->host};
  owners_[vacant.id] = vacant;
  step.delta.owners[vacant.id] = vacant;
  return step;
}

Status StateMachine::load_owners(const Image& image) {
  for (const OwnerRow& row : image.owners) {
    const LeaseRow* lease = find_lease(lease_of(row.id));
    const std::string name =
        "part " + std::to_string(part_of(row.id)) + " of lease " + std::to_string(lease_of(row.id).value);
    const bool live = lease != nullptr && (usable(*lease) || lease->phase == LeasePhase::transferring);
    if (!live || lease->mode != LeaseMode::shared_coherent || row.epoch == 0 ||
        !valid_text(row.holder, limits::label_bytes_max) || (row.process.pid == 0 && !is_vacant(row)) ||
        !(row.host.empty() || row.host == any_host || valid_name(row.host)) ||
        (row.process.pid != 0 && row.host == any_host) || (row.process.pid != 0 && row.request == 0) ||
        !owners_.emplace(row.id, row).second) {
      return Error{.code = ErrorCode::corrupt,
                   .where = "StateMachine::recover",
                   .detail = "the store contradicts itself: " + name +
                             " has an owner that it cannot have; nothing is served from it. Restore a copy, or "
                             "move it away to begin anew"};
    }
  }
  return {};
}

void StateMachine::check_owners(std::vector<std::string>& problems) const {
  for (const auto& [id, owner] : owners_) {
    const LeaseRow* lease = find_lease(lease_of(id));
    const std::string name = "I13: " + part_name(lease_of(id), part_of(id));
    const bool live = lease != nullptr && (usable(*lease) || lease->phase == LeasePhase::transferring);
    if (!live || lease->mode != LeaseMode::shared_coherent || owner.id != id || owner.epoch == 0) {
      problems.push_back(name + " has an owner's row without a lease for it");
      continue;
    }
    if (owner.process.pid == 0) {
      if (!is_vacant(owner)) problems.push_back(name + " is nobody's and has something of an owner");
      continue;
    }
    if (owner.request == 0) problems.push_back(name + " was claimed without a key");
    if (!has_object_on(*lease, owner.host))
      problems.push_back(name + " has an owner on a host that has nothing of it");
  }
}

}  // namespace terrace::daemon
