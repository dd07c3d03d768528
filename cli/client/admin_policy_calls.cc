// SPDX-License-Identifier: Apache-2.0
// The operator's calls about quotas, reservations, queues, the audit log, consistency and further hosts.
#include <fcntl.h>

#include <algorithm>
#include <deque>

#include "cli/client/admin_impl.h"
#include "core/base/limits.h"

namespace terrace::cli {
namespace {

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

}  // namespace

Result<std::vector<QuotaStatus>> AdminClient::quotas() {
  return impl_->call(impl_->admin.quotasRequest(),
                     [](auto& reply) { return kept<rpc::Quota>(reply.getQuotas()); });
}

Status AdminClient::set_quota(const QuotaStatus& quota) {
  auto request = impl_->admin.setQuotaRequest();
  request.setQuota(*quota);
  return impl_->call(kj::mv(request));
}

Result<ReservationStatus> AdminClient::reserve(const ReservationOptions& wanted) {
  auto request = impl_->admin.reserveRequest();
  request.setPool(wanted.pool);
  request.setTenant(wanted.tenant);
  request.setBytes(wanted.bytes);
  request.setTtlNs(wanted.ttl_ns);
  return impl_->call(kj::mv(request), [](auto& reply) { return ReservationStatus(reply.getReservation()); });
}

Result<std::vector<ReservationStatus>> AdminClient::reservations() {
  return impl_->call(impl_->admin.reservationsRequest(),
                     [](auto& reply) { return kept<rpc::Reservation>(reply.getReservations()); });
}

Status AdminClient::unreserve(uint64_t id) {
  auto request = impl_->admin.unreserveRequest();
  request.setReservation(id);
  return impl_->call(kj::mv(request));
}

Result<std::vector<WaitingStatus>> AdminClient::queue(const std::string& pool, const std::string& tenant) {
  auto request = impl_->admin.queueRequest();
  request.setPool(pool);
  request.setTenant(tenant);
  return impl_->call(kj::mv(request), [](auto& reply) { return kept<rpc::WaitingGrant>(reply.getWaiting()); });
}

Status AdminClient::cancel_waiting(LeaseId id, const std::string& reason) {
  auto request = with_lease(impl_->admin.cancelWaitingRequest(), id);
  request.setReason(reason);
  return impl_->call(kj::mv(request));
}

Result<std::vector<AuditRecord>> AdminClient::audit_newest(const AuditFilter& filter, uint64_t limit) {
  if (limit != 0 && limit <= limits::audit_rows_per_page_max) {
    auto request = impl_->admin.auditRequest();
    write_query(filter, {.limit = limit, .newest_first = true}, request.initQuery());
    TERRACE_ASSIGN_OR_RETURN(std::vector<AuditRecord> entries, impl_->call(kj::mv(request), [](auto& reply) {
      return kept<rpc::AuditEntry>(reply.getEntries());
    }));
    std::reverse(entries.begin(), entries.end());
    return entries;
  }
  // More than one page: from the oldest on, keeping the last ones.
  std::deque<AuditRecord> last;
  for (uint64_t after = 0;;) {
    TERRACE_ASSIGN_OR_RETURN(std::vector<AuditRecord> page, audit_after(filter, after));
    if (page.empty()) break;
    if (page.back()->getSequence() <= after) {
      return Error{.code = ErrorCode::corrupt,
                   .where = "Admin.audit",
                   .detail = "the daemon's audit log is not in ascending order"};
    }
    after = page.back()->getSequence();
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
  return impl_->call(kj::mv(request), [](auto& reply) { return kept<rpc::AuditEntry>(reply.getEntries()); });
}

Result<std::vector<FindingStatus>> AdminClient::fsck() {
  return impl_->call(impl_->admin.fsckRequest(),
                     [](auto& reply) { return kept<rpc::Finding>(reply.getFindings()); });
}

Result<ReceivedBackup> AdminClient::backup() {
  struct Answer {
    BackupStatus contents;
    rpc::BackupFile::Client file;
  };
  TERRACE_ASSIGN_OR_RETURN(Answer answer, impl_->call(impl_->admin.backupRequest(), [](auto& reply) {
    return Answer{BackupStatus(reply.getBackup()), reply.getFile()};
  }));
  UniqueFd file;
  auto descriptor = answer.file.getFd().wait(impl_->connection->io.waitScope);
  KJ_IF_MAYBE (number, descriptor) file.reset(::fcntl(*number, F_DUPFD_CLOEXEC, 0));
  if (!file.valid()) {
    return Error{.code = ErrorCode::unavailable,
                 .where = "Admin.backup",
                 .detail = "the daemon made a backup and handed no file over; too many open files?"};
  }
  return ReceivedBackup{std::move(answer.contents), std::move(file)};
}

Result<std::vector<HostRecord>> AdminClient::hosts() {
  return impl_->call(impl_->admin.hostsRequest(),
                     [](auto& reply) { return kept<rpc::HostInfo>(reply.getHosts()); });
}

Status AdminClient::remove_host(const std::string& name, bool revoke) {
  auto request = impl_->admin.removeHostRequest();
  request.setName(name);
  request.setRevoke(revoke);
  return impl_->call(kj::mv(request));
}

Status AdminClient::allow_host(const std::string& name) {
  auto request = impl_->admin.allowHostRequest();
  request.setName(name);
  return impl_->call(kj::mv(request));
}

}  // namespace terrace::cli
