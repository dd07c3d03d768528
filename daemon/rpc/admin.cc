// The operator's interface: devices, pools, every tenant's leases.
#include <unistd.h>

#include <algorithm>
#include <map>

#include "core/base/failpoint.h"
#include "core/base/limits.h"
#include "daemon/inventory/inventory.h"
#include "daemon/rpc/connection.h"

namespace terrace::daemon {
namespace {

class AdminServer final : public rpc::Admin::Server {
 public:
  explicit AdminServer(kj::Own<Connection> connection) : connection_(kj::mv(connection)) {}

  kj::Promise<void> status(StatusContext context) override {
    return query(context, [this](StatusContext& c) {
      auto server = c.getResults().initServer();
      const ServiceOptions& options = service().options();
      const EngineCounters& counters = engine().counters();
      server.setVersion(TERRACE_VERSION);
      server.setPid(static_cast<uint32_t>(::getpid()));
      server.setUptimeNs(engine().now_ns() - service().started_ns());
      server.setBootId(read_boot_id());
      server.setRuntimeDirectory(options.runtime_directory);
      server.setStateFile(options.state_file);
      server.setObjectDirectory(options.object_directory);
      server.setHugePages(engine().backend().describe_memory());
      server.setStoreCommits(counters.commits);
      server.setCommandsApplied(counters.commands);
      server.setConnections(service().connections());
      server.setFailpoints(failpoints_enabled());
      std::string recovered;
      for (const std::string& finding : engine().findings()) recovered += finding + "\n";
      server.setRecovered(recovered);
      write_pools(c.getResults().initPools(static_cast<uint32_t>(state().pools().size())));
      c.getResults().setLeases(static_cast<uint32_t>(state().leases().size()));
    });
  }

  kj::Promise<void> devices(DevicesContext context) override {
    return query(context, [this](DevicesContext& c) { write_devices(c); });
  }

  kj::Promise<void> adopt(AdoptContext context) override {
    const std::string serial = read_text(context.getParams().getSerial());
    for (const SeenDevice& seen : engine().backend().discover()) {
      if (seen.serial != serial) continue;
      return command(context, AdoptDevice{seen.serial, seen.backend, seen.capacity_bytes, seen.granule_bytes},
                     [this](AdoptContext& c, Reply& reply) {
                       write_device(c.getResults().initDevice(), std::get<DeviceReply>(reply).device, "");
                     });
    }
    write_error(context.getResults().initError(), unknown_device(serial));
    return kj::READY_NOW;
  }

  kj::Promise<void> createPool(CreatePoolContext context) override {
    CreatePool create;
    create.name = read_text(context.getParams().getName());
    for (const auto serial : context.getParams().getDevices())
      create.device_serials.push_back(read_text(serial));
    return command(context, std::move(create), [this](CreatePoolContext& c, Reply& reply) {
      write_pool(c.getResults().initPool(), std::get<PoolReply>(reply).pool, state());
    });
  }

  kj::Promise<void> pools(PoolsContext context) override {
    return query(context, [this](PoolsContext& c) {
      write_pools(c.getResults().initPools(static_cast<uint32_t>(state().pools().size())));
    });
  }

  kj::Promise<void> deletePool(DeletePoolContext context) override {
    return command(context, DeletePool{read_text(context.getParams().getName())},
                   [](DeletePoolContext&, Reply&) {});
  }

  kj::Promise<void> leases(LeasesContext context) override {
    return query(context, [this](LeasesContext& c) {
      const auto params = c.getParams();
      const std::string pool_name = read_text(params.getPool());
      const std::string tenant = read_text(params.getTenant());
      const PoolRow* pool = pool_name.empty() ? nullptr : state().find_pool(pool_name);
      if (!pool_name.empty() && pool == nullptr) {
        write_error(c.getResults().initError(), Error{.code = ErrorCode::not_found,
                                                      .where = "leases",
                                                      .detail = "there is no pool '" + pool_name + "'"});
        return;
      }
      const uint32_t most = std::min(params.getLimit() == 0 ? limits::leases_per_page_max : params.getLimit(),
                                     limits::leases_per_page_max);
      std::vector<const LeaseRow*> found;
      const auto& all = state().leases();
      for (auto at = all.upper_bound(LeaseId{params.getAfter()}); at != all.end() && found.size() < most;
           ++at) {
        const LeaseRow& lease = at->second;
        if (lease.phase == LeasePhase::pending || (pool != nullptr && lease.pool != pool->id)) continue;
        if (!tenant.empty() && lease.tenant != tenant) continue;
        found.push_back(&lease);
      }
      auto out = c.getResults().initLeases(static_cast<uint32_t>(found.size()));
      for (uint32_t i = 0; i < found.size(); ++i) write_lease(out[i], *found[i], service(), false);
    });
  }

