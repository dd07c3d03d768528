// SPDX-License-Identifier: Apache-2.0
#include "daemon/web/web_answer.h"

#include <utility>

namespace terrace::daemon {
namespace {

unsigned status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument: return 400;
    case ErrorCode::permission_denied: return 403;
    case ErrorCode::not_found:
    case ErrorCode::lease_expired:
    case ErrorCode::lease_revoked: return 404;
    case ErrorCode::already_exists:
    case ErrorCode::capacity_exhausted: return 409;
    case ErrorCode::limit_exceeded: return 429;
    case ErrorCode::unavailable:
    case ErrorCode::busy: return 503;
    case ErrorCode::unsupported: return 501;
    default: return 500;
  }
}

}  // namespace

WebAnswer web_json(const nlohmann::json& document) {
  return {.body = document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"};
}

WebAnswer web_error(const Error& error) {
  WebAnswer answer = web_json({{"error", {{"code", error_code_name(error.code)}, {"message", error.detail}}}});
  answer.status = status_of(error.code);
  return answer;
}

WebAnswer web_refusal(unsigned status, ErrorCode code, std::string why) {
  WebAnswer answer = web_error(Error{.code = code, .where = "http", .detail = std::move(why)});
  answer.status = status;
  return answer;
}

WebAnswer web_text(unsigned status, std::string text) {
  return {.status = status, .type = "text/plain", .body = std::move(text)};
}

std::string web_place(const std::string& path) {
  return path.substr(0, path.find('?'));
}

WebAnswer web_nothing_here() {
  return web_error(Error{.code = ErrorCode::not_found,
                         .where = "http",
                         .detail = "there is nothing here; / has a list of what there is"});
}

}  // namespace terrace::daemon
