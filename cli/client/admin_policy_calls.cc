// The operator's calls about quotas, reservations, the audit log, consistency and further hosts.
#include <algorithm>
#include <deque>

#include "cli/client/admin_impl.h"
#include "core/base/limits.h"

namespace terrace::cli {
namespace {

using client::text_from_wire;

struct AuditPage {
  uint64_t after = 0;
  uint64_t limit = 0;  // 0: as many as the daemon gives
  bool newest_first = false;
};

void write_query(const AuditFilter& filter, const AuditPage& page, rpc::AuditQuery::Builder query) {
  query.setAfter(page.after);
  query.setLimit(static_cast<uint32_t>(page.limit));
  query.setTenant(filter.tenant);
  query.setVerb(filter.verb);
  query.setSubject(filter.subject);
  query.setSinceNs(filter.since_ns);
  query.setNewestFirst(page.newest_first);
}

std::vector<AuditRecord> read_entries(capnp::List<rpc::AuditEntry>::Reader reader) {
  std::vector<AuditRecord> entries;
  entries.reserve(reader.size());
  for (const rpc::AuditEntry::Reader entry : reader) {
    entries.push_back({.sequence = entry.getSequence(),
                       .wall_ns = entry.getWallNs(),
                       .actor = text_from_wire(entry.getActor()),
                       .tenant = text_from_wire(entry.getTenant()),
                       .verb = text_from_wire(entry.getVerb()),
                       .subject = text_from_wire(entry.getSubject()),
                       .detail = text_from_wire(entry.getDetail())});
  }
  return entries;
}

}  // namespace

Result<std::vector<QuotaStatus>> AdminClient::quotas() {
  return impl_->call(impl_->admin.quotasRequest(), "Admin.quotas", [](auto& reply) {
    std::vector<QuotaStatus> quotas;
    for (const auto quota : reply.getQuotas()) {
      quotas.push_back({.tenant = text_from_wire(quota.getTenant()),
                        .bytes_max = quota.getBytesMax(),
                        .leases_max = quota.getLeasesMax(),
                        .bytes = quota.getBytes(),
                        .leases = quota.getLeases()});
    }
    return quotas;
  });
}

Status AdminClient::set_quota(const QuotaStatus& quota) {
  auto request = impl_->admin.setQuotaRequest();
  auto wire = request.initQuota();
  wire.setTenant(quota.tenant);
  wire.setBytesMax(quota.bytes_max);
  wire.setLeasesMax(quota.leases_max);
  return impl_->call(kj::mv(request), "Admin.setQuota");
}

Result<ReservationStatus> AdminClient::reserve(const ReservationStatus& wanted) {
  auto request = impl_->admin.reserveRequest();
  request.setPool(wanted.pool);
  request.setTenant(wanted.tenant);
  request.setBytes(wanted.bytes);
  request.setTtlNs(wanted.ttl_ns);
  return impl_->call(kj::mv(request), "Admin.reserve",
                     [](auto& reply) { return read_reservation(reply.getReservation()); });
}

Result<std::vector<ReservationStatus>> AdminClient::reservations() {
  return impl_->call(impl_->admin.reservationsRequest(), "Admin.reservations", [](auto& reply) {
    std::vector<ReservationStatus> reservations;
    for (const auto reservation : reply.getReservations())
      reservations.push_back(read_reservation(reservation));
    return reservations;
  });
}

Status AdminClient::unreserve(uint64_t id) {
  auto request = impl_->admin.unreserveRequest();
  request.setReservation(id);
  return impl_->call(kj::mv(request), "Admin.unreserve");
}

Result<std::vector<AuditRecord>> AdminClient::audit_newest(const AuditFilter& filter, uint64_t limit) {
  if (limit != 0 && limit <= limits::audit_rows_per_page_max) {
    auto request = impl_->admin.auditRequest();
    write_query(filter, {.limit = limit, .newest_first = true}, request.initQuery());
    TERRACE_ASSIGN_OR_RETURN(std::vector<AuditRecord> entries,
                             impl_->call(kj::mv(request), "Admin.audit",
                                         [](auto& reply) { return read_entries(reply.getEntries()); }));
    std::reverse(entries.begin(), entries.end());
    return entries;
  }
  // More than one page: from the oldest on, keeping the last ones.
  std::deque<AuditRecord> last;
  for (uint64_t after = 0;;) {
    TERRACE_ASSIGN_OR_RETURN(std::vector<AuditRecord> page, audit_after(filter, after));
    if (page.empty()) break;
    if (page.back().sequence <= after) {
      return Error{.code = ErrorCode::corrupt,
                   .where = "Admin.audit",
                   .detail = "the daemon's audit log is not in ascending order"};
    }
    after = page.back().sequence;
    for (AuditRecord& entry : page) {
      last.push_back(std::move(entry));
      if (limit != 0 && last.size() > limit) last.pop_front();
    }
  }
  return std::vector<AuditRecord>(std::make_move_iterator(last.begin()), std::make_move_iterator(last.end()));
}

Result<std::vector<AuditRecord>> AdminClient::audit_after(const AuditFilter& filter, uint64_t after) {
  auto request = impl_->admin.auditRequest();
  write_query(filter, {.after = after}, request.initQuery());
  return impl_->call(kj::mv(request), "Admin.audit",
                     [](auto& reply) { return read_entries(reply.getEntries()); });
}

Result<std::vector<FindingStatus>> AdminClient::fsck() {
  return impl_->call(impl_->admin.fsckRequest(), "Admin.fsck", [](auto& reply) {
    std::vector<FindingStatus> findings;
    for (const auto finding : reply.getFindings()) {
      findings.push_back({.severity = text_from_wire(finding.getSeverity()),
                          .subject = text_from_wire(finding.getSubject()),
                          .what = text_from_wire(finding.getWhat()),
                          .repair = text_from_wire(finding.getRepair())});
    }
    return findings;
  });
}

Result<std::vector<HostRecord>> AdminClient::hosts() {
  return impl_->call(impl_->admin.hostsRequest(), "Admin.hosts", [](auto& reply) {
    std::vector<HostRecord> hosts;
    for (const auto host : reply.getHosts()) {
      HostRecord record;
      record.name = text_from_wire(host.getName());
      record.state = text_from_wire(host.getState());
      record.address = text_from_wire(host.getAddress());
      record.version = text_from_wire(host.getVersion());
      record.detail = text_from_wire(host.getDetail());
      record.last_contact_ns = host.getLastContactNs();
      record.ends_in_ns = host.getEndsInNs();
      record.leases = host.getLeases();
      record.leased_bytes = host.getLeasedBytes();
      for (const auto serial : host.getDevices()) record.devices.push_back(text_from_wire(serial));
      hosts.push_back(std::move(record));
    }
    return hosts;
  });
}

}  // namespace terrace::cli
