// SPDX-License-Identifier: Apache-2.0
// What whoever connects to a unix socket of the daemon may do: by its uid, or by the socket alone.
//
// A process in a container is seen here with whatever uid its user namespace maps it to, uid 0 without one. What such a
// process may do must not follow from that: it follows from which socket it was given.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace terrace::daemon {

enum class SocketRole : uint8_t { by_uid, tenant, oversight, administrator };

// What a peer may ask of the operator's interface. An operator looks at everything and does the day's work; what the
// pools are made of, and who may have how much of them, is an administrator's.
enum class Authority : uint8_t { none, oversight, administrator };

constexpr SocketRole socket_roles[] = {SocketRole::by_uid, SocketRole::tenant, SocketRole::oversight,
                                       SocketRole::administrator};

constexpr const char* socket_role_name(SocketRole role) {
  switch (role) {
    case SocketRole::by_uid: return "by-uid";
    case SocketRole::tenant: return "tenant";
    case SocketRole::oversight: return "operator";
    case SocketRole::administrator: return "administrator";
  }
  return "by-uid";
}

inline std::optional<SocketRole> socket_role_of(std::string_view name) {
  for (const SocketRole role : socket_roles)
    if (name == socket_role_name(role)) return role;
  return std::nullopt;
}

// Whether the socket alone makes an operator or administrator of whoever reaches it.
constexpr bool gives_authority(SocketRole role) {
  return role == SocketRole::oversight || role == SocketRole::administrator;
}

// A socket as the connections that came through it know it.
struct ServedSocket {
  std::string path;
  SocketRole role = SocketRole::by_uid;
  std::string tenant;          // not empty: whom every caller acts for, whatever its uid
  uint32_t number = 0;         // among the daemon's sockets; 0: the main one
  std::string read_only = {};  // not empty: why nothing is changed by whoever comes through it
};

}  // namespace terrace::daemon
