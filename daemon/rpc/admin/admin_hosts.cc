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
    }
  });
}

}  // namespace terrace::daemon