  kj::Promise<void> lease(LeaseContext context) override {
    return query(context, [this](LeaseContext& c) {
      const uint64_t id = c.getParams().getLease();
      const std::string label = read_text(c.getParams().getLabel());
      const LeaseRow* found = id != 0 ? state().find_lease(LeaseId{id}) : find_by_label(label);
      if (found == nullptr || found->phase == LeasePhase::pending) {
        write_error(c.getResults().initError(),
                    Error{.code = ErrorCode::not_found,
                          .where = "lease",
                          .detail = id != 0 ? "there is no lease " + std::to_string(id)
                                            : "there is no lease labelled '" + label + "'"});
        return;
      }
      write_lease(c.getResults().initInfo(), *found, service(), true);
    });
  }

  kj::Promise<void> revoke(RevokeContext context) override {
    const auto params = context.getParams();
    return command(context,
                   Revoke{LeaseId{params.getLease()}, read_text(params.getReason()), params.getGraceNs(),
                          engine().now_ns()},
                   [this](RevokeContext& c, Reply& reply) {
                     write_lease(c.getResults().initInfo(), std::get<LeaseReply>(reply).lease, service(),
                                 false);
                   });
  }

  kj::Promise<void> renew(RenewContext context) override {
    const auto params = context.getParams();
    return command(context, Renew{LeaseId{params.getLease()}, "", params.getTtlNs(), engine().now_ns()},
                   [this](RenewContext& c, Reply& reply) {
                     write_lease(c.getResults().initInfo(), std::get<LeaseReply>(reply).lease, service(),
                                 false);
                   });
  }

  kj::Promise<void> release(ReleaseContext context) override {
    return command(context, Release{LeaseId{context.getParams().getLease()}, "", engine().now_ns()},
                   [](ReleaseContext&, Reply&) {});
  }

  kj::Promise<void> check(CheckContext context) override {
    return query(context, [this](CheckContext& c) {
      std::vector<std::string> problems = state().check_all();
      check_objects(problems);
      auto out = c.getResults().initProblems(static_cast<uint32_t>(problems.size()));
      for (uint32_t i = 0; i < problems.size(); ++i) out.set(i, problems[i]);
    });
  }

 private:
  Service& service() { return connection_->service; }
  Engine& engine() { return connection_->service.engine(); }
  const StateMachine& state() { return connection_->service.engine().state(); }

  // Takes the answer now and sends it once all that it shows is durable.
  template <typename Context, typename Answer>
  kj::Promise<void> query(Context context, Answer answer) {
    KJ_IF_MAYBE (slot, admit(*connection_, context)) {
      answer(context);
      return engine()
          .settled()
          .then([context](Status settled) mutable {
            if (!settled.ok()) write_error(context.getResults().initError(), settled.error());
          })
          .attach(kj::mv(*slot));
    }
    return kj::READY_NOW;
  }

  template <typename Context, typename Answer>
  kj::Promise<void> command(Context context, Command request, Answer answer) {
    KJ_IF_MAYBE (slot, admit(*connection_, context)) {
      return engine()
          .submit(std::move(request))
          .then([context, answer](Result<Reply> reply) mutable {
            if (!reply.ok()) {
              write_error(context.getResults().initError(), reply.error());
            } else {
              answer(context, *reply);
            }
          })
          .attach(kj::mv(*slot));
    }
    return kj::READY_NOW;
  }

  // Labels are unique within a tenant; among all tenants the first one is meant.
  const LeaseRow* find_by_label(const std::string& label) {
    if (label.empty()) return nullptr;
    for (const auto& [id, row] : state().leases())
      if (row.label == label && row.phase <= LeasePhase::revoking) return &row;
    for (const auto& [id, row] : state().leases())
      if (row.label == label) return &row;
    return nullptr;
  }

