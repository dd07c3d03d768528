// SPDX-License-Identifier: Apache-2.0
#include "daemon/fsck/fsck.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "core/base/units.h"
#include "daemon/fsck/check_rows.h"

namespace terrace::daemon {
namespace {

using ObjectsByName = std::unordered_map<std::string, const ObservedObject*>;

constexpr const char* lost_repair =
    "start terraced: it ends the lease and frees its extents (with --accept-lost-objects when the memory of "
    "all "
    "leases is gone)";

class LeaseChecker {
 public:
  LeaseChecker(const ObjectsByName& objects, const CheckContext& context, bool other_boot,
               std::vector<Finding>& findings)
      : objects_(objects), context_(context), other_boot_(other_boot), findings_(findings) {}

  void check(const LeaseRow& lease) {
    switch (lease.phase) {
      case LeasePhase::active:
      case LeasePhase::revoking: check_live(lease); return;
      case LeasePhase::fencing:
      case LeasePhase::scrubbing: check_leaving(lease); return;
      case LeasePhase::transferring: check_transferring(lease); return;
      case LeasePhase::quarantined:
        add(Severity::warning, lease,
            "is quarantined, " + format_size(lease.bytes) + " are lost to its pool: " + lease.reason,
            lease.cause == LeaseCause::none  // found by a restored store
                ? "copy what is wanted out of its object " + lease.object +
                      ", then have an administrator release it: that erases it"
                : "fix what the reason names, then have an administrator release it: it is fenced and scrubbed "
                  "again");
        return;
      case LeasePhase::pending:
      case LeasePhase::waiting: return;
    }
  }

 private:
  void add(Severity severity, const LeaseRow& lease, std::string what, std::string repair) {
    findings_.push_back({severity, subject_of(lease), std::move(what), std::move(repair)});
  }
  const ObservedObject* find(const std::string& name) const {
    const auto at = objects_.find(name);
    return at == objects_.end() ? nullptr : at->second;
  }

  void check_live(const LeaseRow& lease) {
    const ObservedObject* object = find(lease.object);
    if (object == nullptr) {
      add(Severity::error, lease,
          "its memory object " + lease.object + " is gone" +
              (other_boot_ ? ": the machine was restarted, which emulated memory does not outlive" : ""),
          lost_repair);
    } else if (object->bytes == 0) {
      add(Severity::error, lease, "its memory object " + lease.object + " was fenced and has no bytes any more",
          lost_repair);
    } else if (object->bytes != lease.bytes && object->bytes != lease.target_bytes) {
      // A growth makes the object longer before the row says so.
      const bool growing = context_.serving && object->bytes > lease.bytes;
      add(growing ? Severity::note : Severity::error, lease,
          "its memory object " + lease.object + " has " + format_size(object->bytes) + " instead of " +
              format_size(lease.bytes) + (growing ? ": it grows now, or its holder made it longer" : ""),
          growing ? "look again; if it stays, end the lease"
                  : "its holder changed it. Start terraced: it fixes or ends the lease");
    } else if (lease.target_bytes != 0 && !context_.serving) {
      add(Severity::note, lease, "is being cut to " + format_size(lease.target_bytes),
          "start terraced: it goes on, or undoes a growth that nobody was told of");
    }
  }

  void check_leaving(const LeaseRow& lease) {
    if (context_.serving) return;
    add(Severity::note, lease,
        "is being taken back (" + lease.reason + "); its " + format_size(lease.bytes) + " are not free yet",
        "start terraced: it fences and scrubs it before it grants anything");
  }

  void check_transferring(const LeaseRow& lease) {
    const ObservedObject* old = find(lease.object);
    const ObservedObject* next = find(lease.next_object);
    // The object that takes over is longer than its lease by what is still missing (daemon/memory/files/emulated.h).
    const uint64_t missing =
        next == nullptr || next->bytes < lease.bytes ? lease.bytes : next->bytes - lease.bytes;
    if (missing > 0 && (old == nullptr || old->bytes < missing)) {
      add(Severity::error, lease,
          "was being handed to tenant " + lease.tenant + ", and neither " + lease.object + " nor " +
              lease.next_object + " has its first " + format_size(missing),
          "start terraced: it ends the lease; its bytes are lost");
    } else if (!context_.serving) {
      add(Severity::note, lease, "is being handed to tenant " + lease.tenant, "start terraced: it goes on");
    }
  }

  const ObjectsByName& objects_;
  const CheckContext& context_;
  const bool other_boot_;
  std::vector<Finding>& findings_;
};

void check_orphans(const Image& image, const std::vector<ObservedObject>& objects, const CheckContext& context,
                   std::vector<Finding>& findings) {
  std::unordered_set<std::string> known(context.in_flight.begin(), context.in_flight.end());
  for (const LeaseRow& lease : image.leases) {
    known.insert(lease.object);
    if (!lease.next_object.empty()) known.insert(lease.next_object);
  }
  for (const ViewRow& view : image.views) known.insert(view.object);
  for (const ObservedObject& object : objects) {
    if (known.contains(object.name)) continue;
    if (object.handed_out && object.bytes != 0) {
      findings.push_back(
          {Severity::warning, "object " + object.name,
           "belongs to no lease that the store knows, occupies " + format_size(object.allocated) +
               ", and a tenant had it: the store may be an older copy",
           "give the newest state files with --state; or, to destroy it: start terraced once with "
           "--destroy-orphans"});
      continue;
    }
    findings.push_back(
        {Severity::warning, "object " + object.name,
         "belongs to no lease and occupies " + format_size(object.allocated) +
             ": left by a grant that was never acknowledged",
         context.serving ? "restart terraced: it destroys it" : "start terraced: it destroys it"});
  }
}

}  // namespace

std::string_view severity_name(Severity severity) {
  switch (severity) {
    case Severity::note: return "note";
    case Severity::warning: return "warning";
    case Severity::error: break;
  }
  return "error";
}

std::vector<Finding> check_consistency(const Image& image, const std::vector<ObservedObject>& objects,
                                       const std::vector<SeenDevice>& devices,
                                       const std::vector<LiveMapping>& mappings, const CheckContext& context) {
  std::vector<Finding> findings;
  check_invariants(image, findings);
  check_devices(image, devices, findings);
  const bool other_boot =
      !context.boot_id.empty() && !image.meta.boot_id.empty() && context.boot_id != image.meta.boot_id;
  if (other_boot) {
    findings.push_back({Severity::note, "store", "it was last written before this machine was restarted",
                        "start terraced: every lease whose memory is there gets a full TTL"});
  }
  ObjectsByName by_name;
  for (const ObservedObject& object : objects) by_name[object.name] = &object;
  LeaseChecker checker(by_name, context, other_boot, findings);
  for (const LeaseRow& lease : image.leases) checker.check(lease);
  check_orphans(image, objects, context, findings);
  for (Finding& finding : check_mappings(image, mappings, context)) findings.push_back(std::move(finding));
  check_bounds(image, devices, findings);
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.severity > b.severity; });
  return findings;
}

}  // namespace terrace::daemon
