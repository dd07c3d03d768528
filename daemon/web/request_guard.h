// SPDX-License-Identifier: Apache-2.0
// Whether a request comes from who it seems to come from, above all one that would change something. A browser sends what
// its user has (an ssh tunnel, a client's certificate) along whichever page asks; only our own page may use that.
//
// Threads   Pure.
#pragma once

#include <string>

namespace terrace::daemon {

// Of a request; empty: it was not sent.
struct ActHeaders {
  std::string host, origin, fetch_site, fetch_dest, content_type, action;
  bool secure = false;  // over TLS: a page of ours is of https://
};

// "X-Terrace-Action: 1" is a header that no form and no simple request of another page can have: a browser would ask
// first whether it may be sent (CORS), and nothing here ever says yes.
inline constexpr const char* action_header = "X-Terrace-Action";

// Why it is not taken for our own page's, or a program's; empty: it is.
std::string why_foreign(const ActHeaders& headers);

// Why something is not shown: a page of another site has its visitor's browser load it, as a script or a picture. Links
// are followed. Empty: it is shown.
std::string why_not_shown(const ActHeaders& headers);

// Whether it says that its body is JSON.
bool says_json(const std::string& content_type);

}  // namespace terrace::daemon