  Error unknown_device(const std::string& serial) {
    for (const auto& hardware : inventory::describe_hardware(inventory::take_inventory())) {
      if (hardware.serial != serial) continue;
      return Error{.code = ErrorCode::unsupported,
                   .where = "adopt",
                   .detail = "device " + serial + " is seen, but this daemon has no backend for it (" +
                             hardware.detail + ")"};
    }
    return Error{.code = ErrorCode::not_found,
                 .where = "adopt",
                 .detail = "there is no device '" + serial + "'; `terrace device list` shows those seen"};
  }

  void write_pools(capnp::List<rpc::PoolInfo>::Builder out) {
    uint32_t i = 0;
    for (const auto& [id, pool] : state().pools()) write_pool(out[i++], pool, state());
  }

  void write_device(rpc::DeviceInfo::Builder out, const DeviceRow& device, const std::string& detail) {
    out.setSerial(device.serial);
    out.setBackend(device.backend);
    out.setCapacityBytes(device.capacity_bytes);
    out.setGranuleBytes(device.granule_bytes);
    out.setAdopted(true);
    const PoolRow* pool = state().find_pool(device.pool);
    out.setPool(pool == nullptr ? "" : pool->name);
    out.setFreeBytes(state().device_free_bytes(device.id));
    out.setDetail(detail);
    out.setPresent(true);
  }

  void write_devices(DevicesContext& c) {
    std::vector<SeenDevice> seen = engine().backend().discover();
    for (const auto& hardware : inventory::describe_hardware(inventory::take_inventory()))
      seen.push_back({hardware.serial, hardware.backend, hardware.capacity_bytes, hardware.granule_bytes,
                      hardware.detail});
    std::vector<const DeviceRow*> unseen;
    for (const auto& row : state().devices()) {
      const DeviceRow& device = row.second;
      const bool present = std::any_of(seen.begin(), seen.end(),
                                       [&](const SeenDevice& other) { return other.serial == device.serial; });
      if (!present) unseen.push_back(&device);
    }
    auto out = c.getResults().initDevices(static_cast<uint32_t>(seen.size() + unseen.size()));
    uint32_t i = 0;
    for (const SeenDevice& device : seen) {
      auto entry = out[i++];
      if (const DeviceRow* row = state().find_device(device.serial)) {
        write_device(entry, *row, device.detail);
        continue;
      }
      entry.setSerial(device.serial);
      entry.setBackend(device.backend);
      entry.setCapacityBytes(device.capacity_bytes);
      entry.setGranuleBytes(device.granule_bytes);
      entry.setDetail(device.detail);
      entry.setPresent(true);
    }
    for (const DeviceRow* device : unseen) {
      auto entry = out[i++];
      write_device(entry, *device, "adopted once, not seen now");
      entry.setPresent(false);
    }
  }

  // Objects against leases, as they are now: work under way may leave an object for a moment.
  void check_objects(std::vector<std::string>& problems) {
    const auto objects = engine().backend().list();
    if (!objects.ok()) {
      problems.push_back("the objects cannot be listed: " + objects.error().to_string());
      return;
    }
    std::map<std::string, uint64_t> sizes;
    for (const ObservedObject& object : *objects) sizes[object.name] = object.bytes;
    for (const auto& [id, lease] : state().leases()) {
      const auto at = sizes.find(lease.object);
      const bool usable = lease.phase == LeasePhase::active || lease.phase == LeasePhase::revoking;
      if (usable && at == sizes.end()) {
        problems.push_back("lease " + std::to_string(id.value) + " has no memory object");
      } else if (usable && at->second != lease.bytes) {
        problems.push_back("the object of lease " + std::to_string(id.value) + " has " +
                           std::to_string(at->second) + " bytes instead of " + std::to_string(lease.bytes));
      }
      sizes.erase(lease.object);
    }
    for (const auto& [name, bytes] : sizes) problems.push_back("object " + name + " belongs to no lease");
  }

  kj::Own<Connection> connection_;
};

}  // namespace

rpc::Admin::Client make_admin(kj::Own<Connection> connection) {
  return kj::heap<AdminServer>(kj::mv(connection));
}

}  // namespace terrace::daemon
