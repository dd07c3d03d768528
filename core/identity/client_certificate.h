// SPDX-License-Identifier: Apache-2.0
// What the certificate of a client says: who it is, and what it may do at a manager.
//
//   common name        client:NAME
//   alternative name   URI:terrace:role=ROLE[;tenant=TENANT]   exactly one
//
// Place     core/identity: `terrace cert client` writes it, daemon/clients reads it.
// Threads   Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"

namespace terrace {

inline constexpr std::string_view client_certificate_prefix = "client:";
inline constexpr std::string_view client_uri_scheme = "terrace:";

// From the least to the most.
enum class ClientRole : uint8_t { tenant, oversight, administrator };

// "tenant", "operator", "administrator"
const char* client_role_name(ClientRole role);
std::optional<ClientRole> client_role_of(std::string_view word);

struct ClientRights {
  ClientRole role = ClientRole::tenant;
  std::string tenant;  // whom it acts for; empty: nobody, which a tenant's never is

  bool operator==(const ClientRights&) const = default;
};

// Errors    invalid_argument   a tenant's without a tenant, or one with a name that is none
Status check_client_rights(const ClientRights& rights);

// "terrace:role=tenant;tenant=training"; `rights` as check_client_rights has them.
std::string client_uri(const ClientRights& rights);

// Of all URIs of a certificate the one that is ours. What this program does not know is refused, not passed over: it may
// be a bound.
// Errors    invalid_argument   there is none, or several; or it does not say what it should
Result<ClientRights> client_rights_in(const std::vector<std::string>& uris);

}  // namespace terrace
