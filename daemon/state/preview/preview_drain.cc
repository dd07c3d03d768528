// SPDX-License-Identifier: Apache-2.0
// A drain, done to a copy: what is on the device is moved away, as far as it may be.
#include <algorithm>

#include "daemon/state/preview/preview_moves.h"

namespace terrace::daemon {
namespace {

bool lies_on(const LeaseRow& lease, DeviceId device) {
  return std::any_of(lease.extents.begin(), lease.extents.end(),
                     [device](const Extent& extent) { return extent.device == device; });
}

void tell_tenants(const StateMachine& state, DeviceId device, Preview& preview) {
  std::map<std::string, PreviewedTenant> tenants;
  const uint64_t granule_bytes = state.find_device(device)->granule_bytes;
  for (const auto& [id, lease] : state.leases()) {
    uint64_t bytes = 0;
    for (const Extent& extent : lease.extents)
      if (extent.device == device) bytes += extent.granules * granule_bytes;
    if (bytes == 0) continue;
    PreviewedTenant& tenant = tenants[lease.tenant];
    tenant.tenant = lease.tenant;
    tenant.bytes += bytes;
    ++tenant.leases;
  }
  for (auto& [name, tenant] : tenants) preview.tenants.push_back(std::move(tenant));
}

}  // namespace

Preview preview_drain(StateMachine copy, const std::string& serial, uint64_t now_ns,
                      const HolderCount& holders) {
  Preview preview;
  const DeviceRow* before = copy.find_device(serial);
  const bool draining = before != nullptr && before->state == DeviceState::draining;
  const Step begun = copy.apply(DrainDevice{serial});
  if (!begun.reply.ok()) {
    preview.outcome = begun.reply.error();
    return preview;
  }
  const DeviceId id = copy.find_device(serial)->id;
  tell_tenants(copy, id, preview);
  PreviewedMoves moves(std::move(copy), now_ns, holders);
  moves.run([id](const LeaseRow& lease) { return lies_on(lease, id); }, preview);
  if (draining) preview.notes.insert(preview.notes.begin(), "device " + serial + " is being drained already");
  if (preview.all.empty()) preview.notes.push_back("nothing is on " + serial + ": the drain is over at once");
  if (moves.no_room_bytes() != 0)
    preview.notes.push_back(format_size(moves.no_room_bytes()) +
                            " find no room on the other devices: release leases, or add a device");
  preview.notes.push_back("nothing new is placed on " + serial + " until the drain is ended");
  return preview;
}

}  // namespace terrace::daemon
