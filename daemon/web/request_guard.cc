// SPDX-License-Identifier: Apache-2.0
#include "daemon/web/request_guard.h"

#include <algorithm>
#include <cctype>

namespace terrace::daemon {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// "https://pool:9464" -> "pool:9464"; empty: it is no origin of a page ("null", of a file or a sandbox).
std::string authority_in(const std::string& origin, bool secure) {
  for (const char* scheme : {"http://", "https://"})
    if (origin.starts_with(scheme) && (!secure || scheme == std::string("https://")))
      return origin.substr(std::string(scheme).size());
  return "";
}

}  // namespace

bool says_json(const std::string& content_type) {
  std::string type = lower(content_type.substr(0, content_type.find(';')));
  while (!type.empty() && type.back() == ' ') type.pop_back();
  return type == "application/json";
}

std::string why_not_shown(const ActHeaders& headers) {
  if (headers.fetch_site != "cross-site" && headers.fetch_site != "same-site") return "";
  if (headers.fetch_dest == "document") return "";
  return "a page of another site loads this (Sec-Fetch-Site: " + headers.fetch_site + ")";
}

std::string why_foreign(const ActHeaders& headers) {
  // What the browser says of the page that asks comes first: no page can change that.
  if (!headers.fetch_site.empty() && headers.fetch_site != "same-origin")
    return "a page of another site asks (Sec-Fetch-Site: " + headers.fetch_site.substr(0, 32) + ")";
  if (!headers.origin.empty()) {
    const std::string from = authority_in(lower(headers.origin), headers.secure);
    if (from.empty() || from != lower(headers.host))
      return "a page of another origin asks (" + headers.origin.substr(0, 128) + ")";
  }
  if (headers.action != "1")
    return std::string("the header ") + action_header +
           ": 1 is missing, by which a page of another site is told apart";
  return "";
}

}  // namespace terrace::daemon
