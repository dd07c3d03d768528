// SPDX-License-Identifier: Apache-2.0
#include "daemon/web/console_page.h"

#include "daemon/web/console_files.h"

namespace terrace::daemon {
namespace {

// Nothing from elsewhere, no script or style but the console's own files.
constexpr const char* console_policy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

// Whether a list as of Accept-Encoding or If-None-Match has `wanted`: "gzip;q=0" refuses.
bool lists(std::string_view list, std::string_view wanted) {
  while (!list.empty()) {
    std::string_view one = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), one.size() + 1));
    while (one.starts_with(' ')) one.remove_prefix(1);
    if (one.starts_with("W/")) one.remove_prefix(2);  // a proxy may have weakened it
    if (!one.starts_with(wanted)) continue;
    std::string_view rest = one.substr(wanted.size());
    while (rest.starts_with(' ') || rest.starts_with(';')) rest.remove_prefix(1);
    if (rest.empty()) return true;
    if (rest.starts_with("q=")) return rest.find_first_not_of("0.", 2) != std::string_view::npos;
  }
  return false;
}

}  // namespace

bool has_console() {
  return !console_files().empty();
}

WebAnswer answer_console(std::string_view path, const FileWishes& wishes) {
  constexpr std::string_view folder = "/console/";
  if (!has_console())
    return web_error(Error{.code = ErrorCode::not_found,
                           .where = "http",
                           .detail = "this program was built without the console; / says how to get it"});
  if (path == "/console") {  // relative links need the folder
    WebAnswer answer{.status = 308, .type = "text/plain", .body = "/console/\n"};
    answer.location = folder;
    return answer;
  }
  const std::string_view name = path.substr(folder.size());
  for (const ConsoleFile& file : console_files()) {
    if (name != file.path) continue;
    WebAnswer answer;
    answer.type = file.type;
    answer.policy = console_policy;
    answer.etag = file.etag;
    if (lists(wishes.known, file.etag)) {
      answer.status = 304;
      return answer;
    }
    answer.gzip = lists(wishes.accepted, "gzip");
    const std::span<const uint8_t> bytes = answer.gzip ? file.gzip : file.plain;
    answer.body.assign(bytes.begin(), bytes.end());
    return answer;
  }
  return web_error(Error{.code = ErrorCode::not_found,
                         .where = "http",
                         .detail = "the console has no such file; begin at /console/"});
}

}  // namespace terrace::daemon
