// SPDX-License-Identifier: Apache-2.0
// The operator's interface: devices, pools, every tenant's leases, quotas and reservations, the audit log,
// checks. Whoever has this capability is an administrator or an operator: Gateway.openAdmin decides that once, and
// dispatchCall, before any method begins, what an operator may call (rights.h).
//
// Place     Gateway -> here -> commands and queries of the engine. One file a family: admin.cc has status and
//           the audit log, admin_backup.cc backups, admin_check.cc the checks, admin_doctor.cc its machine, admin_health.cc its health,
//           admin_history.cc its last hour, admin_runs.cc programs that report,
//           admin_inventory.cc hardware;
//           admin_preview.cc what an act would do, admin_grant.cc grants for others;
//           admin_devices.cc, admin_hosts.cc, admin_litmus.cc, admin_pools.cc, admin_leases.cc, admin_policy.cc and
//           admin_queue.cc the rest.
// Threads   The event loop's thread only.
#pragma once

#include <string>
#include <vector>

#include "core/schema/litmus.capnp.h"
#include "daemon/rpc/answers.h"

namespace terrace::daemon {

class AdminServer final : public rpc::LitmusAdmin::Server {
 public:
  explicit AdminServer(kj::Own<Connection> connection) : connection_(kj::mv(connection)) {}

  DispatchCallResult dispatchCall(uint64_t interface_id, uint16_t method_id,
                                  capnp::CallContext<capnp::AnyPointer, capnp::AnyPointer> context) override;

  kj::Promise<void> status(StatusContext context) override;
  kj::Promise<void> health(HealthContext context) override;
  kj::Promise<void> history(HistoryContext context) override;
  kj::Promise<void> runs(RunsContext context) override;
  kj::Promise<void> check(CheckContext context) override;
  kj::Promise<void> fsck(FsckContext context) override;
  kj::Promise<void> audit(AuditContext context) override;
  kj::Promise<void> events(EventsContext context) override;
  kj::Promise<void> backup(BackupContext context) override;
  kj::Promise<void> doctor(DoctorContext context) override;

  kj::Promise<void> inventory(InventoryContext context) override;
  kj::Promise<void> devices(DevicesContext context) override;
  kj::Promise<void> adopt(AdoptContext context) override;
  kj::Promise<void> drain(DrainContext context) override;
  kj::Promise<void> progress(ProgressContext context) override;
  kj::Promise<void> undrain(UndrainContext context) override;
  kj::Promise<void> failDevice(FailDeviceContext context) override;
  kj::Promise<void> removeDevice(RemoveDeviceContext context) override;
  kj::Promise<void> createRegion(CreateRegionContext context) override;
  kj::Promise<void> destroyRegion(DestroyRegionContext context) override;
  kj::Promise<void> online(OnlineContext context) override;
  kj::Promise<void> offline(OfflineContext context) override;

  kj::Promise<void> lookAt(LookAtContext context) override;
  kj::Promise<void> looked(LookedContext context) override;

  kj::Promise<void> hosts(HostsContext context) override;
  kj::Promise<void> removeHost(RemoveHostContext context) override;
  kj::Promise<void> allowHost(AllowHostContext context) override;

  kj::Promise<void> createPool(CreatePoolContext context) override;
  kj::Promise<void> setPoolCoherence(SetPoolCoherenceContext context) override;
  kj::Promise<void> setPoolTrust(SetPoolTrustContext context) override;
  kj::Promise<void> addDevice(AddDeviceContext context) override;
  kj::Promise<void> pools(PoolsContext context) override;
  kj::Promise<void> deletePool(DeletePoolContext context) override;
  kj::Promise<void> compact(CompactContext context) override;
  kj::Promise<void> endCompaction(EndCompactionContext context) override;

