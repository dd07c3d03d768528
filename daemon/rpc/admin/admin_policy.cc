// SPDX-License-Identifier: Apache-2.0
// The operator's interface: quotas and reservations.
#include "daemon/rpc/admin/admin.h"

namespace terrace::daemon {
namespace {

void write_reservation(rpc::Reservation::Builder out, const ReservationRow& reservation, Service& service) {
  const StateMachine& state = service.engine().state();
  const uint64_t now_ns = service.engine().now_ns();
  const PoolRow* pool = state.find_pool(reservation.pool);
  out.setId(reservation.id.value);
  out.setPool(pool == nullptr ? "" : pool->name);
  out.setTenant(reservation.tenant);
  out.setBytes(reservation.bytes);
  out.setTtlNs(reservation.ttl_ns);
  out.setExpiresInNs(reservation.expiry_ns > now_ns ? reservation.expiry_ns - now_ns : 0);
  out.setUsedBytes(state.tenant_bytes_in(reservation.pool, reservation.tenant));
}

}  // namespace

kj::Promise<void> AdminServer::setQuota(SetQuotaContext context) {
  const auto quota = context.getParams().getQuota();
  return command(
      context,
      SetQuota{QuotaRow{read_text(quota.getTenant()), quota.getBytesMax(), quota.getLeasesMax()}, now_ns()},
      [](SetQuotaContext&, Done&) {});
}

// At most limits::quotas_max of some hundred bytes: one message.
kj::Promise<void> AdminServer::quotas(QuotasContext context) {
  return answer_page(*connection_, context, [this](QuotasContext& c) {
    const auto& rows = state().quotas();
    auto out = c.getResults().initQuotas(static_cast<uint32_t>(rows.size()));
    uint32_t i = 0;
    for (const auto& [tenant, row] : rows) {
      auto quota = out[i++];
      quota.setTenant(tenant);
      quota.setBytesMax(row.bytes_max);
      quota.setLeasesMax(row.leases_max);
      if (tenant == "*") continue;
      const TenantUse use = state().tenant_use(tenant);
      quota.setBytes(use.bytes);
      quota.setLeases(use.leases);
    }
  });
}

kj::Promise<void> AdminServer::reserve(ReserveContext context) {
  const auto params = context.getParams();
  const CreateReservation request{read_text(params.getPool()), read_text(params.getTenant()), params.getBytes(),
                                  params.getTtlNs(), now_ns()};
  return command(context, request, [this](ReserveContext& c, ReservationReply& reply) {
    write_reservation(c.getResults().initReservation(), reply.reservation, service());
  });
}

kj::Promise<void> AdminServer::reservations(ReservationsContext context) {
  return query(context, [this](ReservationsContext& c) {
    const auto& rows = state().reservations();
    auto out = c.getResults().initReservations(static_cast<uint32_t>(rows.size()));
    uint32_t i = 0;
    for (const auto& [id, row] : rows) write_reservation(out[i++], row, service());
  });
}

kj::Promise<void> AdminServer::unreserve(UnreserveContext context) {
  return command(context, RemoveReservation{ReservationId{context.getParams().getReservation()}, now_ns()},
                 [](UnreserveContext&, Done&) {});
}

}  // namespace terrace::daemon
