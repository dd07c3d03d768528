// SPDX-License-Identifier: Apache-2.0
// Which requests are taken for those of our own page, or of a program.
#include <doctest/doctest.h>

#include "daemon/web/request_guard.h"

using namespace terrace::daemon;

namespace {

ActHeaders ours() {
  return {.host = "localhost:9464",
          .origin = "http://localhost:9464",
          .fetch_site = "same-origin",
          .fetch_dest = "empty",
          .content_type = "application/json",
          .action = "1"};
}

}  // namespace

TEST_CASE("request guard: our own page, and a program that sends no origin, are let in") {
  CHECK(why_foreign(ours()).empty());
  ActHeaders program = ours();
  program.origin = program.fetch_site = "";
  CHECK(why_foreign(program).empty());
  ActHeaders capital = ours();
  capital.host = "LocalHost:9464";
  CHECK(why_foreign(capital).empty());
  ActHeaders secure = ours();
  secure.origin = "https://localhost:9464";
  CHECK(why_foreign(secure).empty());
}

TEST_CASE("request guard: a page of another site, scheme, port or name is not") {
  for (const char* origin :
       {"http://evil.example", "http://localhost:9465", "http://localhost", "null", "file://",
        "http://localhost:9464.evil.example", "ftp://localhost:9464", "localhost:9464",
        "http://evil.example/http://localhost:9464", "http://user@localhost:9464"}) {
    ActHeaders headers = ours();
    headers.origin = origin;
    CHECK_MESSAGE(!why_foreign(headers).empty(), origin);
  }
  for (const char* site : {"cross-site", "same-site", "none", "SAME-ORIGIN", "x"}) {
    ActHeaders headers = ours();
    headers.fetch_site = site;
    CHECK_MESSAGE(!why_foreign(headers).empty(), site);
  }
  for (const char* action : {"", "0", "true", "1, 1"}) {
    ActHeaders headers = ours();
    headers.action = action;
    CHECK_MESSAGE(!why_foreign(headers).empty(), action);
  }
}

TEST_CASE("request guard: over TLS a page of ours is of https") {
  ActHeaders headers = ours();
  headers.secure = true;
  CHECK(!why_foreign(headers).empty());
  headers.origin = "https://localhost:9464";
  CHECK(why_foreign(headers).empty());
  headers.origin = "";
  CHECK(why_foreign(headers).empty());
}

TEST_CASE("request guard: what another site's page loads is not shown, and a link to it is followed") {
  ActHeaders headers = ours();
  for (const char* site : {"cross-site", "same-site"}) {
    headers.fetch_site = site;
    for (const char* dest : {"", "empty", "script", "image", "iframe", "frame", "object", "embed"}) {
      headers.fetch_dest = dest;
      CHECK_MESSAGE(!why_not_shown(headers).empty(), dest);
    }
    headers.fetch_dest = "document";
    CHECK(why_not_shown(headers).empty());
  }
  for (const char* site : {"", "none", "same-origin"}) {
    headers.fetch_site = site;
    headers.fetch_dest = "empty";
    CHECK_MESSAGE(why_not_shown(headers).empty(), site);
  }
}

TEST_CASE("request guard: JSON is what says so, and no form's type") {
  CHECK(says_json("application/json"));
  CHECK(says_json("Application/JSON; charset=utf-8"));
  for (const char* type :
       {"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
        "text/plain; application/json", "application/json-patch+json"})
    CHECK_MESSAGE(!says_json(type), type);
}
