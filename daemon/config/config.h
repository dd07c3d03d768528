// SPDX-License-Identifier: Apache-2.0
// The daemon's configuration: defaults, a TOML file over them, flags over both; then validated as a whole.
//
// Place     daemon/main builds one DaemonConfig and hands pieces of it on; nothing else reads files or flags.
// Threads   Plain values; the functions are called once at start.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/limits.h"
#include "core/base/result.h"
#include "daemon/health/health_limits.h"
#include "daemon/memory/files/emulated.h"
#include "daemon/model/socket_role.h"
#include "daemon/model/userfaultfd_rule.h"

namespace terrace::daemon {

enum class LogFormat : uint8_t { text, json };

// An agent fences in a part of it, which must not be lost to one slow moment of a busy machine or network; beyond ten
// minutes a dead host keeps its memory for too long.
inline constexpr uint64_t host_lease_ns_min = 10 * ns_per_s;
inline constexpr uint64_t host_lease_ns_max = 600 * ns_per_s;
// Tests wait for many of them. Only in builds with failpoints, and where TERRACE_SHORT_HOST_LEASE is in the environment.
inline constexpr uint64_t host_lease_ns_min_in_tests = 1 * ns_per_s;

enum class Role : uint8_t { manager, agent };

// What is spoken at a TCP port of [[sockets]].
enum class SocketProtocol : uint8_t { rpc, https };

// A socket to serve, beside the main one: a unix socket, where whoever opens it may do what its role says, or a TCP port for
// clients with certificates, of whom nobody may do more than its role says.
struct SocketConfig {
  std::string path;    // of a unix socket
  std::string listen;  // not empty: HOST:PORT, over mutual TLS, and no path
  SocketProtocol protocol = SocketProtocol::rpc;
  uint32_t mode = 0666;
  SocketRole role = SocketRole::by_uid;
  std::string tenant;  // not empty: of every caller, whatever its uid
  std::optional<uint32_t> owner, group;

  bool operator==(const SocketConfig&) const = default;
};

struct DaemonConfig {
  Role role = Role::manager;
  std::string listen;                            // manager: HOST:PORT for agents; empty: none can come
  std::string manager;                           // agent: HOST:PORT of the manager
  std::string tls_ca, tls_certificate, tls_key;  // PEM files of `terrace cert`
  std::string tls_ca_key;                  // manager: renews agents' certificates with it; empty: none are
  uint32_t tls_renew_days = 30;            // how long what it renews is good
  bool tls_renew_clients = false;          // whether clients' certificates are renewed with it, too
  std::string tls_revoked;                 // its list of revoked ones; empty: none is
  uint64_t host_lease_ns = 30 * ns_per_s;  // manager: how long a host keeps its leases without word from it
  std::map<std::string, std::set<std::string>> host_tenants;  // manager: host -> whom it may act for; none: all

  std::string runtime_directory;  // the socket and, by default, the objects live below it
  std::string socket_path;        // empty: <runtime_directory>/terraced.sock
  std::string state_path;         // the SQLite store
  uint32_t socket_mode = 0666;    // peers are known by uid; the mode only hides the socket
  SocketRole socket_role = SocketRole::by_uid;
  std::vector<SocketConfig> sockets;  // further ones
  std::string http_listen;            // HOST:PORT to be read over HTTP; empty: only at its unix socket
  std::string host;                   // empty: the machine's host name

  bool hardware = true;  // real memory too; dax devices only as root

  std::vector<EmulatedDevice> emulated;
  std::string object_directory;                    // empty: chosen by the emulated backend
  bool mount = true;                               // mount a tmpfs of our own when root
  HugePages huge_pages = HugePages::always;        // of that mount
  uint64_t granule_bytes = limits::granule_bytes;  // of emulated devices
  bool overcommit = false;                         // memory is taken when touched, not when granted

  std::map<uint32_t, std::string> tenants;                // uid -> tenant
  std::set<uint32_t> admin_uids;                          // those listed; administrators_of has all
  bool root_is_administrator = true;                      // unless listed: so that uid 0 of a container is none
  bool allow_unmapped_uids = false;                       // other uids become tenant "uid-N"
  UserfaultfdRule userfaultfd = UserfaultfdRule::kernel;  // which tenants' programs are given /dev/userfaultfd

  std::string log_level = "info";  // trace, debug, info, warning, error, critical, off
  LogFormat log_format = LogFormat::text;
  std::string log_file;  // empty: standard error

  std::string audit_file;  // a copy of the audit log that is never cut; empty: none
  uint64_t audit_rotate_bytes = 64ull << 20;
  bool audit_syslog = false;  // a copy to the machine's logging service
  std::string audit_syslog_socket = "/dev/log";
  bool audit_journal = false;  // a copy to systemd's journal, with fields, at events_journal_socket

  bool events_journal = false;  // events as entries of systemd's journal
  std::string events_journal_socket = "/run/systemd/journal/socket";
  std::string events_file;  // events as lines of JSON; empty: none
  uint64_t events_rotate_bytes = 64ull << 20;
  std::string events_webhook;  // URL that events are sent to; empty: none

  std::string traces_endpoint;  // manager: URL that spans are sent to, OTLP over HTTP; empty: none
  double traces_sample = 1;     // of the traces that begin here

  uint64_t scrub_bytes_per_s = 0;  // bound of erasing in the background; 0: none

  HealthLimits health;  // from when on something is a finding of `terrace health`

  uint64_t ttl_ns_max = limits::ttl_ns_max;
  uint32_t connections_max = limits::rpc_connections_max;
  uint32_t calls_outstanding_max = limits::rpc_calls_outstanding_max;

  bool operator==(const DaemonConfig&) const = default;
};

// What an installed daemon uses without a file: /run/terrace and /var/lib/terrace for root, the XDG
// directories for others.
DaemonConfig default_config();

// `base` with what the file at `path` says. All of it is read before anything is refused.
// What it says is also checked as find_problems does; what `base` had wrong before is left to the caller.
// Errors    not_found, permission_denied, io_error   the file
//           invalid_argument   one line for each mistake: "FILE:LINE: what is wrong; how to fix it"
Result<DaemonConfig> load_config_file(const std::string& path, DaemonConfig base);

// Something that makes a configuration unusable: the keys that lead to it in a file, and what to do.
struct ConfigProblem {
  std::vector<std::string> key;
  std::string text;
};

// Every contradiction in a finished configuration; none when it can be used.
std::vector<ConfigProblem> find_problems(const DaemonConfig& config);
// The same, in words only.
std::vector<std::string> validate(const DaemonConfig& config);

// "cxl0=2G" -> {"cxl0", 2 GiB}.
// Errors    invalid_argument   names the text and what is wrong with it
Result<EmulatedDevice> parse_emulated_device(std::string_view text);

// Whether `text` is HOST:PORT or [IPV6]:PORT.
bool valid_address(const std::string& text);

// The main socket, once the configuration is final.
std::string socket_path_of(const DaemonConfig& config);
// Where the manager is read over HTTP: beside the main socket.
std::string http_socket_path_of(const DaemonConfig& config);
// Where clients of other machines connect, as they write it: "tls://HOST:PORT", "https://HOST:PORT"; of a unix socket its
// path.
std::string place_of(const SocketConfig& socket);
// All that are to be served, the main one first.
std::vector<SocketConfig> sockets_of(const DaemonConfig& config);
// Who is an administrator at a socket of the role by-uid: those listed, the daemon's own uid, and root; not root, daemon
// or not, where the configuration says so.
std::set<uint32_t> administrators_of(const DaemonConfig& config);

}  // namespace terrace::daemon
