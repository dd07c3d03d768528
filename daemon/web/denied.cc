// SPDX-License-Identifier: Apache-2.0
#include "daemon/web/denied.h"

namespace terrace::daemon {

WebAnswer deny_web(Service& service, const PeerCredentials& peer, const char* what) {
  const Error error = service.refused_authority(peer, Authority::oversight, what);
  const std::string uid = "uid-" + std::to_string(peer.uid);
  service.engine().note_denied(
      "admin", service.tenant_of(peer).value_or(uid), error,
      Actor{.text = "uid " + std::to_string(peer.uid) + " (http)", .administrator = false});
  return web_error(error);
}

}  // namespace terrace::daemon
