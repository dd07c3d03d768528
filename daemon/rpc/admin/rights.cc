// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/admin/rights.h"

#include <algorithm>
#include <string_view>

#include "core/schema/litmus.capnp.h"

namespace terrace::daemon {
namespace {

struct AdminRight {
  const char* method;
  Authority needed;
};

// docs/operations/configuration.md has the same for people. An operator's work ends or moves what tenants have, which
// they ask for again; it makes no memory a tenant's that was another's, and changes no bound.
constexpr AdminRight admin_rights[] = {
    // To look.
    {"status", Authority::oversight},
    {"health", Authority::oversight},
    {"history", Authority::oversight},
    {"runs", Authority::oversight},
    {"events", Authority::oversight},
    {"devices", Authority::oversight},
    {"inventory", Authority::oversight},
    {"hosts", Authority::oversight},
    {"pools", Authority::oversight},
    {"leases", Authority::oversight},
    {"lease", Authority::oversight},
    {"quarantined", Authority::oversight},
    {"quotas", Authority::oversight},
    {"reservations", Authority::oversight},
    {"queue", Authority::oversight},
    {"progress", Authority::oversight},
    {"looked", Authority::oversight},
    {"audit", Authority::oversight},
    {"check", Authority::oversight},
    {"fsck", Authority::oversight},
    {"doctor", Authority::oversight},
    {"preview", Authority::oversight},
    {"whoAmI", Authority::oversight},
    // The day's work.
    {"grant", Authority::oversight},  // to its own tenant; to another: AdminServer::read_grant
    {"drain", Authority::oversight},
    {"undrain", Authority::oversight},
    {"compact", Authority::oversight},
    {"endCompaction", Authority::oversight},
    {"revoke", Authority::oversight},
    {"renew", Authority::oversight},
    {"release", Authority::oversight},
    {"resize", Authority::oversight},    // within the tenant's quota
    {"transfer", Authority::oversight},  // to another host; to another tenant: AdminServer::transfer
    {"cancelWaiting", Authority::oversight},
    // What pools are made of.
    {"adopt", Authority::administrator},
    {"failDevice", Authority::administrator},
    {"removeDevice", Authority::administrator},
    {"createRegion", Authority::administrator},
    {"destroyRegion", Authority::administrator},
    {"online", Authority::administrator},
    {"offline", Authority::administrator},
    {"createPool", Authority::administrator},
    {"setPoolCoherence", Authority::administrator},
    {"setPoolTrust", Authority::administrator},
    {"addDevice", Authority::administrator},
    {"deletePool", Authority::administrator},
    {"lookAt", Authority::administrator},  // decides what may be coherent
    {"removeHost", Authority::administrator},
    {"allowHost", Authority::administrator},
    // Who may have how much.
    {"setQuota", Authority::administrator},
    {"reserve", Authority::administrator},
    {"unreserve", Authority::administrator},
    // All of the store, with the keys by which tenants repeat their requests.
    {"backup", Authority::administrator},
};

const AdminRight* find_right(std::string_view method) {
  const auto* const at = std::find_if(std::begin(admin_rights), std::end(admin_rights),
                                      [&](const AdminRight& right) { return method == right.method; });
  return at == std::end(admin_rights) ? nullptr : at;
}

std::vector<capnp::InterfaceSchema> admin_interfaces() {
  return {capnp::Schema::from<rpc::Admin>(), capnp::Schema::from<rpc::LitmusAdmin>()};
}

}  // namespace

AdminMethod find_admin_method(uint64_t interface_id, uint16_t method_id) {
  for (const capnp::InterfaceSchema& interface : admin_interfaces()) {
    const auto methods = interface.getMethods();
    if (interface.getProto().getId() != interface_id || method_id >= methods.size()) continue;
    const char* name = methods[method_id].getProto().getName().cStr();
    const AdminRight* right = find_right(name);
    return {name, right == nullptr ? Authority::administrator : right->needed, methods[method_id]};
  }
  return {};
}

std::vector<std::string> admin_methods_of(Authority authority) {
  std::vector<std::string> names;
  for (const AdminRight& right : admin_rights)
    if (authority >= right.needed) names.emplace_back(right.method);
  return names;
}

std::vector<std::string> admin_methods_without_rights() {
  std::vector<std::string> names;
  for (const capnp::InterfaceSchema& interface : admin_interfaces()) {
    for (const auto method : interface.getMethods()) {
      const std::string name = method.getProto().getName().cStr();
      if (find_right(name) == nullptr) names.push_back(name);
    }
  }
  return names;
}

std::vector<std::string> rights_without_admin_method() {
  std::vector<std::string> names;
  for (const AdminRight& right : admin_rights) {
    bool known = false;
    for (const capnp::InterfaceSchema& interface : admin_interfaces())
      known = known || interface.findMethodByName(right.method) != nullptr;
    if (!known) names.emplace_back(right.method);
  }
  return names;
}

}  // namespace terrace::daemon
