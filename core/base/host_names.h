// SPDX-License-Identifier: Apache-2.0
// The names of managers and agents in certificates, and of hosts in the names of memory objects.
//
// Place     core/base: `terrace cert` writes these names, daemon/tls and daemon/memory/remote read them.
#pragma once

#include <cstddef>
#include <string_view>

namespace terrace {

// Hosts' names end up in object names of at most 63 characters, behind '@'; what stands in front of a ':' there
// is a kind of memory.
inline constexpr size_t agent_name_bytes_max = 24;

constexpr bool valid_agent_name(std::string_view name) {
  if (name.empty() || name.size() > agent_name_bytes_max || name[0] == '-' || name[0] == '.') return false;
  for (const char c : name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!letter && c != '-' && c != '_' && c != '.') return false;
  }
  return true;
}

// Common names: "manager:NAME" and "host:NAME".
inline constexpr std::string_view manager_certificate_prefix = "manager:";
inline constexpr std::string_view host_certificate_prefix = "host:";

// What every manager's certificate is valid for. Agents look for it whatever address they connect to: the CA is
// the authority on who manages, not the network's names.
inline constexpr const char* tls_server_name = "terrace-manager";

}  // namespace terrace
