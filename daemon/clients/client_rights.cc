// SPDX-License-Identifier: Apache-2.0
#include "daemon/clients/client_rights.h"

#include <algorithm>

#include "core/base/host_names.h"
#include "core/identity/client_certificate.h"

namespace terrace::daemon {
namespace {

SocketRole socket_role(ClientRole role) {
  switch (role) {
    case ClientRole::tenant: return SocketRole::tenant;
    case ClientRole::oversight: return SocketRole::oversight;
    case ClientRole::administrator: return SocketRole::administrator;
  }
  return SocketRole::tenant;
}

// Roles are ordered from the least to the most; by_uid, which no such socket has, is the least.
static_assert(SocketRole::by_uid < SocketRole::tenant && SocketRole::tenant < SocketRole::oversight &&
              SocketRole::oversight < SocketRole::administrator);

// Names of hosts and of clients follow one rule: both are short, and stand in file names.
bool valid_client_name(const std::string& name) {
  return valid_agent_name(name);
}

std::string why_refused(const RemoteClient& client, const ServedSocket& socket) {
  if (!socket.tenant.empty() && client.tenant != socket.tenant) {
    return "the socket " + socket.path + " is of tenant " + socket.tenant +
           " only, and the certificate of client " + client.name +
           (client.tenant.empty() ? " names no tenant" : " is of tenant " + client.tenant) +
           "; use another certificate or another socket";
  }
  if (client.role == SocketRole::tenant && client.tenant.empty()) {
    return "the socket " + socket.path + " is for tenants, and the certificate of client " + client.name +
           " names none; use another socket, or a certificate with a tenant (`terrace cert client --tenant`)";
  }
  return "";
}

}  // namespace

RemoteClient remote_client(const CertificateFacts& certificate, const ServedSocket& socket,
                           const std::string& address) {
  RemoteClient client;
  client.serial = certificate.serial;
  client.address = address;
  client.name = certificate.name;
  if (!certificate.name.starts_with(client_certificate_prefix)) {
    client.refused = "its certificate is for '" + certificate.name +
                     "', not for a client; `terrace cert client` makes one that is";
    return client;
  }
  client.name = certificate.name.substr(client_certificate_prefix.size());
  if (!valid_client_name(client.name)) {
    client.refused = "its certificate's name '" + certificate.name + "' is no client's name of at most " +
                     std::to_string(agent_name_bytes_max) + " characters";
    return client;
  }
  const auto rights = client_rights_in(certificate.uris);
  if (!rights.ok()) {
    client.refused = "the certificate of client " + client.name + " cannot be used: " + rights.error().detail +
                     "; `terrace cert client` makes another";
    return client;
  }
  client.role = std::min(socket_role(rights->role), socket.role);
  client.tenant = rights->tenant;
  client.refused = why_refused(client, socket);
  return client;
}

}  // namespace terrace::daemon