  kj::Promise<void> leases(LeasesContext context) override;
  kj::Promise<void> quarantined(QuarantinedContext context) override;
  kj::Promise<void> lease(LeaseContext context) override;
  kj::Promise<void> revoke(RevokeContext context) override;
  kj::Promise<void> renew(RenewContext context) override;
  kj::Promise<void> release(ReleaseContext context) override;
  kj::Promise<void> resize(ResizeContext context) override;
  kj::Promise<void> transfer(TransferContext context) override;

  kj::Promise<void> setQuota(SetQuotaContext context) override;
  kj::Promise<void> quotas(QuotasContext context) override;
  kj::Promise<void> reserve(ReserveContext context) override;
  kj::Promise<void> reservations(ReservationsContext context) override;
  kj::Promise<void> unreserve(UnreserveContext context) override;

  kj::Promise<void> queue(QueueContext context) override;
  kj::Promise<void> cancelWaiting(CancelWaitingContext context) override;

  kj::Promise<void> preview(PreviewContext context) override;
  kj::Promise<void> grant(GrantContext context) override;
  kj::Promise<void> whoAmI(WhoAmIContext context) override;

 private:
  void deny(const Error& error);

  Service& service() { return connection_->service; }
  Engine& engine() { return connection_->service.engine(); }
  const StateMachine& state() { return connection_->service.engine().state(); }
  uint64_t now_ns() { return engine().now_ns(); }

  template <typename Context, typename Answer>
  kj::Promise<void> query(Context context, Answer answer) {
    return answer_query(*connection_, context, std::move(answer));
  }
  template <typename Context, Asked C, typename Answer>
  kj::Promise<void> command(Context context, C request, Answer answer) {
    return answer_command(*connection_, context, std::move(request), std::move(answer));
  }
  // A command whose reply is the lease's row.
  template <typename Context, Asked C>
  kj::Promise<void> lease_command(Context context, C request) {
    return command(context, std::move(request), [this](Context& c, LeaseReply& reply) {
      write_lease(c.getResults().initInfo(), reply.lease, service(), false);
    });
  }
  // A command whose reply is the device's row.
  template <typename Context, Asked C>
  kj::Promise<void> device_command(Context context, C request) {
    return command(context, std::move(request), [this](Context& c, DeviceReply& reply) {
      const DeviceRow& device = reply.device;
      write_device(c.getResults().initDevice(), device, device_use(state(), device), "", engine());
    });
  }

  // A command whose reply is the pool's row.
  template <typename Context, Asked C>
  kj::Promise<void> pool_command(Context context, C request) {
    return command(context, std::move(request), [this](Context& c, PoolReply& reply) {
      write_pool(c.getResults().initPool(), reply.pool, service());
    });
  }

  // Errors    permission_denied   it is not for this peer to grant to that tenant
  //           invalid_argument    no tenant is named, and the peer has none of its own
  Result<Grant> read_grant(rpc::AdminGrant::Reader asked);
  void tell_problems(const char* code, size_t count, const std::string& first);
  void write_status(rpc::ServerInfo::Builder out);
  void write_events(EventsContext context, const EventFilter& filter);
  void write_health(rpc::HealthSummary::Builder out);
  void write_devices(DevicesContext& context, const std::vector<SeenDevice>& seen);
  static Error unknown_device(const std::string& serial);
  kj::Promise<void> refuse_unseen(AdoptContext context, const std::string& serial);
  kj::Promise<void> adopt_seen(AdoptContext context, const SeenDevice& seen);
  // Runs `change` of the hardware on a worker, looks at the devices again, and lets `answer` write the outcome.
  template <typename Context, typename Change, typename Answer>
  kj::Promise<void> change_hardware(Context context, Change change, Answer answer);
  // Lets `request` in once litmus runs of `serials` have let them into a coherent pool.
  template <typename Context, Asked C>
  kj::Promise<void> command_of_coherent(Context context, std::vector<std::string> serials,
                                        const std::string& pool, C request);

  kj::Own<Connection> connection_;
};

}  // namespace terrace::daemon
