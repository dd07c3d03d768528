// SPDX-License-Identifier: Apache-2.0
#include "daemon/web_sockets.h"

#include "daemon/log/log.h"

namespace terrace::daemon {

Result<SocketFile> serve_web(const DaemonConfig& config, WebServer& web, kj::AsyncIoContext& io) {
  SocketPlace place;
  place.path = http_socket_path_of(config);
  place.mode = config.socket_mode;
  TERRACE_ASSIGN_OR_RETURN(BoundSocket bound, listen_unix(place));
  web.listen_unix_socket(std::move(bound.listener));
  if (!config.http_listen.empty()) {
    // That it cannot be watched is no reason for it not to serve.
    try {
      auto address = io.provider->getNetwork().parseAddress(config.http_listen.c_str()).wait(io.waitScope);
      web.listen_tcp(address->listen(), config.http_listen);
      log::info("HTTP at http://{}/: whoever reaches it may look at everything", config.http_listen);
    } catch (const kj::Exception& exception) {
      log::error("http.listen = {}: {}; not served there until the next start", config.http_listen,
                 exception.getDescription().cStr());
    }
  }
  return std::move(bound.file);
}

PortProtocol https_at(WebServer& web, const ServedSocket& socket) {
  PortProtocol protocol;
  protocol.serve = [&web](kj::Own<kj::AsyncIoStream> stream, PeerCredentials peer, int fd) {
    return web.serve_remote(kj::mv(stream), std::move(peer), fd);
  };
  // Some browsers keep the connection while their user chooses a certificate.
  protocol.handshake_max = 60 * kj::SECONDS;
  const std::string text = "this port speaks HTTPS, to who has a certificate: " + socket.path + "\n";
  protocol.for_plain_http =
      "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: " +
      std::to_string(text.size()) + "\r\n\r\n" + text;
  return protocol;
}

void answer_to_certificate(WebServer& web, Credentials& credentials) {
  const auto take = [&web, &credentials] { web.answer_to_certificate(credentials.own_names()); };
  take();
  credentials.on_change(take);
}

}  // namespace terrace::daemon
