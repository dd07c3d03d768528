// SPDX-License-Identifier: Apache-2.0
#include "daemon/web/denied.h"

#include "daemon/rpc/connection.h"

namespace terrace::daemon {

WebAnswer deny_web(Service& service, const PeerCredentials& peer, const char* what) {
  const Error error = service.refused_authority(peer, Authority::oversight, what);
  std::string who = "uid " + std::to_string(peer.uid) + " (http)";
  if (peer.remote != nullptr) {
    auto connection = kj::refcounted<Connection>(service, peer);
    connection->client_name = "http";
    who = connection->name();
  }
  service.engine().note_denied("admin", service.name_for_audit(peer), error,
                               Actor{.text = std::move(who), .administrator = false});
  return web_error(error);
}

}  // namespace terrace::daemon
