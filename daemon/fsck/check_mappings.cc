// SPDX-License-Identifier: Apache-2.0
// Processes that still have what was taken from their lease. None of them reaches another lease's bytes:
// objects share no page. But what such a process keeps counts against the memory's size, and it may not know
// that its lease is over.
#include <map>
#include <unordered_map>

#include "core/base/units.h"
#include "daemon/fsck/check_rows.h"

namespace terrace::daemon {
namespace {

constexpr size_t names_max = 8;
constexpr std::string_view found_by_restore = "that a restore found and quarantined";

// Why an object is out of its holder's hands; nullptr: it is not.
const char* taken(const LeaseRow* lease, const LiveMapping& mapping) {
  if (mapping.deleted) return "of leases that ended";
  if (lease == nullptr) return "that belong to no lease";
  switch (lease->phase) {
    case LeasePhase::fencing: return "of leases that are being taken back";
    case LeasePhase::scrubbing: return "of fenced leases";
    case LeasePhase::
        quarantined:  // nothing was taken from what a restored store found (daemon/state/restored.cc)
      return lease->cause == LeaseCause::none ? found_by_restore.data() : "of quarantined leases";
    case LeasePhase::transferring: return "of leases that are being handed to somebody else";
    default: return nullptr;
  }
}

struct Group {
  std::string names;
  size_t count = 0;
  uint64_t mapped_bytes = 0;
  bool open = false;
};

}  // namespace

std::vector<Finding> check_mappings(const Image& image, const std::vector<LiveMapping>& mappings,
                                    const CheckContext& context) {
  std::unordered_map<std::string, const LeaseRow*> by_object;
  for (const LeaseRow& lease : image.leases) {
    by_object[lease.object] = &lease;
    if (!lease.next_object.empty()) by_object[lease.next_object] = &lease;
  }
  std::unordered_map<LeaseId, const LeaseRow*> by_id;
  if (!image.views.empty())
    for (const LeaseRow& lease : image.leases) by_id[lease.id] = &lease;
  for (const ViewRow& view : image.views)
    if (const auto lease = by_id.find(lease_of(view.id)); lease != by_id.end())
      by_object[view.object] = lease->second;
  std::map<std::pair<pid_t, std::string>, Group> groups;
  std::map<pid_t, const LiveMapping*> processes;
  for (const LiveMapping& mapping : mappings) {
    const auto lease = by_object.find(mapping.object);
    if (!mapping.deleted && context.in_flight.contains(mapping.object)) continue;
    const char* why = taken(lease == by_object.end() ? nullptr : lease->second, mapping);
    if (why == nullptr) continue;
    processes[mapping.pid] = &mapping;
    Group& group = groups[{mapping.pid, why}];
    if (group.count < names_max) group.names += (group.count == 0 ? "" : ", ") + mapping.object;
    if (group.count == names_max) group.names += ", ...";
    ++group.count;
    group.mapped_bytes += mapping.mapped_bytes;
    group.open |= mapping.open;
  }
  std::vector<Finding> findings;
  for (const auto& [key, group] : groups) {
    const LiveMapping& process = *processes.at(key.first);
    std::string how =
        group.mapped_bytes == 0 ? "holds open" : "maps " + format_size(group.mapped_bytes) + " of";
    if (group.mapped_bytes != 0 && group.open) how = "holds open and " + how;
    findings.push_back(
        {Severity::warning, "process " + std::to_string(key.first) + " (" + process.command + ")",
         "still " + how + " " + std::to_string(group.count) + (group.count == 1 ? " object " : " objects ") +
             key.second + ": " + group.names,
         key.second == found_by_restore
             ? "it has the memory until an administrator releases the lease, and cannot renew it"
             : "end process " + std::to_string(key.first) +
                   ", or wait for it to let go; it gets SIGBUS there and reaches nobody else's memory"});
  }
  return findings;
}

}  // namespace terrace::daemon
