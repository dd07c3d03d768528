// SPDX-License-Identifier: Apache-2.0
#include "daemon/web/front_page.h"

#include "core/version/version.h"
#include "daemon/web/api.h"
#include "daemon/web/console_page.h"

namespace terrace::daemon {

std::string front_page() {
  std::string page =
      "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width\"><title>Terrace</title>"
      "<style>:root{color-scheme:light dark}body{font:1rem/1.5 "
      "system-ui,sans-serif;max-width:40rem;margin:2rem "
      "auto;padding:0 1rem}td{padding:.1rem 1rem .1rem 0;vertical-align:top}</style>"
      "<h1>Terrace ";
  page += version_number();
  page += "</h1><p>The pool manager of this machine.</p><p>";
  page += has_console()
              ? "<a href=\"/console/\">The console</a> shows all of it in the browser."
              : "This program was built without the console, which shows all of it in the browser: install "
                "Debian's <code>esbuild</code> and build again.";
  page +=
      "</p><table>"
      "<tr><td><a href=\"/metrics\">/metrics</a><td>for Prometheus"
      "<tr><td><a href=\"/healthz\">/healthz</a><td>whether the process answers"
      "<tr><td><a href=\"/readyz\">/readyz</a><td>whether it takes requests"
      "<tr><td><a href=\"/api/v1/openapi.json\">/api/v1/openapi.json</a><td>what the paths below give, and "
      "those that change something (POST)";
  const nlohmann::json document = open_api();
  for (const auto& [path, what] : document["paths"].items())
    if (what.contains("get"))
      page +=
          "<tr><td><a href=\"" + path + "\">" + path + "</a><td>" + what["get"]["summary"].get<std::string>();
  return page + "</table>\n";
}

}  // namespace terrace::daemon
