// SPDX-License-Identifier: Apache-2.0
#include "daemon/agent/web/agent_pages.h"

#include "daemon/agent/agent_admin.h"
#include "daemon/agent/web/agent_metrics.h"
#include "daemon/web/api.h"

namespace terrace::daemon {
namespace {

// What agent_admin.cc answers.
constexpr std::string_view api_names[] = {"status", "health"};

constexpr const char* front_text =
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Terrace</title>"
    "<h1>An agent of Terrace</h1><p>To be read only; pools and leases are shown by its manager.</p><ul>"
    "<li><a href=\"/metrics\">/metrics</a> for Prometheus"
    "<li><a href=\"/healthz\">/healthz</a> whether the process answers"
    "<li><a href=\"/readyz\">/readyz</a> whether it is registered with its manager"
    "<li><a href=\"/api/v1/status\">/api/v1/status</a>"
    "<li><a href=\"/api/v1/health\">/api/v1/health</a>"
    "<li><a href=\"/api/v1/openapi.json\">/api/v1/openapi.json</a></ul>\n";

const std::string& open_api_text() {
  static const std::string text = web_json(open_api(api_names)).body;
  return text;
}

}  // namespace

WebAnswer AgentPages::deny(const PeerCredentials& peer, const char* what) {
  service_.peer_log().warn(service_.now_ns(),
                           peer.text() + " (http): denied " + what + ": no administrator or operator here");
  return web_error(service_.refused_authority(peer, Authority::oversight, what));
}

kj::Promise<WebAnswer> AgentPages::api(const PeerCredentials& peer, const std::string& path) {
  return ask_api(path, api_names,
                 [this, &peer](const char* method) -> std::variant<rpc::Admin::Client, WebAnswer> {
                   if (service_.authority_of(peer) == Authority::none) return deny(peer, method);
                   auto connection = kj::refcounted<LocalConnection>(service_, peer);
                   connection->client_name = "http";
                   connection->greeted = true;
                   return make_agent_admin(kj::mv(connection), service_.health());
                 });
}

kj::Promise<WebAnswer> AgentPages::answer(const PeerCredentials& peer, const std::string& path,
                                          const FileWishes&) {
  constexpr std::string_view api_place = "/api/v1/";
  const std::string place = web_place(path);
  if (place == "/healthz") return web_text(200, "ok\n");
  if (place == "/readyz") {
    const bool ready = service_.uplink().connected();
    return web_text(ready ? 200 : 503, ready ? "ok\n" : "the manager is away\n");
  }
  if (place == "/api/v1/openapi.json") return WebAnswer{.body = open_api_text()};
  if (place.starts_with(api_place)) return api(peer, path.substr(api_place.size()));
  if (place == "/") return WebAnswer{.type = "text/html; charset=utf-8", .body = front_text};
  if (place != "/metrics") return web_nothing_here();
  if (service_.authority_of(peer) == Authority::none) return deny(peer, "metrics");
  return WebAnswer{.type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics_of_agent(service_)};
}

}  // namespace terrace::daemon
