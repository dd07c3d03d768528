// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/reload.h"

namespace terrace::daemon {
namespace {

enum class When { now, next_start };

struct Key {
  const char* name;
  When when;
  bool (*same)(const DaemonConfig&, const DaemonConfig&);
  void (*take)(DaemonConfig& to, const DaemonConfig& from);
};

template <auto Member>
constexpr Key key(const char* name, When when) {
  return {name, when, [](const DaemonConfig& a, const DaemonConfig& b) { return a.*Member == b.*Member; },
          [](DaemonConfig& to, const DaemonConfig& from) { to.*Member = from.*Member; }};
}

// All of DaemonConfig.
constexpr Key keys[] = {
    key<&DaemonConfig::role>("role", When::next_start),
    key<&DaemonConfig::listen>("listen.address", When::next_start),
    key<&DaemonConfig::host_lease_ns>("listen.host_lease", When::next_start),
    key<&DaemonConfig::manager>("agent.manager", When::next_start),
    key<&DaemonConfig::tls_ca>("tls.ca", When::next_start),
    key<&DaemonConfig::tls_certificate>("tls.certificate", When::next_start),
    key<&DaemonConfig::tls_key>("tls.key", When::next_start),
    key<&DaemonConfig::tls_ca_key>("tls.ca_key", When::next_start),
    key<&DaemonConfig::tls_renew_days>("tls.renew_days", When::next_start),
    key<&DaemonConfig::tls_renew_clients>("tls.renew_clients", When::next_start),
    key<&DaemonConfig::tls_revoked>("tls.revoked", When::next_start),
    key<&DaemonConfig::host_tenants>("hosts", When::now),
    key<&DaemonConfig::runtime_directory>("runtime_directory", When::next_start),
    key<&DaemonConfig::socket_path>("socket", When::next_start),
    key<&DaemonConfig::state_path>("state", When::next_start),
    key<&DaemonConfig::socket_mode>("socket_mode", When::next_start),
    key<&DaemonConfig::socket_role>("socket_role", When::next_start),
    key<&DaemonConfig::sockets>("sockets", When::next_start),
    key<&DaemonConfig::host>("host", When::next_start),
    key<&DaemonConfig::hardware>("hardware", When::next_start),
    key<&DaemonConfig::emulated>("emulated.devices", When::next_start),
    key<&DaemonConfig::object_directory>("emulated.object_directory", When::next_start),
    key<&DaemonConfig::mount>("emulated.mount", When::next_start),
    key<&DaemonConfig::huge_pages>("emulated.huge_pages", When::next_start),
    key<&DaemonConfig::granule_bytes>("emulated.granule", When::next_start),
    key<&DaemonConfig::overcommit>("emulated.overcommit", When::next_start),
    key<&DaemonConfig::tenants>("tenants.uids", When::now),
    key<&DaemonConfig::admin_uids>("admin_uids", When::now),
    key<&DaemonConfig::root_is_administrator>("root_is_administrator", When::now),
    key<&DaemonConfig::allow_unmapped_uids>("tenants.allow_unmapped_uids", When::now),
    key<&DaemonConfig::userfaultfd>("clients.userfaultfd", When::now),
    key<&DaemonConfig::log_level>("log.level", When::now),
    key<&DaemonConfig::log_format>("log.format", When::now),
    key<&DaemonConfig::log_file>("log.file", When::now),
    key<&DaemonConfig::audit_file>("audit.file", When::next_start),
    key<&DaemonConfig::audit_rotate_bytes>("audit.rotate", When::next_start),
    key<&DaemonConfig::audit_syslog>("audit.syslog", When::next_start),
    key<&DaemonConfig::audit_syslog_socket>("audit.syslog_socket", When::next_start),
    key<&DaemonConfig::audit_journal>("audit.journal", When::next_start),
    key<&DaemonConfig::events_journal>("events.journal", When::next_start),
    key<&DaemonConfig::events_journal_socket>("events.journal_socket", When::next_start),
    key<&DaemonConfig::events_file>("events.file", When::next_start),
    key<&DaemonConfig::events_rotate_bytes>("events.rotate", When::next_start),
    key<&DaemonConfig::events_webhook>("events.webhook", When::next_start),
    key<&DaemonConfig::traces_endpoint>("traces.endpoint", When::now),
    key<&DaemonConfig::traces_sample>("traces.sample", When::now),
    key<&DaemonConfig::scrub_bytes_per_s>("scrub.bytes_per_s", When::next_start),
    key<&DaemonConfig::health>("health", When::next_start),
    key<&DaemonConfig::http_listen>("http.listen", When::next_start),
    key<&DaemonConfig::ttl_ns_max>("limits.ttl_max", When::next_start),
    key<&DaemonConfig::connections_max>("limits.connections_max", When::now),
    key<&DaemonConfig::calls_outstanding_max>("limits.calls_outstanding_max", When::now),
};

}  // namespace

Reloaded take_over(const DaemonConfig& running, const DaemonConfig& read) {
  Reloaded reloaded{.config = running, .taken = {}, .need_restart = {}};
  DaemonConfig whole = running;
  for (const Key& key : keys) {
    if (key.same(running, read)) continue;
    key.take(whole, read);
    (key.when == When::now ? reloaded.taken : reloaded.need_restart).emplace_back(key.name);
    if (key.when == When::now) key.take(reloaded.config, read);
  }
  // A member of DaemonConfig that `keys` lacks: no reason to end a manager, and none to say nothing.
  if (!(whole == read)) reloaded.need_restart.emplace_back("what has no name here");
  return reloaded;
}

}  // namespace terrace::daemon
