// SPDX-License-Identifier: Apache-2.0
// The operator's interface: what the daemon is and does, its audit log, and checks of its state.
#include "daemon/rpc/admin/admin.h"

#include <capnp/dynamic.h>

#include <map>

#include "core/schema/words.h"
#include "daemon/rpc/admin/rights.h"
#include "daemon/rpc/server_info.h"

namespace terrace::daemon {

rpc::Admin::Client make_admin(kj::Own<Connection> connection) {
  return kj::heap<AdminServer>(kj::mv(connection));
}

AdminServer::DispatchCallResult AdminServer::dispatchCall(
    uint64_t interface_id, uint16_t method_id,
    capnp::CallContext<capnp::AnyPointer, capnp::AnyPointer> context) {
  if (connection_->is_administrator())
    return rpc::LitmusAdmin::Server::dispatchCall(interface_id, method_id, context);
  const AdminMethod method = find_admin_method(interface_id, method_id);
  if (method.name == nullptr || connection_->authority() >= method.needed)
    return rpc::LitmusAdmin::Server::dispatchCall(interface_id, method_id, context);
  const Error error = service().refused_authority(connection_->peer, method.needed, method.name);
  deny(error);
  // Every method's results have `error`: unit_rpc looks at them all.
  auto results = context.getResults().initAs<capnp::DynamicStruct>(method.schema.getResultType());
  write_error(results.init("error").as<capnp::DynamicStruct>().as<rpc::Error>(), error);
  return {kj::Promise<void>(kj::READY_NOW), false};
}

// In the audit log, as what a tenant is refused.
void AdminServer::deny(const Error& error) {
  engine().note_denied("admin", service().name_for_audit(connection_->peer), error, connection_->caller());
}

kj::Promise<void> AdminServer::status(StatusContext context) {
  return query(context, [this](StatusContext& c) {
    write_status(c.getResults().initServer());
    write_pools(c.getResults().initPools(static_cast<uint32_t>(state().pools().size())), service());
    uint64_t leases = 0;  // who waits has none
    for (const auto& [id, use] : state().pool_uses()) leases += use.leases;
    c.getResults().setLeases(static_cast<uint32_t>(leases));
    write_health(c.getResults().initHealth());
  });
}

kj::Promise<void> AdminServer::whoAmI(WhoAmIContext context) {
  return query(context, [this](WhoAmIContext& c) {
    const Authority authority = connection_->authority();
    const auto& socket = connection_->peer.socket;
    const std::string read_only = socket == nullptr ? "" : socket->read_only;
    auto who = c.getResults().initWho();
    who.setName(connection_->name());
    who.setRole(authority == Authority::administrator ? "administrator" : "operator");
    // Over plain TCP a peer has no uid that would make a tenant of it.
    if (read_only.empty()) who.setTenant(service().tenant_of(connection_->peer).value_or(""));
    who.setReadOnly(read_only);
    const std::vector<std::string> names = admin_methods_of(authority);
    auto methods = who.initMethods(static_cast<uint32_t>(names.size()));
    for (uint32_t i = 0; i < names.size(); ++i) methods.set(i, schema::snake_case(names[i]));
  });
}

void AdminServer::write_status(rpc::ServerInfo::Builder server) {
  const ServiceOptions& options = service().options();
  const EngineCounters& counters = engine().counters();
  write_process(server, service(), service().started_ns());
  server.setRuntimeDirectory(options.runtime_directory);
  server.setStateFile(options.state_file);
  server.setStoreId(options.store_id);
  server.setObjectDirectory(options.object_directory);
  server.setHugePages(engine().backend().describe_memory());
  server.setStoreCommits(counters.commits);
  server.setCommandsApplied(counters.commands);
  if (service().hosts() != nullptr) write_certificates(server, service().hosts()->certificate_ends());
  std::string recovered;
  for (const std::string& finding : engine().findings()) recovered += finding + "\n";
  server.setRecovered(recovered);
  const ScrubCounters& scrub = engine().scrub_counters();
  server.setScrubbedBytes(scrub.scrubbed_bytes);
  server.setScrubQueuedBytes(scrub.queued_bytes);
  server.setScrubBytesPerS(engine().options().scrub_bytes_per_s);
  uint64_t waiting = 0;
  for (const auto& [id, pool] : state().pools()) waiting += state().pool_use(id).waiting;
  server.setWaiting(static_cast<uint32_t>(waiting));
}

kj::Promise<void> AdminServer::audit(AuditContext context) {
  KJ_IF_MAYBE (slot, admit(*connection_, context)) {
    const auto asked = context.getParams().getQuery();
    AuditQuery wanted;
    wanted.after = asked.getAfter();
    wanted.since_ns = asked.getSinceNs();
    wanted.limit = std::min(asked.getLimit(), limits::audit_rows_per_page_max);
    wanted.tenant = read_text(asked.getTenant());
    wanted.verb = read_text(asked.getVerb());
    wanted.subject = read_text(asked.getSubject());
    wanted.newest_first = asked.getNewestFirst();
    return engine()
        .audit(std::move(wanted))
        .then([context](Result<AuditPage> page) mutable {
          if (!page.ok()) {
            refuse(context, page.error());
            return;
          }
          auto results = context.getResults();
          results.setOldest(page->oldest);
          results.setNewest(page->newest);
          auto entries = results.initEntries(static_cast<uint32_t>(page->rows.size()));
          for (uint32_t i = 0; i < page->rows.size(); ++i) {
            const AuditRow& row = page->rows[i];
            entries[i].setSequence(row.sequence);
            entries[i].setWallNs(row.wall_ns);
            entries[i].setActor(row.actor);
            entries[i].setTenant(row.tenant);
            entries[i].setVerb(row.verb);
            entries[i].setSubject(row.subject);
            entries[i].setDetail(row.detail);
          }
        })
        .attach(kj::mv(*slot));
  }
  return kj::READY_NOW;
}

}  // namespace terrace::daemon
