// SPDX-License-Identifier: Apache-2.0
#include "core/identity/client_certificate.h"

#include "core/base/plain_name.h"

namespace terrace {
namespace {

constexpr ClientRole roles[] = {ClientRole::tenant, ClientRole::oversight, ClientRole::administrator};

Error wrong_rights(std::string detail) {
  return Error{.code = ErrorCode::invalid_argument, .where = "client certificate", .detail = std::move(detail)};
}

Result<ClientRights> parse_rights(std::string_view text) {
  ClientRights rights;
  bool role = false, tenant = false;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view part = rest.substr(0, rest.find(';'));
    const size_t equals = part.find('=');
    const std::string_view key = part.substr(0, equals);
    const std::string value(equals == std::string_view::npos ? "" : part.substr(equals + 1));
    if (key == "role" && !role) {
      const auto known = client_role_of(value);
      if (!known.has_value()) return wrong_rights("its role '" + value + "' is none that is known here");
      rights.role = *known;
      role = true;
    } else if (key == "tenant" && !tenant) {
      rights.tenant = value;
      tenant = true;
      if (value.empty()) return wrong_rights("its tenant is empty");
    } else {
      return wrong_rights("its rights have '" + std::string(part) + "', which is not known here, or twice");
    }
    const bool last = part.size() == rest.size();
    if (!last && part.size() + 1 == rest.size()) return wrong_rights("its rights end with ';'");
    rest = last ? std::string_view() : rest.substr(part.size() + 1);
  }
  if (!role) return wrong_rights("it says no role");
  TERRACE_RETURN_IF_ERROR(check_client_rights(rights));
  return rights;
}

}  // namespace

const char* client_role_name(ClientRole role) {
  switch (role) {
    case ClientRole::tenant: return "tenant";
    case ClientRole::oversight: return "operator";
    case ClientRole::administrator: return "administrator";
  }
  return "tenant";
}

std::optional<ClientRole> client_role_of(std::string_view word) {
  for (const ClientRole role : roles)
    if (word == client_role_name(role)) return role;
  return std::nullopt;
}

Status check_client_rights(const ClientRights& rights) {
  if (rights.tenant.empty()) {
    if (rights.role != ClientRole::tenant) return {};
    return wrong_rights("the role tenant needs the name of one");
  }
  if (!valid_plain_name(rights.tenant)) {
    return wrong_rights("tenant '" + rights.tenant +
                        "' needs letters, digits and -_.:@, at most 63, and must not begin with '-' or '.'");
  }
  if (!rights.tenant.starts_with("uid-")) return {};
  return wrong_rights("tenant '" + rights.tenant +
                      "' has a name kept for users without one; choose one that does not begin with uid-");
}

std::string client_uri(const ClientRights& rights) {
  std::string uri = std::string(client_uri_scheme) + "role=" + client_role_name(rights.role);
  if (!rights.tenant.empty()) uri += ";tenant=" + rights.tenant;
  return uri;
}

Result<ClientRights> client_rights_in(const std::vector<std::string>& uris) {
  const std::string* ours = nullptr;
  for (const std::string& uri : uris) {
    if (!uri.starts_with(client_uri_scheme)) continue;
    if (ours != nullptr) return wrong_rights("it says its rights twice");
    ours = &uri;
  }
  if (ours == nullptr) {
    return wrong_rights(
        "it says no rights (a URI terrace:role=...), so that `terrace cert client` did not make it");
  }
  return parse_rights(std::string_view(*ours).substr(client_uri_scheme.size()));
}

}  // namespace terrace
