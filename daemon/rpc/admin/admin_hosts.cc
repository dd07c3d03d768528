// SPDX-License-Identifier: Apache-2.0
// Further hosts, as the operator sees them.
#include "daemon/rpc/admin/admin.h"

namespace terrace::daemon {

kj::Promise<void> AdminServer::hosts(HostsContext context) {
  return query(context, [this](HostsContext& c) {
    const std::vector<HostStatus> all =
        service().hosts() == nullptr ? std::vector<HostStatus>() : service().hosts()->list();
    auto out = c.getResults().initHosts(static_cast<uint32_t>(all.size()));
    for (uint32_t i = 0; i < all.size(); ++i) {
      const HostStatus& host = all[i];
      out[i].setName(host.name);
      out[i].setState(host.state);
      out[i].setAddress(host.address);
      out[i].setVersion(host.version);
      out[i].setDetail(host.detail);
      out[i].setLastContactNs(host.silent_ns);
      out[i].setEndsInNs(host.ends_in_ns);
      out[i].setLeases(static_cast<uint32_t>(host.leases));
      out[i].setLeasedBytes(host.bytes);
      auto devices = out[i].initDevices(static_cast<uint32_t>(host.devices.size()));
      for (uint32_t d = 0; d < host.devices.size(); ++d) devices.set(d, host.devices[d]);
      out[i].setCertificateDaysLeft(static_cast<int32_t>(host.certificate_days_left));
      out[i].setCertificateEndsSoon(host.certificate_ends_soon);
      out[i].setFenceNs(host.fencing.fence_ns);
      out[i].setMarginNs(host.fencing.margin_ns);
      out[i].setMarginMaxNs(host.fencing.margin_max_ns);
    }
  });
}

// Of the file beside the store before the entry in the log: an operator asks again when the entry cannot be written.
kj::Promise<void> AdminServer::removeHost(RemoveHostContext context) {
  return query(context, [this](RemoveHostContext& c) {
    const std::string name = read_text(c.getParams().getName());
    const bool revoke = c.getParams().getRevoke();
    if (!engine().serving() || service().hosts() == nullptr) return;  // settled() says why
    const Status removed = service().hosts()->remove(name, revoke, connection_->caller());
    if (!removed.ok()) return refuse(c, removed.error());
    engine().note("remove-host", "host " + name, revoke ? "its leases are revoked" : "", connection_->caller());
  });
}

kj::Promise<void> AdminServer::allowHost(AllowHostContext context) {
  return query(context, [this](AllowHostContext& c) {
    const std::string name = read_text(c.getParams().getName());
    if (!engine().serving() || service().hosts() == nullptr) return;
    const Status allowed = service().hosts()->allow(name);
    if (!allowed.ok()) return refuse(c, allowed.error());
    engine().note("allow-host", "host " + name, "", connection_->caller());
  });
}

}  // namespace terrace::daemon
