// SPDX-License-Identifier: Apache-2.0
// Between the manager's rows and the schema's messages. No decisions.
#pragma once

#include <string>
#include <vector>

#include "core/schema/terrace.capnp.h"
#include "daemon/rpc/service.h"

namespace terrace::daemon {

// The one way of an error out: its text is made printable and bounded, since it may quote what a peer sent.
void write_error(rpc::Error::Builder out, const Error& error);

// `with_object` also asks the backend what the object really occupies (one stat).
void write_lease(rpc::LeaseInfo::Builder out, const LeaseRow& lease, Service& service, bool with_object);
// A page of them. Past some hundred thousand extents the others' are left out, so that any page is one message.
void write_leases(capnp::List<rpc::LeaseInfo>::Builder out, const std::vector<const LeaseRow*>& leases,
                  Service& service);
void write_pool(rpc::PoolInfo::Builder out, const PoolRow& pool, Service& service);
void write_pools(capnp::List<rpc::PoolInfo>::Builder out, Service& service);  // all of them

// What leases have of a device, whatever their phases.
struct DeviceUse {
  uint64_t leases = 0;
  uint64_t bytes = 0;
};
// Of all devices at once, O(leases).
std::unordered_map<DeviceId, DeviceUse> device_uses(const StateMachine& state);
DeviceUse device_use(const StateMachine& state, const DeviceRow& device);  // of one, O(leases)
void write_attributes(rpc::TierAttributes::Builder out, const TierAttributes& attributes);
rpc::Isolation isolation_of(const TierAttributes& attributes);
void write_device(rpc::DeviceInfo::Builder out, const DeviceRow& device, const DeviceUse& use,
                  const std::string& detail, Engine& engine);

// How many entries a page may have: what was asked for, within the bound; 0 asks for the most.
uint32_t page_size(uint32_t asked);

// The text of a request, as a string. Lengths are checked by the state machine.
inline std::string read_text(capnp::Text::Reader text) {
  return std::string(text.cStr(), text.size());
}
// A peer's text for an error's detail: printable and short, whatever it sent.
std::string shown(const std::string& text);

}  // namespace terrace::daemon
