// SPDX-License-Identifier: Apache-2.0
#include "daemon/web/manager_pages.h"

#include "daemon/rpc/connection.h"
#include "daemon/web/acts.h"
#include "daemon/web/api.h"
#include "daemon/web/console_page.h"
#include "daemon/web/denied.h"
#include "daemon/web/front_page.h"
#include "daemon/web/metrics/metrics.h"

namespace terrace::daemon {
namespace {

// The same each time, and asked for by anybody.
const std::string& front_page_text() {
  static const std::string text = front_page();
  return text;
}
const std::string& open_api_text() {
  static const std::string text = web_json(open_api()).body;
  return text;
}

}  // namespace

kj::Promise<WebAnswer> ManagerPages::api(const PeerCredentials& peer, const std::string& path) {
  return ask_api(path, {}, [this, &peer](const char* method) -> std::variant<rpc::Admin::Client, WebAnswer> {
    if (service_.authority_of(peer) == Authority::none) return deny_web(service_, peer, method);
    auto connection = kj::refcounted<Connection>(service_, peer);
    connection->client_name = "http";
    connection->greeted = true;
    return make_admin(kj::mv(connection));
  });
}

kj::Promise<WebAnswer> ManagerPages::answer(const PeerCredentials& peer, const std::string& path,
                                            const FileWishes& wishes) {
  constexpr std::string_view api = "/api/v1/";
  const std::string place = web_place(path);
  if (place == "/healthz") return web_text(200, "ok\n");
  if (place == "/readyz") {
    const bool ready = service_.engine().serving();
    return web_text(ready ? 200 : 503,
                    ready ? "ok\n" : "the store could not be written, and is being read again\n");
  }
  if (place == "/api/v1/openapi.json") return WebAnswer{.body = open_api_text()};
  if (place == "/api/v1/planner") return planner_.progress(peer);
  if (place.starts_with(api)) return this->api(peer, path.substr(api.size()));
  if (place == "/") return WebAnswer{.type = "text/html; charset=utf-8", .body = front_page_text()};
  if (place == "/console" || place.starts_with("/console/")) return answer_console(place, wishes);
  if (place != "/metrics") return web_nothing_here();
  if (service_.authority_of(peer) == Authority::none) return deny_web(service_, peer, "metrics");
  return WebAnswer{.type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics_of(service_)};
}

bool ManagerPages::takes(const std::string& place) const {
  return is_act(place) || Planner::takes(place);
}

kj::Promise<WebAnswer> ManagerPages::take(const PeerCredentials& peer, WebPost post) {
  if (is_act(web_place(post.path))) return take_act(service_, timer_, peer, std::move(post));
  if (const std::string why = why_foreign(post.headers); !why.empty())
    return web_refusal(403, ErrorCode::permission_denied, why + "; nothing was done");
  return planner_.compute(peer,
                          {.path = std::move(post.path),
                           .type = std::move(post.headers.content_type),
                           .bytes = post.body.tryGetLength(),
                           .gone = std::move(post.gone)},
                          post.body);
}

}  // namespace terrace::daemon
